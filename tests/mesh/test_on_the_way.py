"""Commands about messages in transit to another broker (R6, L8, L13, M2): the broker that gets them
carries the commands out."""

from __future__ import annotations

from lakequeue.protocol import commands as c
from rules.harness import drain
from rules.mesh import Mesh, local, numbers, shared

FAR = local("far", "b", max_spool_messages=1)


class OnTheWay(Mesh):
    """Messages of `q` are in transit from a to b, and do not arrive yet."""

    def __init__(self, messages: int = 3) -> None:
        super().__init__(shared("q"), shared("other"), FAR, brokers="ab")
        self.there = self.consumer("b", 10, "q")
        self.engine.cut("b")
        self.sent = [self.send("a", "q", {"n": n}) for n in range(messages)]

    def arrive(self) -> list[int]:
        """Let them arrive; returns the consumer's messages."""
        self.engine.mend("b")
        return numbers(drain(self.there))


def test_R6_messages_in_transit_are_shown_as_such() -> None:
    seen = OnTheWay().whole("q")
    assert (seen["depth"], seen["moving"], seen["leased"], seen["ready"]) == (0, 3, 0, 0), (
        "neither here nor there"
    )


def test_R6_a_purge_includes_messages_in_transit() -> None:
    home = OnTheWay()
    assert home.admin.purge("q", where="/n > 0", dry_run=True) == 2
    assert home.admin.purge("q", where="/n > 0") == 2
    assert home.arrive() == [0]
    assert home.whole("q")["counters"]["purged"] == 2


def test_L13_an_ack_by_id_includes_messages_in_transit() -> None:
    home = OnTheWay()
    home.consumer("a", 1, "q").ack(ids=home.sent[:2])
    assert home.arrive() == [2]
    counters = home.whole("q")["counters"]
    assert (counters["acknowledged"], counters["ack_ignored"]) == (2, 0)


def test_R6_a_move_and_an_edit_include_messages_in_transit() -> None:
    home = OnTheWay()
    assert home.admin.edit("q", {"seen": "yes"}).count == 3
    assert home.admin.move("q", to="other", where="/n = 1").count == 1
    assert home.arrive() == [0, 2]
    (moved,) = home.admin.browse("other")
    assert (moved.id, moved.headers["seen"]) == (home.sent[1], "yes")


def test_R6_messages_waiting_for_a_full_queue_are_purged_where_they_wait() -> None:
    home = OnTheWay()
    home.engine.mend("b")
    home.send("b", "far")
    home.admin.define(FAR | {"subscriptions": ["news"]})
    home.engine.cut("b")
    for _ in range(2):
        home.send("a", "news")
    lane = home.at["a"]
    assert lane.request(c.Purge(queue="#out/far"), broker=0) == 2
    home.engine.mend("b")
    home.advance("3s")
    assert home.whole("far")["depth"] == 1
    assert lane.request(c.Describe(queue="#out/far"), broker=0)["depth"] == 0


def test_M6_messages_are_moved_to_a_queue_of_another_broker() -> None:
    home = Mesh(local("near", "a"), local("there", "b"))
    sent = [home.send("a", "near") for _ in range(2)]
    assert home.admin.move("near", to="there", where="/@priority = 4").count == 2
    assert home.ids("there") == sent
    assert home.whole("near")["counters"]["moved"] == 2
