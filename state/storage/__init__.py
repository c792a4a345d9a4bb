"""Storage: the structures in which a broker's state lies, in bytes and integers only.

They know no rules. Each reads and writes small pages of a `Store`, keeps its part of the owner's
header bounded, takes its sizes from `Limits`, and shows what is in it with `overview()`.
"""

from .blocks import Content
from .calendar import Calendar
from .columns import NEVER, Array, ColumnPage, by_page, holds_any, uniform, write_rows
from .directory import NO_ID, Directory
from .files import SpoolHeader
from .id_ranges import IdRange, IdRanges, IdRangesTop
from .index_pages import join_key, split_key
from .message_pages import PAST, MessagePage
from .overlay import Overlay, StoreFailed
from .ready_index import ReadyIndex
from .spool import Spool
from .store import CountingStore, DictStore, Store, ValuePages

__all__ = [
    "NEVER",
    "NO_ID",
    "PAST",
    "Array",
    "Calendar",
    "ColumnPage",
    "Content",
    "CountingStore",
    "DictStore",
    "Directory",
    "IdRange",
    "IdRanges",
    "IdRangesTop",
    "MessagePage",
    "Overlay",
    "ReadyIndex",
    "Spool",
    "SpoolHeader",
    "Store",
    "StoreFailed",
    "ValuePages",
    "by_page",
    "holds_any",
    "join_key",
    "split_key",
    "uniform",
    "write_rows",
]
