"""Bridges between brokers of a home (H1, X4): nothing lost, nothing doubled, order within a
destination, whoever dies and however long the two do not hear each other."""

from datetime import timedelta

from .two_homes import TINY, Two

# ---------------------------------------------------------------- H1: nothing lost, nothing doubled


def test_h1_the_window_is_bounded_in_bytes() -> None:
    two = Two(TINY)
    two.define("q", "a/>")
    two.cut()
    for n in range(20):
        two.send(f"a/{n}", "x" * 400)
    assert two.seen()["bytes_on_its_way"] == 1200  # the last one overdraws it
    two.mend()
    assert two.depth("q") == 20


# ---------------------------------------------------------------- X4, L12, X5


def test_x4_two_of_eight_seconds_on_the_first_broker_leave_six() -> None:
    two = Two()
    two.define("q", "a/>")
    two.west.admin().shutdown("#bridge/west-east", egress=True)
    two.send("a/b", "x", ttl="8s")
    two.advance("2s")
    two.west.admin().shutdown("#bridge/west-east")
    two.advance("5.999s")
    assert two.depth("q") == 1
    two.advance("1ms")
    assert two.depth("q") == 0


def test_x1_what_expires_while_it_waits_is_not_sent_and_holds_nothing() -> None:
    two = Two()
    two.define("q", "a/>", max_spool_messages=1)
    two.send("a/b", "first")
    two.send("a/b", "second", ttl="3s")
    two.advance("3s")
    assert two.seen()["blocked"] == []
    assert [e["queue"] for e in two.events("west", "bridge_cleared")] == ["q"]
    two.advance("1m")
    assert two.bodies("q") == ["first"]


def test_x3_what_is_on_its_way_expires_at_one_end_only() -> None:
    two = Two()
    two.define("q", "a/>")
    two.cut()
    two.send("a/b", "x", ttl="5s")
    two.advance("1m")
    two.mend()
    assert two.west.admin().describe("#bridge/west-east")["counters"]["expired"] == 0
    assert two.east.admin().describe("q")["counters"]["expired"] == 1


def test_l12_a_time_of_delivery_is_the_far_ends_to_wait_for() -> None:
    two = Two()
    two.define("q", "a/>")
    two.send("a/b", "later", deliver_at=two.west.now() + timedelta(hours=1))
    two.send("a/b", "now")
    assert two.bodies("q") == ["now"]
    two.advance("1h")
    assert two.bodies("q") == ["later"]
