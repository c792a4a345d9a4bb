"""A home of three brokers in memory, a connection to each, and who owns what."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from lakequeue.core import Limits
from lakequeue.definitions import parse_configuration
from lakequeue.memory.memory_broker import MemoryBroker
from lakequeue.protocol import commands as c
from lakequeue.state.broker import Broker
from lakequeue.state.commands import dispatch
from lakequeue.state.mesh.carried_out import carry_out
from lakequeue.state.message import GONE, MOVING

from .mortal import Fate, MortalEngine

BROKERS = ("a", "b", "c")


class Mesh:
    """Three brokers that host a queue, and a connection to each. fate: who dies when."""

    def __init__(
        self, fate: Fate | None = None, limits: Limits | None = None, system: Any = None,
        queues: Any = None, **keys: Any,
    ) -> None:  # fmt: skip
        one = {"name": "orders", "message_type": "json", "max_per_subscription_backlog": 100}
        config = {
            "brokers": list(BROKERS), "queues": queues or [one | keys], "system": system or {},
        }  # fmt: skip
        self.engine = MortalEngine(parse_configuration(config), limits)
        self.engine.checking = True
        self.engine.fated(fate)
        self.at = {name: self.engine.connect(name, f"app-{name}") for name in BROKERS}
        self._producers: dict[str, Any] = {}

    def send(self, broker: str, body: Any = None, queue: str = "orders", **options: Any) -> str:
        if broker not in self._producers:
            self._producers[broker] = self.at[broker].producer()
        payload = json.dumps({} if body is None else body).encode()
        return self._producers[broker].send(queue, payload, **options).message_id

    def carry(self, broker: str, command: c.Command) -> None:
        """One host alone carries a command out, as the keeper has hosts do."""
        with patch.dict(dispatch.OF_BROKER, {type(command): carry_out}):
            self.engine.command("default.commands", b"", c.encode_command(command), broker)

    def consumer(
        self, broker: str, backlog: int = 100, queue: str = "orders", **options: Any
    ) -> Any:
        options.setdefault("ack_mode", "individual")
        return self.at[broker].consumer(queue, max_backlog=backlog, **options)

    def seen(self, broker: str, queue: str = "orders") -> dict[str, Any]:
        """What one broker says of a queue."""
        return self.whole(queue)["brokers"][broker]

    def whole(self, queue: str = "orders") -> dict[str, Any]:
        return self.at["a"].admin().describe(queue)

    def depths(self, queue: str = "orders") -> list[int]:
        parts = self.whole(queue)["brokers"]
        return [parts[broker]["depth"] for broker in BROKERS]

    def advance(self, duration: str) -> None:
        self.engine.advance(duration)


def ids(messages: list[Any]) -> list[str]:
    return [m.id for m in messages]


def owned(broker: MemoryBroker, now: int, queue: str = "orders") -> tuple[list[str], list[str]]:
    """The ids of what a broker owns, and of what is on its way from it to another."""
    state = Broker.load(broker.store, broker.home, now, broker._limits, first=False)
    found = state.find("default", queue)
    own: list[str] = []
    moving: list[str] = []
    for page, rows in found.live_rows() if found is not None else ():
        known = state.spool.origins(page.id[rows]).tolist()
        for number, at in zip(known, page.state[rows].tolist(), strict=True):
            assert at != GONE
            (moving if at == MOVING else own).append(str(number))
    assert len(np.unique(own)) == len(own)
    return own, moving


def of_an_older_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """All states are as an earlier version wrote them: nobody noted how far topics were read."""
    load = Broker.load

    def older(*given: Any, **more: Any) -> Broker:
        broker = load(*given, **more)
        broker.header.notes_reads = False
        return broker

    monkeypatch.setattr(Broker, "load", older)
