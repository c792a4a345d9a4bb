"""What stands on ``<broker>.steps``: a record for each step, written before its outputs go out.

The log and the inputs that it names are the truth; a snapshot only saves the way. Whoever has a
snapshot, the records behind it and the inputs can take each step again: the same records in the
same order, at the same time, and so with the same outcome. The digest of a step stands in the
record of the *next* one, because a record is written while its step is still being computed.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

FORMAT = 1


class Range(msgspec.Struct, array_like=True, frozen=True):
    """What a step took from one partition: ``count`` records from ``first`` to ``last``.

    Both offsets belong to records; between them may lie what the step did not get: marks of
    transactions, records that were taken back or compacted away. Then parts says how many offsets
    are the step's, how many behind them are not, how many behind those are, and so on. Logs of
    earlier versions do not say it.
    """

    topic: str
    partition: int
    first: int
    last: int
    count: int
    parts: tuple[int, ...] = ()

    def offsets(self) -> list[int]:
        """Those of its records; where it does not say them, all that may be."""
        found: list[int] = []
        at, is_taken = self.first, True
        for length in self.parts or (self.last - self.first + 1,):
            if is_taken:
                found += range(at, at + length)
            at, is_taken = at + length, not is_taken
        return found


def parts_of(offsets: list[int]) -> tuple[int, ...]:
    """How offsets lie, see `Range`; empty: without gaps."""
    if offsets[-1] - offsets[0] + 1 == len(offsets):
        return ()
    parts, begin = [], offsets[0]
    for before, at in pairwise(offsets):
        if at != before + 1:
            parts += [before + 1 - begin, at - before - 1]
            begin = at
    return (*parts, offsets[-1] + 1 - begin)


class Opened(msgspec.Struct, array_like=True, frozen=True):
    """From this step on a partition is read from this offset, of the topic of this id: one that is
    read for the first time, or that was made anew. An offset means nothing without its topic."""

    topic: str
    partition: int
    at: int
    topic_id: str


class StepRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step, as it can be taken again.

    now: epoch ms; acked: all outputs up to this step are in Kafka; pages, outputs: digests of what
    the step before wrote and said; code: which version took it; sizes: numbers of partitions that
    became known with this step (a reply to a place that is not there is refused, so they decide
    too), 0 for a topic that is gone.
    inputs: digest of the records that it took; marked: a mark was made before this step; skipped:
    records that it leaves out because they failed, as ``[topic, partition, offset, why]``; faulted:
    queues that it leaves alone from now on, by number, and why. A record whose step has failed is
    followed by another one of the same step. core: the format of the state on which the core
    took the step; 0: the earlier core took it.
    """

    format: int
    step: int
    now: int
    acked: int
    pages: int
    outputs: int
    code: str
    ranges: tuple[Range, ...] = ()
    sizes: dict[str, int] = {}
    opened: tuple[Opened, ...] = ()
    inputs: int = 0
    marked: bool = False
    skipped: tuple[tuple[str, int, int, str], ...] = ()
    faulted: dict[int, str] = {}
    core: int = 0


class LivePart(msgspec.Struct, omit_defaults=True):
    """What the record of a step on live objects says beside what all records do: fields of
    `StepRecord`, as the tables keep them."""

    core: int
    inputs: int = 0
    marked: bool = False
    skipped: tuple[tuple[str, int, int, str], ...] = ()
    faulted: dict[int, str] = {}

    @classmethod
    def of(cls, record: StepRecord) -> LivePart | None:
        """What a record says; None where the earlier core took the step."""
        if not record.core:
            return None
        return cls(*(getattr(record, name) for name in cls.__struct_fields__))

    def added_to(self, record: StepRecord) -> StepRecord:
        """A record with what this says."""
        return msgspec.structs.replace(record, **msgspec.structs.asdict(self))


_encode = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(StepRecord)


def encode(record: StepRecord) -> bytes:
    """The record's bytes."""
    return _encode(record)


def decode(value: bytes | None) -> StepRecord:
    """Read a record; raises ValueError with a sentence for anything else."""
    try:
        record = _decoder.decode(value or b"")
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"this is no record of a step: {error}") from error
    if record.format != FORMAT:
        raise ValueError(f"a step record has format {record.format}; allowed is {FORMAT}")
    return record
