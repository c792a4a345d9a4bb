"""The channel between brokers: what is said is heard exactly once and in order, whoever dies; what
is no record of it is refused; a home with one broker pays nothing for it."""

import re
from collections.abc import Iterator
from typing import Any, ClassVar

import lakequeue
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lakequeue.core import Batch, DictStore, Home, Limits, step
from lakequeue.definitions import parse_configuration
from lakequeue.definitions.as_commands import configure_commands
from lakequeue.protocol import ConfigError, mesh, topics, wire
from lakequeue.protocol import commands as c
from lakequeue.protocol.messages import Records
from lakequeue.protocol.outputs import Deadline, MeshRecord, RejectedRecord
from lakequeue.state.commands import dispatch as commands
from lakequeue.state.mesh import kinds
from lakequeue.state.mesh.saying import say
from lakequeue.state.storage import CountingStore

from .mortal import Fate, MortalEngine
from .steps import NOW, Steps, refused, replies

BROKERS = ("a", "b", "c")
HOME = Home("a", 0, 5)
NUMBERS = {"a": 0, "b": 1, "c": 2}


class Note(mesh.Said, frozen=True):
    """What these tests say: it is answered ``hops`` times; texts are cut into records."""

    kind: ClassVar[str] = "note"
    value: int
    hops: int = 0
    texts: tuple[bytes, ...] = ()

    def parts(self) -> Iterator["Note"]:
        if not self.texts:
            yield self
        for part in mesh.slices([len(text) for text in self.texts]):
            yield Note(self.value, self.hops, self.texts[part])


def hear_note(broker: Any, sender: int, note: Note) -> None:
    if note.value < 0:
        raise ValueError(f"value: {note.value} – is negative")
    if note.value == 13:
        raise ZeroDivisionError("thirteen")
    key = f"T/{sender}"
    broker.values.write(key, [*(broker.values.read(key) or []), [note.value, note.hops]])
    if note.hops:
        say(broker, sender, Note(note.value, note.hops - 1))


def say_note(broker: Any, vpn: str, command: c.Heartbeat) -> bool:
    """A heartbeat of a session ``to:value:hops`` has the broker say something."""
    to, value, hops = map(int, command.session.split(":"))
    say(broker, to, Note(value, hops))
    return True


