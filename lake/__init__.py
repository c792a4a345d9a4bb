"""Questions to the lake: what the Delta tables of a home say, in SQL and as the life of a message.

The tables are read only, as they stand, whether an engine runs or not (R1).
"""

from .opening import HISTORY, TABLES, NoLake, open_lake, read_columns, tables_of
from .story import trace
from .views import create_views

__all__ = [
    "HISTORY",
    "TABLES",
    "NoLake",
    "create_views",
    "open_lake",
    "read_columns",
    "tables_of",
    "trace",
]
