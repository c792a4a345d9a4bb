"""Every output fits into a Kafka record, headers included, whatever the input (S1)."""

import json
from collections.abc import Callable

import pytest
from lakequeue.protocol import ConfigError, home_bridges, topics, wire
from lakequeue.protocol import commands as c
from lakequeue.protocol.checked import encode_checked
from lakequeue.protocol.journal import Journal, JournalSegment
from lakequeue.protocol.kafka_headers import UNREADABLE
from lakequeue.protocol.mesh_messages import Sync
from lakequeue.protocol.messages import decode_publish_header
from lakequeue.protocol.outputs import MeshRecord, Receipts, RejectedRecord, Reply
from rules.steps import delivery

KAFKA_MAX = 12_000_000


def size_of(record: wire.WireRecord) -> int:
    return sum(len(part or b"") for part in (record.key, record.value)) + len(record.headers or "")


def test_P3_many_refusals_are_sent_in_several_records() -> None:
    nacks = [(seq, "queue_quota", "q" * 250, "x" * 250) for seq in range(20_001, 0, -1)]
    records = list(wire.encode([Receipts("default", "p", 20_001, 0, [[30_000, 1, 7]], nacks)]))
    assert len(records) == 5
    assert max(map(size_of, records)) < KAFKA_MAX
    told: set[int] = set()
    settled = 0
    for record in records:
        value = json.loads(record.value or b"")
        told |= {nack["seq"] for nack in value["nacks"]}
        settled = value["up_to"]
        assert set(range(1, settled + 1)) <= told, "settled, although refused"
    assert settled == 20_001
    assert sum(len(json.loads(r.value or b"")["runs"]) for r in records) == 1


@pytest.mark.parametrize("where", ["headers", "keys", "payloads"])
def test_C6_the_size_of_a_batch_counts_everything_in_it(where: str) -> None:
    n, large = 40, b"x" * 100_000
    records = list(wire.encode([delivery([*range(n)], **{where: [large] * n})]))
    assert len(records) == 8
    assert [i for r in records for i in wire.decode_batch(r.value or b"").ids] == list(range(n))


def test_R1_a_journal_of_long_texts_is_split() -> None:
    reasons = (f"{i}" * 200 for i in range(20_000))
    segments = [JournalSegment("command_refused", "default", "q", reason=text) for text in reasons]
    records = list(wire.encode([Journal("broker-0", 3, 0, segments)]))
    assert len(records) > 1
    assert max(map(size_of, records)) < KAFKA_MAX
    steps = [dict(wire.headers_list(r.headers))["lq-step"] for r in records]
    assert steps == [f"3.{i}".encode() for i in range(len(records))]


def test_S1_a_rejected_record_is_cut() -> None:
    rejected = RejectedRecord(
        "default", "t" * 249, 0, 0, b"k" * 5_000_000, b"v" * 11_000_000, "why\ud800" * 1_000_000
    )
    (record,) = wire.encode([rejected])
    assert size_of(record) < KAFKA_MAX
    assert dict(wire.headers_list(record.headers))["lq-truncated"] == b"11000000"


def test_messages_to_a_just_added_broker_are_not_put_into_rejected() -> None:
    """The sender may not have seen that broker's topic yet; a client's topic must exist."""
    known = {"default.rejected": 1}
    said = MeshRecord("new", 0, "a", 7, 1, Sync())
    (record,) = wire.encode([said], known)
    assert (record.topic, record.partition) == ("new.mesh", 0)
    asked = Reply("default.deliveries.new", 0, "request", None)
    (record,) = wire.encode([asked], known)
    assert record.topic == topics.topic("default", topics.REJECTED)


def test_a_publisher_cannot_pose_as_the_engine() -> None:
    """A reader that puts headers into a map keeps the last one of a name."""
    said = [("lq-id", b"9"), ("lq-framing", b"reply"), ("lq-dead-time", b"soon"), ("k", b"v"),
            ("lq-replay-of", b"3")]  # fmt: skip
    headers = (wire.headers_json(said) or "").encode()
    (record,) = wire.encode([delivery([1], "single", headers=[headers])])
    sent = wire.headers_list(record.headers)
    assert [value for name, value in sent if name == "lq-id"] == [b"1"]
    assert not {"lq-framing", "lq-dead-time"} & {name for name, _ in sent}
    assert sent[-2:] == [("k", b"v"), ("lq-replay-of", b"3")]


# ---------------------------------------------------------------- inputs

READERS: dict[str, Callable[[bytes], object]] = {
    "lq": decode_publish_header, "a far end": home_bridges.decode_send,
    "a near end": home_bridges.decode_copied, "a bridge's key": home_bridges.of_key,
}  # fmt: skip


@pytest.mark.parametrize(
    ("reader", "value", "why"),
    [
        ("lq", UNREADABLE, "a name is not UTF-8"),
        ("lq", b'{"deliver_at":1,"delay_ms":1}', "deliver_at, delay_ms: both are given"),
        ("lq", b'{"start":"s"}', "start: 's' – needs 'producer'"),
        ("a far end", b"x", "not a record of a bridge of another home"),
        ("a near end", b"x", "not the answer of a bridge's far end"),
        ("a bridge's key", home_bridges.COPIER_PREFIX + b"vpn", "not the key of a bridge"),
    ],
)
def test_S1_an_unreadable_record_is_refused_with_the_reason(
    reader: str, value: bytes, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        READERS[reader](value)


def test_S1_an_answer_too_large_for_its_topic_becomes_an_error() -> None:
    (record,) = wire.encode([Reply("default.deliveries", 0, "r", "x" * wire.REJECTED_BYTES)])
    told = json.loads(record.value or b"")
    assert (told["request"], told["result"], told["kind"]) == ("r", None, "LakequeueError")
    assert "ask for less" in told["error"]


def test_a_reply_address_with_a_lone_surrogate_is_refused() -> None:
    reply = c.ReplyTo(topic="t", request="\ud800")
    with pytest.raises(ConfigError, match=r"reply.request: .* an unpaired surrogate"):
        encode_checked(c.Usage(reply=reply))
