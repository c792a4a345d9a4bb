"""Bridges between engines in one process: the counterpart of the job's copier between two homes.

For each bridge to another home it copies what the near broker sent to the far home, and the answers
back. It keeps no state that matters: a record copied twice takes effect once. It runs in the
caller's thread after one of the engines was called, and holds neither engine's lock.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ..client.session.transport import Record
from ..definitions.bridge import MEMORY, BridgeDefinition, far_address, parse_bridge
from ..protocol import topics
from ..protocol.errors import LakequeueError
from ..protocol.home_bridges import (
    OPEN,
    WAITING,
    BridgeEnds,
    CopierState,
    EndId,
    answers_key,
    bridge_key,
    encode,
    of_key,
)
from ..protocol.wire import WireRecord, headers_list
from .memory_broker import MemoryBroker


class JoinedEngine(Protocol):
    """The part of `MemoryEngine` that bridges need."""

    homes: JoinedHomes

    def broker(self, name: str | None = None) -> MemoryBroker: ...
    def at(self, number: int) -> MemoryBroker: ...
    def open_inbox(self, topic: str) -> deque[Record]: ...
    def hear(self, broker: int, record: WireRecord) -> None: ...


class JoinedHomes:
    """One engine's bridges to other homes. find: returns an engine by its name, or None."""

    def __init__(self, engine: JoinedEngine, find: Callable[[str], JoinedEngine | None]) -> None:
        self.find = find
        self.neighbours: weakref.WeakSet[JoinedHomes] = weakref.WeakSet()  # with bridges here
        self._engine = engine
        self._ends = BridgeEnds()
        self._copiers: dict[EndId, MemoryCopier] = {}
        self._copying = threading.Lock()

    def take(self, record: WireRecord) -> None:
        """Take a record of a step: of the directory, or for another home."""
        assert record.key is not None
        topic, _, kind = record.topic.rpartition(".")
        if kind == topics.BRIDGE_OUT:
            vpn, bridge = of_key(record.key)
            copier = self._copiers.get((vpn, topic, bridge))
            if copier is not None and record.value is not None:
                copier.unsent.append(record.value)
        else:
            self._learn(record)

    def _learn(self, record: WireRecord) -> None:
        headers = headers_list(record.headers)
        epoch = self._engine.broker().home.epoch
        place = self._ends.read(epoch, record.topic, record.key, record.value, headers)
        if place is None:
            return
        end = self._ends.ends.get(place)
        if end is None:
            self._copiers.pop(place, None)
            return
        bridge = parse_bridge(end.definition)
        known = self._copiers.get(place)
        if known is not None and known.bridge.to == bridge.to:
            known.bridge = bridge
        elif bridge.leaves:
            unsent = known.unsent if known is not None else deque()
            self._copiers[place] = MemoryCopier(self._engine, bridge, end.broker, unsent)

    def carry(self) -> None:
        """Copy, here and from homes with bridges to us, until nothing is left."""
        self._carry()
        for other in list(self.neighbours):
            other._carry()

    def _carry(self) -> None:
        if not self._copiers or not self._copying.acquire(blocking=False):
            return  # the running copy includes this
        try:
            busy = True
            while busy:
                busy = False
                for copier in list(self._copiers.values()):
                    busy = copier.copy(self) or busy
        finally:
            self._copying.release()

    def copiers(self, bridge: str, vpn: str = "default") -> list[MemoryCopier]:
        """The copiers of a bridge's ends, for tests."""
        return [one for (v, _, name), one in self._copiers.items() if (v, name) == (vpn, bridge)]


class MemoryCopier:
    """One bridge. unsent: records of the near broker that are not copied yet, the oldest first.
    is_cut: a test aid; the far home cannot be reached."""

    def __init__(
        self, engine: JoinedEngine, bridge: BridgeDefinition, broker: int, unsent: deque[bytes]
    ) -> None:
        self.bridge = bridge
        self.unsent = unsent
        self.is_cut = False
        self.answers: deque[Record] | None = None
        self._engine, self._broker = engine, broker
        self._reported: CopierState | None = None

    def copy(self, homes: JoinedHomes) -> bool:
        """Copy both ways; returns False if there was nothing."""
        if self.is_cut:
            return False
        address = far_address(self.bridge.to)
        far = homes.find(address.place) if address.scheme == MEMORY else None
        if far is None:
            return self._report_state(
                WAITING, f"{self.bridge.to}: no engine of this process has that name"
            )
        vpn = address.vpn or self.bridge.vpn
        if far is self._engine and vpn == self.bridge.vpn:
            return self._report_state(WAITING, f"{self.bridge.to}: is this home itself")
        try:
            number = far.broker(address.broker).home.number
        except LakequeueError as error:
            return self._report_state(WAITING, f"{self.bridge.to}: {error}")
        if self.answers is None:
            self.answers = far.open_inbox(topics.topic(vpn, topics.BRIDGE_ANSWERS))
            far.homes.neighbours.add(homes)
        busy = self._report_state(OPEN, "")
        while self.unsent:
            value = self.unsent.popleft()
            self.bring(far, vpn, number, value)
            busy = True
        own = answers_key(self._engine.at(self._broker).home.epoch, self.bridge.name)
        while self.answers:
            answer = self.answers.popleft()
            if answer.key == own and answer.value is not None:
                self.answered(answer.value)
                busy = True
        return busy

    def bring(self, far: JoinedEngine, vpn: str, broker: int, value: bytes) -> None:
        """Give a record to the far home."""
        place = topics.topic(vpn, topics.BRIDGE_IN), topics.bridge_partition(broker)
        far.hear(broker, WireRecord(*place, self.bridge.name.encode(), value))

    def answered(self, value: bytes) -> None:
        """Give the near broker an answer, or the state of the connection."""
        near = self._engine.at(self._broker)
        key = bridge_key(self.bridge.vpn, self.bridge.name)
        self._engine.hear(self._broker, WireRecord(near.mesh_topic, 0, key, value))

    def _report_state(self, state: str, why: str) -> bool:
        """Report the state of the connection if it is new; returns whether it was."""
        current = CopierState(state, why)  # type: ignore[arg-type]
        if current == self._reported:
            return False
        self._reported = current
        self.answered(encode(current))
        return True
