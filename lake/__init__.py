"""Reads the Delta tables of a home: SQL, the life of a message, past states, rebuilds.

It needs no engine. Only a rebuild writes to tables (R1).
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
