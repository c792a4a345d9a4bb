"""C3, C4, L9: tests of acks that need more than a text table. See also
scenarios/expiry_and_spool.txt and leases.txt."""

import pytest
from lakequeue.protocol import commands as c
from lakequeue.state import Limits
from lakequeue.state.rules import command_targets
from rules.harness import Bench, drain
from rules.steps import body, define, delivered, described, started, subscribe


def bind(bench: Bench, name: str) -> None:
    bench.connection.request(subscribe(name, 1, session="mine"))


@pytest.mark.parametrize("sign", ["a heartbeat", "one more consumer"])
def test_C3_a_shorter_timeout_counts_from_the_next_heartbeat(bench: Bench, sign: str) -> None:
    """Not from the end of the earlier timeout."""
    bind(bench, "a")
    bench.send()
    assert bench.seen()["leased"] == 1
    bench.instruct(c.Configure(system={"heartbeat_timeout": "1s"}))
    if sign == "a heartbeat":
        bench.connection.command(c.Heartbeat(session="mine"))
    else:
        bind(bench, "b")
    bench.advance("1001ms")
    assert (bench.seen()["leased"], bench.seen()["consumers"]) == (0, [])


@pytest.mark.parametrize("event", ["records_lost", "topic_made_anew", "kafka_went_back"])
def test_C3_an_ack_that_kafka_lost_does_not_block_its_consumer(bench: Bench, event: str) -> None:
    """The engine knows only that commands are lost. The next heartbeat's answer tells the client
    that its session is over."""
    bind(bench, "a")
    sent = [bench.send() for _ in range(2)]

    for topic, reader, leased in (
        ("default.publish", "engine", 1),
        ("default.commands", "tables", 1),
        ("default.commands", "engine", 0),
    ):
        bench.instruct(c.RecordsLost(topic=topic, records=1, reader=reader, event=event))
        bench.advance("1s")
        assert bench.seen()["leased"] == leased
    assert bench.connection.request(c.Heartbeat(session="mine")) is False
    with bench.consumer(backlog=2) as after:
        assert [(m.id, m.redelivered) for m in drain(after)] == [(sent[0], True), (sent[1], False)]


def test_C4_the_iterator_yields_the_available_messages(bench: Bench) -> None:
    consumer = bench.consumer(ack_mode="auto")
    sent = [bench.send({"n": n}) for n in range(3)]
    assert [message.id for message, _ in zip(consumer, range(3), strict=False)] == sent


def test_L13_a_cumulative_ack_removes_no_message_that_was_delivered_after_it() -> None:
    """It takes several steps, and what it frees is delivered meanwhile."""
    keys = {"max_per_subscription_backlog": 2, "priority": "/p"}
    steps = started(define(**keys), subscribe("a"), limits=Limits(command_rows=1))
    steps.run(publishes=[("orders", body(p=p)) for p in (1, 9, 9)])
    assert delivered(steps.run([c.Ack(queue="orders", up_to="3", subscription="a")])) == [1]
    assert (described(steps)["acknowledged"], described(steps)["leased"]) == (2, 1)


@pytest.mark.parametrize(("last", "left"), [("3", [2, 1]), ("2", [1]), ("1", [])])
def test_L13_a_cumulative_ack_follows_the_order_of_delivery(last: str, left: list[int]) -> None:
    steps = started(define(max_per_subscription_backlog=9, priority="/p"))
    steps.run(publishes=[("orders", body(p=p)) for p in (1, 2, 3)])
    assert delivered(steps.run([subscribe("a")])) == [3, 2, 1]
    steps.run([c.Ack(queue="orders", up_to=last, subscription="a")])
    steps.run([c.Unsubscribe(queue="orders", subscription="a")])
    assert delivered(steps.run([subscribe("b")])) == left


def test_L13_a_message_delivered_again_comes_before_those_that_follow_it_in_the_record() -> None:
    steps = started(define(max_per_subscription_backlog=9), subscribe("a", 1))
    steps.run(publishes=[("orders", b"{}")] * 3)
    steps.run([c.Unsubscribe(queue="orders", subscription="a")])
    assert delivered(steps.run([subscribe("b")])) == [1, 2, 3]
    steps.run([c.Ack(queue="orders", up_to="1", subscription="b")])
    assert described(steps)["leased"] == 2


def test_L8_L13_a_cumulative_ack_of_a_message_that_is_not_held_has_no_effect() -> None:
    steps = started(define(), subscribe("a"), subscribe("b"))
    steps.run(publishes=[("orders", b"{}")] * 3)
    for last in ("2", "3", "99"):  # another's, nobody's, unknown
        steps.run([c.Ack(queue="orders", up_to=last, subscription="a")])
    seen = described(steps)
    assert (seen["acknowledged"], seen["ack_ignored"]) == (0, 3)


@pytest.mark.parametrize("rows", [1, 1_000], ids=["in many steps", "in one step"])
@pytest.mark.parametrize("looked_up", [0, 1_000], ids=["scanned", "looked up"])
def test_L8_L9_a_wide_range_treats_each_id_as_a_narrow_one(
    looked_up: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_targets, "LOOK_UP_MAX", looked_up)
    keys, limits = {"max_per_subscription_backlog": 9}, Limits(command_rows=rows)
    steps = started(define("others"), define(**keys), subscribe("a"), limits=limits)
    for name in ("orders", "orders", "others", "others", "orders"):
        steps.run(publishes=[(name, b"{}")])
    steps.run([c.Ack(queue="orders", subscription="a", ids="1")])
    steps.run([c.Ack(queue="orders", subscription="a", ids="1-7")])
    assert (described(steps)["acknowledged"], described(steps)["ack_ignored"]) == (3, 1)
    steps.run([c.Move(queue="others", to="orders")], [("orders", b"{}")] * 3)
    seen = described(steps)
    assert (seen["acknowledged"], seen["ack_ignored"], seen["depth"]) == (7, 1, 1)


def test_L8_L9_ids_that_no_broker_gave_out_do_not_count_one_by_one() -> None:
    """Otherwise the counter would soon be larger than a page can store."""
    steps = started(define(), subscribe("a"), limits=Limits(early_acks=1))
    for ids in ("1000", f"2000-{2**48 - 1}", f"1-{2**64 - 1}"):
        steps.run([c.Ack(queue="orders", subscription="a", ids=ids)])
    assert described(steps)["ack_ignored"] <= 2


def test_L9_a_range_of_early_acks_is_not_split_beyond_the_limit() -> None:
    """Every other id belongs to another queue, which would split the range again and again."""
    steps = started(define(), define("more"), subscribe("a"), limits=Limits(early_acks=3))
    steps.run([c.Ack(queue="orders", subscription="a", ids=f"1-{10**12}")])
    steps.run(publishes=[(name, b"{}") for name in ("orders", "more") * 20])
    seen = described(steps)
    assert (seen["acknowledged"], seen["depth"]) == (20, 0)
    assert seen["ack_ignored"] == 17  # of ids that went elsewhere; three still wait


def test_L9_an_expired_early_ack_does_not_count() -> None:
    """Also if the message arrives in the first step after the expiry."""
    steps = started(define(deferred_ack_expiration="10s"), subscribe("a"))
    steps.run([c.Ack(queue="orders", subscription="a", ids="1")])
    steps.now += 10_000
    steps.run(publishes=[("orders", b"{}")])
    assert described(steps)["leased"] == 1
