"""Rules that were once broken: each test is a counterexample found by a user, a review or a
tool."""

import json
from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol import wire
from lakequeue.protocol.outputs import Deliveries, Receipts
from lakequeue.state import Limits
from lakequeue.state.commands import topic_subscriptions
from rules.harness import Bench, drain, ids
from rules.steps import (
    REPLY,
    Steps,
    define,
    delivered,
    described,
    refused,
    replies,
    subscribe,
)

RECORD_BYTES_MAX = 12 * 1024 * 1024
WIDE = {"max_per_subscription_backlog": 100}


def body(**values: Any) -> bytes:
    return json.dumps(values).encode()


# ---------------------------------------------------------------- filters (F5)


@pytest.mark.parametrize("priority", [None, "/p"])
def test_F5_a_returned_message_is_offered_to_every_filter(
    empty: Bench, priority: str | None
) -> None:
    """A filter whose look-ahead held only returned messages moved past messages it had not
    examined."""
    empty.define(**WIDE, **({"priority": priority} if priority else {}))
    d = empty.consumer(name="d", backlog=1, filter="/k = 'f'")
    g = empty.consumer(name="g", backlog=1, filter="/k = 'g'")
    empty.send({"k": "f"}, ttl="5s")
    empty.send({"k": "g"}, ttl="5s")
    assert (len(drain(d)), len(drain(g))) == (1, 1)
    c_ = empty.consumer(name="c", backlog=20, filter="/k = 'f'")
    sent = [empty.send({"k": "f"}) for _ in range(20)]
    assert ids(drain(c_)) == sent
    sent.append(empty.send({"k": "f"}))
    other = empty.send({"k": "g"})
    c_.close()
    empty.advance("5s")
    got = []
    while (message := d.receive(timeout=0)) is not None:
        got.append(message.id)
        message.ack()
    assert got == sent
    assert ids(drain(g)) == [other]


def test_F5_a_match_deep_in_the_queue_is_found() -> None:
    """The match has more non-matching messages before it than a step examines."""
    steps = Steps(limits=Limits(looks=50))
    steps.run([define(**WIDE), subscribe("f", filter="/k = 1"), subscribe("g", 1, filter="/k = 2")])
    for _ in range(5):
        steps.run(publishes=[("orders", body(k=2))] * 40)
    out = steps.run(publishes=[("orders", body(k=1))])
    assert delivered(out, "f") == [201]
    out = steps.run([c.Unsubscribe(queue="orders", subscription="g"), subscribe("f2", 2)])
    assert delivered(out, "f2") == [1, 2]


def test_F5_the_memory_of_a_filter_is_bounded() -> None:
    """On a priority queue every arrival above the cursor was remembered, for ever."""
    steps = Steps()
    steps.run([define(priority="/p", **WIDE), subscribe("f", filter="/k = 1")])
    sizes = []
    for n in range(200):
        out = steps.run(publishes=[("orders", body(k=1, p=n))])
        (number,) = delivered(out, "f")
        steps.run([c.Ack(queue="orders", subscription="f", ids=str(number))])
        if n in (99, 199):
            sizes.append(sum(map(len, steps.marked().values())))
    assert sizes[1] - sizes[0] < 4_000


# ---------------------------------------------------------------- no input stops a step


@pytest.mark.parametrize("command", ["cancel", "renew"])
@pytest.mark.parametrize("ms", [9_504_000_000_000_000_000, 1 << 62, (1 << 63) - 1, -(1 << 62)])
def test_L10_L11_an_extreme_duration_is_refused(command: str, ms: int) -> None:
    steps = Steps()
    steps.run([define(), subscribe("a", 1)], [("orders", b"{}")] * 2)
    text = {"command": command, "queue": "orders", "subscription": "a", "ids": "1"}
    text["delay_ms" if command == "cancel" else "period_ms"] = ms
    answered = text | {"reply": {"topic": "default.deliveries"}}
    assert refused(steps.run([body(**answered)])) >= 1
    assert described(steps)["leased"] == 1
    assert described(steps)["canceled"] == 0
    steps.run([body(**text), c.Ack(queue="orders", subscription="a", ids="1")])
    assert described(steps)["acknowledged"] == 1


