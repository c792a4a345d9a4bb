"""What bounds each loop: commands, payloads and clients of any size, and steps that stay small."""

import json
import time
from typing import Any

import pytest
from lakequeue.client.message import BrowsedMessage
from lakequeue.protocol import commands as c
from lakequeue.protocol import wire
from lakequeue.protocol.ids import LONG, parse_ranges
from lakequeue.protocol.journal import Journal
from lakequeue.protocol.outputs import Deadline, Deliveries
from lakequeue.state import Batch, Limits
from rules.steps import REPLY, Steps, define, delivered, described, replies, subscribe

WIDE = {"max_per_subscription_backlog": 100_000}


def body(**values: Any) -> bytes:
    return json.dumps(values).encode()


def each_step(steps: Steps, commands: Any = (), publishes: Any = ()) -> list[list[Any]]:
    """What each step said, until the engine wants no more."""
    batch = Batch(steps.command_records(commands), steps.publish_records(publishes))
    said = []
    for _ in range(3_000):
        said.append(steps.step(batch))
        at = [o.at for o in said[-1] if isinstance(o, Deadline)][-1]
        if not 0 < at <= steps.now:
            return said
        batch = Batch()
    raise AssertionError("the engine does not end")


def test_O3_X1_a_barrier_goes_out_if_the_last_one_before_it_expires_in_the_search() -> None:
    """A step's budget ended before it expired, so the search for a message finds it overdue."""
    steps = Steps(limits=Limits(due_rows=1))
    steps.run([define(barrier_expression="/b = 1", **WIDE)])
    brief = {"ttl_ms": 1_000}
    publishes = [*[("orders", body(b=0), brief)] * 2, ("orders", body(b=1))]
    steps.run(publishes=publishes)
    steps.now += 2_000
    assert delivered(steps.run([subscribe("a", 10)])) == [3]


# ---------------------------------------------------------------- bytes


def test_C2_what_is_sent_again_has_a_budget_and_its_order() -> None:
    """A client that says nothing has 200 messages under way: they do not all come in one step."""
    steps = Steps(limits=Limits(again_rows=30, again_bytes=1_000))
    steps.run([define(**WIDE), subscribe("a", 300, transport_acks=True)])
    for start in range(0, 200, 50):
        publishes = [("orders", body(n=f"{n:038}")) for n in range(start, start + 50)]
        assert len(delivered(steps.run(publishes=publishes))) == 50
    steps.now += 2_000
    said = each_step(steps, publishes=[("orders", body(n=0))])
    sent = [[o for o in out if isinstance(o, Deliveries)] for out in said]
    assert max(sum(len(d.ids) for d in ds) for ds in sent) <= 1_000 // len(body(n=f"{0:038}")) + 1
    in_order = [d for ds in sent for d in ds]
    assert [i for d in in_order for i in d.ids] == [*range(1, 202)]
    assert [d.again for d in in_order] == [True] * (len(in_order) - 1) + [False]
    numbers = [n for d in in_order if d.flow for n in range(d.flow[1], d.flow[1] + len(d.ids))]
    assert numbers == [*range(201, 402)]
    steps.run([c.TransportAck(queue="orders", subscription="a", received=401)])
    steps.now += 600_000
    assert not delivered(steps.run())


def test_F5_filters_read_no_more_than_their_bytes() -> None:
    steps = Steps(limits=Limits(look_bytes=5_000), checked=False)
    long = "/k = 1 AND '" + "x" * 500 + "' = '" + "x" * 500 + "'"
    steps.run([define(**WIDE)], [("orders", body(k=n % 2, x="x" * 2_000)) for n in range(40)])
    said = each_step(steps, [subscribe("f", 100, filter=long)])
    got = [sum(len(o.ids) for o in out if isinstance(o, Deliveries)) for out in said]
    assert (sum(got), max(got) <= 2) == (20, True)  # a look reads about 3,000 bytes
    assert len(said) >= 40 * 3_000 / 5_000 / 2


