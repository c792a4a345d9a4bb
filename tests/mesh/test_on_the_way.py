"""What is said of messages that are on their way to another broker (R6, L8, L13, M2): it is carried
out by whoever has them next."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from lakequeue.definitions import parse_configuration
from lakequeue.protocol import commands as c
from lakequeue.protocol.errors import Timeout
from rules.harness import drain
from rules.mortal import MortalEngine

QUEUES: list[dict[str, Any]] = [
    {"name": "q", "message_type": "json", "max_per_subscription_backlog": 100},
    {"name": "other", "message_type": "json", "max_per_subscription_backlog": 100},
    {"name": "far", "message_type": "json", "type": "LocalQueue", "broker": "b",
     "max_spool_messages": 1},
]  # fmt: skip


class OnTheWay:
    """Messages of `q` are on their way from a to b, which does not hear it yet."""

    def __init__(self, messages: int = 3) -> None:
        config = {"brokers": ["a", "b"], "queues": QUEUES}
        self.engine = MortalEngine(parse_configuration(config))
        self.engine.checking = True
        self.at = {name: self.engine.connect(name, f"app-{name}") for name in "ab"}
        self.admin = self.at["a"].admin()
        self.consumer = self.at["b"].consumer("q", max_backlog=10, ack_mode="individual")
        self.engine.cut("b")
        producer = self.at["a"].producer()
        self.ids = [
            producer.send("q", json.dumps({"n": n}).encode()).message_id for n in range(messages)
        ]  # fmt: skip

    def arrive(self) -> list[int]:
        """They arrive; what the consumer gets."""
        self.engine.mend("b")
        return [json.loads(message.payload)["n"] for message in drain(self.consumer)]


def test_R6_what_is_on_its_way_is_shown_as_such() -> None:
    seen = OnTheWay().admin.describe("q")
    assert (seen["depth"], seen["moving"], seen["leased"], seen["ready"]) == (0, 3, 0, 0), (
        "neither here nor there"
    )


def test_R6_a_purge_means_what_is_on_its_way() -> None:
    home = OnTheWay()
    assert home.admin.purge("q", where="/n > 0", dry_run=True) == 2
    assert home.admin.purge("q", where="/n > 0") == 2
    assert home.arrive() == [0]
    assert home.admin.describe("q")["counters"]["purged"] == 2


def test_L13_an_ack_by_id_means_what_is_on_its_way() -> None:
    home = OnTheWay()
    consumer = home.at["a"].consumer("q", max_backlog=1, ack_mode="individual")
    consumer.ack(ids=home.ids[:2])
    assert home.arrive() == [2]
    counters = home.admin.describe("q")["counters"]
    assert (counters["acknowledged"], counters["ack_ignored"]) == (2, 0)


def test_R6_a_move_and_an_edit_mean_what_is_on_its_way() -> None:
    home = OnTheWay()
    assert home.admin.edit("q", {"seen": "yes"}).count == 3
    assert home.admin.move("q", to="other", where="/n = 1").count == 1
    assert home.arrive() == [0, 2]
    (moved,) = home.admin.browse("other")
    assert (moved.id, moved.headers["seen"]) == (home.ids[1], "yes")


def test_R6_what_waits_for_a_full_queue_is_purged_where_it_waits() -> None:
    home = OnTheWay()
    home.engine.mend("b")
    home.at["b"].producer().send("far", b"0")
    home.at["a"].admin().define(QUEUES[2] | {"subscriptions": ["news"]})
    home.engine.cut("b")
    for n in range(2):
        home.at["a"].producer().send("news", str(n).encode())
    lane = home.at["a"]
    assert lane.request(c.Purge(queue="#out/far"), broker=0) == 2
    home.engine.mend("b")
    home.engine.advance("3s")
    assert home.admin.describe("far")["depth"] == 1
    assert lane.request(c.Describe(queue="#out/far"), broker=0)["depth"] == 0


def test_M6_messages_are_moved_to_a_queue_of_another_broker() -> None:
    home = OnTheWay()
    home.engine.mend("b")
    home.admin.define({"name": "near", "message_type": "json", "type": "LocalQueue", "broker": "a"})
    home.admin.define(
        {"name": "there", "message_type": "json", "type": "LocalQueue", "broker": "b"}
    )
    sent = [home.at["a"].producer().send("near", str(n).encode()).message_id for n in range(2)]
    assert home.admin.move("near", to="there", where="/@priority = 4").count == 2
    assert [m.id for m in home.admin.browse("there")] == sent
    assert home.admin.describe("near")["counters"]["moved"] == 2


def test_S10_what_is_on_its_way_is_not_replaced() -> None:
    """The queue is defined again to keep its last message, while one is neither here nor there."""
    home = OnTheWay(messages=1)
    with contextlib.suppress(Timeout):  # b does not answer
        home.admin.define({"name": "q", "max_spool_usage": 0})
    producer = home.at["a"].producer()
    for n in (3, 4):
        producer.send("q", json.dumps({"n": n}).encode(), timeout=5)
    seen = home.admin.describe("q")["brokers"]["a"]
    assert (seen["ready"], seen["moving"], seen["counters"]["replaced"]) == (1, 1, 1)
    assert home.arrive() == [0], "each broker keeps its own last message from now on"
    assert home.admin.describe("q")["brokers"]["a"]["depth"] == 1
