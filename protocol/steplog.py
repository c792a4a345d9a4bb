"""What stands on ``<broker>.steps``: a record for each step, written before its outputs go out.

The log and the inputs that it names are the truth; a snapshot only saves the way. Whoever has a
snapshot, the records behind it and the inputs can take each step again: the same records in the
same order, at the same time, and so with the same outcome. The digest of a step stands in the
record of the *next* one, because a record is written while its step is still being computed.
"""

from __future__ import annotations

import msgspec

FORMAT = 1


class Range(msgspec.Struct, array_like=True, frozen=True):
    """What a step took from one partition: ``count`` records from ``first`` to ``last``.

    Both offsets belong to records; between them may lie what is no record (marks of transactions).
    """

    topic: str
    partition: int
    first: int
    last: int
    count: int


class StepRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step, as it can be taken again.

    now: epoch ms; acked: all outputs up to this step are in Kafka; pages, outputs: digests of what
    the step before wrote and said; code: which version took it; sizes: numbers of partitions that
    became known with this step (a reply to a place that is not there is refused, so they decide
    too), 0 for a topic that is gone.
    inputs: digest of the records that it took; marked: a mark was made before this step; skipped: records that it leaves out because they
    failed, as ``[topic, partition, offset, why]``; faulted: queues that it leaves alone from now
    on, by number, and why. A record whose step has failed is followed by another one of the same
    step.
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
    inputs: int = 0
    marked: bool = False
    skipped: tuple[tuple[str, int, int, str], ...] = ()
    faulted: dict[int, str] = {}


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
