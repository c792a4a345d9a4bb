"""The bounds of each loop: with commands, payloads and clients of any size, steps stay small."""

import json
from typing import Any

import pytest
from lakequeue.client.message import BrowsedMessage
from lakequeue.protocol import commands as c
from lakequeue.protocol import wire
from lakequeue.protocol.ids import LONG, format_ranges, parse_ranges
from lakequeue.protocol.journal import Journal
from lakequeue.protocol.outputs import Deliveries
from lakequeue.state import Limits
from rules.steps import (
    REPLY,
    WIDE,
    Steps,
    body,
    define,
    delivered,
    described,
    of,
    replies,
    started,
    subscribe,
)


def segments(outputs: list[Any]) -> list[Any]:
    return [s for o in of(Journal, outputs) for s in o.segments]


def test_O3_X1_a_barrier_is_delivered_when_the_last_message_before_it_expires() -> None:
    """The step's budget ended before that message expired, so the search for a message finds it
    overdue."""
    steps = started(define(barrier_expression="/b = 1", **WIDE), limits=Limits(due_rows=1))
    brief = {"ttl_ms": 1_000}
    steps.run(publishes=[*[("orders", body(b=0), brief)] * 2, ("orders", body(b=1))])
    steps.now += 2_000
    assert delivered(steps.run([subscribe("a", 10)])) == [3]


def test_O3_X1_an_overdue_barrier_is_not_delivered() -> None:
    """The step's budget ended before the barrier expired, and everything before it has left."""
    steps = started(define(barrier_expression="/b = 1", **WIDE), limits=Limits(due_rows=1))
    brief = {"ttl_ms": 1_000}
    steps.run(publishes=[("orders", body(b=b), brief) for b in (0, 1)])
    steps.now += 2_000
    assert delivered(steps.run([subscribe("a", 10)])) == []
    assert described(steps)["expired"] == 2


@pytest.mark.parametrize("text", [None, "/b = 1"])
def test_O3_each_consumer_of_a_barrier_counts_as_a_delivery(text: str | None) -> None:
    """Otherwise a step would send thousands of barriers to thousands of consumers at once."""
    steps = started(define(barrier_expression="/b = 1"), limits=Limits(delivery_rows=30))
    steps.run(publishes=[("orders", body(b=1))] * 20)
    each = [of(Deliveries, out) for out in steps.each([subscribe(n, filter=text) for n in "abcd"])]
    assert sum(map(len, each)) == 80
    assert max(map(len, each)) <= 30 + 3


def test_O3_F5_the_filters_of_a_barriers_consumers_have_a_budget() -> None:
    steps = started(define(barrier_expression="/b = 1"), limits=Limits(looks=9))
    steps.run(publishes=[("orders", body(b=1, n=n)) for n in range(20)])
    consumers = [subscribe(name, filter=f"/n <> -{name}") for name in "1234"]
    each = [of(Deliveries, out) for out in steps.each(consumers)]
    assert sum(map(len, each)) == 80
    assert max(map(len, each)) <= 9 + 3


@pytest.mark.parametrize("dry_run", [False, True])
def test_X1_R6_an_overdue_message_is_not_moved(dry_run: bool) -> None:
    """The step's budget ended before it expired."""
    steps = started(define(**WIDE), define("others", **WIDE), limits=Limits(due_rows=1))
    steps.run(publishes=[("orders", body(n=n), {"ttl_ms": 1_000}) for n in range(4)])
    steps.now += 2_000
    moved = steps.ask(c.Move(queue="orders", to="others", dry_run=dry_run))
    assert moved == {"count": 0, "stayed": 0, "why": {}}
    assert described(steps)["expired"] == 4
    assert described(steps, "others")["spooled"] == 0


def test_X1_X6_an_overdue_message_is_not_redriven() -> None:
    """The step's budget ended before it expired."""
    dead = define("dead", expiration="1s", **WIDE)
    orders = define(dead_message_queue="dead", **WIDE)
    steps = started(dead, orders, subscribe("a", 10), limits=Limits(due_rows=1))
    sent = delivered(steps.run(publishes=[("orders", body(n=n)) for n in range(4)]))
    steps.run([c.Reject(queue="orders", subscription="a", ids=format_ranges(sent))])
    steps.now += 2_000
    assert steps.ask(c.Redrive(queue="dead"))["moved"] == 0
    assert described(steps, "dead")["expired"] == 4


# ---------------------------------------------------------------- bytes


