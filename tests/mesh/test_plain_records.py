"""Records of plain Kafka topics, with brokers that are clients of their neighbours (M5, S5, Q2).

The engine in memory gives such a record to every broker, as each may capture its topic.
"""

from __future__ import annotations

import pytest
from lakequeue.memory import MemoryConnection
from lakequeue.protocol import LakequeueError
from lakequeue.protocol import commands as c
from rules.mesh import Mesh, local, numbers, shared


class Home(Mesh):
    def record(self, topic: str, n: int, partition: int = 0) -> None:
        self.engine.publish(topic, b'{"n": %d}' % n, None, [], None, partition)

    def found(self, queue: str) -> list[int]:
        return sorted(numbers(self.admin.browse(queue, limit=1_000)))


def test_M5_S5_a_captured_record_reaches_all_matching_queues() -> None:
    """One captures the topic at b, one at c; others have subscribed to it, at each broker."""
    listens = {"underlying_topic": "elsewhere", "subscriptions": ["t/>"]}
    home = Home(
        local("first", "b", underlying_topic="t/1"), local("second", "c", underlying_topic="t/1"),
        *(local(f"at-{name}", name, **listens | {"underlying_topic": name}) for name in "abc"),
        shared("all", **listens),
        local("odd", "a", filter="/n % 2 = 1", **listens | {"underlying_topic": "odd"}),
    )  # fmt: skip
    for n in range(6):
        home.record("t/1", n, partition=n)
    home.record("t/2", 7)  # nobody captures it
    every = list(range(6))
    for queue in ("first", "second", "at-a", "at-b", "at-c", "all"):
        assert home.found(queue) == every, queue
    assert home.found("odd") == [1, 3, 5]
    usage = home.admin.usage()
    assert usage["vpn"]["spool_bytes"] > 0


def test_M5_each_partition_of_a_distributed_queue_has_one_reader() -> None:
    home = Home(
        shared("all", underlying_topic="t"),
        local("listens", "c", underlying_topic="x", subscriptions=["t"]),
    )  # fmt: skip
    for n in range(9):
        home.record("t", n, partition=n)
    parts = home.admin.describe("all")["brokers"]
    assert [parts[name]["depth"] for name in "abc"] == [3, 3, 3]
    assert home.found("all") == home.found("listens") == list(range(9))


def test_M5_H4_a_new_initial_owner_changes_no_reader() -> None:
    """Each broker has read the topic up to another record. The records still start with the
    owner."""
    home = Home(shared("q", type="GroupLocalQueue", initial_owner="b", underlying_topic="t"))

    def readers() -> list[str]:
        return [
            name for partition in range(6) for name in home.brokers
            if home.state(name).mesh.reads(home.state(name).find("default", "q"), partition)
        ]  # fmt: skip

    for n, owner in enumerate("bc"):
        home.admin.define({"name": "q", "initial_owner": owner})
        assert readers() == list("abcabc")
        for partition in range(6):
            home.record("t", 10 * n + partition, partition)
    home.advance("1s")
    assert home.depths("q") == [0, 6, 6]
    assert home.found("q") == [*range(6), *range(10, 16)]


def test_M5_a_capturing_queue_moves_at_rest() -> None:
    home = Home(local("q", "a", underlying_topic="t"))
    home.admin.move_queue("q", "b")
    home.record("t", 1)
    assert home.found("q") == [1]
    with pytest.raises(LakequeueError, match=r"moves only while the home rests .*--pause"):
        home.admin.move_queue("q", "c")
    home.record("t", 2)
    assert home.found("q") == [1, 2]


def test_M5_a_queue_whose_topic_exists_moves_at_rest() -> None:
    """A record that comes while it leaves would be read twice, or by nobody."""
    home = Home(local("q", "a", underlying_topic="t"))
    exist = c.encode_command(c.ExistingTopics(topics=["t"]))
    home.engine.instruct("default", exist, "a")
    with pytest.raises(LakequeueError, match=r"moves only while the home rests .*--pause"):
        home.admin.move_queue("q", "b")


def test_M5_S7_a_subscription_gets_plain_records_while_a_queue_captures_them() -> None:
    """Each at another broker. An ended one gets nothing more and keeps its messages."""
    home = Home(
        local("takes", "a", underlying_topic="t"),
        local("too", "c", underlying_topic="t.*", default_publish_target="t"),
        local("plain", "b", underlying_topic="x", subscriptions=["t", "u"]),
        local("wild", "c", underlying_topic="y", subscriptions=["*"]),
    )
    home.record("t", 0)
    home.admin.delete("takes")
    home.record("t", 1)  # the other one captures it still
    home.admin.delete("too")
    home.record("t", 2)
    home.admin.define(local("again", "c", underlying_topic="t"))
    home.record("t", 3)
    home.admin.unsubscribe_topic("wild", "*")
    home.record("t", 4)
    home.admin.define(local("again", "c", underlying_topic="u"))  # Q9
    home.record("t", 5)
    home.record("u", 6)
    assert home.found("plain") == [0, 1, 3, 4, 6]
    assert home.found("wild") == [0, 1, 3]
    assert home.found("again") == [3, 4, 6]


def test_M5_Q2_records_captured_by_another_vpn_are_not_taken() -> None:
    """Whichever broker has that VPN's queue."""
    listens = [local(f"at-{n}", n, underlying_topic=n, subscriptions=["t", "*"]) for n in "abc"]
    for broker in "abc":
        home = Home(local("takes", broker, underlying_topic="t") | {"vpn": "other"}, *listens)
        home.record("t", 0)
        assert [home.found(f"at-{n}") for n in "abc"] == [[]] * 3
        other = MemoryConnection(home.engine, "other", "app", "a").admin()
        assert len(other.browse("takes")) == 1
