"""`lakequeue.aio`: the client for asyncio. See `lakequeue.client.aio`."""

from .client.aio import Admin, Connection, Consumer, Producer, connect

__all__ = ["Admin", "Connection", "Consumer", "Producer", "connect"]
