"""Several messages in a record (decision 0009): the same outcome as one after the other.

The reference is the engine itself, with the same messages in single records, taken one by one. Both
must write the same state and the same outputs, except for the messages' places in Kafka.
"""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lakequeue.protocol import commands as c
from lakequeue.protocol.journal import Journal
from lakequeue.protocol.messages import (
    RUN_MAX,
    PublishHeader,
    Records,
    decode_run,
    encode_publish_header,
    encode_run,
)
from lakequeue.state import Batch
from lakequeue.state.phases import admission
from lakequeue.state.phases.admission import Admission

from .harness import Bench, drain
from .steps import NOW, Steps, define, of, subscribe

TOPIC = "default.publish"
Sent = tuple[PublishHeader, list[bytes], bytes | None, str | None]  # key, headers: if one message


class Engine(Steps):
    """at_once: whether it may take a run's messages together."""

    def __init__(self, at_once: bool, *commands: c.Command) -> None:
        super().__init__()
        self.at_once = at_once
        self.run([*commands])
        self.outputs: list[Any] = []

    def step_alone(self, batch: Batch) -> list[Any]:
        with pytest.MonkeyPatch.context() as patch:
            if not self.at_once:
                patch.setattr(Admission, "_check_together", lambda *_: None)
                patch.setattr(admission, "alike", lambda records, at, header: at + 1)
            return super().step_alone(batch)

    def take(self, records: Records) -> None:
        self.outputs += self.step(Batch(publishes=records))

    def rows(self) -> list[dict[str, Any]]:
        return [row for o in of(Journal, self.outputs) for row in o.rows()]

    def said(self) -> list[Any]:
        """All outputs; the journals as rows without a message's place in Kafka."""
        rows = [{k: v for k, v in r.items() if k not in ("offset", "item")} for r in self.rows()]
        return [rows, *(o for o in self.outputs if not isinstance(o, Journal))]


def add(
    records: Records, value: bytes | None, meta: bytes | None, key: bytes | None = None,
    headers: str | None = None,
) -> None:  # fmt: skip
    values = (TOPIC, 0, len(records), NOW - 5, key, value, meta, headers)
    for name, one in zip(Records.__struct_fields__, values, strict=True):
        getattr(records, name).append(one)


def changed(header: PublishHeader, **changes: Any) -> bytes:
    return encode_publish_header(msgspec.structs.replace(header, **changes))


def records_of(sent: list[Sent], one_by_one: bool) -> Records:
    records = Records()
    for header, run, key, own in sent:
        if len(run) > 1 and not one_by_one:
            add(records, encode_run(run), changed(header, count=len(run)))
            continue
        for n, payload in enumerate(run):
            seq = header.seq + n if header.producer else header.seq
            add(records, payload, changed(header, seq=seq), *(() if len(run) > 1 else (key, own)))
    return records


def check_both(commands: list[c.Command], *steps: list[Sent]) -> Engine:
    """Engines that got the same messages, in runs and one by one; compared after each step."""
    runs, singles = Engine(True, *commands), Engine(False, *commands)
    for sent in steps:
        runs.take(records_of(sent, one_by_one=False))
        singles.take(records_of(sent, one_by_one=True))
        assert runs.said() == singles.said()
        assert runs.marked() == singles.marked()
    return runs


SUBSCRIBED = subscribe("s1", 5)
EARLY = c.Ack(queue="orders", subscription="s1", ids="2-4")
COPIES = {"name": "copies", "underlying_topic": "orders"}
QUEUES: list[list[dict[str, Any]]] = [
    [{}], [{}, COPIES], [{}, {**COPIES, "filter": "/n > 3"}], [{"filter": "/n > 4"}],
    [{"priority": "/n"}], [{"partition_key": "/n"}], [{"expiration": "2s", "on_invalid": "nack"}],
    [{"barrier_expression": "/n = 7"}], [{"max_spool_messages": 5}], [{"max_spool_usage": 60}],
    [{"max_spool_usage": 0}],
    [{"max_spool_usage": 60, "reject_msg_to_sender_on_discard": "never"}],
    [{"max_message_size": 8}], [{"reject_low_priority_msg_limit": 4}],
    [{"max_per_subscription_backlog": 9, "max_backlog": 9}],
    [{}, {**COPIES, "max_spool_usage": 50}],
]  # fmt: skip
VPNS = [c.Configure(), c.Configure(), c.Configure(vpns={"default": {"max_spool_usage": 70}})]


