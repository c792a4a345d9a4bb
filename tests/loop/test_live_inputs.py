"""The loop's readers: which records come first, and what they tell about time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from lakequeue.protocol import topics
from lakequeue.sources import live
from lakequeue.sources.input_pace import BYTES_PER_S, SAVED_S, CapturedPace
from lakequeue.sources.live import LiveInputs, kafka_client, quiet
from lakequeue.sources.live_reader import InputLimits, Reader
from lakequeue.sources.same_topic import Found, Start
from lakequeue.sources.step_batch import PartitionId, Taken
from lakequeue.streaming import EmbeddedKafka
from lakequeue.streaming.kafka.topics_admin import ensure_topics
from loop.memory import Message

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
A: PartitionId = ("a.commands", 0)
B: PartitionId = ("b.commands", 0)
PUBLISH: PartitionId = ("a.publish", 0)
ORDERS: PartitionId = ("orders", 0)  # a captured topic
CONTROL: PartitionId = ("broker-0.control", 0)
MESH: PartitionId = ("broker-0.mesh", 0)


class Record(Message):
    """A record of the consumer."""

    def error(self) -> None:
        return None

    def __len__(self) -> int:
        return len(self.value_)


class End:
    """The consumer's event at a partition's end."""

    def __init__(self, place: PartitionId) -> None:
        self._place = place

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return 6

    def error(self) -> KafkaError:
        return KafkaError(KafkaError._PARTITION_EOF)


def record(place: PartitionId, offset: int, at_ms: int = 0, value: bytes = b"{}") -> Record:
    return Record(*place, offset, at_ms, None, value, None)


@pytest.fixture
def inputs() -> Iterator[LiveInputs]:
    """Steps of two commands at most; no reader runs."""
    one = LiveInputs(NOWHERE, InputLimits(2, 1_000), CONTROL[0], "run")
    one.also({A: 0, B: 0})
    yield one
    one._asked.close()


@pytest.fixture
def ready(inputs: LiveInputs) -> LiveInputs:
    """Inputs that have read all commands once, so messages and captured records may be taken."""
    inputs.also({PUBLISH: 0, ORDERS: 0, MESH: 0})
    inputs._commands.at_end |= {A, B}
    return inputs


def put(inputs: LiveInputs, place: PartitionId, *offsets: int, **of_each: Any) -> None:
    """Add records as if they were read ahead."""
    readers = {PUBLISH: inputs._messages, ORDERS: inputs._captured}
    found = [record(place, offset, **of_each) for offset in offsets]
    readers.get(place, inputs._commands).ahead.put(place, found)


def counts(taken: Taken | None) -> dict[str, int]:
    return {r.topic: r.count for r in taken.ranges} if taken else {}


@contextmanager
def waits(inputs: LiveInputs, least_s: float, most_s: float = 4.0) -> Iterator[None]:
    """Check that the loop waits instead of spinning, and counts that time."""
    begun, waited = time.monotonic(), inputs.waited_s
    yield
    assert least_s <= time.monotonic() - begun < most_s
    assert inputs.waited_s > waited


def test_time_does_not_pass_waiting_commands(inputs: LiveInputs) -> None:
    """Of any VPN: newer commands of another VPN, taken before, do not advance the time."""
    for n in range(3):
        put(inputs, A, n, at_ms=1_000 + n)
    put(inputs, B, 0, at_ms=9_000)
    inputs._commands.at_end |= {A, B}
    assert inputs.up_to() == 1_000
    seen = []
    while inputs._commands.ahead:
        assert inputs.take(0.0) is not None
        seen.append(inputs.up_to())
    assert seen[-1] is None, "none waits"
    assert seen[:-1] == sorted(seen[:-1])
    assert set(seen[:-1]) <= {1_001, 1_002}


def test_time_waits_for_a_partition_not_read_yet(inputs: LiveInputs) -> None:
    put(inputs, B, 0, at_ms=9_000)
    inputs._commands.at_end.add(B)
    assert inputs.up_to() == 0
    inputs.take(0.0)
    assert inputs.up_to() == 0, "the other partition was not read yet"
    put(inputs, A, 0, at_ms=5_000)
    inputs.take(0.0)
    assert inputs.up_to() == 5_000, "it may go on"
    inputs._commands.at_end.add(A)
    assert inputs.up_to() is None


def test_a_client_with_a_fast_clock_does_not_advance_time(inputs: LiveInputs) -> None:
    day_ms = 86_400_000
    put(inputs, A, 0, at_ms=int(time.time() * 1000) + day_ms)
    up_to = inputs.up_to()
    assert up_to is not None
    assert up_to <= time.time() * 1000


def test_messages_wait_for_commands_without_a_busy_loop(inputs: LiveInputs) -> None:
    inputs.also({PUBLISH: 0})
    put(inputs, PUBLISH, 0)
    with waits(inputs, 0.05):
        assert inputs.take(0.05) is None
    inputs._commands.at_end |= {A, B}
    assert inputs.take(0.05).batch.publishes.offsets == [0]


def test_captured_topics_are_read_beside_publish_topics(
    inputs: LiveInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader for them exists only where a topic is captured."""
    begun: list[Reader] = []
    monkeypatch.setattr(Reader, "start", lambda reader: begun.append(reader))
    inputs.also({PUBLISH: 0})
    inputs.start({})
    assert begun == [inputs._commands, inputs._messages]
    inputs.also({ORDERS: 7})
    assert begun[2:] == [inputs._captured]
    assert [(p.topic, p.offset) for p in inputs._captured._more] == [("orders", 7)]
    assert [p.topic for p in inputs._messages._more] == [PUBLISH[0]]
    inputs._commands.at_end |= {A, B}
    put(inputs, ORDERS, 7)
    put(inputs, PUBLISH, 0)
    assert list(counts(inputs.take(0.0))) == [PUBLISH[0], "orders"]