def sizes(outputs: list[Any]) -> list[int]:
    """The sizes of outputs, headers included."""
    return [
        len(r.key or b"") + len(r.value or b"")
        + sum(len(k) + len(v) for k, v in wire.headers_list(r.headers))
        for r in wire.encode(outputs)
    ]  # fmt: skip


def long_destinations() -> tuple[list[Any], list[Any]]:
    """Nacks repeated a destination of any length."""
    long = "x" * 3_000_000
    return [], [(long, b"{}", {"producer": "p", "seq": n}) for n in range(1, 6)]


def long_problems() -> tuple[list[Any], list[Any]]:
    keys = {f"k{n}": "x" * 3_000_000 for n in range(5)}
    return [c.Define(definition={"name": "q", **keys}, reply=REPLY)], []


def long_request() -> tuple[list[Any], list[Any]]:
    reply = c.ReplyTo("default.deliveries", 0, "x" * 7_000_000)
    return [c.Queues(reply=reply)], []


def long_inner_headers() -> tuple[list[Any], list[Any]]:
    """Framing `batch` counted payloads, not headers."""
    headers = wire.headers_json([("h", b"x" * 700_000)])
    return [subscribe("a", 100, framing="batch")], [("orders", b"{}", {"headers": headers})] * 30


@pytest.mark.parametrize(
    "made", [long_destinations, long_problems, long_request, long_inner_headers]
)
def test_S1_every_output_fits_into_a_record(made: Any) -> None:
    steps = Steps()
    steps.run([define(**WIDE)])
    commands, publishes = made()
    out = steps.run(commands, publishes)
    assert max(sizes(out)) <= RECORD_BYTES_MAX


# ---------------------------------------------------------------- leases are the engine's (L4, L10)


def test_L10_a_renewal_is_answered_with_the_lease_and_the_renewed_ids() -> None:
    steps = Steps()
    steps.run([define(lease_period="5s"), subscribe("a", 2)], [("orders", b"{}")] * 3)
    renew = c.Renew(queue="orders", subscription="a", ids="1-3", period_ms=60_000, reply=REPLY)
    (answer,) = replies(steps.run([renew]))
    assert answer.result == {"lease_ms": 60_000, "renewed": "1"}


# ---------------------------------------------------------------- definitions (Q7, Q9, S7)


def test_Q9_deletes_and_definitions_of_one_batch_apply_in_log_order() -> None:
    """The new queue is empty and takes messages; then it is gone."""
    steps = Steps()
    delete = c.Delete(queue="orders", reply=REPLY)
    steps.run([define()], [("orders", b"{}")] * 3)
    out = steps.run([delete, define(max_backlog=7)], [("orders", b"{}")])
    assert [r.error for r in replies(out)] == [None]
    seen = described(steps)
    assert (seen["depth"], seen["spooled"], seen["definition"]["max_backlog"]) == (1, 1, 7)
    steps.run([define(), delete])
    (answer,) = replies(steps.run([c.Describe(queue="orders", reply=REPLY)]))
    assert answer.error is not None