@pytest.mark.parametrize("command", ["purge", "redrive", "ack", "move", "edit"])
def test_R6_X6_L13_what_reads_payloads_reads_no_more_than_its_bytes(command: str) -> None:
    steps = Steps(limits=Limits(bulk_bytes=10_000), checked=False)
    dead = define("dead", **WIDE)
    steps.run([dead, define(dead_message_queue="dead", expiration="1s", **WIDE)])
    steps.run(publishes=[("orders", body(n=n, x="x" * 1_000)) for n in range(100)])
    steps.now += 1_000
    steps.run()
    assert described(steps, "dead")["depth"] == 100
    given = {
        "purge": c.Purge(queue="dead", where="/n >= 0"),
        "redrive": c.Redrive(queue="dead"),
        "ack": c.Ack(queue="dead", where="/n >= 0"),
        "move": c.Move(queue="dead", to="orders"),
        "edit": c.Edit(queue="dead", where="/n >= 0", headers={"a": "b"}),
    }[command]
    said = each_step(steps, [given])
    events = {"purge": "purged", "redrive": "redriven", "ack": "acknowledged", "move": "moved",
              "edit": "edited"}  # fmt: skip
    done = [
        sum(len(s.ids) for o in out if isinstance(o, Journal) for s in o.segments
            if s.event == events[command] and s.queue == "dead")
        for out in said
    ]  # fmt: skip
    assert (sum(done), max(done) <= 10) == (100, True), done


def test_R6_a_browse_of_large_messages_comes_in_parts_that_fit() -> None:
    steps = Steps(checked=False)
    steps.run([define("orders", **WIDE)])
    steps.run(publishes=[("orders", body(x="x" * 1_500_000))] * 12)
    found, start = [], None
    for _ in range(12):
        (answer,) = replies(steps.run([c.Browse(queue="orders", start=start, reply=REPLY)]))
        (record,) = wire.encode([answer])
        assert json.loads(record.value or b"{}")["error"] is None
        found += [row["id"] for row in answer.result]
        start = answer.more
        if start is None:
            break
    assert found == [str(n) for n in range(1, 13)]


# ---------------------------------------------------------------- many


def test_R6_many_ranges_cost_no_more_than_they_find() -> None:
    steps = Steps(checked=False)
    steps.run([define(**WIDE)])
    for _ in range(4):
        steps.run(publishes=[("orders", b"{}")] * 5_000)
    odd = ",".join(str(n) for n in range(1, 199_999, 2))
    begun = time.process_time()
    steps.run([c.Purge(queue="orders", ids=odd)])
    assert time.process_time() - begun < 5.0  # one by one: 20 pages × 100,000 ranges
    assert described(steps)["depth"] == 10_000


def test_L9_early_acks_beyond_the_limit_are_counted_and_said_once() -> None:
    steps = Steps(limits=Limits(early_acks=3))
    steps.run([define(**WIDE), subscribe("a")])
    ids = ",".join(str(n) for n in range(1, 2_000, 2))
    out = steps.run([c.Ack(queue="orders", subscription="a", ids=ids)])
    said = [s for o in out if isinstance(o, Journal) for s in o.segments]
    assert [s.event for s in said] == ["deferred_ack"] * 3 + ["ack_ignored"]
    assert said[-1].reason.startswith("to 1999: more than 3 acks wait")
    assert described(steps)["ack_ignored"] == 997


def test_B2_subscriptions_have_a_limit() -> None:
    steps = Steps(limits=Limits(subscriptions=3, filter_characters=20))
    steps.run([define(**WIDE), define("other", **WIDE)])
    wanted = [subscribe(f"s{n}", session="me", reply=REPLY) for n in range(3)]
    wanted += [subscribe("s3", session="you", reply=REPLY)]
    wanted += [subscribe("s4", queue="other", session="me", reply=REPLY)]
    wanted += [subscribe("s0", session="me", reply=REPLY)]  # the same again is no other
    wanted += [subscribe("f", queue="other", filter="/k = 1", reply=REPLY)]
    wanted += [subscribe("g", queue="other", filter="/k = 'a long text'", reply=REPLY)]
    errors = [r.error for r in replies(steps.run(wanted))]
    assert [e is None for e in errors] == [True] * 3 + [False, False, True, True, False]
    assert "the queue has 3 subscriptions, at most 3" in str(errors[3])
    assert "the session has 3 subscriptions, at most 3" in str(errors[4])
    assert "24 characters, at most 20" in str(errors[7])


def test_B2_a_session_has_few_subscriptions_to_one_queue() -> None:
    """A mark writes all of a queue's subscriptions, so one client alone cannot make them many."""
    steps = Steps(limits=Limits(session_queue_subscriptions=2))
    steps.run([define(**WIDE), define("other", **WIDE)])
    wanted = [subscribe(f"s{n}", session="me", reply=REPLY) for n in range(3)]
    wanted += [subscribe(f"o{n}", queue="other", session="me", reply=REPLY) for n in range(2)]
    wanted += [subscribe("y", session="you", reply=REPLY)]
    wanted += [c.Unsubscribe(queue="orders", subscription="s0")]
    wanted += [subscribe("s3", session="me", reply=REPLY)]
    errors = [r.error for r in replies(steps.run(wanted))]
    assert [e is None for e in errors] == [True, True, False, True, True, True, True]
    assert "for this queue the session has 2 subscriptions, at most 2 are allowed" in str(errors[2])