def test_C2_repeated_deliveries_have_a_budget_and_keep_their_order() -> None:
    """A silent client has 200 unconfirmed messages: they are not all repeated in one step."""
    consumer = subscribe("a", 300, transport_acks=True)
    steps = started(define(**WIDE), consumer, limits=Limits(again_rows=30, again_bytes=1_000))
    for start in range(0, 200, 50):
        publishes = [("orders", body(n=f"{n:038}")) for n in range(start, start + 50)]
        assert len(delivered(steps.run(publishes=publishes))) == 50
    steps.now += 2_000
    sent = [of(Deliveries, said) for said in steps.each(publishes=[("orders", body(n=0))])]
    assert max(sum(len(d.ids) for d in ds) for ds in sent) <= 1_000 // len(body(n=f"{0:038}")) + 1
    in_order = [d for ds in sent for d in ds]
    assert [i for d in in_order for i in d.ids] == [*range(1, 202)]
    assert [d.again for d in in_order] == [True] * (len(in_order) - 1) + [False]
    numbers = [n for d in in_order if d.flow for n in range(d.flow[1], d.flow[1] + len(d.ids))]
    assert numbers == [*range(201, 402)]
    steps.run([c.TransportAck(queue="orders", subscription="a", received=401)])
    assert not delivered(steps.tick(600_000))


def test_F5_filters_read_no_more_than_their_bytes() -> None:
    steps = started(define(**WIDE), limits=Limits(look_bytes=5_000), checked=False)
    steps.run(publishes=[("orders", body(k=n % 2, x="x" * 2_000)) for n in range(40)])
    long = "/k = 1 AND '" + "x" * 500 + "' = '" + "x" * 500 + "'"
    got = [len(delivered(said)) for said in steps.each([subscribe("f", 100, filter=long)])]
    assert (sum(got), max(got) <= 2) == (20, True)  # a search reads about 3,000 bytes
    assert len(got) >= 40 * 3_000 / 5_000 / 2


BULK: dict[str, c.Command] = {  # by the event of each message
    "purged": c.Purge(queue="dead", where="/n >= 0"),
    "redriven": c.Redrive(queue="dead"),
    "acknowledged": c.Ack(queue="dead", where="/n >= 0"),
    "moved": c.Move(queue="dead", to="orders"),
    "edited": c.Edit(queue="dead", where="/n >= 0", headers={"a": "b"}),
}


@pytest.mark.parametrize("event", BULK)
def test_R6_X6_L13_commands_that_read_payloads_keep_their_byte_budget(event: str) -> None:
    dying = define(dead_message_queue="dead", expiration="1s", **WIDE)
    steps = started(define("dead", **WIDE), dying, limits=Limits(bulk_bytes=10_000), checked=False)
    steps.run(publishes=[("orders", body(n=n, x="x" * 1_000)) for n in range(100)])
    steps.tick(1_000)
    assert described(steps, "dead")["depth"] == 100
    done = [
        sum(len(s.ids) for s in segments(said) if (s.event, s.queue) == (event, "dead"))
        for said in steps.each([BULK[event]])
    ]
    assert (sum(done), max(done) <= 10) == (100, True), done


def browse(steps: Steps, at_most: int = 12) -> list[list[dict[str, Any]]]:
    """The parts in which a queue is shown; each fits into a record."""
    parts, start = [], None
    for _ in range(at_most):
        (answer,) = replies(steps.run([c.Browse(queue="orders", start=start, reply=REPLY)]))
        (record,) = wire.encode([answer])
        said = json.loads(record.value or b"{}")
        assert said["error"] is None
        parts.append(said["result"])
        if (start := answer.more) is None:
            return parts
    raise AssertionError(f"more than {at_most} parts")


def test_R6_a_browse_of_large_messages_is_answered_in_parts() -> None:
    steps = started(define(**WIDE), checked=False)
    steps.run(publishes=[("orders", body(x="x" * 1_500_000))] * 12)
    assert [row["id"] for part in browse(steps) for row in part] == [str(n) for n in range(1, 13)]


def test_R6_a_browse_of_large_keys_is_answered_in_parts() -> None:
    steps = started(define(**WIDE), checked=False)
    steps.run(publishes=[("orders", b"{}", {"key": b"k" * 1_500_000})] * 12)
    assert len(browse(steps)[0]) == 2


@pytest.mark.parametrize(
    ("payload", "key", "headers", "cut"),
    [
        (b"x" * 3_900_000, b"k", b"", []),
        (b"x" * 10_000_000, b"k", b"1", ["payload"]),
        (b"x", b"k" * 9_000_000, b"1", ["key", "headers", "payload"]),
        (b"x", b"k", b"1" * 6_000_000, ["headers"]),
    ],
)
def test_R6_a_message_of_any_size_can_be_browsed(
    payload: bytes, key: bytes, headers: bytes, cut: list[str]
) -> None:
    """A payload too large for an answer is cut, and flagged as cut."""
    large = define(message_type="binary", max_message_size="11MB")
    steps = started(large, checked=False)
    text = wire.headers_json([("h", headers)])
    steps.run(publishes=[("orders", payload, {"key": key, "headers": text}), ("orders", b"next")])
    rows = [row for part in browse(steps, 2) for row in part]
    first, second = (BrowsedMessage.of("orders", row) for row in rows)
    assert (list(first.cut), second.cut, second.payload) == (cut, (), b"next")
    assert payload.startswith(first.payload)
    assert (first.payload == payload) == ("payload" not in cut)
    assert (first.headers == {"h": headers.decode()}) == ("headers" not in cut)