@pytest.mark.parametrize("again", [True, False])
def test_Q7_a_definition_refused_late_changes_nothing(
    again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its route was dropped and the index rebuilt before the last check."""
    monkeypatch.setattr(topic_subscriptions, "TOPICS_MAX", 100)
    steps = Steps()
    steps.run([define(priority="/p", **WIDE)], [("orders", body(p=p)) for p in (1, 9, 5)])
    steps.run([c.SubscribeTopic(queue="orders", topic=f"own/{n}") for n in range(91)])
    many = [f"t/{n}" for n in range(10)]
    name = "orders" if again else "second"
    more = many if again else [f"t/{n}" for n in range(10_001)]
    changed = define(name, underlying_topic="elsewhere", subscriptions=more)
    before = described(steps)
    out = steps.run([c.Define(definition=changed.definition, reply=REPLY)])
    assert replies(out)[0].error is not None
    assert described(steps) == before
    out = steps.run(publishes=[("elsewhere", b"{}", {"producer": "p", "seq": 1})])
    assert [len(o.nacks) for o in out if isinstance(o, Receipts)] == [1]
    assert [q["name"] for q in replies(steps.run([c.Queues(reply=REPLY)]))[0].result] == ["orders"]
    steps.run(publishes=[("orders", body(p=7))])
    assert delivered(steps.run([subscribe("a")])) == [2, 4, 3, 1]


# ---------------------------------------------------------------- acks and returns


def test_L5_a_message_returned_unread_counts_no_attempt() -> None:
    steps = Steps()
    steps.run([define(max_deliveries=2, **WIDE), subscribe("a", 1)], [("orders", b"{}")])
    for _ in range(5):
        returned = c.Returned(queue="orders", subscription="a", ids="1")
        (again,) = [o for o in steps.run([returned]) if isinstance(o, Deliveries)]
        assert (again.ids, again.counts) == ([1], [1])
    (last,) = [
        o for o in steps.run([c.Cancel(queue="orders", subscription="a", ids="1")])
        if isinstance(o, Deliveries)
    ]  # fmt: skip
    assert last.counts == [2]
    steps.run([c.Cancel(queue="orders", subscription="a", ids="1")])
    seen = described(steps)
    assert (seen["expired"], seen["redelivered"]) == (1, 1)


def test_P1_P3_a_filled_gap_is_acknowledged_beside_a_repetition() -> None:
    """The receipt began at the repetition; a new message with a lower sequence was stored without
    an answer."""
    steps = Steps()
    steps.run([define()], [("orders", b"{}", {"producer": "p", "seq": n}) for n in (1, 9)])
    again = [("orders", b"{}", {"producer": "p", "seq": n}) for n in (9, 5)]
    (receipt,) = [o for o in steps.run(publishes=again) if isinstance(o, Receipts)]
    assert sorted(receipt.runs) == [[5, 1, 3], [9, 1, 2]]


def test_L5_each_delivery_has_its_own_number() -> None:
    steps = Steps()
    steps.run([define(**WIDE)])
    out = steps.run([subscribe("a", 2)], [("orders", b"{}")] * 2)
    out += steps.run([c.Returned(queue="orders", subscription="a", ids="1-2")])
    numbers = [n for o in out if isinstance(o, Deliveries) for n in o.numbers]
    assert len(numbers) == 4
    assert len(set(numbers)) == 4


def test_S7_each_consumer_of_a_deleted_queue_is_informed() -> None:
    steps = Steps()
    steps.run([define(), define("other"), subscribe("a", session="s"), subscribe("b")])
    steps.run([subscribe("c", queue="other", session="s")])
    told = replies(steps.run([c.Delete(queue="orders")]))
    ended = {"ended": "queue 'orders' was deleted"}
    assert [(r.request, r.kind, r.result) for r in told] == [
        ("a", "Ended", ended), ("b", "Ended", ended),
    ]  # fmt: skip


def test_B2_consumers_are_told_what_a_new_definition_leaves_of_their_backlogs() -> None:
    steps = Steps()
    steps.run([define(**WIDE), subscribe("a", 5), subscribe("b", 2)])
    told = replies(steps.run([define(**WIDE | {"max_per_subscription_backlog": 3})]))
    told += replies(steps.run([define(**WIDE | {"max_delivered_unacked_per_flow": 1})]))
    assert [(r.request, r.kind, r.result) for r in told] == [
        (name, "Backlog", {"removes_on_send": False, "backlog": backlog})
        for name, backlog in (("a", 3), ("a", 1), ("b", 1))
    ]  # fmt: skip


def test_S7_deleted_queues_leave_nothing_in_a_session() -> None:
    steps = Steps(limits=Limits(subscriptions=2))
    for n in range(4):
        bound = subscribe(f"c{n}", queue=f"q{n}", session="s", reply=REPLY)
        assert not refused(steps.run([define(f"q{n}"), bound]))
        steps.run([c.Delete(queue=f"q{n}")])
    (alive,) = replies(steps.run([c.Heartbeat(session="s", reply=REPLY)]))
    assert alive.result is False
