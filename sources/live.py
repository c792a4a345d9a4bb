"""The loop's Kafka readers: what comes in now.

Three consumers, each with a thread that reads ahead into memory up to a limit: one for commands and
for what other brokers say, so that acks never wait behind publishes; one for what producers
publish; and where queues capture topics, one for those: whatever others' programs write there, in
Kafka's client it does not stand before what producers publish. A step takes commands, messages and
what is captured, each within its limits in records and in bytes, from the
partitions by turns: what one of them holds, in large records or in very many, does not stand before
another's. At the start, commands wait until what the engine told the broker was read to its end
(its peers, its limits), and messages until the commands were: definitions come before the messages
that they are for. Offsets are the loop's own, kept in its snapshot; Kafka's
groups are not used.
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

# While there is little room for what messages bring, a step takes a part of it: large records wait
# then, small ones go on.
ROOM_SHARE = 8
ROOM_S = 0.01  # how often a loop without room looks whether there is some again
# What is captured may be records of a megabyte, thousands, that waited for a night: a step takes of
# its bytes so small a part, for whoever sent something just now waits for all of the step.
CAPTURED_SHARE = 4
ASK_S = 1.0
ARRIVES_S = 0.2
FRESH_S = 0.5
READER_S = 60.0
# How often it is asked whether topics are still the same ones. Kafka's client reads on at the old
# offset of one that was made anew, without a word: what comes until it is noticed comes again.
IDS_S, IDS_SHARE = 1.0, 50  # asking takes one part in so many of the time, at most


def kafka_client(bootstrap: str, name: str) -> dict[str, Any]:
    """How the loop's clients reach Kafka."""
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
        "log_level": 3,
    }


def quiet_client(bootstrap: str, name: str) -> dict[str, Any]:
    """As `kafka_client`, in the process that people see: that Kafka is away the engine says itself,
    once, and not a library dozens of times a second."""
    return {**kafka_client(bootstrap, name), "log_level": 0}


