"""The channel between brokers: records arrive exactly once and in order; an invalid record is
refused, and the channel continues."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import lakequeue
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lakequeue.definitions import parse_configuration
from lakequeue.definitions.configuration import configure_commands
from lakequeue.mesh import channel
from lakequeue.mesh.facts import Peer
from lakequeue.mesh.mesh import Mesh
from lakequeue.protocol import ConfigError, mesh_messages, topics
from lakequeue.protocol import commands as c
from lakequeue.protocol.home_bridges import CopierState, bridge_key, encode
from lakequeue.protocol.mesh_messages import Sync
from lakequeue.protocol.messages import Records
from lakequeue.protocol.outputs import MeshRecord, RejectedRecord
from lakequeue.state import Broker, DictStore, Home, Limits
from lakequeue.state.storage.row import NEVER

from .steps import NOW


class Note(mesh_messages.MeshMessage, frozen=True):
    """The message of these tests."""

    kind: ClassVar[str] = "note"
    value: int


def record(number: int, body: Any, sender: int = 1, name: str = "b", epoch: int = 5) -> bytes:
    return mesh_messages.encode(sender, name, epoch, number, body)


class One:
    """The broker `a`, and its records from `b`. told: the reported failures."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        decoder = msgspec.msgpack.Decoder(Note)
        monkeypatch.setitem(mesh_messages._decoders, "note", decoder)
        self.broker = Broker.load(DictStore(), Home("a", 0, 5), Limits())
        self.broker.begin(NOW)
        mesh = Mesh.load(self.broker)
        self.broker.mesh, self.facts = mesh, mesh.facts
        self.facts.peers = {1: Peer("b")}
        self.heard: list[int] = []
        mesh.handlers["note"] = self.note

    @property
    def failed(self) -> list[int]:
        """The notes that failed and are kept."""
        kept = [body for records in self.facts.failed.values() for _, _, body in records]
        return [msgspec.msgpack.decode(body)[0] for body in kept]

    def note(self, sender: int, said: Note) -> None:
        if said.value < 0:
            raise ValueError(f"value: {said.value} – is negative")
        self.heard.append(said.value)

    def hear(self, *values: bytes, key: bytes | None = None, failed: str = "") -> list[Any]:
        """failed: why the first one is skipped."""
        n, empty = len(values), [None] * len(values)
        at = ["a.mesh"] * n, [0] * n, list(range(n)), [NOW] * n
        records = Records(*at, [key] * n, list(values), empty, empty)
        before = len(self.broker.outputs)
        self.broker.mesh.hear(records, {("a.mesh", 0, 0): failed} if failed else {})
        self.broker.mesh.speak()
        return list(self.broker.outputs[before:])

    def said(self, *values: bytes) -> list[tuple[int, Any]]:
        """The channel's own answers to these records."""
        outputs = [o for o in self.hear(*values) if isinstance(o, MeshRecord)]
        return [(o.confirms, o.body) for o in outputs if isinstance(o.body, Sync)]

    def events(self) -> list[str]:
        return [event[0] for event in self.broker.recent]


@pytest.fixture
def a(monkeypatch: pytest.MonkeyPatch) -> One:
    return One(monkeypatch)


def test_a_repeated_record_is_dropped(a: One) -> None:
    first, second = record(1, Note(7)), record(2, Note(8))
    a.hear(first, second)
    a.hear(second, first, record(3, Note(9)))
    assert a.heard == [7, 8, 9]
    assert a.facts.peers[1].heard == 3


AGAIN = Sync(again=True)


def test_missing_records_are_requested_and_later_ones_wait(a: One) -> None:
    a.hear(record(1, Note(7)))
    assert a.said(record(4, Note(10)), record(5, Note(11))) == [(1, AGAIN)]
    assert a.said(record(6, Note(12)), record(2, Note(8)), record(3, Note(9))) == []
    assert a.heard == [7, 8, 9]
    assert a.said(record(6, Note(12))) == [(3, AGAIN)], "this one is missing as well"
    a.hear(*(record(n, Note(n + 6)) for n in range(2, 7)))
    assert a.heard == list(range(7, 13))
    assert a.events().count("mesh_gap") == 2


