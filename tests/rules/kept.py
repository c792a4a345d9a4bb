"""Engines in memory whose brokers are all made again as of earlier steps, each of another one, as
`lakequeue rebuild` does: what brokers said to each other and clients wrote is in Kafka (R3)."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import msgspec
from lakequeue.core import Batch, DictStore
from lakequeue.protocol.errors import Reason
from lakequeue.protocol.messages import Records, decode_publish_header
from lakequeue.protocol.outputs import Output, Receipts
from lakequeue.state.broker import BrokerHeader
from lakequeue.state.mesh.rejoining import agree, pass_over

from .slow import SlowBroker, SlowEngine

STEPS_AHEAD, IDS_AHEAD = 1_000_000, 4_000_000
_header = msgspec.msgpack.Decoder(BrokerHeader)


class Given(NamedTuple):
    """What came in with a step. moved: the payloads that it refused since their queue had moved."""

    commands: Records
    publishes: Records
    moved: set[bytes]


class KeptBroker(SlowBroker):
    """said_to_it: its mesh topic; given: what came in with each step; history: of each step its
    state, and how far it had read of both; moved: see `Given`, of lost steps."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.said_to_it: list[Any] = []
        self.given: list[Given] = []
        self.history: list[tuple[bytes, int, int]] = []
        self.moved: set[bytes] = set()
        self._sent: dict[tuple[str, int], bytes] = {}  # payloads by their producers' numbers

    def _heard_records(self, now: int) -> Records:
        self.said_to_it += self._said
        return super()._heard_records(now)

    def take(self, batch: Batch, now: int) -> list[Output]:
        for meta, value in zip(batch.publishes.metas, batch.publishes.values, strict=True):
            header = decode_publish_header(meta)
            self._sent[header.producer, header.seq] = value
        given = Given(*copy.deepcopy((batch.commands, batch.publishes)), set())
        self.given.append(given)
        outputs = super().take(batch, now)
        for said in outputs:
            if isinstance(said, Receipts):
                numbers = [seq for seq, reason, *_ in said.nacks if reason == Reason.MOVED.value]
                given.moved.update(self._sent[said.producer, seq] for seq in numbers)
        self.history.append((self.store.dump(), len(self.said_to_it), len(self.given)))
        return outputs

    def header_at(self, step: int) -> BrokerHeader | None:
        if not 1 <= step <= len(self.history):
            return None
        return _header.decode(DictStore.load(self.history[step - 1][0]).pages["broker"])

    def begin_from(self, step: int, header: BrokerHeader, now: int) -> list[Given]:
        """Be what it was behind a step; gives what came in since."""
        dump, heard, read = self.history[step - 1]
        header.step += STEPS_AHEAD
        header.entries_said += STEPS_AHEAD
        header.rebuilt = now
        header.spool.next_counter += IDS_AHEAD
        self.store = DictStore.load(dump)
        self.store.put("broker", msgspec.msgpack.encode(header))
        self._snapshot, self._log = self.store.dump(), []
        self._said = [*self.said_to_it[heard:], *self._said]
        again = self.given[read:]
        self.moved.update(*(given.moved for given in again))
        del self.said_to_it[heard:], self.given[read:]
        self.history = [(self.store.dump(), heard, read)]  # nobody goes back behind this
        return again


class KeptEngine(SlowEngine):
    BROKER = KeptBroker

    def lose(self, back: dict[str, int]) -> int:
        """Everything but Kafka and the tables, which know each broker so many steps less. Gives how
        many steps are lost."""
        kept = {b.home.name: b for b in self.brokers}
        last = {name: max(len(b.history) - back[name], 1) for name, b in kept.items()}  # type: ignore[attr-defined]
        steps = agree(last, lambda name, step: kept[name].header_at(step))  # type: ignore[attr-defined]
        headers = {name: kept[name].header_at(step) for name, step in steps.items()}  # type: ignore[attr-defined]
        pass_over(headers)
        lost = sum(len(b.history) - steps[name] for name, b in kept.items())  # type: ignore[attr-defined]
        again = [
            (b, b.begin_from(steps[name], headers[name], self.now)) for name, b in kept.items()
        ]  # type: ignore[attr-defined]
        for broker, given in again:
            for commands, publishes, _ in given:
                if commands or publishes:
                    self._step(broker, Batch(commands=commands, publishes=publishes))
        with self._lock:
            self._settle()
        return lost