class LiveInputs:
    """What comes in now, see `driver.Inputs`.

    control: the broker's topic on which the engine says that it stops; run: its name there.
    """

    def __init__(self, kafka: dict[str, Any], limits: InputLimits, control: str, run: str) -> None:
        self._control, self._run = control, run.encode()
        self.arrived = threading.Event()
        self.look = TopicsNow(kafka)
        self._commands = Reader("commands", kafka, self.arrived, limits, self.look.places)
        self._messages = Reader("messages", kafka, self.arrived, limits, self.look.places)
        part = InputLimits(limits.records, -(-limits.bytes // CAPTURED_SHARE))
        self._captured = Reader("captured", kafka, self.arrived, part, self.look.places)
        self._readers = (self._commands, self._messages, self._captured)
        self._closing = threading.Event()
        self._started = False
        # Of its own: asked while a thread polls it, a consumer may never answer (librdkafka 2.16).
        self._asked = Consumer(consumer_settings(kafka))
        self._expected: dict[
            PartitionId, int
        ] = {}  # of each partition that is read, the next offset
        self._later: set[PartitionId] = set()  # read when the engine's instructions are
        self._opened: list[Opened] = []  # what the next step's record has to say
        self.went_back: list[PartitionId] = []  # where Kafka has lost what was read
        self.wants_mark = False  # steps that were taken can hardly be taken again
        self.notes: list[str] = []
        self._ready = False
        self._heard = 0.0  # when something came
        self._command_ms: dict[PartitionId, int] = {}  # Kafka's time of the newest command taken
        self.stopped = False
        self.records = self.bytes = 0  # taken so far
        self.slow = SlowLanes()
        self.pace = CapturedPace()
        self.behind = 0  # records that were there and not taken, at the last look
        self.waited_s = 0.0
        self._looked = self._awake_since = time.monotonic()
        self.room_bytes: int | None = None  # for what messages bring; None: no limit
        self.ages_ms: list[int] = []  # of the oldest message of each step

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
        """Read these too, those that are not read yet. ids: of the topics that the offsets are of,
        where they are known; None: nobody asks which topics these are. Raises KafkaException."""
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
        told = {p: at for p, at in new.items() if topics.is_instruction(p[0])}
        self._commands.assign(told, own)
        later = {p: at for p, at in new.items() if _waits(p[0])}
        self._later.update(later)
        self._commands.hold(later, own)
        for reader in (self._messages, self._captured):
            theirs = {p: at for p, at in new.items() if self._reader(p[0]) is reader}
            reader.assign(theirs, {p: own[p] for p in theirs if p in own})
        self._read_captured()

    def _read_captured(self) -> None:
        """Begin with topics of others; where there are none, nothing is connected for them."""
        wanted = any(self._reader(topic) is self._captured for topic, _ in self._expected)
        if wanted and self._started and self._captured.ident is None:
            self._captured.start()

    def _reader(self, topic: str) -> Reader:
        """Who reads a topic."""
        if topics.split(topic) is None:
            return self._captured
        return self._commands if goes_first(topic) else self._messages

    def take(self, timeout_s: float) -> Taken | None:
        """A step's worth; None when nothing came in time, or it is time to stop."""
        self._read_the_others()
        self._require_readers()
        slow_part, rest_s = self.slow.part(), self.pace.rest_s()
        if not self._has_something(slow_part, rest_s):
            if self._commands.ahead:  # only what is slow is there
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
        self._told(found)
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
        """A reader looks round every second or two. One that does not hangs in Kafka's client, and
        what waits for it would wait for ever: then the loop ends, and another begins."""
        now = time.monotonic()
        if now - self._looked > READER_S / 2:  # this process stood still
            self._awake_since = now
        self._looked = now
        for reader in self._readers:
            silent_s = now - max(reader.looked, self._awake_since)
            if silent_s > READER_S and reader.is_alive():
                faulthandler.dump_traceback(sys.__stderr__ or 2)
                raise LakequeueError(f"{reader.name} has not looked for {silent_s:.0f} s: it hangs")

    def _has_something(self, slow_part: float | None, rest_s: float) -> bool:
        """Whether there is something that a step may take."""
        commands = self._commands.ahead
        if commands and (slow_part != 0 or commands.has_others()):
            return True
        captured = self._captured.ahead and not rest_s
        return bool(self._messages.ahead or captured) and self._all_commands_read()

    def _may_take(self, reader: Reader) -> bool:
        """Whether it is a reader's time."""
        if reader is self._commands:
            return True
        rests = reader is self._captured and self.pace.rest_s() > 0
        return not rests and self._all_commands_read()

    def took(
        self, ranges: Iterable[Range], in_vain: Mapping[PartitionId, int], seconds: float
    ) -> None:
        """The step took these, so many commands of which changed nothing, and so much processor
        time: the next one may bring less, or less of some."""
        for reader in self._readers:
            reader.ahead.took(seconds)
        if self._ready:  # before, messages wait for all commands, useless ones too
            for topic, partition in self.slow.took(ranges, in_vain, seconds):
                self.notes.append(f"slow:{topic}/{partition}")
            self._commands.ahead.slow = self.slow.places

    def _read_the_others(self) -> None:
        """Read commands too, once all that the engine had told before was taken."""
        if not self._later:  # as ever after the start: this is on the way of every step
            return
        told = {place for place in self._expected if topics.is_instruction(place[0])}
        if told <= self._commands.at_end and not self._commands.ahead:
            self._commands.want(self._later)
            self._later = set()

    def _wait(self, seconds: float) -> None:
        begun = time.monotonic()
        self.arrived.wait(seconds)
        self.waited_s += time.monotonic() - begun

    def _most(self) -> int | None:
        """Of messages, the bytes that a step may take; None: as many as ever."""
        return None if self.room_bytes is None else max(0, self.room_bytes // ROOM_SHARE)

    def _all_commands_read(self) -> bool:
        """Whether commands were read to their end once, and nothing of that is left to take."""
        if not self._ready and not self._commands.ahead:
            commands = {place for place in self._expected if is_command(place[0])}
            self._ready = bool(commands) and commands <= self._commands.at_end
        return self._ready

    def up_to(self) -> int | None:
        """Commands that are still to be taken came after this time; None: there are none. Slow ones
        are not asked: else a flood would hold up everybody's time."""
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
        """Whether all commands that are in Kafka by now were taken, as far as Kafka says; False
        while it does not answer: deadlines wait, for who keeps one cannot say so either."""
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
                    # A moment for it to come; it may also be what no reader gets.
                    self.arrived.wait(ARRIVES_S)
        return not self._commands.ahead.has_others()

    def _end_offset(self, place: PartitionId) -> int | None:
        """Where a partition ends now; None: Kafka does not answer."""
        try:
            ends = self._asked.get_watermark_offsets(TopicPartition(*place), timeout=ASK_S)
        except (KafkaException, RuntimeError):
            return None
        return ends[1] if ends else None

    def _hear_starts(self) -> None:
        """What readers found to begin elsewhere than expected, before what they read there is
        taken: nothing can bring lost records back, but it must not happen in silence."""
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
        """Once of a topic, however many partitions it has."""
        before = next((note for note in self.notes if note.startswith(what)), None)
        if before is not None:
            self.notes.remove(before)
            records += int(before.removeprefix(what))
        self.notes.append(f"{what}{records}")

    def _told(self, found: dict[PartitionId, list[Any]]) -> None:
        """Take out what the engine said on the control topic, and see when commands came."""
        said = found.pop((self._control, 0), ())
        self.stopped = self.stopped or any(m.value() == self._run for m in said)
        for place, messages in found.items():
            if is_command(place[0]):
                self._command_ms[place] = messages[-1].timestamp()[1]

    def watch(self, ends: dict[PartitionId, int]) -> None:
        """Partitions end here now: see `Reader.watch`."""
        expected = dict(self._expected)
        self.behind = sum(
            max(0, end - max(expected.get(place, end), self._reader(place[0]).passed(place)))
            for place, end in ends.items()
        )
        for reader in self._readers:
            reader.watch(ends)

    def _watch_ids(self) -> None:
        """The thread that asks for topics' ids."""
        rest_s, missing = IDS_S, set[str]()
        while not self._closing.wait(rest_s):
            begun = time.monotonic()
            try:
                names = {topic for topic, _ in list(self._expected)}
                ids = self.look.ids(names)
                gone, missing = missing, names - ids.keys()
                # A node that has just started may not know a topic yet: it is gone at two looks.
                ids |= dict.fromkeys(missing - gone, "")
                for reader in self._readers:
                    reader.compare(ids)
            except Exception as error:  # Kafka is away; whatever it is, the next look comes
                log.info("topics' ids are not known: %s", error)
            rest_s = max(IDS_S, IDS_SHARE * (time.monotonic() - begun))

    def places(self) -> list[PartitionId]:
        """What is read."""
        return list(self._expected)

    def close(self) -> None:
        """End the threads."""
        self._closing.set()
        for reader in self._readers:
            reader.close()
        self._asked.close()


def _waits(topic: str) -> bool:
    """Whether a topic is read after the engine's instructions."""
    return goes_first(topic) and not topics.is_instruction(topic)


def places_of(sizes: dict[str, int], inputs: list[str]) -> list[PartitionId]:
    """The partitions of topics, those that are there."""
    return [(t, p) for t in inputs for p in range(sizes.get(t, 0))]


def own_places(
    sizes: dict[str, int], vpns: list[str], broker: str, number: int, alone: bool,
    removed: Collection[int] = (),
) -> list[PartitionId]:  # fmt: skip
    """What a broker reads beside captured topics, of those partitions that are there: its own of
    its VPNs' topics, what the engine and other brokers say to it, and what other homes do. One that
    is alone reads all of its VPNs' topics, for others' programs may have made these. removed:
    numbers of brokers that are no more, whose partitions it reads on."""
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
    """What a broker reads while the home comes to rest: the engine, and other brokers."""
    own = [topics.topic(broker, k) for k in (topics.INSTRUCTIONS, topics.MESH)]
    return places_of(sizes, own)
