"""The pure step alone: the CPU time of each part of a message's life."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from ..mesh.mesh import Mesh
from ..protocol import commands as c
from ..protocol import wire
from ..protocol.ids import format_ranges
from ..protocol.journal import Journal, JournalSegment
from ..protocol.messages import PublishHeader, Records, encode_publish_header
from ..protocol.outputs import Deliveries
from ..replica.journal_buffer import JournalBuffer
from ..replica.replica import Decided, Replica, sort_outputs
from ..state import Batch, DictStore, Home, Limits
from ..streaming.loop.worker_process import collect_garbage_rarely
from .subcommands import count, messages

PAYLOAD = b"x" * 1000


def records(
    topic: str, values: Iterable[bytes], first: int = 0, key: bytes | None = None,
    headers: Iterable[bytes] = (),
) -> Records:  # fmt: skip
    """Records of one partition, from an offset on. headers: the header `lq` of each."""
    found: list[bytes | None] = [*values]
    n = len(found)
    return Records(
        [topic] * n, [0] * n, list(range(first, first + n)), [0] * n, [key] * n, found,
        [*headers] or [None] * n, [None] * n,
    )  # fmt: skip


def commands(*given: c.Command) -> Records:
    """Records of commands in the default VPN."""
    return records("default.commands", map(c.encode_command, given))


def publishes(first: int, n: int) -> Records:
    """Records of one producer, from sequence ``first`` on."""
    headers = (
        encode_publish_header(PublishHeader(to="orders", producer="bench", seq=first + i))
        for i in range(n)
    )
    return records("default.publish", [PAYLOAD] * n, first, headers=headers)


OPTIONS = (messages(200_000), count("--batch", 10_000))
DEFINITION = {"name": "orders", "message_type": "binary"}
_WARM = 50  # warm-up rounds, for look-ups that happen once
_NOTHING = Records()
_CLOCK_LOOKS = 1_000


def run(messages: int, batch: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """µs of CPU per message in each part of its life."""
    batch = min(batch, messages)
    _life(min(_WARM * batch, messages), batch)
    # The first journal imports its codec, which must not be measured.
    list(wire.encode([Journal("bench", 1, 1, [JournalSegment("spooled", "default", "orders")])]))
    collect_garbage_rarely()  # as in a worker
    return [{"messages": messages, "batch": batch, **_life(messages, batch)}]


class _Broker:
    """Runs steps and encodes their outputs as the job does."""

    def __init__(self) -> None:
        self._replica = Replica(Home(), DictStore(), Limits(), Mesh.load)
        self._journal = JournalBuffer("bench", [], 0)

    def take(self, given: Records, messages: Records, now: int) -> Decided:
        return sort_outputs(self._replica.take(Batch(given, messages), now))

    def encode(self, decided: Decided, now: int) -> None:
        if decided.journal is not None:
            self._journal.add(decided.journal)
        journal = self._journal.take(now)
        list(wire.encode(decided.said if journal is None else [*decided.said, journal]))


def _life(messages: int, batch: int) -> dict[str, float]:
    """Publish, deliver and acknowledge messages in batches."""
    broker = _Broker()
    take, encode = broker.take, broker.encode
    # The second bound must not be reached: its alert in every step would dominate the measurement.
    bounds = {"max_per_subscription_backlog": batch, "max_delivered_unacked_per_flow": 2 * batch}
    subscribe = c.Subscribe(
        queue="orders", subscription="s", inbox=c.Inbox("default.deliveries"), max_backlog=batch,
        framing="batch",
    )  # fmt: skip
    take(commands(c.Define(definition=DEFINITION | bounds), subscribe), _NOTHING, 1)
    spent, clock = [0.0, 0.0, 0.0], _clock_s()
    for start in range(1, messages + 1, batch):
        n = min(batch, messages + 1 - start)
        records = publishes(start, n)
        t0 = time.process_time()
        decided = take(_NOTHING, records, start)
        t1 = time.process_time()
        encode(decided, start)
        t2 = time.process_time()
        ids = [i for o in decided.said if isinstance(o, Deliveries) for i in o.ids]
        assert len(ids) == n, f"{len(ids)} of {n} were delivered"
        ack = commands(c.Ack(queue="orders", subscription="s", ids=format_ranges(ids)))
        t3 = time.process_time()
        encode(take(ack, _NOTHING, start), start)
        t4 = time.process_time()
        parts = t1 - t0, t2 - t1, t4 - t3
        spent = [total + part - clock for total, part in zip(spent, parts, strict=True)]
    each = [s / messages * 1e6 for s in spent]
    named = dict(zip(("publish_deliver_us", "encode_us", "ack_us"), each, strict=True))
    return named | {"life_us": sum(each)}


def _clock_s() -> float:
    """The cost of reading the clock: a system call that must not be measured."""
    begun = time.process_time()
    for _ in range(_CLOCK_LOOKS):
        ended = time.process_time()
    return (ended - begun) / _CLOCK_LOOKS