def messages() -> st.SearchStrategy[Sent]:
    payloads = st.lists(
        st.one_of(
            st.integers(0, 9).map(lambda n: json.dumps({"n": n}).encode()),
            st.sampled_from([b"", b"not json", b'{"n": 8, "long": "xxxxxxxx"}']),
        ),
        min_size=1,
        max_size=RUN_MAX,
    )
    headers = st.builds(
        PublishHeader,
        to=st.sampled_from(["orders", "orders", "orders", "nowhere"]),
        producer=st.sampled_from(["", "p", "p", "q"]),
        seq=st.integers(1, 25),
        ttl_ms=st.sampled_from([None, None, 3, 9000]),
        priority=st.sampled_from([0, 4, 9]),
        deliver_at=st.sampled_from([None, None, None, NOW + 500]),
    )
    own = st.sampled_from([None, None, '[{"key": "a", "value": "YmI="}]'])
    return st.tuples(headers, payloads, st.sampled_from([None, b"k"]), own)


@settings(max_examples=150)
@given(
    st.sampled_from(QUEUES),
    st.sampled_from(VPNS),
    st.lists(st.lists(messages(), min_size=1, max_size=5), min_size=1, max_size=3),
    st.sampled_from([(), (SUBSCRIBED,), (SUBSCRIBED, EARLY)]),
)
def test_P1_S3_a_run_equals_its_messages_one_by_one(
    queues: list[dict[str, Any]], vpns: Any, steps: list[list[Sent]], others: tuple[Any, ...]
) -> None:
    check_both([vpns, *[define(**keys) for keys in queues], *others], *steps)


def in_order(count: int, size: int, **changes: Any) -> list[Sent]:
    """Runs of one producer without gaps, as our client sends them."""
    header = PublishHeader(to="orders", producer="p", **changes)
    bodies = [b'{"n": %d}' % n for n in range(size)]
    headers = [msgspec.structs.replace(header, seq=1 + at * size) for at in range(count)]
    return [(header, bodies, None, None) for header in headers]


@pytest.mark.parametrize("queues", QUEUES, ids=lambda q: " ".join(sorted(q[-1])))
@pytest.mark.parametrize("others", [(), (SUBSCRIBED,), (SUBSCRIBED, EARLY)], ids=len)
def test_P1_runs_of_our_client(queues: list[dict[str, Any]], others: tuple[Any, ...]) -> None:
    sent = in_order(6, 8, ttl_ms=9000)
    check_both([*[define(**keys) for keys in queues], *others], sent[:2], sent[1:4], sent[4:])


def test_P1_early_acks_apply_to_the_messages_of_a_run() -> None:
    """L9: a message acknowledged before it came is never delivered, also from within a run."""
    engine = check_both([define(), SUBSCRIBED, EARLY], in_order(1, 8))
    acknowledged = {r["message_id"] for r in engine.rows() if r["event"] == "acknowledged"}
    assert acknowledged == {"2", "3", "4"}


def test_R1_the_journal_names_the_record_and_its_message() -> None:
    engine = check_both([define()], in_order(2, 3))
    places = [(r["offset"], r["item"]) for r in engine.rows() if r["event"] == "spooled"]
    assert places == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    engine = check_both([define(filter="/n > 0")], in_order(1, 3))
    assert [(r["event"], r["item"]) for r in engine.rows()] == [
        ("rejected", 0), ("spooled", 1), ("spooled", 2)
    ]  # fmt: skip


# ---------------------------------------------------------------- on the wire


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=RUN_MAX))
def test_an_encoded_run_can_be_decoded(payloads: list[bytes]) -> None:
    assert decode_run(encode_run(payloads), len(payloads)) == payloads


@given(st.binary(max_size=40), st.integers(1, RUN_MAX))
def test_any_bytes_are_a_run_or_an_error(value: bytes, count: int) -> None:
    payloads, error = None, ""
    try:
        payloads = decode_run(value, count)
    except ValueError as e:
        error = str(e)
    assert error.startswith(f"a run of {count} has") or encode_run(payloads or []) == value


