"""What the engine tells a broker's loop, once for the life of its query."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...sources.live_reader import InputLimits
from ...sources.step_batch import PartitionId


@dataclass(frozen=True)
class Options:
    """What the engine tells the loop. keep: batches that Spark may go back to; run: the engine's
    name on the control topic; secret: of the home, see `Home`; alone: there is no other broker;
    alone_s: how long steps go on when no batch follows; rebuilt: a file with the state to begin
    with where there is none, see `rebuilt`; log_kept_s: how long the log is kept beyond what
    snapshots need, for the tables; resting: nothing of clients is read, the home comes to rest;
    removed: numbers of brokers that are no more, whose partitions this one reads on; read: up to
    where they had; accepts_other_kafka: also one that went back in time."""

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
