"""The options that the engine gives a broker's loop when its query starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...sources.live_reader import InputLimits
from ...sources.step_batch import PartitionId


@dataclass(frozen=True)
class Options:
    """The options of one query.

    run: the id of this run on the control topic. alone: whether this is the only broker. keep: how
    many batches Spark may go back. alone_s: how long steps continue if no batch follows. rebuilt: a
    file with the first state, see `state_files`. log_kept_s: how much longer than snapshots the
    tables need the log. resting: whether the home is coming to rest, so that the loop reads no
    client's records. removed: numbers of removed brokers, whose partitions this one reads. read:
    the offsets up to which they had read. accepts_other_kafka: also accept a Kafka that went back
    in time, and a log of steps that is shorter than it was.
    """

    kafka: dict[str, Any]
    broker: str
    number: int
    epoch: int
    vpns: list[str]
    code: str
    run: str
    alone: bool = True
    secret: bytes = field(default=b"", repr=False)
    keep: int = 8
    batch_s: float = 30.0
    batch_bytes: int = 128_000_000
    replay_s: float = 2.0
    alone_s: float = 10.0
    rebuilt: str = ""
    log_kept_s: float = 0.0
    resting: bool = False
    removed: list[int] = field(default_factory=list)
    read: dict[PartitionId, int] = field(default_factory=dict)
    accepts_other_kafka: bool = False
    cache_bytes: int = 200_000_000
    limits: InputLimits = field(default_factory=InputLimits)
