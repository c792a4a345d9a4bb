"""A Kafka in memory: partitions with offsets, holes and retention, and a broker's log of steps,
which only its last opener may write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lakequeue.protocol import steplog
from lakequeue.protocol.steplog import Range, StepRecord
from lakequeue.protocol.wire import headers_list
from lakequeue.sources.step_batch import to_batch

PartitionId = tuple[str, int]


class Fenced(Exception):
    """Another worker has opened the log since."""


@dataclass(slots=True)
class Record:
    """A record with the interface of the Kafka client's."""

    at: int
    time: int
    own_key: bytes | None
    own_value: bytes | None
    own_headers: list[tuple[str, bytes]] | None

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return 1, self.time

    def key(self) -> bytes | None:
        return self.own_key

    def value(self) -> bytes | None:
        return self.own_value

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self.own_headers


# Whether a record is the one to be lost, and what is left of it.
Loss = tuple[Callable[[Record], bool], Callable[[Record], Record | None]]


@dataclass
class Kafka:
    """All partitions of all topics. now: its clock, which stamps records; a hole is an offset
    without a record for readers, such as a transaction's marker; loses: the next output of a broker
    in this partition that matches is lost; gone: records that retention removed, for the judge."""

    now: int = 1_700_000_000_000
    sizes: dict[str, int] = field(default_factory=dict)
    partitions: dict[PartitionId, list[Record | None]] = field(default_factory=dict)
    loses: dict[PartitionId, Loss] = field(default_factory=dict)
    gone: dict[tuple[PartitionId, int], Record] = field(default_factory=dict)

    def append(
        self, place: PartitionId, value: bytes | None, key: bytes | None = None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> int:  # fmt: skip
        """Write a record; returns its offset."""
        log = self.partitions.setdefault(place, [])
        log.append(Record(len(log), self.now, key, value, headers))
        return len(log) - 1

    def leave_hole(self, place: PartitionId) -> None:
        """An offset without a record for readers."""
        self.partitions.setdefault(place, []).append(None)

    def trim(self, place: PartitionId, before: int) -> None:
        """Retention: no reader gets these any more."""
        log = self.partitions.get(place, [])
        for at in range(min(before, len(log))):
            record, log[at] = log[at], None
            if record is not None:
                self.gone[place, at] = record

    def end(self, place: PartitionId) -> int:
        return len(self.partitions.get(place, ()))

    def read(self, place: PartitionId, at: int, most: int) -> list[Record]:
        """The next records."""
        found = []
        for record in self.partitions.get(place, [])[at:]:
            if len(found) >= most:
                break
            if record is not None:
                found.append(record)
        return found

    def said(self, place: PartitionId, record) -> None:  # type: ignore[no-untyped-def]
        """A record of a broker's outputs arrives."""
        at = self.append(place, record.value, record.key, headers_list(record.headers))
        arrived, loss = self.partitions[place][at], self.loses.get(place)
        if loss is not None and arrived is not None and loss[0](arrived):
            del self.loses[place]
            self.partitions[place][at] = loss[1](arrived)

    def again(self, ranges: tuple[Range, ...], gone: bool = False):  # type: ignore[no-untyped-def]
        """A step's records, once more. gone: also those that retention removed since."""
        found = {}
        for r in ranges:
            place = r.topic, r.partition
            log = self.partitions[place]
            records = [log[at] for at in r.offsets()]
            if gone:
                records = [log[at] or self.gone.get((place, at)) for at in r.offsets()]
            kept = [record for record in records if record is not None]
            assert len(kept) == r.count, f"retention took {r} from under a snapshot"
            found[place] = kept
        return to_batch(found).batch  # type: ignore[arg-type]


@dataclass
class StepsLog:
    """The log of one broker. owner: the attempt that opened it last."""

    records: dict[int, bytes] = field(default_factory=dict)
    end: int = 0
    owner: int = 0
    # for the judge: the records that steps took
    ever: dict[int, tuple[Range, ...]] = field(default_factory=dict)
    # for the judge: all records there ever were
    whole: dict[int, bytes] = field(default_factory=dict)

    def append(self, attempt: int, value: bytes) -> int:
        """Write a record. Raises Fenced."""
        if attempt != self.owner:
            raise Fenced(f"attempt {attempt}, the log is {self.owner}'s")
        self.records[self.end] = self.whole[self.end] = value
        record = steplog.decode(value)
        self.ever[record.step] = record.ranges
        self.end += 1
        return self.end - 1

    def end_transaction(self) -> None:
        """Its marker takes an offset."""
        self.end += 1

    def trim(self, before: int) -> None:
        self.records = {at: value for at, value in self.records.items() if at >= before}

    def read(self, start: int) -> list[tuple[int, StepRecord]]:
        """The records from an offset on."""
        return [(at, steplog.decode(value)) for at, value in self.records.items() if at >= start]
