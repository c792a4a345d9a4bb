"""Bridges (H1, X4), and a full endpoint at the far end, which blocks all messages or only its own;
the blocking endpoint is reported once (H2, H3): the scenario of head-of-line blocking, step by
step."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from .two_homes import BRIDGE, TINY, Two


def test_H1_the_window_is_bounded_in_bytes() -> None:
    two = Two(TINY)
    two.define("q", "a/>")
    two.cut()
    for n in range(20):
        two.send(f"a/{n}", "x" * 400)
    assert two.seen()["bytes_on_its_way"] == 1200  # the last one overdraws it
    two.mend()
    assert two.depth("q") == 20


@pytest.mark.parametrize("waits", ["at the near end", "on its way"])
def test_X4_time_on_the_first_broker_counts_against_the_ttl(waits: str) -> None:
    two = Two()
    two.define("q", "a/>")
    if waits == "on its way":
        two.cut()
    else:
        two.west.admin().shutdown("#bridge/out", egress=True)
    two.send("a/b", "x", ttl="8s")
    two.send("a/c", "y", ttl="1s")
    two.advance("2s")
    if waits == "on its way":
        two.mend()
    else:
        two.west.admin().shutdown("#bridge/out")
    two.advance("5.999s")
    assert two.depth("q") == 1
    two.advance("1ms")
    assert two.depth("q") == 0


def test_X1_a_message_that_expires_while_waiting_is_not_sent_and_blocks_nothing() -> None:
    two = Two()
    two.define("q", "a/>", max_spool_messages=1)
    two.send("a/b", "first")
    two.send("a/b", "second", ttl="3s")
    two.advance("3s")
    assert two.seen()["blocked"] == []
    assert [e["queue"] for e in two.events("west", "bridge_cleared")] == ["q"]
    two.advance("1m")
    assert two.bodies("q") == ["first"]


def test_X3_a_message_in_transit_expires_at_one_end_only() -> None:
    two = Two()
    two.define("q", "a/>")
    two.cut()
    two.send("a/b", "x", ttl="5s")
    two.advance("1m")
    two.mend()
    assert two.west.admin().describe("#bridge/out")["counters"]["expired"] == 0
    assert two.east.admin().describe("q")["counters"]["expired"] == 1


def test_L12_the_far_end_waits_for_the_delivery_time() -> None:
    two = Two()
    two.define("q", "a/>")
    two.send("a/b", "later", deliver_at=two.west.now() + timedelta(hours=1))
    two.send("a/b", "now")
    assert two.bodies("q") == ["now"]
    two.advance("1h")
    assert two.bodies("q") == ["later"]


# ---------------------------------------------------------------- head-of-line blocking

TOPICS = {"queue1": "a/b/c", "queue2": "d/e/f", "queue3": "g/h/i"}
LANES = pytest.mark.parametrize("lanes", ["none", "per-destination"])


def full_queue(lanes: str, **keys: Any) -> Two:
    """The scenario of the sources: queue1 at the second broker has no consumer and fills up, two
    other queues there are empty; publishers are at the first broker."""
    two = Two(lanes=lanes, subscriptions=[">"])
    for queue, topic in TOPICS.items():
        two.define(queue, topic, **(keys | {"max_spool_messages": 4} if queue == "queue1" else {}))
    two.send("a/b/c", *range(4))
    assert two.depth("queue1") == 4
    return two


def publish_rounds(two: Two, rounds: int) -> None:
    """One message a second to each topic."""
    for n in range(rounds):
        for topic in TOPICS.values():
            two.send(topic, f"{topic}:{n}")  # the first broker acknowledges to its publisher
        two.advance("1s")


def test_H2_a_full_endpoint_blocks_the_link_step_by_step() -> None:
    two = full_queue("none")
    publish_rounds(two, 10)
    assert (two.depth("queue2"), two.depth("queue3")) == (0, 0)  # blocked behind queue1's
    (blocked,) = two.seen()["blocked"]
    assert (blocked["endpoint"], blocked["reason"]) == ("queue1", "queue_quota")
    assert blocked["waiting"] == two.seen()["waiting"] == 30
    assert blocked["for_s"] == 10
    (told,) = two.events("west", "bridge_blocked")  # once, whatever the number of attempts
    assert (told["queue"], told["bridge"], told["destination"]) == ("queue1", "out", "a/b/c")
    assert two.east.admin().describe("queue1")["counters"]["rejected"]["queue_quota"] > 3
    got: dict[str, list[str]] = {queue: [] for queue in TOPICS}
    for _ in range(20):  # the administrator brings its consumer back
        for queue, bodies in got.items():
            bodies += two.bodies(queue)
        two.advance("1s")
    assert got.pop("queue1") == [*"0123", *(f"a/b/c:{n}" for n in range(10))]
    for queue, bodies in got.items():
        assert bodies == [f"{TOPICS[queue]}:{n}" for n in range(10)]
    (cleared,) = two.events("west", "bridge_cleared")
    assert cleared["queue"] == "queue1"
    assert two.seen()["blocked"] == []


def test_H3_with_lanes_a_full_endpoint_blocks_only_its_own_messages() -> None:
    two = full_queue("per-destination")
    publish_rounds(two, 10)
    assert (two.depth("queue2"), two.depth("queue3")) == (10, 10)  # nothing waits
    seen = two.seen()
    (blocked,) = seen["blocked"]
    assert (blocked["endpoint"], blocked["waiting"], seen["waiting"]) == ("queue1", 10, 10)
    assert blocked["destinations"] == ["a/b/c"]
    two.bodies("queue1")
    two.advance("10s")
    # in order, as room becomes free
    assert two.bodies("queue1") == [f"a/b/c:{n}" for n in range(4)]


@LANES
def test_H3_order_is_kept_when_the_lanes_change(lanes: str) -> None:
    """The new setting applies once nothing waits."""
    other = {"none": "per-destination", "per-destination": "none"}[lanes]
    two = full_queue(lanes)
    two.send("a/b/c", "first")
    two.west.admin().bridge(BRIDGE | {"subscriptions": [">"], "lanes": other})
    two.bodies("queue1")  # there is room again, but the first one waits for its next attempt
    two.send("a/b/c", "second")
    two.advance("10s")
    assert two.bodies("queue1") == ["first", "second"]
    two.send("a/b/c", *range(5))
    two.send("d/e/f", "behind")
    assert two.depth("queue2") == (1 if other == "per-destination" else 0)


@LANES
def test_H5_an_ingress_shutdown_does_not_block_the_link(lanes: str) -> None:
    two = full_queue(lanes)
    publish_rounds(two, 3)
    two.east.admin().shutdown("queue1", ingress=True)  # its messages are discarded
    two.advance("6s")
    assert (two.depth("queue1"), two.depth("queue2"), two.depth("queue3")) == (4, 3, 3)
    assert two.seen()["waiting"] == 0
    assert two.east.admin().describe("queue1")["counters"]["discarded"] == 3


def test_H5_an_ingress_shutdown_blocks_the_link_if_configured() -> None:
    two = full_queue("none", reject_msg_to_sender_on_discard="including-when-shutdown")
    two.east.admin().shutdown("queue1", ingress=True)
    publish_rounds(two, 3)
    two.advance("6s")
    assert two.depth("queue2") == 0
    assert two.seen()["blocked"][0]["endpoint"] == "queue1"


def test_S4_a_discarding_endpoint_never_blocks_the_link() -> None:
    two = full_queue("none", reject_msg_to_sender_on_discard="never")
    publish_rounds(two, 3)
    assert (two.depth("queue1"), two.depth("queue2")) == (4, 3)
    assert two.events("west", "bridge_blocked") == []


def test_H2_each_blocking_endpoint_is_reported_once() -> None:
    two = Two(TINY)
    got: dict[str, list[str]] = {"q1": [], "q2": []}
    for queue in got:
        two.define(queue, f"a/{queue}/>", max_spool_messages=1)
    for n in range(4):  # more lanes than are listed by name
        for queue in got:
            two.send(f"a/{queue}/{n}", *range(3))
    two.advance("1m")
    assert sorted(e["queue"] for e in two.events("west", "bridge_blocked")) == ["q1", "q2"]
    for _ in range(60):
        two.advance("6s")
        for queue, bodies in got.items():
            bodies += two.bodies(queue)
    assert [sorted(bodies) for bodies in got.values()] == [sorted("012" * 4)] * 2
    assert two.seen()["blocked"] == []


def test_H1_an_unmatched_message_waits_and_a_filtered_one_does_not() -> None:
    two = Two()
    two.define("q", "a/1", message_type="json", filter="/n > 1")
    two.send("a/1", '{"n": 1}', '{"n": 2}')
    two.send("a/2", "x")
    assert two.bodies("q") == ['{"n": 2}']
    (blocked,) = two.seen()["blocked"]
    assert (blocked["endpoint"], blocked["reason"]) == (None, "no_matching_destination")
    two.define("late", "a/2")
    two.advance("6s")
    assert two.bodies("late") == ["x"]
