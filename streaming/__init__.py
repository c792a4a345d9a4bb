"""The Spark job that runs an engine on one home.

engine, application   start and stop everything: Spark, the brokers' and tables' queries
loop/                 in a Python worker: reads Kafka, takes steps, makes snapshots
home/                 the folder with checkpoints and state; repairs after a crash or a move
brokers/              adds and removes brokers of a home, and moves queues
tables/               upkeep and repair of the Delta tables
bridges/              copies messages to other homes
watch/                restarts queries that end or hang; reports to the operator
spark/, kafka/        the Spark session; the embedded Kafka
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Engine
    from .kafka.embedded_kafka import EmbeddedKafka
    from .tables.tables_session import open_tables

_PUBLIC = {
    "EmbeddedKafka": ".kafka.embedded_kafka",
    "Engine": ".engine",
    "open_tables": ".tables.tables_session",
}
__all__ = ["EmbeddedKafka", "Engine", "open_tables"]


def __getattr__(name: str) -> Any:
    """Loads public names on first use, so that importing a part needs no Spark."""
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name], __package__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
