"""The engine in the process, and the client's way to it: ``memory://`` (see `registry`)."""

from .in_process import MemoryEngine
from .inline import Inline
from .loopback import MemoryTransport
from .registry import MemoryConnection, open_memory

__all__ = ["Inline", "MemoryConnection", "MemoryEngine", "MemoryTransport", "open_memory"]
