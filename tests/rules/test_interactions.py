"""Where rules meet, in ways that a text table cannot say. See also scenarios/interactions.txt."""

import contextlib
import random
from typing import Any

import pytest
from lakequeue.protocol.errors import LeaseLost
from rules.harness import Bench, drain, ids


def balance(bench: Bench, queue: str = "orders") -> None:
    """Nothing is lost and nothing is made: what came in is there or is counted as gone."""
    seen = bench.seen(queue)
    assert seen["spooled"] == seen["depth"] + seen["acknowledged"] + seen["expired"]
    assert seen["depth"] == seen["ready"] + seen["leased"] + seen["delayed"]


def test_O3_X1_the_front_expires_and_the_barrier_goes(empty: Bench) -> None:
    empty.define(barrier_expression="/sync = 1", max_per_subscription_backlog=9)
    first, second = empty.consumer(name="a"), empty.consumer(name="b")
    empty.send({"n": 1}, ttl="5s")
    empty.send({"sync": 1})
    later = empty.send({"n": 2})
    drain(first)
    empty.advance("4999ms")
    assert drain(first) + drain(second) == []
    empty.advance("1ms")
    got_first, got_second = drain(first), drain(second)
    assert got_first[0].is_barrier
    assert got_second[0].is_barrier
    assert sorted(ids(got_first[1:] + got_second[1:])) == [later]
    balance(empty)


def test_O3_L11_a_cancel_with_delay_holds_the_barrier(empty: Bench) -> None:
    empty.define(barrier_expression="/sync = 1", max_cancels=2)
    consumer = empty.consumer()
    empty.send({"n": 1})
    empty.send({"sync": 1})
    consumer.receive(timeout=0).cancel(delay="10s")
    empty.advance("9s")
    assert drain(consumer) == []
    empty.advance("1s")
    (again,) = drain(consumer)
    again.cancel(delay="10s")
    (barrier,) = drain(consumer)
    assert barrier.is_barrier
    assert empty.seen()["expired"] == 1
    balance(empty)


def test_O3_S1_a_barrier_waits_across_a_restart(empty: Bench) -> None:
    empty.define(barrier_expression="/sync = 1")
    first, second = empty.consumer(name="a"), empty.consumer(name="b")
    empty.send({"n": 1})
    empty.send({"sync": 1})
    (message,) = drain(first)
    empty.engine.restart()
    assert drain(first) + drain(second) == []
    message.ack()
    assert [m.is_barrier for m in drain(first) + drain(second)] == [True, True]


def test_O3_C3_a_subscriber_that_leaves_is_not_waited_for(empty: Bench) -> None:
    empty.define(barrier_expression="/sync = 1", max_per_subscription_backlog=9)
    first, second = empty.consumer(name="a"), empty.consumer(name="b")
    empty.send({"n": 1})
    empty.send({"sync": 1})
    second.close()
    (message,) = drain(first)
    message.ack()
    (barrier,) = drain(first)
    assert barrier.is_barrier
    assert empty.seen()["depth"] == 0


def test_O3_L13_a_cumulative_ack_frees_the_barrier(empty: Bench) -> None:
    empty.define(barrier_expression="/sync = 1", max_per_subscription_backlog=9)
    consumer = empty.consumer(ack_mode="client")
    for n in range(5):
        empty.send({"n": n})
    empty.send({"sync": 1})
    drain(consumer)[-1].ack()
    (barrier,) = drain(consumer)
    assert barrier.is_barrier


def test_O3_B3_a_barrier_goes_to_a_consumer_below_what_it_holds(empty: Bench) -> None:
    """The backlog is lowered while it holds; the barrier ignores it when its time comes."""
    empty.define(barrier_expression="/sync = 1", max_per_subscription_backlog=9)
    consumer = empty.consumer(backlog=3)
    for n in range(3):
        empty.send({"n": n})
    empty.send({"sync": 1})
    held = drain(consumer)
    consumer.set_max_backlog(1)
    for message in held:
        message.ack()
    assert [m.is_barrier for m in drain(consumer)] == [True]


def test_L5_C3_close_with_a_full_backlog_at_the_limit(empty: Bench) -> None:
    empty.define("dead", max_per_subscription_backlog=99)
    empty.define(max_deliveries=2, max_per_subscription_backlog=9, dead_message_queue="dead")
    sent = [empty.send({"n": n}) for n in range(9)]
    for count in (1, 2):
        with empty.consumer(backlog=5) as consumer:
            assert [m.delivery_count for m in drain(consumer)] == [count] * 5
    assert ids(empty.admin.browse("orders")) == sent[5:]
    dead = drain(empty.consumer("dead"))
    assert ids(dead) == sent[:5]
    assert {str(m.headers["lq-dead-reason"]) for m in dead} <= {
        "max_deliveries",
        "b'max_deliveries'",
    }
    balance(empty)


