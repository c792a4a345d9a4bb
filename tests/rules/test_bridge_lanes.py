"""H2, H3: a full endpoint at the far end of a bridge holds back all, or only its own messages;
which one does is told once. The scenario of head-of-line blocking, step by step."""

from typing import Any

import pytest

from .two_homes import BRIDGE, TINY, Two


def full_queue(lanes: str, **keys: Any) -> Two:
    """The scenario of the sources: Queue1 at the second broker has no consumer and fills up, two
    other queues there are empty; publishers are at the first broker."""
    two = Two(lanes=lanes)
    two.define("queue1", "a/b/c", max_spool_messages=4, **keys)
    two.define("queue2", "d/e/f")
    two.define("queue3", "g/h/i")
    two.west.admin().bridge(BRIDGE | {"subscriptions": [">"], "lanes": lanes})
    two.send("a/b/c", *range(4))
    assert two.depth("queue1") == 4
    return two


def publish_rounds(two: Two, rounds: int) -> None:
    """A message to each topic and second."""
    for n in range(rounds):
        for topic in ("a/b/c", "d/e/f", "g/h/i"):
            two.send(topic, f"{topic}:{n}")  # its publisher is acknowledged by the first broker
        two.advance("1s")


def test_h2_a_full_endpoint_holds_the_link_step_by_step() -> None:
    two = full_queue("none")
    publish_rounds(two, 10)
    assert (two.depth("queue2"), two.depth("queue3")) == (0, 0)  # stuck behind queue1's
    (blocked,) = two.seen()["blocked"]
    assert (blocked["endpoint"], blocked["reason"]) == ("queue1", "queue_quota")
    assert blocked["waiting"] == two.seen()["waiting"] == 30
    assert blocked["for_s"] == 10
    (told,) = two.events("west", "bridge_blocked")  # once, however often it was tried
    assert (told["queue"], told["bridge"], told["destination"]) == ("queue1", "west-east", "a/b/c")
    assert two.east.admin().describe("queue1")["counters"]["rejected"]["queue_quota"] > 3
    # the administrator brings its consumer back
    consumer = two.east.consumer("queue1", max_backlog=100, ack_mode="auto")
    got = []
    for _ in range(20):
        while (message := consumer.receive(timeout=0)) is not None:
            got.append(message.payload.decode())
        two.advance("1s")
    assert got == [*"0123", *(f"a/b/c:{n}" for n in range(10))]
    for queue, topic in (("queue2", "d/e/f"), ("queue3", "g/h/i")):
        assert two.bodies(queue) == [f"{topic}:{n}" for n in range(10)]
    (cleared,) = two.events("west", "bridge_cleared")
    assert cleared["queue"] == "queue1"
    assert two.seen()["blocked"] == []


def test_h3_with_lanes_a_full_endpoint_holds_its_own_messages_only() -> None:
    two = full_queue("per-destination")
    publish_rounds(two, 10)
    assert (two.depth("queue2"), two.depth("queue3")) == (10, 10)  # nothing waits
    seen = two.seen()
    (blocked,) = seen["blocked"]
    assert (blocked["endpoint"], blocked["waiting"], seen["waiting"]) == ("queue1", 10, 10)
    assert blocked["destinations"] == ["a/b/c"]
    two.bodies("queue1")
    two.advance("10s")
    assert two.bodies("queue1") == [f"a/b/c:{n}" for n in range(4)]  # in order, as there is room


@pytest.mark.parametrize("lanes", ["none", "per-destination"])
def test_h3_a_change_of_lanes_lets_no_message_overtake(lanes: str) -> None:
    """It counts from when nothing waits."""
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


@pytest.mark.parametrize("lanes", ["none", "per-destination"])
def test_h5_ingress_shut_down_lets_the_link_go_on(lanes: str) -> None:
    two = full_queue(lanes)
    publish_rounds(two, 3)
    two.east.admin().shutdown("queue1", ingress=True)  # what is for it is discarded
    two.advance("6s")
    assert (two.depth("queue1"), two.depth("queue2"), two.depth("queue3")) == (4, 3, 3)
    assert two.seen()["waiting"] == 0
    assert two.east.admin().describe("queue1")["counters"]["discarded"] == 3


def test_h5_including_when_shut_down_the_link_stays_held() -> None:
    two = full_queue("none", reject_msg_to_sender_on_discard="including-when-shutdown")
    two.east.admin().shutdown("queue1", ingress=True)
    publish_rounds(two, 3)
    two.advance("6s")
    assert two.depth("queue2") == 0
    assert two.seen()["blocked"][0]["endpoint"] == "queue1"


def test_s4_an_endpoint_that_discards_never_holds_the_link() -> None:
    two = full_queue("none", reject_msg_to_sender_on_discard="never")
    publish_rounds(two, 3)
    assert (two.depth("queue1"), two.depth("queue2")) == (4, 3)
    assert two.events("west", "bridge_blocked") == []


def test_h2_each_endpoint_that_holds_is_told_of_once() -> None:
    two = Two(TINY)
    two.define("q1", "a/1/>", max_spool_messages=1)
    two.define("q2", "a/2/>", max_spool_messages=1)
    for n in range(4):  # more lanes than are known by name
        two.send(f"a/1/{n}", *range(3))
        two.send(f"a/2/{n}", *range(3))
    two.advance("1m")
    assert sorted(e["queue"] for e in two.events("west", "bridge_blocked")) == ["q1", "q2"]
    got: dict[str, list[str]] = {"q1": [], "q2": []}
    for _ in range(60):
        two.advance("6s")
        for queue, bodies in got.items():
            bodies += two.bodies(queue)
    assert [sorted(bodies) for bodies in got.values()] == [sorted("012" * 4)] * 2
    assert two.seen()["blocked"] == []


def test_h1_a_message_that_nobody_wants_waits_and_one_that_filters_refuse_does_not() -> None:
    two = Two()
    two.east.admin().define({
        "name": "q", "message_type": "json", "type": "LocalQueue", "subscriptions": ["a/1"],
        "filter": "/n > 1",
    })  # fmt: skip
    two.send("a/1", '{"n": 1}', '{"n": 2}')
    two.send("a/2", "x")
    assert two.bodies("q") == ['{"n": 2}']
    (blocked,) = two.seen()["blocked"]
    assert (blocked["endpoint"], blocked["reason"]) == (None, "no_matching_destination")
    two.define("late", "a/2")
    two.advance("6s")
    assert two.bodies("late") == ["x"]
