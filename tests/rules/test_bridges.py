"""Bridges between brokers of a home (H1, X4): nothing lost, nothing doubled, order within a
destination, whoever dies and however long the two do not hear each other."""

from datetime import timedelta

import pytest

from .mortal import Fate
from .two_homes import TINY, Two

# ---------------------------------------------------------------- H1: nothing lost, nothing doubled


def test_h1_messages_go_over_with_all_that_is_theirs() -> None:
    two = Two()
    two.define("q", "a/b")
    two.send("a/b", "one", priority=7, headers={"k": "v"}, key=b"key")
    (message,) = two.receive("q")
    assert (message.payload, message.priority, message.key) == (b"one", 7, b"key")
    assert message.headers == {"k": "v"}
    assert two.seen()["taken"] == 1


@pytest.mark.parametrize("seed", range(6))
def test_h1_nothing_is_lost_or_doubled_whoever_dies(seed: int) -> None:
    two = Two(TINY if seed % 2 else None, lanes=["per-destination", "none"][seed // 2 % 2])
    two.define("small", "a/0", max_spool_messages=2)
    two.define("all", "a/1", "a/2", "a/3/>")
    fate = Fate(seed, death=0.15)
    two.engine.fated(fate)
    sent: dict[str, list[str]] = {}
    got: dict[str, list[str]] = {"small": [], "all": []}
    for n in range(40):
        to = fate.random.choice(["a/0", "a/1", "a/2", "a/3/x"])
        sent.setdefault(to, []).append(f"{to}:{n}")
        two.send(to, f"{to}:{n}")
        if fate.random.random() < 0.1:
            got["small"] += two.bodies("small")
    assert fate.deaths > 15
    two.engine.fated(None)
    while two.seen()["taken"] < 40:
        two.engine.advance("6s")
        got["small"] += two.bodies("small")
    for queue, bodies in got.items():
        bodies += two.bodies(queue)
    for to, bodies in sent.items():
        found = [b for part in got.values() for b in part if b.startswith(f"{to}:")]
        assert found == bodies
    seen = two.seen()
    assert (seen["waiting"], seen["on_its_way"], seen["taken"]) == (0, 0, 40)


def test_h1_a_link_that_is_cut_for_minutes_loses_and_doubles_nothing() -> None:
    two = Two(TINY)
    two.define("q", "a/>")
    two.send("a/1", *range(3))
    two.engine.cut("east")
    for n in range(3, 40):
        two.send(f"a/{n % 10}", n)
    two.engine.advance("10m")
    seen = two.seen()
    assert seen["on_its_way"] == TINY.bridge_rows  # bounded, however long it lasts
    assert (seen["waiting"], seen["unanswered_s"]) == (30, 600)
    two.engine.mend("east")
    bodies = [int(body) for body in two.bodies("q")]
    assert sorted(bodies) == list(range(40))
    for last in range(10):
        own = [n for n in bodies if n > 2 and n % 10 == last]
        assert own == sorted(own)
    assert two.seen()["unanswered_s"] is None


def test_h1_the_window_is_bounded_in_bytes() -> None:
    two = Two(TINY)
    two.define("q", "a/>")
    two.engine.cut("east")
    for n in range(20):
        two.send(f"a/{n}", "x" * 400)
    assert two.seen()["bytes_on_its_way"] == 1200  # the last one overdraws it
    two.engine.mend("east")
    assert two.depth("q") == 20


# ---------------------------------------------------------------- X4, L12, X5


def test_x4_the_time_to_live_counts_on_over_the_bridge() -> None:
    two = Two()
    two.define("q", "a/>", max_spool_messages=1)
    two.send("a/b", "first")
    two.send("a/b", "second", ttl="8s")
    two.engine.advance("2s")
    assert two.bodies("q") == ["first"]
    began = two.engine.now
    while not two.depth("q"):
        two.engine.advance("100ms")
    spent = 2_000 + two.engine.now - began
    (message,) = two.east.admin().browse("q")
    left = message.expires_at.timestamp() * 1000 - two.engine.now
    assert left == 8_000 - spent
    two.engine.advance(left / 1000)
    assert two.depth("q") == 0


def test_x4_two_of_eight_seconds_on_the_first_broker_leave_six() -> None:
    two = Two()
    two.define("q", "a/>")
    two.west.admin().shutdown("#bridge/west-east", egress=True)
    two.send("a/b", "x", ttl="8s")
    two.engine.advance("2s")
    two.west.admin().shutdown("#bridge/west-east")
    two.engine.advance("5.999s")
    assert two.depth("q") == 1
    two.engine.advance("1ms")
    assert two.depth("q") == 0


def test_x1_what_expires_while_it_waits_is_not_sent_and_holds_nothing() -> None:
    two = Two()
    two.define("q", "a/>", max_spool_messages=1)
    two.send("a/b", "first")
    two.send("a/b", "second", ttl="3s")
    two.engine.advance("3s")
    assert two.seen()["blocked"] == []
    assert [e["queue"] for e in two.events("bridge_cleared")] == ["q"]
    two.engine.advance("1m")
    assert two.bodies("q") == ["first"]


def test_x3_what_is_on_its_way_expires_at_one_end_only() -> None:
    two = Two()
    two.define("q", "a/>")
    two.engine.cut("east")
    two.send("a/b", "x", ttl="5s")
    two.engine.advance("1m")
    two.engine.mend("east")
    assert two.west.admin().describe("#bridge/west-east")["counters"]["expired"] == 0
    assert two.east.admin().describe("q")["counters"]["expired"] == 1


def test_l12_a_time_of_delivery_is_the_far_ends_to_wait_for() -> None:
    two = Two()
    two.define("q", "a/>")
    two.send("a/b", "later", deliver_at=two.west.now() + timedelta(hours=1))
    two.send("a/b", "now")
    assert two.bodies("q") == ["now"]
    two.engine.advance("1h")
    assert two.bodies("q") == ["later"]