def test_L5_L8_an_ack_in_time_saves_it(empty: Bench) -> None:
    """The last delivery's holder closes; another had acknowledged it before (sublet)."""
    empty.define(max_deliveries=1)
    first, second = empty.consumer(name="a"), empty.consumer(name="b")
    message_id = empty.send()
    second.ack(ids=[message_id])
    first.close()
    seen = empty.seen()
    assert (seen["acknowledged"], seen["expired"]) == (1, 0)
    balance(empty)


def test_L4_X1_in_the_same_millisecond_it_is_counted_once(empty: Bench) -> None:
    empty.define(lease_period="2s", expiration="2s", max_deliveries=1)
    empty.consumer()
    empty.send()
    empty.advance("2s")
    assert empty.seen()["expired"] == 1
    balance(empty)


def test_L4_C3_a_dead_consumers_lease_may_end_first(empty: Bench) -> None:
    empty.define(lease_period="5s")
    dead = empty.consumer(name="a")
    empty.send()
    drain(dead)
    dead.kill()
    alive = empty.consumer(name="b")
    dead_backlog = empty.seen()["leased"]
    assert dead_backlog == 1
    empty.advance("30s")
    assert empty.seen()["leased"] == 1
    assert drain(alive)[-1].delivery_count >= 2
    balance(empty)


def test_L9_O2_an_early_ack_in_a_priority_queue(empty: Bench) -> None:
    empty.define(priority="/p", max_per_subscription_backlog=9)
    consumer = empty.consumer(backlog=9, filter="/p >= 0")
    consumer.ack(ids=["2"])
    consumer.close()
    for priority in (1, 9, 5):
        empty.send({"p": priority})
    assert ids(drain(empty.consumer())) == ["3", "1"]
    balance(empty)


def test_L9_S2_an_early_ack_removes_one_match_only(empty: Bench) -> None:
    empty.define("one", underlying_topic="topic")
    empty.define("two", underlying_topic="topic")
    empty.consumer("one").ack(ids=["1"])
    empty.send(queue="topic")
    assert (empty.seen("one")["depth"], empty.seen("two")["depth"]) == (0, 1)


def test_L9_S1_a_deferred_ack_survives_a_restart(bench: Bench) -> None:
    bench.consumer().ack(ids=["1"])
    bench.engine.restart()
    bench.send()
    assert bench.seen()["depth"] == 0


def test_B3_L4_a_lowered_backlog_and_leases_that_end(empty: Bench) -> None:
    empty.define(lease_period="1s", max_per_subscription_backlog=9)
    consumer = empty.consumer(backlog=4)
    for n in range(4):
        empty.send({"n": n})
    drain(consumer)
    consumer.set_max_backlog(1)
    empty.advance("1s")
    assert ids(drain(consumer)) == ["1"]
    assert (empty.seen()["leased"], empty.seen()["ready"]) == (1, 3)


def test_F2_C4_a_consumer_without_acks_in_the_turn(empty: Bench) -> None:
    empty.define(fairness_model="round-robin", max_per_subscription_backlog=9)
    first = empty.consumer(name="a")
    second = empty.consumer(name="b", ack_mode="no_ack")
    for n in range(6):
        empty.send({"n": n})
    assert ids(drain(first)) == ["1", "3", "5"]
    assert ids(drain(second)) == ["2", "4", "6"]
    assert empty.seen()["depth"] == 3


def test_Q9_L8_strict_from_now_on(bench: Bench) -> None:
    first, second = bench.consumer(name="a", backlog=1), bench.consumer(name="b", backlog=1)
    one = bench.send()
    bench.define(max_per_subscription_backlog=100, leasing="strict")
    with contextlib.suppress(LeaseLost):
        second.ack(ids=[one])
    assert bench.seen()["acknowledged"] == 0
    drain(first)[0].ack()
    assert bench.seen()["acknowledged"] == 1


def test_Q9_B2_a_lower_limit_while_leased(bench: Bench) -> None:
    consumer = bench.consumer(backlog=5)
    for n in range(10):
        bench.send({"n": n})
    held = drain(consumer)
    bench.define(max_per_subscription_backlog=2)
    assert bench.seen()["leased"] == 5
    for message in held[:3]:
        message.ack()
        assert drain(consumer) == []
    held[3].ack()
    assert ids(drain(consumer)) == ["6"]


def test_Q9_F_another_fairness_model(empty: Bench) -> None:
    empty.define(fairness_model="fast", max_per_subscription_backlog=9)
    first, second = empty.consumer(name="a"), empty.consumer(name="b")
    for n in range(3):
        empty.send({"n": n})
    empty.define(fairness_model="proportional", max_per_subscription_backlog=9)
    for n in range(3):
        empty.send({"n": n})
    assert (len(drain(first)), len(drain(second))) == (3, 3)


