"""Bridges between engines in one process: what copies between two homes, as the job's engine does.

Of each bridge that leads to another home it has the records that the near broker said, copies them
to the far home's door and the answers back. It remembers nothing that counts: a record that is
copied twice is heard once. It runs when one of the two engines was called, in the caller's thread,
and holds neither's lock meanwhile.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ..client.session.transport import Record
from ..definitions.bridge import BridgeDefinition, parse_bridge
from ..definitions.far_address import MEMORY, far_address
from ..protocol import topics
from ..protocol.errors import LakequeueError
from ..protocol.home_bridges import OPEN, WAITING, CopierState, answers_key, bridge_key, encode
from ..protocol.wire import WireRecord
from .memory_broker import MemoryBroker


class JoinedEngine(Protocol):
    """An engine in the process, as far as bridges look at it."""

    homes: JoinedHomes

    def broker(self, name: str | None = None) -> MemoryBroker:
        """See `MemoryEngine.broker`."""

    def at(self, number: int) -> MemoryBroker:
        """See `MemoryEngine.at`."""

    def open_inbox(self, topic: str) -> deque[Record]:
        """See `MemoryEngine.open_inbox`."""

    def hear(self, broker: int, record: WireRecord) -> None:
        """See `MemoryEngine.hear`."""


class JoinedHomes:
    """The bridges of one engine that lead to others. find: an engine by its name; None: there is
    none."""

    def __init__(self, engine: JoinedEngine, find: Callable[[str], JoinedEngine | None]) -> None:
        self.find = find
        self.neighbours: weakref.WeakSet[JoinedHomes] = weakref.WeakSet()  # who brings us something
        self._engine = engine
        self._copiers: dict[bytes, MemoryCopier] = {}
        self._copying = threading.Lock()

    def said(self, record: WireRecord) -> None:
        """A record of a step's: of the directory, or for another home."""
        assert record.key is not None
        if record.topic.endswith(f".{topics.BRIDGE_OUT}"):
            copier = self._copiers.get(record.key)
            if copier is not None and record.value is not None:
                copier.said.append(record.value)
        elif record.key.startswith(topics.DIRECTORY_BRIDGE.encode()):
            self._learn(record)

    def _learn(self, record: WireRecord) -> None:
        vpn = record.topic.rpartition(".")[0]
        name = (record.key or b"").decode().removeprefix(topics.DIRECTORY_BRIDGE)
        key = bridge_key(vpn, name)
        if record.value is None:
            self._copiers.pop(key, None)
            return
        entry = json.loads(record.value)
        bridge = parse_bridge(entry["definition"])
        known = self._copiers.get(key)
        if known is not None and known.bridge.to == bridge.to:
            known.bridge = bridge
        elif bridge.leaves:
            said = known.said if known is not None else deque()
            self._copiers[key] = MemoryCopier(self._engine, bridge, entry["broker"], said)

    def carry(self) -> None:
        """Copy what there is, here and from those who bring us something, until there is nothing
        more."""
        self._carry()
        for other in list(self.neighbours):
            other._carry()

    def _carry(self) -> None:
        if not self._copiers or not self._copying.acquire(blocking=False):
            return  # whoever copies now finds this, too
        try:
            busy = True
            while busy:
                busy = False
                for copier in list(self._copiers.values()):
                    busy = copier.copy(self) or busy
        finally:
            self._copying.release()

    def copier(self, bridge: str, vpn: str = "default") -> MemoryCopier:
        """The copier of a bridge, for tests."""
        return self._copiers[bridge_key(vpn, bridge)]


class MemoryCopier:
    """Of one bridge. said: what its near broker has said, the first of it not copied yet; is_cut: a
    test aid, the far home is not reached."""

    def __init__(
        self, engine: JoinedEngine, bridge: BridgeDefinition, broker: int, said: deque[bytes]
    ) -> None:
        self.bridge = bridge
        self.said = said
        self.is_cut = False
        self.answers: deque[Record] | None = None
        self._engine, self._broker = engine, broker
        self._told: CopierState | None = None

    def copy(self, homes: JoinedHomes) -> bool:
        """Copy what there is, both ways; whether there was something."""
        if self.is_cut:
            return False
        address = far_address(self.bridge.to)
        far = homes.find(address.place) if address.scheme == MEMORY else None
        if far is None:
            return self._tell(WAITING, f"{self.bridge.to}: no engine of this process has that name")
        vpn = address.vpn or self.bridge.vpn
        if far is self._engine and vpn == self.bridge.vpn:
            return self._tell(WAITING, f"{self.bridge.to}: is this home itself")
        try:
            number = far.broker(address.broker).home.number
        except LakequeueError as error:
            return self._tell(WAITING, f"{self.bridge.to}: {error}")
        if self.answers is None:
            self.answers = far.open_inbox(topics.topic(vpn, topics.BRIDGE_ANSWERS))
            far.homes.neighbours.add(homes)
        busy = self._tell(OPEN, "")
        while self.said:
            value = self.said.popleft()
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
        """A record to the far home's door."""
        place = topics.topic(vpn, topics.BRIDGE_IN), topics.bridge_partition(broker)
        far.hear(broker, WireRecord(*place, self.bridge.name.encode(), value))

    def answered(self, value: bytes) -> None:
        """An answer, or how it is with the way, to the near broker."""
        near = self._engine.at(self._broker)
        key = bridge_key(self.bridge.vpn, self.bridge.name)
        self._engine.hear(self._broker, WireRecord(near.mesh_topic, 0, key, value))

    def _tell(self, state: str, why: str) -> bool:
        """Say how it is with the way, where that is new; whether it was."""
        told = CopierState(state, why)  # type: ignore[arg-type]
        if told == self._told:
            return False
        self._told = told
        self.answered(encode(told))
        return True