def test_a_step_takes_one_large_captured_record(ready: LiveInputs) -> None:
    """As many as a step may take of messages would delay producers."""
    large = bytes(300)  # of the 1,000 that a step may take
    put(ready, ORDERS, *range(4), value=large)
    put(ready, PUBLISH, *range(4), value=large)
    taken = [counts(ready.take(0.0)) for _ in range(5)]
    assert [one.get("orders") for one in taken] == [1, 1, 1, 1, None]
    assert [one.get(PUBLISH[0]) for one in taken[:2]] == [2, 2]


def test_captured_topics_pause_while_messages_go_on_without_a_busy_loop(
    ready: LiveInputs,
) -> None:
    now = 100.0
    ready.pace = CapturedPace(lambda: now)
    ready.pace.took(1, int(BYTES_PER_S * (SAVED_S + 0.05)))
    put(ready, ORDERS, 0)
    with waits(ready, 0.04):
        assert ready.take(5.0) is None
    put(ready, PUBLISH, 0)
    assert counts(ready.take(5.0)) == {PUBLISH[0]: 1}
    now += 0.06
    assert counts(ready.take(5.0)) == {"orders": 1}


def test_without_room_messages_wait_and_commands_go_on(ready: LiveInputs) -> None:
    put(ready, PUBLISH, 0)
    ready.room_bytes = 0
    with waits(ready, 0.005):
        assert ready.take(5.0) is None
    put(ready, A, 0)
    assert counts(ready.take(0.5)) == {A[0]: 1}
    ready.room_bytes = 1_000_000
    assert counts(ready.take(0.5)) == {PUBLISH[0]: 1}


def test_a_stop_on_the_control_topic_is_no_input(
    inputs: LiveInputs,
) -> None:
    put(inputs, CONTROL, 0, value=b"an older run")
    assert inputs.take(0.0) is None
    assert not inputs.stopped
    put(inputs, CONTROL, 1, value=b"run")
    assert inputs.take(0.0) is None
    assert inputs.stopped


def test_M4_a_pausing_home_takes_commands_and_no_messages(ready: LiveInputs) -> None:
    put(ready, PUBLISH, 0)
    put(ready, CONTROL, 0, value=quiet(b"an older run"))
    assert counts(ready.take(0.0)) == {PUBLISH[0]: 1}
    put(ready, CONTROL, 1, value=quiet(b"run"))
    assert ready.take(0.0) is None
    put(ready, PUBLISH, 1)
    put(ready, A, 0)
    assert counts(ready.take(0.0)) == {A[0]: 1}
    with waits(ready, 0.05):
        assert ready.take(0.05) is None
    assert not ready.stopped
    put(ready, MESH, 0)
    assert counts(ready.take(0.0)) == {MESH[0]: 1}


