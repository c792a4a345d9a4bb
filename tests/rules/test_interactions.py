"""Where rules meet, in ways that a text table cannot say. See also scenarios/interactions.txt."""

import contextlib

from lakequeue.protocol.errors import LeaseLost
from rules.harness import Bench, drain, ids


def balance(bench: Bench, queue: str = "orders") -> None:
    """Nothing is lost and nothing is made: what came in is there or is counted as gone."""
    seen = bench.seen(queue)
    assert seen["spooled"] == seen["depth"] + seen["acknowledged"] + seen["expired"]
    assert seen["depth"] == seen["ready"] + seen["leased"] + seen["delayed"]


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