@pytest.fixture(autouse=True)
def notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers know the kind `note`."""
    monkeypatch.setitem(kinds.KINDS, "note", (Note, hear_note))
    monkeypatch.setitem(commands.OF_BROKER, c.Heartbeat, say_note)


def record(number: int, body: Any, sender: int = 1, name: str = "b", epoch: int = 5) -> bytes:
    return mesh.encode(sender, name, epoch, number, body)


def heard_by(*values: bytes) -> Records:
    n = len(values)
    return Records(
        ["a.mesh"] * n, [0] * n, list(range(n)), [NOW] * n, [None] * n, list(values), [None] * n,
        [None] * n,
    )  # fmt: skip


class One:
    """The broker `a`, in a home of three, and what it heard of `b`."""

    def __init__(self, store: Any = None, told: bool = True) -> None:
        self.store = DictStore() if store is None else store
        self.at = 0
        if told:
            self.command(c.Begin(epoch=5), c.Peers(brokers=NUMBERS))

    def command(self, *given: c.Command) -> list[Any]:
        records = Steps(self.store).command_records(given)
        return step(self.store, Batch(commands=records), NOW, HOME)

    def hear(self, *values: bytes) -> list[Any]:
        return step(self.store, Batch(mesh=heard_by(*values)), NOW, HOME)

    def heard(self) -> list[list[int]]:
        page = self.store.get("T/1")
        return msgspec.msgpack.decode(page) if page else []

    def asked(self, command: c.Command) -> Any:
        reply = c.ReplyTo("default.deliveries")
        (answer,) = replies(self.command(msgspec.structs.replace(command, reply=reply)))
        return answer.result

    def peer(self) -> dict[str, Any]:
        return next(p for p in self.asked(c.Usage())["broker"]["peers"] if p["name"] == "b")

    def events(self) -> list[str]:
        return [e["event"] for e in self.asked(c.Events())]


# ---------------------------------------------------------------- exactly once, in order


def engine(fate: Fate | None) -> MortalEngine:
    made = MortalEngine(parse_configuration({"brokers": list(BROKERS)}))
    made.checking = True
    made.fated(fate)
    return made


@pytest.mark.parametrize("seed", range(6))
def test_what_is_said_is_heard_once_and_in_order_whoever_dies(seed: int) -> None:
    fate = Fate(seed)
    mesh_of_three = engine(fate)
    expected: dict[tuple[int, int], list[int]] = {}
    for value in range(100, 160):
        sender = fate.random.randrange(3)
        to = fate.random.choice([n for n in range(3) if n != sender])
        hops = fate.random.choice([0, 0, 1, 3])
        expected.setdefault((sender, to), []).append(value)
        session = f"{to}:{value}:{hops}"
        command = c.encode_command(c.Heartbeat(session=session))
        mesh_of_three.command("default.commands", b"", command, BROKERS[sender])
        for hop in range(1, hops + 1):
            way = (sender, to) if hop % 2 == 0 else (to, sender)
            expected.setdefault(way, []).append(value)
    assert fate.deaths > 10
    for (sender, to), values in expected.items():
        page = mesh_of_three.brokers[to].store.get(f"T/{sender}")
        assert [value for value, _ in msgspec.msgpack.decode(page)] == values
    mesh_of_three.fated(None)
    peers = []
    for broker in BROKERS:
        with mesh_of_three.connect(broker) as connection:
            peers += connection.admin().usage()["brokers"][broker]["broker"]["peers"]
    assert not any(p["lost"] for p in peers)
    assert any(p["repeated"] for p in peers)  # the deaths were heard


def test_what_was_heard_before_is_dropped_and_counted() -> None:
    a = One()
    first, second = record(1, Note(7)), record(2, Note(8))
    a.hear(first, second)
    a.hear(second, first, record(3, Note(9)))
    assert a.heard() == [[7, 0], [8, 0], [9, 0]]
    assert (a.peer()["heard"], a.peer()["repeated"]) == (3, 2)


def test_a_gap_is_told_and_counted_and_the_channel_goes_on() -> None:
    a = One()
    a.hear(record(1, Note(7)))
    a.hear(record(4, Note(8)), record(5, Note(9)))
    assert a.heard() == [[7, 0], [8, 0], [9, 0]]
    assert (a.peer()["lost"], a.events().count("mesh_gap")) == (2, 1)


def test_what_is_heard_before_the_engine_tells_of_the_peer_counts() -> None:
    a = One(told=False)
    said = [o for o in a.hear(record(1, Note(7, 1))) if isinstance(o, MeshRecord)]
    assert [(o.to, o.number, o.body) for o in said] == [("b", 1, Note(7, 0))]
    a.command(c.Begin(epoch=5), c.Peers(brokers=NUMBERS))
    a.hear(record(1, Note(7, 1)), record(2, Note(8, 1)))
    assert a.heard() == [[7, 1], [8, 1]]


def test_peers_told_again_change_nothing() -> None:
    a = One()
    a.hear(record(1, Note(7)))
    a.command(c.Peers(brokers=NUMBERS))
    a.hear(record(1, Note(7)))
    assert a.heard() == [[7, 0]]


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "not what a broker says"),
        (b"\xc1\xff", "not what a broker says"),
        (msgspec.msgpack.encode([1, "b", 5, 0, "note", []]), "not what a broker says"),
        (msgspec.msgpack.encode([1, "b", 5, 1, "note", []]), "not 'note'"),
        (msgspec.msgpack.encode([1, "b", 5, 1, "note", [1, 2, [], 4]]), "not 'note'"),
        (msgspec.msgpack.encode([1, "b", 5, 1, "nod", []]), r"kind: 'nod' – allowed are .*note"),
        (record(1, Note(7), name="x"), r"'x' has number 1 – that is 'b'"),
        (record(1, Note(7), sender=0), r"'b' has number 0 – that is 'a'"),
        (record(1, Note(-1)), "value: -1 – is negative"),
        (record(1, Note(13)), "it failed: ZeroDivisionError: thirteen"),
    ],
)
def test_what_is_wrong_is_refused_and_the_channel_goes_on(value: bytes, why: str) -> None:
    a = One()
    (rejected,) = [o for o in a.hear(value) if isinstance(o, RejectedRecord)]
    assert rejected.topic == "a.mesh"
    assert rejected.value == value
    assert re.search(why, rejected.error)
    a.hear(record(2, Note(7)))
    assert a.heard() == [[7, 0]]
    assert "mesh_refused" in a.events()


def test_what_another_home_said_is_passed_over() -> None:
    a = One()
    assert refused(a.hear(record(1, Note(7), epoch=4))) == 0
    assert (a.heard(), a.peer()["heard"]) == ([], 0)
    assert a.asked(c.Usage())["vpn"]["refused"]["other_home"] == 1


@pytest.mark.parametrize(
    ("brokers", "why"),
    [
        ({"b": 1}, "'a' has number None there – it is broker 0"),
        ({"a": 2, "b": 1}, "'a' has number 2 there – it is broker 0"),
        ({"a": 0, "b": 1, "x": 1}, "'b' and 'x' have number 1 – each has its own"),
        ({"a": 0, "x": 1}, "'x' has number 1 – that is 'b'"),
    ],
)
def test_wrong_peers_are_refused(brokers: dict[str, int], why: str) -> None:
    a = One()
    reply = c.ReplyTo("default.deliveries")
    (answer,) = replies(a.command(c.Peers(brokers=brokers, reply=reply)))
    assert why in answer.error
    assert a.peer()["number"] == 1


def test_a_peer_that_is_not_known_is_named() -> None:
    a = One()
    reply = c.ReplyTo("default.deliveries")
    (answer,) = replies(a.command(c.Heartbeat(session="7:1:0", reply=reply)))
    assert answer.error == "broker: 7 – is no peer of this one, which knows 1 'b', 2 'c'"


# ---------------------------------------------------------------- size and cost


@given(st.lists(st.integers(0, 800_000), max_size=60))
def test_columns_are_cut_so_that_each_part_fits(sizes: list[int]) -> None:
    parts = list(mesh.slices(sizes))
    assert [size for part in parts for size in sizes[part]] == sizes
    for part in parts:
        own = sizes[part]
        assert len(own) == 1 or (0 < len(own) <= mesh.PART_ROWS and sum(own) <= mesh.PART_BYTES)


def test_what_is_large_is_said_in_several_records(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = tuple(bytes([n]) * 200_000 for n in range(7))

    def say_much(broker: Any, vpn: str, command: Any) -> None:
        say(broker, 1, Note(1, 0, texts))

    monkeypatch.setitem(commands.OF_BROKER, c.Heartbeat, say_much)
    a = One()
    written = list(wire.encode(a.command(c.Heartbeat(session="s"))))
    written = [w for w in written if w.topic == "b.mesh"]
    envelopes = [mesh.decode(w.value) for w in written]
    assert [e.number for e in envelopes] == [1, 2, 3, 4]
    assert all(len(w.value or b"") < 600_000 for w in written)
    assert [t for e in envelopes for t in mesh.decode_body(e, Note).texts] == list(texts)


def test_the_channel_costs_no_page() -> None:
    a = One(CountingStore(DictStore()))
    a.store.reset()
    step(a.store, Batch(), NOW, HOME)
    idle = list(a.store.writes)
    a.store.reset()
    kinds.KINDS["note"] = (Note, lambda broker, sender, note: say(broker, sender, note))
    said = a.hear(record(1, Note(7)))
    assert any(isinstance(o, MeshRecord) for o in said)
    assert a.store.writes == idle == ["broker"]


def test_one_broker_is_told_of_no_peers() -> None:
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
    queues = [
        {"name": "orders", "message_type": "json"},
        {"name": "here", "message_type": "json", "type": "LocalQueue"},
    ]
    config = {"brokers": ["a", "b"], "queues": queues}
    first = lakequeue.connect("memory://several", config=config)
    second = lakequeue.connect("memory://several", broker="b")
    for connection in (first, second):
        found = [(q["name"], q["broker"]) for q in connection.admin().queues()]
        assert found == [("here", "a"), ("orders", None)]
    sent = [int(n.producer().send("orders", b"{}").message_id) for n in (first, second)]
    assert [number >> 48 for number in sent] == [0, 1]
    first.advance("1m")
    assert first.now() == second.now()
    first.close()
    second.close()


def test_a_broker_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="broker: 'c' – allowed are the engine's: a, b"):
        lakequeue.connect("memory://", broker="c", config={"brokers": ["a", "b"]})


def test_brokers_are_added_while_others_run() -> None:
    one = lakequeue.connect("memory://grows", config={"brokers": ["a", "b"]})
    two = lakequeue.connect("memory://grows", config={"brokers": ["a", "b", "c"]}, broker="c")
    for connection, own, others in ((one, "a", ["b", "c"]), (two, "c", ["a", "b"])):
        peers = connection.admin().usage()["brokers"][own]["broker"]["peers"]
        assert [p["name"] for p in peers] == others
    one.close()
    two.close()


def test_what_is_said_at_one_time_is_heard_at_that_time() -> None:
    a = engine(None)
    before = a.now
    a.command("default.commands", b"", c.encode_command(c.Heartbeat(session="1:5:4")), "a")
    assert a.now == before
    assert not any(broker.is_busy(a.now) for broker in a.brokers)


def test_tiny_limits_change_nothing() -> None:
    outputs = step(DictStore(), Batch(mesh=heard_by(record(1, Note(7), epoch=0))), NOW,
                   Home("a", 0), Limits(command_rows=1, due_rows=1, delivery_rows=1))  # fmt: skip
    assert not [o for o in outputs if isinstance(o, RejectedRecord)]
    assert isinstance(outputs[-1], Deadline)