# ---------------------------------------------------------------- many


def test_R6_a_purge_of_very_many_ranges_removes_these_messages() -> None:
    steps = started(define(**WIDE), checked=False)
    for _ in range(4):
        steps.run(publishes=[("orders", b"{}")] * 5_000)
    odd = ",".join(str(n) for n in range(1, 199_999, 2))
    steps.run([c.Purge(queue="orders", ids=odd)])
    assert described(steps)["depth"] == 10_000


def test_L9_early_acks_beyond_the_limit_are_counted_and_reported_once() -> None:
    steps = started(define(**WIDE), subscribe("a"), limits=Limits(early_acks=3))
    ids = ",".join(str(n) for n in range(1, 2_000, 2))
    said = segments(steps.run([c.Ack(queue="orders", subscription="a", ids=ids)]))
    assert [s.event for s in said] == ["deferred_ack"] * 3 + ["ack_ignored"]
    assert said[-1].reason.startswith("to 1999: more than 3 acks wait")
    assert described(steps)["ack_ignored"] == 997


TOO_MANY: dict[str, tuple[Limits, list[c.Command], str]] = {  # the last one is refused
    "queue": (
        Limits(subscriptions=3),
        [*[subscribe(f"s{n}", session="me") for n in range(3)], subscribe("s0", session="me"),
         subscribe("s3", session="you")],
        "the queue has 3 subscriptions, at most 3",
    ),
    "session": (
        Limits(subscriptions=3),
        [*[subscribe(f"s{n}", session="me") for n in range(3)],
         subscribe("s3", queue="other", session="me")],
        "the session has 3 subscriptions, at most 3",
    ),
    "filter": (
        Limits(filter_characters=20),
        [subscribe("f", filter="/k = 1"), subscribe("g", filter="/k = 'a long text'")],
        "24 characters, at most 20",
    ),
    "session in one queue": (  # a mark writes all of a queue's subscriptions
        Limits(session_queue_subscriptions=2),
        [*[subscribe(f"o{n}", queue="other", session="me") for n in range(2)],
         subscribe("y", session="you"),
         *[subscribe(f"s{n}", session="me") for n in range(3)]],
        "for this queue the session has 2 subscriptions, at most 2 are allowed",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("limits", "wanted", "why"), TOO_MANY.values(), ids=TOO_MANY)
def test_B2_subscriptions_have_a_limit(limits: Limits, wanted: list[Any], why: str) -> None:
    steps = started(define(**WIDE), define("other", **WIDE), limits=limits)
    for one in wanted[:-1]:
        steps.ask(one)
    assert why in steps.error(wanted[-1])


def test_B2_an_ended_subscription_makes_room_for_another() -> None:
    limits = Limits(session_queue_subscriptions=2)
    steps = started(
        define(**WIDE), *[subscribe(f"s{n}", session="me") for n in (1, 2)], limits=limits
    )
    steps.run([c.Unsubscribe(queue="orders", subscription="s1")])
    steps.ask(subscribe("s3", session="me"))


# ---------------------------------------------------------------- extreme values


def test_O3_O4_the_order_in_a_lane_holds_after_very_many_barriers() -> None:
    """Generations beyond 65,535 counted as one in the index of lanes: a later message of a higher
    priority came before an earlier one that a barrier waits for, and the queue stopped."""
    steps = started(define(barrier_expression="/b = 1", partition_key="/k", **WIDE))
    steps.run(publishes=[("orders", body(k="z"))])
    queue = steps.broker.find("default", "orders")
    assert queue is not None
    queue.header.generation, queue.header.generations = 70_000, {0: 1}
    steps.run(publishes=[("orders", body(k="a")), ("orders", body(b=1))])
    steps.run([define(priority="/p", partition_key="/k", **WIDE)])
    steps.run(publishes=[("orders", body(k="a", p=9))])
    assert delivered(steps.run([subscribe("s", 10, acks="none")])) == [1, 2, 3, 4]


def test_L13_a_long_text_of_ranges_is_parsed_once_and_never_shared() -> None:
    text = ",".join(str(n) for n in range(1, 9_999, 2))
    assert len(text) >= LONG
    parse_ranges(text).clear()
    assert parse_ranges(text) == [(n, n) for n in range(1, 9_999, 2)]
    with pytest.raises(ValueError, match="'x'"):
        parse_ranges(text + ",x")


@pytest.mark.parametrize(("ids", "why"), [
    ("5-1", "lower one"), (f"{1 << 64}", "at most"), (f"1-{1 << 64}", "at most"),
    ("9" * 30, "at most"), ("1-" + "9" * 30, "at most"), ("-1", "allowed are"),
])  # fmt: skip
def test_L13_invalid_ids_are_refused_with_their_reason(ids: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"{ids[:9]}.* {why}"):
        parse_ranges(ids)
