"""A broker as the driver sees it: its number, its query, and what became of that.

Each broker has a query of its own, with its own checkpoint, its own task and its own loop. So each
is started again by itself, and one that cannot be leaves the others alone.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

QUERY = "lakequeue"  # of a broker that is alone
STARTING, RUNNING, RESTARTING, FAILED = "starting", "running", "restarting", "failed"


@dataclass(eq=False)
class BrokerQuery:
    """One broker of an engine.

    group: of brokers, that it is in; none: empty; run: the loop's, as it is named to end it; ended:
    set when the loop has ended its last batch; failure: why it is not started again; hangs: why it
    is, though its query has not failed; resting: the home comes to rest, see `brokers_at_rest`.
    """

    name: str
    number: int
    query: StreamingQuery | None = None
    state: str = STARTING
    run: str = ""
    ended: threading.Event = field(default_factory=threading.Event)
    failure: str = ""
    hangs: str = ""
    group: str = ""
    resting: bool = False

    @property
    def is_active(self) -> bool:
        """Whether its query runs."""
        return self.query is not None and bool(self.query.isActive)

    def begin(self) -> None:
        """Before its query is started: a new run."""
        self.run = uuid.uuid4().hex
        self.ended.clear()


def first_of(brokers: dict[str, BrokerQuery]) -> BrokerQuery:
    """The one with the lowest number; it reads on for those that are no more."""
    return min(brokers.values(), key=lambda broker: broker.number)


def query_name(broker: str, alone: bool) -> str:
    """The name of a broker's query; Spark and its page show it."""
    return QUERY if alone else f"{QUERY}:{broker}"


def broker_of(query: str, brokers: dict[str, BrokerQuery]) -> str | None:
    """Whose query has this name; None: nobody's."""
    if query == QUERY:
        return next(iter(brokers), None)
    prefix, _, name = query.partition(":")
    return name if prefix == QUERY and name in brokers else None
