"""Partitions with floods of useless commands are slow: what share they get, and for how long."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from lakequeue.protocol import commands as c
from lakequeue.protocol.steplog import Range
from lakequeue.replica.replica import Replica, sort_outputs
from lakequeue.sources import live
from lakequeue.sources.input_pace import (
    AGAIN_S,
    MANY,
    OTHERS_RECENT_S,
    PART,
    REST,
    REST_S_MAX,
    REST_S_MIN,
    SlowLanes,
)
from lakequeue.sources.live import LiveInputs, kafka_client
from lakequeue.sources.live_reader import InputLimits, Reader
from lakequeue.sources.step_batch import PartitionId, Taken
from lakequeue.state import DictStore, Home, Limits
from lakequeue.streaming import EmbeddedKafka
from lakequeue.streaming.kafka.topics_admin import ensure_topics
from loop.test_live_inputs import NOWHERE, record

FLOOD: PartitionId = ("a.commands", 0)
OTHER: PartitionId = ("b.commands", 0)
PUBLISH: PartitionId = ("b.publish", 0)
ENGINE: PartitionId = ("broker-0.instructions", 0)


class Steps:
    """Slow lanes with their own clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lanes = SlowLanes(lambda: self.now)
        self.told: list[PartitionId] = []

    def take(
        self, *taken: tuple[PartitionId, int], useless: int = 0, cost_s: float = 0.001
    ) -> None:
        """A step with this many records of each partition; useless: of FLOOD."""
        ranges = [Range(*place, 0, n - 1, n) for place, n in taken]
        self.told += self.lanes.took(ranges, {FLOOD: useless} if useless else {}, cost_s)

    def flood(self) -> None:
        self.take((FLOOD, 2 * MANY), useless=2 * MANY)


@pytest.fixture
def steps() -> Steps:
    return Steps()


def test_a_partition_with_many_mostly_useless_commands_is_slow(steps: Steps) -> None:
    steps.take((FLOOD, MANY - 1), useless=MANY - 1)
    assert not steps.lanes.places, "too few to hurt anybody"
    steps.take((FLOOD, 10 * MANY), useless=MANY)
    assert not steps.lanes.places, "most commands are useful"
    for _ in range(10):
        steps.take((FLOOD, MANY), (OTHER, 2_000), useless=MANY)
    assert steps.lanes.places == {FLOOD}