WRONG = {
    "no value": (None, 2, "a run of 2 has 0 bytes, at least 8 needed"),
    "too short": (b"\0\0\0\1", 2, "a run of 2 has 4 bytes, at least 8 needed"),
    "ends fall": (b"\0\0\0\2\0\0\0\1xx", 2, "a run of 2 has a payload that ends at 1"),
    "ends behind": (b"\0\0\0\1\0\0\0\7xx", 2, "a run of 2 has a payload that ends at 7"),
    "more behind": (encode_run([b"a", b"b"]) + b"c", 2, "has 1 bytes after its last payload"),
    "count": (encode_run([b"a"] * 9), 9, "count: 9 – allowed are 1 to 8"),
    "below": (encode_run([b"a"]), -1, "count: -1 – allowed are 1 to 8"),
}


@pytest.mark.parametrize(("value", "count", "says"), WRONG.values(), ids=WRONG)
def test_a_malformed_run_is_rejected_and_others_continue(
    bench: Bench, value: bytes | None, count: int, says: str
) -> None:
    rejected = bench.engine.open_inbox("default.rejected")
    header = PublishHeader(to="orders", producer="other", seq=1, count=count)
    bench.engine.publish(TOPIC, value, None, [("lq", encode_publish_header(header))])
    (record,) = rejected
    assert says in dict(record.headers)["lq-error"].decode()
    assert bench.seen()["depth"] == 0
    number = bench.send({"n": 1})
    assert [m.id for m in drain(bench.consumer())] == [number]


@pytest.mark.parametrize("count", [1, 2, RUN_MAX])
@pytest.mark.parametrize(
    ("key", "headers", "has"),
    [
        (b"k" * 10, [], "a key"),
        (b"", [], "a key"),
        (None, [("a", b"b" * 10)], "application headers"),
    ],
)
def test_S1_a_run_cannot_multiply_a_key_or_headers(
    bench: Bench, count: int, key: bytes | None, headers: Any, has: str
) -> None:
    """They would be stored once for each message: a record of 10 MB would take 80 MB."""
    rejected = bench.engine.open_inbox("default.rejected")
    header = PublishHeader(to="orders", count=count)
    lq = ("lq", encode_publish_header(header))
    bench.engine.publish(TOPIC, encode_run([b"{}"] * count), key, [lq, *headers])
    (record,) = rejected
    says = f"a run of {count} has {has}: send such a message on its own"
    assert dict(record.headers)["lq-error"].decode() == says
    assert bench.seen()["depth"] == 0


def test_a_plain_producer_can_send_a_run_to_a_captured_topic(bench: Bench) -> None:
    """Without `to` and without a producer: the count alone is enough."""
    bench.engine.publish("orders", encode_run([b"{}", b"[]"]), None, [("lq", b'{"count": 2}')])
    assert [m.payload for m in drain(bench.consumer())] == [b"{}", b"[]"]


@pytest.mark.parametrize("second", [
    b'{"to":"orders","producer":"p","seq":2}', b'{"to": "orders", "producer": "p", "seq": 2}',
    b'{"seq":2,"to":"orders","producer":"p"}', b'{"to":"orders","producer":"p","seq":7,"seq":2}',
    b'{"to":"orders","producer":"p","seq":2,"s\\u0065q":3}',
    b'{"to":"orders","producer":"p","seq":2.0}', b'{"to":"orders","producer":"p","seq":20e-1}',
    b'{"to":"orders","producer":"p","seq":2,"priority":9}',
    b'{"to":"orders","producer":"p","seq":2', b'{"to":"more","producer":"p","seq":2}',
])  # fmt: skip
@pytest.mark.parametrize("first", [b"", b',"seq":1', b',"s\\u0065q":1', b',"priority":9'])
def test_P1_records_are_joined_by_the_contents_of_their_headers(
    first: bytes, second: bytes
) -> None:
    metas = [
        b'{"to":"orders","producer":"p","seq":1%s}' % first, second,
        second.replace(b"2", b"3"), second.replace(b"2", b"4"),
    ]  # fmt: skip
    joined, single = (Engine(at_once, define(), define("more")) for at_once in (True, False))
    for engine in (joined, single):
        records = Records()
        for at, meta in enumerate(metas):
            add(records, b"%d" % at, meta)
        engine.take(records)
    assert joined.marked() == single.marked()
    assert joined.said() == single.said()
