"""How far the Delta tables are, told to the brokers (`durability: delta`).

Spark says of each batch of the tables' query where it ended; it says so behind the batch, so behind
Delta's commit. What moved is told to each broker, of its own partitions: one short command for a
commit that had messages, and none while nothing is published. What is not heard, since somebody was
killed in between, is told with the next commit; a producer that waits sends again, and makes one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from ..protocol import LakequeueError, topics
from ..protocol.commands import Tables, encode_command
from .broker_query import BrokerQuery
from .queries import TABLES_QUERY

log = logging.getLogger("lakequeue.tables")


class TablesMarks:
    """Of one engine. brokers: by name; tell: gives a broker a command."""

    def __init__(
        self, brokers: Mapping[str, BrokerQuery], tell: Callable[[BrokerQuery, bytes], None]
    ) -> None:
        self._brokers, self._tell = brokers, tell
        self._told: dict[str, dict[str, int]] = {}

    def begin(self, broker: BrokerQuery, written: bool) -> None:
        """A broker begins: say whether tables are written, and to what they are known to be."""
        self._told.pop(broker.name, None)
        self._tell(broker, encode_command(Tables(written=written)))

    def batch(self, progress: dict[str, Any]) -> None:
        """A batch of any query is done. progress: Spark's, as in its JSON."""
        if progress.get("name") != TABLES_QUERY:
            return
        ends = ends_of(progress)
        for broker in list(self._brokers.values()):
            told = self._told.setdefault(broker.name, {})
            more = {
                f"{topic}/{partition}": end for (topic, partition), end in ends.items()
                if self._is_of(broker, partition) and told.get(f"{topic}/{partition}") != end
            }  # fmt: skip
            if not more:
                continue
            try:
                self._tell(broker, encode_command(Tables(up_to=more)))
                told |= more
            except LakequeueError as error:  # Kafka is away; the next commit says it
                log.warning("%s does not hear how far the tables are: %s", broker.name, error)

    def _is_of(self, broker: BrokerQuery, partition: int) -> bool:
        return len(self._brokers) == 1 or partition in topics.publish_partitions(broker.number)


def ends_of(progress: dict[str, Any]) -> dict[tuple[str, int], int]:
    """To where a batch has read each partition of the publish topics: not this offset any more."""
    found: dict[tuple[str, int], int] = {}
    for source in progress.get("sources") or ():
        ends = source.get("endOffset")
        for topic, partitions in ends.items() if isinstance(ends, dict) else ():
            own = topics.split(topic)
            if own and own[1] == topics.PUBLISH and isinstance(partitions, dict):
                found |= {(topic, int(p)): end for p, end in partitions.items() if end}
    return found