def test_missing_records_are_requested_again_when_the_sender_asks(a: One) -> None:
    """The request may be lost. A confirmation alone reports nothing new."""
    assert a.said(record(3, Note(9))) == [(0, AGAIN)]
    assert a.said(mesh_messages.encode(1, "b", 5, 3, Sync())) == []
    assert a.said(mesh_messages.encode(1, "b", 5, 3, Sync(answer=True))) == [(0, AGAIN)]


def test_received_records_are_confirmed_within_a_second_or_with_the_next_record(a: One) -> None:
    assert a.said(record(1, Note(7))) == []
    assert channel.deadline(a.broker, a.facts) == NOW + channel.CONFIRM_MS
    channel.say(a.broker, a.facts, 1, Note(1))
    assert a.broker.outputs[-1].confirms == 1
    a.broker.now += channel.CONFIRM_MS
    assert a.said(record(2, Note(8))) == []
    a.broker.now += channel.CONFIRM_MS
    assert a.said() == [(2, Sync())]
    assert a.said(*(record(n, Note(n)) for n in range(3, 103))) == [(102, Sync())]


def test_confirmed_records_are_forgotten_and_others_repeated_on_request(a: One) -> None:
    for n in range(5):
        channel.say(a.broker, a.facts, 1, Note(n))
    again = Sync(again=True)
    outputs = a.hear(mesh_messages.encode(1, "b", 5, 0, again, 2))
    assert [(o.number, o.body) for o in outputs] == [
        (3, Note(2)), (4, Note(3)), (5, Note(4)),
    ]  # fmt: skip
    a.hear(mesh_messages.encode(1, "b", 5, 0, Sync(), 5))
    assert a.facts.peers[1].unconfirmed == []
    assert channel.deadline(a.broker, a.facts) == NEVER


def test_a_sender_asks_about_unconfirmed_records(a: One) -> None:
    channel.say(a.broker, a.facts, 1, Note(0))
    a.broker.now += channel.SYNC_MS
    assert a.said() == [(0, Sync(answer=True))]
    answer = a.said(mesh_messages.encode(1, "b", 5, 0, Sync(answer=True)))
    assert answer == [(0, Sync())]


def test_an_unknown_sender_is_received_and_answered(a: One) -> None:
    a.hear(record(1, Note(7), sender=2, name="c"))
    channel.say(a.broker, a.facts, 2, Note(8))
    channel.say(a.broker, a.facts, 2, Note(9))
    said = [o for o in a.broker.outputs if isinstance(o, MeshRecord)]
    assert [(o.to, o.number, o.body) for o in said] == [("c", 1, Note(8)), ("c", 2, Note(9))]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "not a message of a broker"),
        (b"\xc1\xff", "not a message of a broker"),
        (msgspec.msgpack.encode([1, "b", 5, -1, "note", []]), "not a message of a broker"),
        (msgspec.msgpack.encode([1, "b", 5, 1, "note", []]), "not 'note'"),
        (msgspec.msgpack.encode([1, "b", 5, 1, "note", ["x"]]), "not 'note'"),
        (msgspec.msgpack.encode([1, "b", 5, 1, "nod", []]), r"kind: 'nod' – allowed are answer"),
        (record(1, Note(-1)), "value: -1 – is negative"),
    ],
)
def test_an_invalid_record_is_refused_and_the_channel_continues(
    a: One, value: bytes, why: str
) -> None:
    (rejected,) = [o for o in a.hear(value) if isinstance(o, RejectedRecord)]
    assert (rejected.topic, rejected.value) == ("a.mesh", value)
    assert re.search(why, rejected.error)
    assert a.failed == ([-1] if "negative" in why else [])
    a.hear(record(1, Note(6)), record(2, Note(7)))
    assert a.heard == ([7] if a.failed else [6, 7])
    assert "mesh_refused" in a.events()