# ---------------------------------------------------------------- extreme values


def test_O3_O4_the_order_in_a_lane_holds_after_very_many_barriers() -> None:
    """Generations beyond 65,535 counted as one in the index of lanes: a later message of a higher
    priority came before an earlier one that a barrier waits for, and the queue stood still."""
    steps = Steps()
    steps.run([define(barrier_expression="/b = 1", partition_key="/k", **WIDE)])
    steps.run(publishes=[("orders", body(k="z"))])
    queue = steps.broker.find("default", "orders")
    assert queue is not None
    queue.header.generation, queue.header.generations = 70_000, {0: 1}
    steps.run(publishes=[("orders", body(k="a")), ("orders", body(b=1))])
    steps.run([define(priority="/p", partition_key="/k", **WIDE)])
    steps.run(publishes=[("orders", body(k="a", p=9))])
    assert delivered(steps.run([subscribe("s", 10, acks="none")])) == [1, 2, 3, 4]


def test_P1_a_producer_with_very_many_gaps_holds_up_nobody() -> None:
    """Each message was compared with up to 10,000 gaps."""
    steps = Steps(checked=False)
    steps.run([define(**WIDE)])
    sequences = [*range(2, 20_001, 2), *range(19_999, 0, -2)]
    begun = time.process_time()
    for at in range(0, len(sequences), 5_000):
        part = sequences[at : at + 5_000]
        steps.run(publishes=[("orders", b"{}", {"producer": "p", "seq": n}) for n in part])
    assert time.process_time() - begun < 5.0
    assert described(steps)["depth"] == 20_000
    again = [("orders", b"{}", {"producer": "p", "seq": n}) for n in sequences[::7]]
    steps.run(publishes=again)
    assert described(steps)["depth"] == 20_000


def test_R6_a_browse_of_large_keys_comes_in_parts_that_fit() -> None:
    steps = Steps(checked=False)
    steps.run([define("orders", **WIDE)])
    steps.run(publishes=[("orders", b"{}", {"key": b"k" * 1_500_000})] * 12)
    (answer,) = replies(steps.run([c.Browse(queue="orders", reply=REPLY)]))
    (record,) = wire.encode([answer])
    assert json.loads(record.value or b"{}")["error"] is None
    assert len(answer.result) == 2


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
    """What does not fit into an answer is cut, and that is said."""
    steps = Steps(checked=False)
    steps.run([define("orders", message_type="binary", max_message_size="11MB")])
    text = wire.headers_json([("h", headers)])
    steps.run(publishes=[("orders", payload, {"key": key, "headers": text}), ("orders", b"next")])
    found, start = [], None
    for _ in range(2):
        (answer,) = replies(steps.run([c.Browse(queue="orders", start=start, reply=REPLY)]))
        (record,) = wire.encode([answer])
        said = json.loads(record.value or b"{}")
        assert said["error"] is None
        found += [BrowsedMessage.of("orders", row) for row in said["result"]]
        if (start := answer.more) is None:
            break
    first, second = found
    assert (list(first.cut), second.cut, second.payload) == (cut, (), b"next")
    assert payload.startswith(first.payload)
    assert (first.payload == payload) == ("payload" not in cut)
    assert (first.headers == {"h": headers.decode()}) == ("headers" not in cut)


def test_L13_a_long_text_of_ranges_is_read_once_and_nobody_shares_what_is_changed() -> None:
    text = ",".join(str(n) for n in range(1, 9_999, 2))
    assert len(text) >= LONG
    first = parse_ranges(text)
    first.clear()
    again = parse_ranges(text)
    assert again == [(n, n) for n in range(1, 9_999, 2)]
    with pytest.raises(ValueError, match="'x'"):
        parse_ranges(text + ",x")


@pytest.mark.parametrize(("ids", "why"), [
    ("5-1", "lower one"), (f"{1 << 64}", "at most"), (f"1-{1 << 64}", "at most"),
    ("9" * 30, "at most"), ("1-" + "9" * 30, "at most"), ("-1", "allowed are"),
])  # fmt: skip
def test_L13_wrong_ids_are_refused_for_their_own_reason(ids: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"{ids[:9]}.* {why}"):
        parse_ranges(ids)
