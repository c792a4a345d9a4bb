"""What `trace` says of why a message waited (B1–B4, H5, O3, L12), each shown in memory first."""

from __future__ import annotations

from typing import Any

import pytest
from lake.on_files import RecordedBench
from lakequeue import ConfigError, LakequeueError
from lakequeue.lake import trace
from rules.harness import drain


class Traced(RecordedBench):
    """One whose messages' lives are asked for."""

    def story(self, number: str) -> dict[str, Any]:
        with self.recorded.lake() as lake:
            return trace(lake, number)

    def life(self, number: str, queue: str = "orders") -> list[dict[str, Any]]:
        (found,) = [q["life"] for q in self.story(number)["queues"] if q["queue"] == queue]
        return found

    def waited(self, number: str, queue: str = "orders") -> list[tuple[str, int | None]]:
        """Every part of every time it was ready."""
        return [
            (part["why"], part["ms"])
            for event in self.life(number, queue)
            for part in (event["then"] or {}).get("why", ())
        ]


@pytest.fixture
def bench() -> Traced:
    return Traced()


def test_no_consumer_and_then_one(bench: Traced) -> None:
    bench.define()
    number = bench.send()
    bench.advance("3s")
    assert bench.waited(number) == [("no consumer", None)], "it waits still"
    bench.consumer()
    assert bench.waited(number) == [("no consumer", 3000)]


def test_H5_egress_shut_down(bench: Traced) -> None:
    bench.define()
    bench.consumer()
    bench.admin.shutdown("orders", ingress=False, egress=True)
    number = bench.send()
    bench.advance("2s")
    bench.admin.shutdown("orders", ingress=False, egress=False)
    assert bench.waited(number) == [("egress shut down", 2000)]


def test_B2_every_backlog_is_full(bench: Traced) -> None:
    bench.define(max_per_subscription_backlog=2)
    one, two = bench.consumer(backlog=1), bench.consumer(backlog=5)
    for _ in range(3):
        bench.send()
    number = bench.send()
    bench.advance("4s")
    held = [*drain(one), *drain(two)]
    assert len(held) == 3
    held[0].ack()
    assert bench.waited(number) == [("every consumer's backlog is full", 4000)]


def test_B3_a_backlog_is_made_larger(bench: Traced) -> None:
    bench.define(max_per_subscription_backlog=9)
    consumer = bench.consumer(backlog=1)
    bench.send()
    number = bench.send()
    bench.advance("1s")
    consumer.set_max_backlog(2)
    assert bench.waited(number) == [("every consumer's backlog is full", 1000)]
    drain(consumer)
    consumer.set_max_backlog(0)
    last = bench.send()
    bench.advance("1s")
    assert bench.waited(last) == [("every consumer's backlog is full", None)]


def test_B2_F5_there_is_room_again_and_nobody_wants_it(bench: Traced) -> None:
    bench.define(max_per_subscription_backlog=9)
    consumer = bench.consumer(backlog=1, filter="/n = 1")
    bench.send({"n": 1})
    number = bench.send({"n": 2})
    bench.advance("2s")
    drain(consumer)[0].ack()
    bench.advance("1s")
    bench.send({"n": 1})
    bench.advance("1s")
    assert bench.waited(number) == [
        ("every consumer's backlog is full", 2000), ("waiting", 1000),
        ("every consumer's backlog is full", None),
    ]  # fmt: skip


def test_B1_the_queues_own_backlog(bench: Traced) -> None:
    bench.define(max_backlog=1, max_per_subscription_backlog=9)
    consumer = bench.consumer(backlog=9)
    bench.send()
    number = bench.send()
    bench.advance("2s")
    drain(consumer)[0].ack()
    assert bench.waited(number) == [("max_backlog of the queue", 2000)]


def test_Q9_a_limit_that_is_changed(bench: Traced) -> None:
    bench.define(max_per_subscription_backlog=1)
    bench.consumer(backlog=9)
    bench.send()
    number = bench.send()
    bench.advance("2s")
    bench.define(max_per_subscription_backlog=2)
    assert bench.waited(number) == [("every consumer's backlog is full", 2000)]


def test_O3_behind_a_barrier(bench: Traced) -> None:
    bench.define(barrier_expression="/b = 1", max_per_subscription_backlog=9)
    consumer = bench.consumer(backlog=9)
    bench.send({"b": 0})
    barrier = bench.send({"b": 1})
    behind = bench.send({"b": 0})
    bench.advance("2s")
    drain(consumer)[0].ack()
    assert bench.waited(behind) == [(f"behind barrier {barrier}", 2000)]
    assert bench.waited(barrier) == [("a barrier itself", 2000)]


