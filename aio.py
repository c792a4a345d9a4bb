"""`lakequeue.aio`: the client for asyncio. See `lakequeue.client.asyncio_client`."""

from .client.asyncio_client import AsyncAdmin as Admin
from .client.asyncio_client import AsyncConnection as Connection
from .client.asyncio_client import AsyncConsumer as Consumer
from .client.asyncio_client import AsyncProducer as Producer
from .client.asyncio_client import connect

__all__ = ["Admin", "Connection", "Consumer", "Producer", "connect"]
