"""Reads a broker's input from Kafka in real time.

Three consumers, each with a thread that reads ahead up to a limit: one for commands and records of
other brokers, so that acks never wait behind publishes; one for the publish topics; and one for
captured topics, so that other programs' records never delay published messages.

A step takes records from all three, within limits in records and bytes. It takes from partitions in
turn, so that none delays another. At the start, commands wait until the engine's instructions
(peers, limits) were read to their end, and messages wait for the commands: definitions come before
the messages that need them. The loop keeps the offsets in its snapshot; Kafka's consumer groups are
not used.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from ..protocol import topics
from ..protocol.errors import LakequeueError
from ..protocol.kafka_settings import kafka_settings
from ..protocol.steplog import Opened, Range
from .input_pace import CapturedPace, SlowLanes
from .live_reader import InputLimits, Reader, consumer_settings
from .same_topic import ANEW, BACK, Start, TopicsNow, go_on
from .step_batch import PartitionId, Taken, goes_first, is_command, to_batch

log = logging.getLogger("lakequeue.loop")

# If there is little room for messages, a step takes one part in this many of it: large records
# wait, and small ones pass.
ROOM_SHARE = 8
ROOM_S = 0.01  # between two checks for room
# Captured topics may have thousands of records of a megabyte. A step takes only this part of its
# bytes from them, since clients wait for the whole step.
CAPTURED_SHARE = 4
ASK_S = 1.0
ARRIVES_S = 0.2
FRESH_S = 0.5
READER_S = 60.0
# How often to check whether topics are still the same. In a recreated topic Kafka's client silently
# continues at the old offset; once this is noticed, the topic is read from its beginning.
# (`live_reader` checks other programs' topics before it takes a record in.)
IDS_S, IDS_SHARE = 1.0, 50  # the checks take at most one part in this many of the time


def kafka_client(bootstrap: str, name: str) -> dict[str, Any]:
    """The settings of the loop's and the engine's clients. The library itself logs nothing: while
    Kafka is unreachable, it would write up to 98 lines a second into a file that is not rotated.
    `Outbox` reports its errors once a minute, and the engine reports that Kafka does not answer."""
    return {
        **kafka_settings(),
        "bootstrap.servers": bootstrap,
        "client.id": name,
        "allow.auto.create.topics": False,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,
        "socket.nagle.disable": True,
        "socket.keepalive.enable": True,
        "log.connection.close": False,
        "log_level": 0,
    }


class LiveInputs:
    """A broker's input, see `driver.Inputs`. control: the topic on which the engine announces that
    it stops, or (`quiet`) that no more messages are taken. run: its id there."""

    def __init__(self, kafka: dict[str, Any], limits: InputLimits, control: str, run: str) -> None:
        self._control, self._run = control, run.encode()
        self.arrived = threading.Event()
        self.look = TopicsNow(kafka)
        self._commands = Reader("commands", kafka, self.arrived, limits, self.look.places)
        self._messages = Reader("messages", kafka, self.arrived, limits, self.look.places)
        part = InputLimits(limits.records, -(-limits.bytes // CAPTURED_SHARE))
        self._captured = Reader(
            "captured", kafka, self.arrived, part, self.look.places, self.look.ids
        )
        self._readers = (self._commands, self._messages, self._captured)
        self._closing = threading.Event()
        self._started = False
        # A separate consumer: one that another thread polls may never answer (librdkafka 2.16).
        self._asked = Consumer(consumer_settings(kafka))
        # The next offset of each partition that is read.
        self._expected: dict[PartitionId, int] = {}
        self._later: set[PartitionId] = set()  # read once the engine's instructions are read
        self._opened: list[Opened] = []  # goes into the next step's record
        self.went_back: list[PartitionId] = []  # where Kafka lost records that had been read
        self.wants_mark = False  # earlier steps probably cannot be replayed
        self.notes: list[str] = []
        self._ready = False
        self._heard = 0.0  # when the last record was taken
        self._command_ms: dict[PartitionId, int] = {}  # Kafka's time of the newest command taken
        self.stopped = False
        self._quiet = False  # the home is about to rest: commands are taken, but no messages
        self.records = self.bytes = 0  # taken so far
        self.slow = SlowLanes()
        self.pace = CapturedPace()
        self.behind = 0  # records in Kafka that were not taken, at the last check
        self.waited_s = 0.0
        self._looked = self._awake_since = time.monotonic()
        self.room_bytes: int | None = None  # bytes of room for new messages; None: no limit
        self.ages_ms: list[int] = []  # age of the oldest message in each step

    def start(self, places: dict[PartitionId, int]) -> None:
        """Begin to read, from these offsets on. Raises KafkaException."""
        self._commands.assign({(self._control, 0): 0})
        self.also(places, {})
        self._commands.start()
        self._messages.start()
        self._started = True
        self._read_captured()
        threading.Thread(target=self._watch_ids, daemon=True, name="lakequeue-topic-ids").start()

    def also(
        self, places: dict[PartitionId, int], ids: Mapping[PartitionId, str] | None = None
    ) -> None:
        """Read these partitions too, unless they are read already. ids: of the topics that the
        offsets belong to, if known; None: do not check the topics. Raises KafkaException."""
        new = {place: at for place, at in places.items() if place not in self._expected}
        own: dict[PartitionId, str] = {}
        if ids is not None and new:
            own = {place: ids[place] for place in new if place in ids}
            for place, found in self.look.places(new).items():
                start = go_on(new[place], own.get(place, ""), found)
                if start != (new[place], own.get(place), "", 0):
                    self._hear_start(place, start)
                new[place], own[place] = start.at, start.topic_id
        self._expected |= new
        instructions = {p: at for p, at in new.items() if topics.is_instruction(p[0])}
        self._commands.assign(instructions, own)
        later = {p: at for p, at in new.items() if _waits(p[0])}
        self._later.update(later)
        self._commands.assign_paused(later, own)
        for reader in (self._messages, self._captured):
            theirs = {p: at for p, at in new.items() if self._reader(p[0]) is reader}
            reader.assign(theirs, {p: own[p] for p in theirs if p in own})
        self._read_captured()

    def _read_captured(self) -> None:
        """Start the reader of captured topics with the first of them; before that it has no
        connection."""
        wanted = any(self._reader(topic) is self._captured for topic, _ in self._expected)
        if wanted and self._started and self._captured.ident is None:
            self._captured.start()

    def _reader(self, topic: str) -> Reader:
        if topics.split(topic) is None:
            return self._captured
        return self._commands if goes_first(topic) else self._messages

    def take(self, timeout_s: float) -> Taken | None:
        """The input of a step; None if no record arrived in time, or the engine stops."""
        self._read_the_others()
        self._require_readers()
        slow_part, rest_s = self.slow.part(), self.pace.rest_s()
        if not self._has_something(slow_part):
            if self._commands.ahead:  # only slow partitions have records
                timeout_s = min(timeout_s, self.slow.rest_s())
            if self._captured.ahead and rest_s:
                timeout_s = min(timeout_s, rest_s)
            self._wait(timeout_s)
            slow_part = self.slow.part()
        self.arrived.clear()
        found: dict[PartitionId, list[Any]] = {}
        sizes = dict.fromkeys(self._readers, 0)
        for reader in self._readers:
            if reader.failure is not None:
                raise reader.failure
            if self._may_take(reader):
                of_commands = reader is self._commands
                some, sizes[reader] = reader.take(
                    *(None, slow_part) if of_commands else (self._most(),)
                )
                found |= some
        self.bytes += sum(sizes.values())
        self.pace.took(sizes[self._messages], sizes[self._captured])
        self._read_control(found)
        self._hear_starts()
        if not found:
            if self._messages.ahead or (self._captured.ahead and not self.pace.rest_s()):
                self._wait(min(timeout_s, ROOM_S))
            return None
        self._heard = time.monotonic()
        taken = to_batch(found)._replace(opened=tuple(self._opened))
        self._opened.clear()
        for r in taken.ranges:
            self.records += r.count
            self._expected[r.topic, r.partition] = r.last + 1
        if taken.batch.publishes.timestamps:
            oldest = min(taken.batch.publishes.timestamps)
            self.ages_ms.append(max(0, int(time.time() * 1000) - oldest))
        return taken

    def _require_readers(self) -> None:
        """Check that no reader hangs in Kafka's client. Raises if one does, so that the loop ends
        and another starts, instead of waiting for ever."""
        now = time.monotonic()
        if now - self._looked > READER_S / 2:  # this process was suspended
            self._awake_since = now
        self._looked = now
        for reader in self._readers:
            silent_s = now - max(reader.looked, self._awake_since)
            if silent_s > READER_S and reader.is_alive():
                faulthandler.dump_traceback(sys.__stderr__ or 2)
                raise LakequeueError(
                    f"{reader.name} has shown no sign of life for {silent_s:.0f} s: it hangs"
                )

    def _has_something(self, slow_part: float | None) -> bool:
        commands = self._commands.ahead
        if commands and (slow_part != 0 or commands.has_others()):
            return True
        others = (self._messages, self._captured)
        return any(reader.ahead and self._may_take(reader) for reader in others)

    def _may_take(self, reader: Reader) -> bool:
        if reader is self._commands:
            return True
        rests = self._quiet or (reader is self._captured and self.pace.rest_s() > 0)
        return not rests and self._all_commands_read()

    def took(
        self, ranges: Iterable[Range], in_vain: Mapping[PartitionId, int], seconds: float
    ) -> None:
        """Record what a step took, how many of its commands changed nothing, and its processor
        time. The next step may take less of some."""
        for reader in self._readers:
            reader.ahead.took(seconds)
        if self._ready:  # until then, messages wait for all commands, useless ones too
            for topic, partition in self.slow.took(ranges, in_vain, seconds):
                self.notes.append(f"slow:{topic}/{partition}")
            self._commands.ahead.slow = self.slow.places

    def _read_the_others(self) -> None:
        """Read commands too, once all earlier instructions of the engine were taken."""
        if not self._later:  # the usual case, checked first because every step runs this
            return
        instructions = {place for place in self._expected if topics.is_instruction(place[0])}
        if instructions <= self._commands.at_end and not self._commands.ahead:
            self._commands.want(self._later)
            self._later = set()

    def _wait(self, seconds: float) -> None:
        begun = time.monotonic()
        self.arrived.wait(seconds)
        self.waited_s += time.monotonic() - begun

    def _most(self) -> int | None:
        """The most bytes of messages that a step may take; None for the usual limit."""
        return None if self.room_bytes is None else max(0, self.room_bytes // ROOM_SHARE)

    def _all_commands_read(self) -> bool:
        """Whether commands were once read to their end, and all of them were taken."""
        if not self._ready and not self._commands.ahead:
            commands = {place for place in self._expected if is_command(place[0])}
            self._ready = bool(commands) and commands <= self._commands.at_end
        return self._ready

    def up_to(self) -> int | None:
        """The time before which no untaken command arrived; None if there is none. Slow partitions
        do not count; otherwise a flood would delay all deadlines."""
        waiting, slow = self._commands.ahead.next_of_each(), self.slow.places
        times = [
            m.timestamp()[1]
            for place, m in waiting.items()
            if is_command(place[0]) and place not in slow
        ]
        if not self._all_commands_read():
            unread = {place for place in self._expected if is_command(place[0])}
            unread -= self._commands.at_end | waiting.keys()
            times += [self._command_ms.get(place, 0) for place in unread]
        now = int(time.time() * 1000)  # a client's clock may be ahead
        return min(now, *times) if times else None

    def current(self) -> bool:
        """Whether all commands in Kafka were taken. False while Kafka does not answer: deadlines
        then wait, since no client could meet one."""
        if not self._all_commands_read():
            self._wait(ARRIVES_S)
            return False
        if time.monotonic() - self._heard < FRESH_S:
            return True
        for place in self.places():
            if is_command(place[0]) and place not in self.slow.places:
                end = self._end_offset(place)
                if end is None:
                    return False
                if end > self._expected[place]:
                    # Give it a moment to arrive; it may also be a marker that no reader gets.
                    self.arrived.wait(ARRIVES_S)
        return not self._commands.ahead.has_others()

    def _end_offset(self, place: PartitionId) -> int | None:
        """The end of a partition now; None if Kafka does not answer."""
        try:
            ends = self._asked.get_watermark_offsets(TopicPartition(*place), timeout=ASK_S)
        except (KafkaException, RuntimeError):
            return None
        return ends[1] if ends else None

    def _hear_starts(self) -> None:
        """Report readers that continue at another offset than expected, before their records are
        taken: the records between are lost or belong to another topic."""
        for reader in self._readers:
            while reader.starts:
                place, start = reader.starts.popleft()
                self._expected[place] = start.at
                self._hear_start(place, start)

    def _hear_start(self, place: PartitionId, start: Start) -> None:
        self._opened.append(Opened(*place, start.at, start.topic_id))
        if start.why:
            self._note(f"{start.why}:{place[0]}:", start.records)
        if start.why == BACK:
            self.went_back.append(place)
        self.wants_mark = self.wants_mark or start.why in (ANEW, BACK)

    def _note(self, what: str, records: int) -> None:
        """Add a note, one per topic however many partitions it has."""
        before = next((note for note in self.notes if note.startswith(what)), None)
        if before is not None:
            self.notes.remove(before)
            records += int(before.removeprefix(what))
        self.notes.append(f"{what}{records}")

    def _read_control(self, found: dict[PartitionId, list[Any]]) -> None:
        """Handle the engine's records on the control topic, and note the commands' times."""
        values = {m.value() for m in found.pop((self._control, 0), ())}
        self.stopped = self.stopped or self._run in values
        self._quiet = self._quiet or quiet(self._run) in values
        for place, messages in found.items():
            if is_command(place[0]):
                self._command_ms[place] = messages[-1].timestamp()[1]

    def watch(self, ends: dict[PartitionId, int]) -> None:
        """Set the current ends of partitions, see `Reader.watch`."""
        expected = dict(self._expected)
        self.behind = sum(
            max(0, end - max(expected.get(place, end), self._reader(place[0]).passed(place)))
            for place, end in ends.items()
        )
        for reader in self._readers:
            reader.watch(ends)

    def _watch_ids(self) -> None:
        rest_s, missing = IDS_S, set[str]()
        while not self._closing.wait(rest_s):
            begun = time.monotonic()
            try:
                names = {topic for topic, _ in list(self._expected)}
                ids = self.look.ids(names)
                gone, missing = missing, names - ids.keys()
                # A node that has just started may not know a topic yet, so a topic counts as
                # deleted only if it is missing in two checks.
                ids |= dict.fromkeys(missing - gone, "")
                for reader in self._readers:
                    reader.compare(ids)
            except KafkaException as error:  # Kafka is unreachable: try again later
                log.info("the topics' ids cannot be read: %s", error)
            except Exception:  # the thread must continue, or recreated topics are not noticed
                log.exception("the topics' ids cannot be read")
            rest_s = max(IDS_S, IDS_SHARE * (time.monotonic() - begun))

    def places(self) -> list[PartitionId]:
        """The partitions that are read."""
        return list(self._expected)

    def close(self) -> None:
        """End the threads."""
        self._closing.set()
        for reader in self._readers:
            reader.close()
        self._asked.close()


def quiet(run: bytes) -> bytes:
    """The record on the control topic with which the engine stops a loop from taking messages."""
    return run + b" quiet"


def _waits(topic: str) -> bool:
    """Whether a topic is only read after the engine's instructions."""
    return goes_first(topic) and not topics.is_instruction(topic)


