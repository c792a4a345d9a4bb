"""The engine inside this process, and the client's connection to it: ``memory://`` (see
`registry`)."""

from .in_process import MemoryEngine
from .inline import Inline
from .loopback import MemoryTransport
from .registry import MemoryConnection, open_memory

__all__ = ["Inline", "MemoryConnection", "MemoryEngine", "MemoryTransport", "open_memory"]