def test_X5_S3_a_dead_message_queue_fills_and_empties(empty: Bench) -> None:
    empty.define("dead", message_type="binary", max_spool_usage=20)
    empty.define(message_type="binary", dead_message_queue="dead")
    consumer = empty.consumer("dead")
    for _ in range(3):
        empty.send(b"x" * 10, ttl="1s")
        empty.advance("1s")
    seen = empty.seen()
    assert (seen["dead_lettered"], seen["discarded"], seen["expired"]) == (2, 1, 3)
    consumer.receive(timeout=0).ack()
    empty.send(b"x" * 10, ttl="1s")
    empty.advance("1s")
    assert empty.seen()["dead_lettered"] == 3


def test_X5_S2_two_matches_of_one_message_die_into_one_queue(empty: Bench) -> None:
    """Found by a walk. Whether it is there once or twice, the numbers agree and it can be taken."""
    empty.define("dead", max_per_subscription_backlog=9)
    empty.define("one", underlying_topic="topic", dead_message_queue="dead", expiration="1s")
    empty.define("two", underlying_topic="topic", dead_message_queue="dead", expiration="2s")
    sent = empty.send(queue="topic")
    empty.advance("2s")
    empty.engine.check()
    there = ids(empty.admin.browse("dead"))
    assert set(there) == {sent}
    assert empty.seen("dead")["depth"] == len(there)
    balance(empty, "dead")
    for message in drain(empty.consumer("dead")):
        with contextlib.suppress(LeaseLost):
            message.ack()
    empty.engine.check()
    assert empty.seen("dead")["depth"] == 0
    balance(empty, "dead")


def test_C2_X6_the_same_id_may_come_again(empty: Bench) -> None:
    """Found by a walk: the broker leased it, the client took it for a duplicate and dropped it."""
    empty.define("dead", max_per_subscription_backlog=9)
    empty.define("one", underlying_topic="topic", dead_message_queue="dead", expiration="1s")
    empty.define("two", underlying_topic="topic", dead_message_queue="dead", expiration="2s")
    consumer = empty.consumer("dead")
    empty.send(queue="topic")
    empty.advance("1s")
    consumer.receive(timeout=0).ack()
    empty.advance("1s")
    assert len(drain(consumer)) == empty.seen("dead")["leased"]


def test_P1_X1_a_retransmission_does_not_renew_the_ttl(bench: Bench) -> None:
    bench.connection.producer(producer_id="p", first_sequence=1).send("orders", b"{}", ttl="2s")
    bench.advance("1s")
    bench.connection.producer(producer_id="p", first_sequence=1).send("orders", b"{}", ttl="2s")
    bench.advance("1s")
    assert (bench.seen()["depth"], bench.seen()["expired"]) == (0, 1)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "keys",
    [
        {"max_deliveries": 3, "lease_period": "2s"},
        {"priority": "/p", "max_cancels": 2},
        {"barrier_expression": "/p = 3", "lease_period": "2s"},
        {"max_backlog": 4, "leasing": "strict", "expiration": "9s"},
        {"semantics": "at-most-once"},
    ],
    ids=["limits", "priority", "barrier", "strict", "at-most-once"],
)
def test_L_the_queue_drains_and_balances(empty: Bench, keys: dict[str, Any], seed: int) -> None:
    """First trouble of all kinds, then none: everything leaves, and the numbers add up."""
    generator = random.Random(seed)
    empty.define(max_per_subscription_backlog=5, **keys)
    consumers = [empty.consumer(name="c0", backlog=3)]
    for step in range(120):
        choice = generator.random()
        if choice < 0.4:
            empty.send({"p": generator.randint(0, 4), "n": step})
        elif choice < 0.5:
            empty.advance(f"{generator.randint(1, 1500)}ms")
        elif choice < 0.55 and len(consumers) < 4:
            consumers.append(empty.consumer(name=f"c{step}", backlog=generator.randint(1, 5)))
        elif choice < 0.6 and len(consumers) > 1:
            consumers.pop(generator.randrange(len(consumers))).close()
        elif choice < 0.65:
            empty.engine.restart()
        else:
            for message in drain(generator.choice(consumers))[:2]:
                with contextlib.suppress(LeaseLost):
                    (message.ack if generator.random() < 0.7 else message.cancel)()
        balance(empty)
    for consumer in consumers:
        consumer.close()
    with empty.consumer(ack_mode="individual", backlog=5, name="last") as last:
        for _ in range(500):
            for message in drain(last):
                with contextlib.suppress(LeaseLost):
                    message.ack()
            if empty.seen()["depth"] == 0:
                break
    assert empty.seen()["depth"] == 0
    balance(empty)
