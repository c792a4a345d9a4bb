"""The log of steps, ``<broker>.steps``: a record for each step, written before its outputs are
sent.

A step can be replayed from a snapshot, the log records after it and the inputs that they name: the
same records in the same order at the same time give the same result. The digest of a step's outputs
is in the record of the *next* step, because a record is written while its step is still being
computed.

Recreated topics. The engine reports to a broker up to which offset the Delta tables contain a
publish topic. For a recreated topic that offset is wrong, and the engine notices only after the
first messages. So `with_recreated_topics` puts a command before the step's others: the tables
contain nothing of this partition. The step's record names the topics that were opened, so a replay
builds the same command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import msgspec

from . import topics
from .commands import Tables, encode_command
from .messages import Records

FORMAT = 1


class Range(msgspec.Struct, array_like=True, frozen=True):
    """The records that a step read from one partition: ``count`` records from ``first`` to
    ``last``.

    Both offsets are of records. The offsets between them may include some without a record for the
    step: transaction markers, aborted or compacted records. ``parts`` then has the lengths of
    alternating stretches of offsets: with records of the step, without, with, and so on.
    """

    topic: str
    partition: int
    first: int
    last: int
    count: int
    parts: tuple[int, ...] = ()

    def offsets(self) -> list[int]:
        """The offsets of its records; all offsets of the range if ``parts`` is missing."""
        found: list[int] = []
        at, is_taken = self.first, True
        for length in self.parts or (self.last - self.first + 1,):
            if is_taken:
                found += range(at, at + length)
            at, is_taken = at + length, not is_taken
        return found


def parts_of(offsets: list[int]) -> tuple[int, ...]:
    """The ``parts`` of a `Range` with these offsets; empty without gaps."""
    if offsets[-1] - offsets[0] + 1 == len(offsets):
        return ()
    parts, begin = [], offsets[0]
    for before, at in pairwise(offsets):
        if at != before + 1:
            parts += [before + 1 - begin, at - before - 1]
            begin = at
    return (*parts, offsets[-1] + 1 - begin)


class Opened(msgspec.Struct, array_like=True, frozen=True):
    """A partition that is new or was recreated: from this step on it is read from this offset of
    the topic with this id."""

    topic: str
    partition: int
    at: int
    topic_id: str


class StepRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step, with everything that a replay needs.

    now: epoch ms; acked: Kafka has all outputs up to this step; pages, outputs: digests of the
    previous step; code: the version that computed it; sizes: changed numbers of partitions, 0 for a
    deleted topic (they matter because a reply to a missing partition is refused); inputs: the
    digest of its input records; marked: a mark was made before this step; skipped: records that it
    skips because they failed, as ``[topic, partition, offset, why]``; faulted: queues that failed,
    by number, with the reason. If a step fails, another record of the same step follows. core: the
    state's format; 0: the earlier core computed the step.
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
    """The fields of `StepRecord` that only this core writes, as the tables store them."""

    core: int
    inputs: int = 0
    marked: bool = False
    skipped: tuple[tuple[str, int, int, str], ...] = ()
    faulted: dict[int, str] = {}

    @classmethod
    def of(cls, record: StepRecord) -> LivePart | None:
        """Extract these fields from a record; None if the earlier core wrote it."""
        if not record.core:
            return None
        return cls(*(getattr(record, name) for name in cls.__struct_fields__))

    def added_to(self, record: StepRecord) -> StepRecord:
        """Copy a record, with these fields added."""
        return msgspec.structs.replace(record, **msgspec.structs.asdict(self))


_encode = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(StepRecord)


def encode(record: StepRecord) -> bytes:
    """The record's bytes."""
    return _encode(record)


def decode(value: bytes | None) -> StepRecord:
    """Decode a record. Raises ValueError with a sentence for anything else."""
    try:
        record = _decoder.decode(value or b"")
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"not a record of a step: {error}") from error
    if record.format != FORMAT:
        raise ValueError(f"a step record has format {record.format}; allowed is {FORMAT}")
    return record


# ---------------------------------------------------------------- recreated topics


NOWHERE = -1  # the offset of a command that no topic contains


def with_recreated_topics(
    commands: Records, broker: str, opened: Iterable[Opened],
    offsets: Mapping[tuple[str, int], int], ids: Mapping[tuple[str, int], str],
) -> Records:  # fmt: skip
    """A step's commands, preceded by one about recreated topics if there are any. opened:
    partitions that the step opened; offsets, ids: the state before the step."""
    anew: dict[str, int] = {}
    for one in opened:
        partition = one.topic, one.partition
        if topics.kind(one.topic) != topics.PUBLISH or partition not in offsets:
            continue
        before = ids.get(partition, "")
        if one.at < offsets[partition] or (before and before != one.topic_id):
            anew[f"{one.topic}/{one.partition}"] = 0
    if not anew:
        return commands
    value = encode_command(Tables(written=None, up_to=anew))
    return msgspec.structs.replace(
        commands,
        topics=[topics.topic(broker, topics.INSTRUCTIONS), *commands.topics],
        partitions=[0, *commands.partitions], offsets=[NOWHERE, *commands.offsets],
        timestamps=[0, *commands.timestamps], keys=[b"default", *commands.keys],
        values=[value, *commands.values], metas=[None, *commands.metas],
        headers=[None, *commands.headers],
    )  # fmt: skip
