"""`lakequeue.aio`: the client for asyncio. See `lakequeue.client.awaited`."""

from .client.awaited import Admin, Connection, Consumer, Producer, connect

__all__ = ["Admin", "Connection", "Consumer", "Producer", "connect"]