def places_of(sizes: dict[str, int], inputs: list[str]) -> list[PartitionId]:
    """The existing partitions of topics."""
    return [(t, p) for t in inputs for p in range(sizes.get(t, 0))]


def own_places(
    sizes: dict[str, int], vpns: list[str], broker: str, number: int, alone: bool,
    removed: Collection[int] = (),
) -> list[PartitionId]:  # fmt: skip
    """The existing partitions that a broker reads besides captured topics: its own of its VPNs'
    topics, and those in which the engine, other brokers and other homes send to it. A home's only
    broker reads all partitions of its VPNs' topics, since other programs may have created them.
    removed: numbers of removed brokers, whose partitions it also reads."""
    inputs = [topics.topic(v, k) for v in vpns for k in (topics.COMMANDS, topics.PUBLISH)]
    mesh = resting_places(sizes, broker)
    door = topics.bridge_partition(number)
    homes = [topics.topic(v, topics.BRIDGE_IN) for v in vpns]
    mesh += [(t, door) for t in homes if door < sizes.get(t, 0)]
    if alone:
        return mesh + places_of(sizes, inputs)
    numbers = (number, *removed)
    commands = [topics.commands_partition(n) for n in numbers]
    publishes = [p for n in numbers for p in topics.publish_partitions(n)]
    return mesh + [
        (t, p)
        for t in inputs
        for p in (commands if is_command(t) else publishes)
        if p < sizes.get(t, 0)
    ]


def resting_places(sizes: dict[str, int], broker: str) -> list[PartitionId]:
    """The partitions that a broker reads while the home comes to rest: those of the engine and of
    other brokers."""
    own = [topics.topic(broker, k) for k in (topics.INSTRUCTIONS, topics.MESH)]
    return places_of(sizes, own)