def test_the_end_of_a_partition_is_known_after_its_messages() -> None:
    """Otherwise messages would be taken before the last definitions."""

    class Consumed:
        def poll(self, seconds: float) -> Record:
            return record(A, 4)

        def consume(self, most: int, seconds: float) -> list[Any]:
            return [record(A, 5), End(A)]

    class Ends(set):
        def add(self, place: PartitionId) -> None:
            assert reader.ahead.bytes, "its messages are not there yet"
            super().add(place)

    arrived = threading.Event()
    reader = Reader("test", NOWHERE, arrived, InputLimits(), lambda places: {})
    reader._consumer, reader.at_end = Consumed(), Ends()
    reader._read()
    assert reader.at_end == {A}
    assert reader._next == {A: 6}
    assert arrived.is_set()


class Assigned:
    """A consumer that records its assignments and finds nothing."""

    def __init__(self, *_: Any) -> None:
        self.reads: set[PartitionId] = set()
        self.paused: set[PartitionId] = set()

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        self.reads |= {(p.topic, p.partition) for p in places}

    def pause(self, places: list[TopicPartition]) -> None:
        self.paused |= {(p.topic, p.partition) for p in places}
        assert self.paused <= self.reads

    def resume(self, places: list[TopicPartition]) -> None:
        self.paused -= {(p.topic, p.partition) for p in places}

    def poll(self, seconds: float) -> None:
        return None

    def close(self) -> None:
        pass


