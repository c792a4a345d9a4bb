"""The engine in the process, and the client's way to it: ``memory://`` (see `connection`)."""

from .connection import MemoryConnection, open_memory
from .engine import MemoryEngine
from .runner import Inline
from .transport import MemoryTransport

__all__ = ["Inline", "MemoryConnection", "MemoryEngine", "MemoryTransport", "open_memory"]
