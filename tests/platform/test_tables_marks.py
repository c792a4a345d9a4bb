"""What the brokers hear of how far the tables are (`durability: delta`)."""

from __future__ import annotations

from typing import Any

import msgspec
from lakequeue.protocol import NotConnected
from lakequeue.streaming.broker_query import BrokerQuery
from lakequeue.streaming.spark.queries import HISTORY_QUERY, TABLES_QUERY
from lakequeue.streaming.tables.tables_watch import TablesMarks


class Hearing:
    """Brokers, and what they are told."""

    def __init__(self, *numbers: int) -> None:
        self.away = False
        self.heard: list[tuple[int, dict[str, Any]]] = []
        brokers = {f"b-{n}": BrokerQuery(f"b-{n}", n) for n in numbers}
        self.brokers = list(brokers.values())
        self.marks = TablesMarks(brokers, self._tell)

    def _tell(self, broker: BrokerQuery, value: bytes) -> None:
        if self.away:
            raise NotConnected("no Kafka broker answers")
        self.heard.append((broker.number, msgspec.json.decode(value)))

    def batch(self, ends: dict[str, dict[str, int]], name: str = TABLES_QUERY) -> Any:
        """What is heard of a batch that ended there: by broker."""
        self.heard.clear()
        self.marks.batch({"name": name, "sources": [{"endOffset": ends}, {"endOffset": None}]})
        return {number: said["up_to"] for number, said in self.heard}


def test_what_moved_is_told_once() -> None:
    hearing = Hearing(0)
    ends = {"default.publish": {"0": 7, "1": 0, "9": 2}, "a.journal": {"0": 99}, "x": {"0": 1}}
    told = {"default.publish/0": 7, "default.publish/9": 2}
    assert hearing.batch(ends) == {0: told}
    assert hearing.batch(ends) == {}, "nothing was published: nobody is woken"
    ends["default.publish"]["0"] = 8
    assert hearing.batch(ends) == {0: {"default.publish/0": 8}}
    assert hearing.batch(ends, HISTORY_QUERY) == {}


def test_each_broker_hears_of_its_partitions() -> None:
    ends = {"default.publish": {"0": 1, "8": 2, "15": 3}}
    assert Hearing(0, 1).batch(ends) == {
        0: {"default.publish/0": 1}, 1: {"default.publish/8": 2, "default.publish/15": 3},
    }  # fmt: skip


def test_what_was_not_heard_is_told_again() -> None:
    hearing, ends = Hearing(0), {"default.publish": {"0": 7}}
    hearing.away = True
    assert hearing.batch(ends) == {}
    hearing.away = False
    assert hearing.batch(ends) == {0: {"default.publish/0": 7}}
    hearing.marks.begin(hearing.brokers[0], True)  # it begins anew
    (_, said) = hearing.heard[-1]
    assert (said["command"], said["written"]) == ("tables", True)
    assert hearing.batch(ends) == {0: {"default.publish/0": 7}}