def test_the_command_partitions_are_assigned_before_they_are_read(
    inputs: LiveInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka fetches a newly assigned partition only after a second."""
    monkeypatch.setattr("lakequeue.sources.live_reader.Consumer", Assigned)
    told: PartitionId = ("broker-0.instructions", 0)
    inputs.also({told: 0})
    reader = inputs._commands
    reader._consumer = one = Assigned()
    reader._read()
    assert (one.reads, one.paused) == ({A, B, told}, {A, B})
    inputs.take(0.0)
    reader._read()
    assert one.paused == {A, B}, "instructions are not read yet"
    reader._anew = True
    reader._read()
    another: Any = reader._consumer
    assert (another.reads, another.paused) == ({A, B, told}, {A, B})
    reader.at_end.add(told)
    inputs.take(0.0)
    reader._read()
    assert another.paused == set()


class Doubted(Assigned):
    """The event of a consumer when Kafka no longer has the requested offset."""

    def __init__(self) -> None:
        super().__init__()
        self.says: list[Any] = []
        self.at: list[int] = []

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        super().incremental_assign(places)
        self.at += [p.offset for p in places]

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        self.reads -= {(p.topic, p.partition) for p in places}

    def poll(self, seconds: float) -> Any:
        return self.says.pop(0) if self.says else None

    def consume(self, most: int, seconds: float) -> list[Any]:
        said, self.says = self.says, []
        return said


class Gone(End):
    def error(self) -> KafkaError:
        return KafkaError(KafkaError._AUTO_OFFSET_RESET)


def doubted(look: Any = lambda places: {}, ids_now: Any = None) -> tuple[Reader, Doubted]:
    reader = Reader("test", NOWHERE, threading.Event(), InputLimits(), look, ids_now)
    reader._consumer = one = Doubted()
    return reader, one


def test_the_reader_checks_its_partition_and_never_mixes_two_topics() -> None:
    """The old topic's records that were read ahead are taken before any record of the new topic."""
    asked: list[list[PartitionId]] = []

    def look(places: list[PartitionId]) -> dict[PartitionId, Found]:
        asked.append(places)
        if len(asked) == 1:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return {A: Found("new", 0, 3)}

    reader, one = doubted(look)
    one.says = [record(A, 4), Gone(A)]
    reader.assign({A: 4}, {A: "old"})
    reader._read()
    reader._read()
    assert (one.reads, asked) == (set(), []), "the old topic's records are not taken yet"
    reader.take(None)
    for _ in range(2):
        reader._doubts[A] = 0.0
        reader._read()
    assert (one.reads, one.at) == ({A}, [4, 0]), "Kafka was not reachable at first"
    assert list(reader.starts) == [(A, Start(0, "new", "anew", 3))]
    one.says = [record(A, 0)]
    reader._read()
    assert [m.offset() for m in reader.take(None)[0][A]] == [0]


AWAY = KafkaException(KafkaError(KafkaError._TRANSPORT))
OLD, NEW = {ORDERS[0]: "old"}, {ORDERS[0]: "new"}


def proving(looks: list[Any]) -> tuple[Reader, Doubted]:
    """A reader with a record of `ORDERS`. looks: the ids that Kafka reports, one call after the
    other, or the errors."""

    def ids_now(names: set[str]) -> dict[str, str]:
        assert names == {ORDERS[0]}
        found = looks.pop(0)
        if isinstance(found, Exception):
            raise found
        return dict(found)

    reader, one = doubted(lambda places: {ORDERS: Found("new", 0, 9)}, ids_now)
    reader.assign({ORDERS: 4}, {ORDERS: "old"})
    one.says = [record(ORDERS, 4)]
    return reader, one


@pytest.mark.parametrize(
    ("looks", "taken"),
    [
        ([OLD], [[4]]),
        ([AWAY, AWAY, OLD], [[], [], [4]]),
        ([NEW], [[]]),
        ([AWAY, NEW], [[], []]),
        ([{}, OLD], [[], [4]]),
        ([{}, NEW], [[], []]),
        ([{}, {}], [[], [4]]),
        ([{ORDERS[0]: ""}], [[4]]),
    ],
    ids=["same", "away", "anew", "away-anew", "missed-once", "missed-anew", "gone", "no-ids"],
)
def test_a_captured_record_is_taken_once_its_topic_is_proved_to_be_the_same(
    looks: list[Any], taken: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that may belong to a recreated topic are read again, from its beginning."""
    monkeypatch.setattr("lakequeue.sources.live_reader.PROVE_AGAIN_S", 0.0)
    is_anew = NEW in looks
    reader, one = proving(looks)
    found = []
    while looks:
        reader._read()
        found.append([m.offset() for m in reader.take(None)[0].get(ORDERS, [])])
    assert found == taken
    reader._read()
    assert list(reader.starts) == ([(ORDERS, Start(0, "new", "anew", 9))] if is_anew else [])
    assert one.at == ([4, 0] if is_anew else [4])


def test_a_topic_of_unknown_id_gets_the_id_of_its_first_records() -> None:
    ids = dict(OLD)
    reader, one = doubted(lambda places: {ORDERS: Found("new", 0, 9)}, lambda names: ids)
    reader.assign({ORDERS: 4})
    one.says = [record(ORDERS, 4)]
    reader._read()
    ids |= NEW
    one.says = [record(ORDERS, 5)]
    reader._read()
    assert [m.offset() for m in reader.take(None)[0][ORDERS]] == [4]


def test_records_that_wait_for_a_proof_are_dropped_with_their_partition() -> None:
    """Its topic was found to be another one meanwhile."""
    reader, one = proving([AWAY, NEW])
    reader._read()
    reader.compare(NEW)
    one.says = [record(ORDERS, 0)]
    reader._read()
    reader._read()
    assert [m.offset() for m in reader.take(None)[0][ORDERS]] == [0]


def test_a_topic_is_compared_with_its_earlier_id() -> None:
    reader, _ = doubted()
    reader.assign({A: 4, B: 4}, {A: "old"})
    reader._read()
    reader.compare({A[0]: "old", B[0]: "first"})
    assert not reader._told_doubts
    reader.compare({B[0]: "second"})
    assert set(reader._told_doubts) == {A, B}, "a missing topic may be recreated"
    reader._told_doubts.clear()
    reader.compare({A[0]: "", B[0]: "first"})
    assert not reader._told_doubts, "without ids nothing is known"


@pytest.mark.parametrize(
    ("following", "known", "found", "at", "note"),
    [
        (50, "a", Found("a", 0, 20), 20, "back:orders:30"),
        (50, "", Found("b", 0, 20), 0, "anew:orders:20"),
        (5, "a", Found("b", 0, 9), 0, "anew:orders:9"),
        (4, "a", Found("a", 10, 10), 10, "lost:orders:6"),
        (0, "", Found("a", 8, 10), 8, None),
    ],
)
def test_a_start_checks_its_positions_and_reports_changes(
    inputs: LiveInputs, following: int, known: str, found: Found, at: int, note: str | None
) -> None:
    """After a loss in Kafka or a recreated topic the start asks for a mark, because the steps
    before it may not be replayable."""
    inputs.look.places = lambda places: {ORDERS: found}
    inputs.also({ORDERS: following}, {ORDERS: known} if known else {})
    assert [(p.topic, p.offset) for p in inputs._captured._more] == [("orders", at)]
    assert inputs.notes == ([note] if note else [])
    why = note.partition(":")[0] if note else ""
    assert inputs.went_back == ([ORDERS] if why == "back" else [])
    assert inputs.wants_mark is (why in ("anew", "back"))


def test_inputs_check_regularly_whether_topics_are_the_same(
    inputs: LiveInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is missing in one check only is not gone; after a failed check comes another."""
    monkeypatch.setattr(live, "IDS_S", 0.0)
    reader = inputs._commands
    reader._more.clear()
    reader._consumer = Doubted()
    reader.assign({A: 4, B: 4}, {A: "old", B: "first"})
    reader._read()
    inputs._expected |= {A: 4, B: 4}
    looks: list[Any] = [
        {A[0]: "old"}, {A[0]: "old", B[0]: "first"}, {B[0]: "first"}, ValueError("odd"), {},
    ]  # fmt: skip
    doubts: list[set[PartitionId]] = []

    def ids(names: set[str]) -> dict[str, str]:
        doubts.append(set(reader._told_doubts))
        found = looks.pop(0) if looks else {A[0]: "old", B[0]: "second"}
        if len(doubts) == 7:
            inputs._closing.set()
        if isinstance(found, Exception):
            raise found
        return dict(found)

    monkeypatch.setattr(inputs.look, "ids", ids)
    inputs._watch_ids()
    assert doubts == [set(), set(), set(), set(), set(), {A}, {A, B}]


# ------------------------------------------------------------------- on Kafka

LARGE, SMALL = 1_000_000, 1_000
STEP = InputLimits(2_000, 4_000_000)


def take(inputs: LiveInputs) -> Taken:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        taken = inputs.take(0.5)
        if taken is not None:
            return taken
    raise AssertionError("nothing comes")


@pytest.mark.job
def test_large_records_do_not_delay_small_ones_of_another_partition(
    kafka: EmbeddedKafka,
) -> None:
    """Neither in the records read ahead, nor in the consumer's own queue."""
    ensure_topics(kafka.bootstrap_servers, ["turns"], [], ["turns"])
    publish = topics.topic("turns", topics.PUBLISH)
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "message.max.bytes": 2 * LARGE}
    )
    count = 60
    for n in range(count):
        producer.produce(publish, b"%07d" % n + bytes(LARGE - 7), partition=0)
    producer.flush(30)
    inputs = LiveInputs(kafka_client(kafka.bootstrap_servers, "test"), STEP, "turns.control", "run")
    inputs.start({("turns.commands", 0): 0, (publish, 0): 0, (publish, 1): 0})
    large: list[int] = []
    while not large:
        large += take(inputs).batch.publishes.offsets
    time.sleep(2)  # records are read ahead as far as there is room
    producer.produce(publish, bytes(SMALL), partition=1)
    producer.flush(30)
    inputs.room_bytes = 1_000_000  # too little for a large one
    small = take(inputs)
    assert small.batch.publishes.partitions == [1]
    inputs.room_bytes = None
    producer.produce(publish, bytes(SMALL), partition=1)
    producer.flush(30)
    before = None
    while len(large) < count:
        publishes = take(inputs).batch.publishes
        assert sum(map(len, publishes.values)) <= STEP.bytes + LARGE
        if 1 in publishes.partitions:
            before = len(large)
        large += [o for o, p in zip(publishes.offsets, publishes.partitions, strict=True) if not p]
        time.sleep(0.02)  # a step
    inputs.close()
    for reader in (inputs._commands, inputs._messages):
        reader.join(60)
    assert large == list(range(count)), "records were lost or reordered"
    assert before is not None
    assert before <= 16, f"{before} large ones were taken before it"