def test_a_record_that_failed_is_skipped_and_read_again_when_the_engine_begins(a: One) -> None:
    first, again = record(1, Note(7)), record(1, Note(7))
    (rejected,) = [o for o in a.hear(first, failed="a bug") if isinstance(o, RejectedRecord)]
    assert (rejected.value, rejected.error) == (first, "it failed: a bug")
    assert a.failed == [7]
    assert a.hear(again, failed="a bug") == [], "it was heard before"
    a.hear(record(2, Note(8)))
    assert a.heard == [8]
    for _ in range(2):  # it begins twice in one step
        a.broker.mesh.engine_begins()
    a.hear()
    assert (a.heard, a.failed) == ([8, 7], [])


def test_H1_a_failed_record_of_a_bridges_copier_is_skipped(a: One) -> None:
    said, key = encode(CopierState("open", "")), bridge_key("default", "out")
    (rejected,) = a.hear(said, key=key, failed="a bug")
    assert (rejected.key, rejected.error) == (key, "it failed: a bug")
    assert (a.events(), a.failed) == (["bridge_refused"], [])
    a.hear(record(1, Note(7)))
    assert a.heard == [7]


def test_records_of_another_home_are_skipped(a: One) -> None:
    assert a.hear(record(1, Note(7), epoch=4)) == []
    assert (a.heard, a.facts.peers[1].heard) == ([], 0)


@given(st.lists(st.integers(0, 800_000), max_size=60))
def test_columns_are_sliced_so_that_each_part_fits(sizes: list[int]) -> None:
    parts = list(mesh_messages.slices(sizes))
    assert [size for part in parts for size in sizes[part]] == sizes
    for part in parts:
        own = sizes[part]
        assert len(own) == 1 or (
            0 < len(own) <= mesh_messages.PART_ROWS and sum(own) <= mesh_messages.PART_BYTES
        )


def test_a_single_broker_has_no_peers() -> None:
    alone = parse_configuration({"brokers": ["a"]})
    assert b"peers" not in b"".join(value for _, value in configure_commands(alone))
    several = parse_configuration({"brokers": ["a", "b"]})
    for broker in ("a", "b"):
        told = configure_commands(several, broker=broker)
        assert c.decode_command(told[0][1]) == c.Peers(brokers={"a": 0, "b": 1})


# ---------------------------------------------------------------- shares of topics, on memory


@given(st.integers(0, 63), st.integers(0, 63))
def test_partitions_are_shared_out_by_number(one: int, other: int) -> None:
    shares = [{topics.commands_partition(n)} for n in (one, other)]
    blocks = [set(topics.publish_partitions(n)) for n in (one, other)]
    assert all(len(block) == topics.PUBLISH_PARTITIONS for block in blocks)
    if one != other:
        assert not shares[0] & shares[1]
        assert not blocks[0] & blocks[1]


def test_several_brokers_run_in_one_process_under_one_clock() -> None:
    config = {"brokers": ["a", "b"], "queues": [{"name": "orders", "message_type": "json"}]}
    first = lakequeue.connect("memory://several", config=config)
    second = lakequeue.connect("memory://several", broker="b")
    sent = [int(one.producer().send("orders", b"{}").message_id) for one in (first, second)]
    assert [number >> 48 for number in sent] == [0, 1]
    first.advance("1m")
    assert first.now() == second.now()
    first.close()
    second.close()


def test_a_missing_broker_is_named() -> None:
    with pytest.raises(ConfigError, match="broker: 'c' – allowed are the engine's brokers: a, b"):
        lakequeue.connect("memory://", broker="c", config={"brokers": ["a", "b"]})
