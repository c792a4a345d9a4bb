"""The job: session, stateful processor, state store adapter, listener, supervisor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Engine
    from .kafka_broker import EmbeddedKafka
    from .tables import open_tables

__all__ = ["EmbeddedKafka", "Engine", "open_tables"]


def __getattr__(name: str) -> Any:
    """The public faces, loaded when they are asked for: importing a part needs no Spark."""
    if name == "Engine":
        from .engine import Engine

        return Engine
    if name == "EmbeddedKafka":
        from .kafka_broker import EmbeddedKafka

        return EmbeddedKafka
    if name == "open_tables":
        from .tables import open_tables

        return open_tables
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