def test_a_trickle_of_useless_commands_is_not_slow(steps: Steps) -> None:
    for _ in range(100):
        steps.take((FLOOD, MANY // 8), useless=MANY // 8)
        steps.now += 1.0
        assert not steps.lanes.places


def test_publish_partitions_are_never_slow(steps: Steps) -> None:
    steps.lanes.took([Range(*PUBLISH, 0, 9_999, 10_000)], {PUBLISH: 10_000}, 0.1)
    assert not steps.lanes.places


def test_a_slow_partition_gets_a_small_share_and_pauses_beside_others(steps: Steps) -> None:
    steps.flood()
    steps.take((PUBLISH, 1))
    assert steps.lanes.part() == PART
    steps.take((FLOOD, 60), (PUBLISH, 1), useless=60, cost_s=0.02)
    assert steps.lanes.part() == 0.0
    assert steps.lanes.rest_s() == pytest.approx(REST * 0.02)
    steps.take((OTHER, 10), cost_s=0.5)
    assert steps.lanes.rest_s() == pytest.approx(REST * 0.02), "a step without it is not its cost"
    steps.now += REST * 0.02
    assert steps.lanes.part() == PART


@pytest.mark.parametrize(("cost_s", "rest_s"), [(0.0, REST_S_MIN), (1.0, REST_S_MAX)])
def test_a_pause_has_bounds(steps: Steps, cost_s: float, rest_s: float) -> None:
    steps.flood()
    steps.take((FLOOD, 60), (OTHER, 1), useless=60, cost_s=cost_s)
    assert steps.lanes.rest_s() == pytest.approx(rest_s)


def test_a_slow_partition_alone_is_read_at_full_speed(steps: Steps) -> None:
    """The engine's own instructions do not count as others."""
    steps.flood()
    steps.take((FLOOD, 60), (ENGINE, 3), useless=60)
    assert steps.lanes.places == {FLOOD}
    assert steps.lanes.part() is None
    assert steps.lanes.rest_s() == 0.0
    steps.take((OTHER, 1))
    assert steps.lanes.part() is not None
    steps.now += OTHERS_RECENT_S + 0.01
    steps.take((FLOOD, 2_000), useless=2_000, cost_s=0.05)
    assert steps.lanes.part() is None


def test_a_second_slow_partition_does_not_count_as_another(steps: Steps) -> None:
    useless = {FLOOD: 2_000, OTHER: 2_000}
    for _ in range(2):
        ranges = [Range(*place, 0, 1_999, 2_000) for place in useless]
        steps.lanes.took(ranges, useless, 0.05)
    assert steps.lanes.places == {FLOOD, OTHER}
    assert steps.lanes.part() is None


def test_a_partition_with_useful_commands_again_is_no_longer_slow(steps: Steps) -> None:
    steps.flood()
    for _ in range(40):
        steps.take((FLOOD, 60), (OTHER, 1), useless=1)
        steps.now += 0.02
    assert not steps.lanes.places
    assert steps.lanes.part() is None


def test_a_silent_partition_is_forgotten(steps: Steps) -> None:
    steps.flood()
    for _ in range(200):
        steps.take((OTHER, 1))
        steps.now += 0.1
    assert not steps.lanes.places
    assert not steps.lanes._lately
    assert not steps.lanes._heard


def test_a_slow_partition_is_reported_once_a_minute(steps: Steps) -> None:
    for at in range(3):
        steps.flood()
        assert steps.told == [FLOOD]
        for _ in range(20):
            steps.now += 0.5
            steps.take((OTHER, 1))
        assert not steps.lanes.places, at
    steps.now += AGAIN_S
    steps.flood()
    assert steps.told == [FLOOD, FLOOD]


@given(st.lists(st.tuples(st.integers(0, 3_000), st.floats(0, 1), st.floats(0, 0.2)), max_size=60))
def test_a_slow_partition_never_waits_longer_than_the_longest_pause(steps_of: list) -> None:
    steps = Steps()
    for count, of_no_use, wait_s in steps_of:
        useless = int(count * of_no_use)
        steps.take((FLOOD, count), (OTHER, 1), useless=useless, cost_s=count / 20_000)
        assert steps.lanes.rest_s() < REST_S_MAX + 1e-6
        steps.now += wait_s
        if wait_s >= REST_S_MAX:
            assert steps.lanes.part() in (None, PART)


# ------------------------------------------------------------------- with readers and a core

LIMITS = InputLimits(640, 64_000)


class Loop:
    """Inputs with records put in by hand, and a core behind them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.inputs = LiveInputs(NOWHERE, LIMITS, "broker-0.control", "run")
        self.inputs.slow = SlowLanes(lambda: self.now)
        self.inputs.also({FLOOD: 0, OTHER: 0})
        self.inputs._ready = True  # all commands were read once
        self.broker = Replica(Home(), DictStore(), Limits())
        self.taken: dict[PartitionId, list[int]] = {FLOOD: [], OTHER: []}
        self.put: dict[PartitionId, int] = {FLOOD: 0, OTHER: 0}

    def say(self, place: PartitionId, commands: list[c.Command | bytes]) -> None:
        values = [v if isinstance(v, bytes) else c.encode_command(v) for v in commands]
        at = self.put[place]
        found = [record(place, at + n, 1_000, value) for n, value in enumerate(values)]
        self.put[place] += len(found)
        self.inputs._commands.ahead.put(place, found)

    def step(self, cost_s: float = 0.005) -> Taken | None:
        taken = self.inputs.take(0.0)
        if taken is None:
            return None
        decided = sort_outputs(self.broker.take(taken.batch, 2_000))
        self.inputs.took(taken.ranges, decided.in_vain, cost_s)
        for topic, partition, offset in zip(
            taken.batch.commands.topics, taken.batch.commands.partitions,
            taken.batch.commands.offsets, strict=True,
        ):  # fmt: skip
            self.taken[topic, partition].append(offset)
        self.now += cost_s
        return taken


@pytest.fixture
def loop() -> Iterator[Loop]:
    one = Loop()
    yield one
    one.inputs._asked.close()


def test_steps_stay_short_beside_a_flood_that_loses_nothing(loop: Loop) -> None:
    loop.say(FLOOD, [b"{%d" % n for n in range(4_000)])
    other = c.Define(definition={"name": "q", "message_type": "text"})
    first = True
    for n in range(100):
        loop.say(OTHER, [other])
        taken = loop.step()
        assert taken is not None
        assert loop.taken[OTHER][-1] == n, "useless commands came first"
        counts = {(r.topic, r.partition): r.count for r in taken.ranges}
        if not first:
            assert counts.get(FLOOD, 0) <= LIMITS.records * PART
        first = False
    assert len(loop.taken[FLOOD]) < 2_000
    assert loop.inputs.notes == ["slow:a.commands/0"]
    loop.now += OTHERS_RECENT_S + 1
    steps = 0
    while loop.step():
        steps += 1
    assert steps <= 4_000 // LIMITS.records + 1, "alone, it gets whole steps"
    assert loop.taken[FLOOD] == list(range(4_000))


def test_a_flood_does_not_hold_back_time(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands wait in Kafka for long; the deadlines of others do not wait for them."""
    monkeypatch.setattr(live, "FRESH_S", 3600.0)  # no Kafka can be asked for its ends
    loop.say(FLOOD, [b"{" for _ in range(4_000)])
    loop.step()
    loop.say(OTHER, [c.Heartbeat(session="s")])
    assert loop.inputs.slow.places == {FLOOD}
    assert loop.inputs.up_to() == 1_000, "the other partition's commands count"
    loop.step()
    assert loop.inputs._commands.ahead
    assert loop.inputs.up_to() is None
    assert loop.inputs.current()


def test_a_pausing_partition_causes_no_busy_loop(loop: Loop) -> None:
    loop.say(FLOOD, [b"{" for _ in range(4_000)])
    loop.step()
    loop.say(OTHER, [c.Heartbeat(session="s")])
    loop.step(0.0)
    rest_s = loop.inputs.slow.rest_s()
    assert rest_s > 0
    waited = loop.inputs.waited_s
    assert loop.inputs.take(0.5) is None
    assert loop.inputs.waited_s - waited >= rest_s


def test_no_partition_is_slow_during_the_first_read(loop: Loop) -> None:
    """At a start messages wait for all commands, so slowing some gains nothing."""
    loop.inputs._ready = False
    loop.say(FLOOD, [b"{" for _ in range(2_000)])
    loop.step()
    assert not loop.inputs.slow.places


class Fetching:
    """A consumer that delivers a partition's records while it is not paused."""

    def __init__(self, size: int) -> None:
        self.paused: set[PartitionId] = set()
        self._size = size
        self.next = 0

    def pause(self, places: list[TopicPartition]) -> None:
        self.paused |= {(p.topic, p.partition) for p in places}

    def resume(self, places: list[TopicPartition]) -> None:
        self.paused -= {(p.topic, p.partition) for p in places}

    def poll(self, seconds: float) -> Any:
        if FLOOD in self.paused:
            return None
        self.next += 1
        return record(FLOOD, self.next - 1, value=bytes(self._size))

    def consume(self, most: int, seconds: float) -> list[Any]:
        return [self.poll(0.0) for _ in range(most)] if FLOOD not in self.paused else []


def test_a_slow_partition_leaves_room_for_others() -> None:
    reader = Reader(
        "test", NOWHERE, threading.Event(), InputLimits(20_000, 4_000_000), lambda places: {}
    )
    reader._consumer = one = Fetching(100)
    reader.ahead.slow = frozenset({FLOOD})
    for _ in range(100):
        reader._read()
    assert one.paused == {FLOOD}
    assert 2_000_000 <= reader.ahead.bytes < 2_500_000, "a quarter of the room"
    reader.watch({FLOOD: 10**6})
    reader.watch({FLOOD: 10**6})
    assert not reader._anew, "a paused partition counts as stalled"
    while reader.ahead.bytes > 1_000_000:
        assert one.paused == {FLOOD}
        reader.ahead.take(None, PART)
        reader._hold_slow()
    reader._hold_slow()
    assert one.paused == set(), "resumed before it runs out of records"
    for _ in range(100):
        reader._read()
    assert one.paused == {FLOOD}
    reader.ahead.slow = frozenset()
    reader._hold_slow()
    assert one.paused == set(), "no longer slow, but still paused"


@pytest.mark.job
def test_a_paused_partition_is_read_completely_and_once(kafka: EmbeddedKafka) -> None:
    """A slow partition is paused and resumed many times; another one is read beside it."""
    ensure_topics(kafka.bootstrap_servers, ["slow", "other"], [], ["broker-s"])
    flood, other = ("slow.commands", 0), ("other.commands", 0)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5})
    count = 15_000
    limits = InputLimits(2_000, 400_000)  # so that less than a tenth of it fits
    inputs = LiveInputs(
        kafka_client(kafka.bootstrap_servers, "test"), limits, "broker-s.control", "run"
    )
    inputs.start({flood: 0, other: 0})
    begins, paused, taken, heard = 1_000, 0, list[int](), list[int]()
    deadline = time.monotonic() + 180

    def step() -> None:
        assert time.monotonic() < deadline, f"{len(taken)} came"
        if len(taken) < count // 2:
            producer.produce(other[0], b"{}", partition=0)
            producer.poll(0)
        found = inputs.take(0.05)
        if found is None:
            return
        for r in found.ranges:
            (taken if (r.topic, r.partition) == flood else heard).extend(range(r.first, r.last + 1))
        inputs.took(found.ranges, {flood: len(found.batch.commands)}, 0.0)

    while not inputs._all_commands_read():
        assert time.monotonic() < deadline
        inputs.take(0.1)
    for n in range(count):
        producer.produce(flood[0], b"{%d" % n, partition=0)
        if n % 10_000 == 0:
            producer.flush(30)
        while n == begins and inputs.slow.part() is None:  # until the partition counts as slow
            step()
    producer.flush(30)
    while len(taken) < count:
        paused += bool(inputs._commands._enough)
        step()
        if len(taken) >= count // 2:
            inputs.slow._others_at = float("-inf")  # the other partition is silent
    inputs.close()
    for reader in (inputs._commands, inputs._messages):
        reader.join(60)
    assert taken == list(range(count)), "records were lost, repeated or reordered"
    assert inputs.slow.places == {flood}
    assert paused > 10
    assert len(heard) > 100, "the other partition was not read"
