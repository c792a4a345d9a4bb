"""`lakequeue.aio`: the client for asyncio. See `lakequeue.client.awaited`."""

from .client.awaited import AsyncAdmin as Admin
from .client.awaited import AsyncConnection as Connection
from .client.awaited import AsyncConsumer as Consumer
from .client.awaited import AsyncProducer as Producer
from .client.awaited import connect

__all__ = ["Admin", "Connection", "Consumer", "Producer", "connect"]