def test_L12_a_delay_is_no_waiting(bench: Traced) -> None:
    bench.define()
    number = bench.send(delay="5s")
    bench.advance("6s")
    bench.consumer()
    entered, due, delivered = bench.life(number)
    assert (entered["then"]["state"], entered["then"]["ms"]) == ("delayed", 5000)
    assert entered["until"] == entered["then"]["until"]
    assert (due["event"], due["then"]["why"][0]["why"], due["then"]["ms"]) == (
        "ready", "no consumer", 1000,
    )  # fmt: skip
    assert delivered["then"]["state"] == "leased"


def test_O4_what_the_journal_does_not_say_is_waiting(bench: Traced) -> None:
    bench.define(partition_key="/k", max_per_subscription_backlog=9)
    consumer = bench.consumer(backlog=9)
    bench.send({"k": 1})
    number = bench.send({"k": 1})
    bench.advance("2s")
    drain(consumer)[0].ack()
    assert bench.waited(number) == [("waiting", 2000)]


def test_L2_who_takes_no_lease_is_never_full(bench: Traced) -> None:
    bench.define(semantics="at-most-once")
    bench.consumer(backlog=1, filter="/n = 1")
    number = bench.send({"n": 2})
    bench.advance("2s")
    assert bench.waited(number) == [("waiting", None)]


def test_S7_the_consumers_of_a_deleted_queue_do_not_count(bench: Traced) -> None:
    bench.define()
    bench.consumer()
    bench.admin.delete("orders")
    bench.define()
    number = bench.send()
    bench.advance("2s")
    assert bench.waited(number) == [("no consumer", None)]


def test_L1_a_consumer_that_dies_gives_back_what_it_held(bench: Traced) -> None:
    bench.define(max_per_subscription_backlog=9)
    first = bench.consumer(backlog=1, name="first")
    number = bench.send()
    drain(first)
    bench.advance("1s")
    first.close()
    bench.advance("2s")
    bench.consumer(name="second")
    told = [(e["event"], e["consumer"], e["deliveries"]) for e in bench.life(number)]
    assert told[1:] == [
        ("delivered", "first", 1), ("returned", "first", 1), ("redelivered", "second", 2),
    ]  # fmt: skip
    assert bench.waited(number) == [("no consumer", 2000)]


def test_a_message_that_waits_again_and_again(bench: Traced) -> None:
    """Each period has its own reasons, though the queue is played once."""
    bench.define(max_per_subscription_backlog=9, max_cancels=0)
    number = bench.send()
    bench.advance("1s")
    for _ in range(3):
        with bench.consumer(backlog=1) as consumer:
            drain(consumer)
            consumer.set_max_backlog(0)
            bench.advance("2s")
            held = bench.seen()["leased"]
            bench.admin.shutdown("orders", ingress=False, egress=True)
        assert held == 1
        bench.advance("3s")
        bench.admin.shutdown("orders", ingress=False, egress=False)
        bench.advance("4s")
    again = [("egress shut down", 3000), ("no consumer", 4000)]
    waited = bench.waited(number)
    assert waited[:5] == [("no consumer", 1000), *again, *again]
    assert waited[5:] == [("egress shut down", 3000), ("no consumer", None)]


def test_a_message_over_several_queues(bench: Traced) -> None:
    """C7, X5, X6: published, rejected, dead, redriven; and a copy in another queue."""
    bench.define(dead_message_queue="dead")
    bench.define("dead")
    bench.define("copies", underlying_topic="orders")
    consumer = bench.consumer()
    number = bench.send({"n": 1})
    drain(consumer)[0].reject(reason="not mine")
    consumer.close()
    bench.advance("1s")
    bench.admin.redrive("dead")
    story = bench.story(f"0{number}")
    assert story["message_id"] == number
    assert story["published"]["topic"] == "default.publish"
    assert story["published"]["bytes"] == len(b'{"n": 1}')
    lives = {q["queue"]: [e["event"] for e in q["life"]] for q in story["queues"]}
    assert lives == {
        "orders": ["spooled", "delivered", "consumer_rejected", "dead_lettered", "spooled"],
        "copies": ["spooled"],
        "dead": ["spooled", "redriven"],
    }
    reasons = [e["reason"] for q in story["queues"] for e in q["life"] if e["reason"]]
    assert sorted(reasons) == ["dead", "not mine", "redriven from dead", "rejected"]


@pytest.mark.parametrize("wrong", ["x", "-1", "", "0", "1.5", str(1 << 64)])
def test_no_message_id(wrong: str) -> None:
    with pytest.raises(ConfigError, match="no message id"):
        trace(None, wrong)


def test_no_such_message(bench: Traced) -> None:
    bench.define()
    with pytest.raises(LakequeueError, match="know no message 12345"):
        bench.story("12345")
