"""Two homes, a bridge from one to the other, and the ways of the tests of bridges to them."""

from __future__ import annotations

from typing import Any

from lakequeue.state import Limits

from .joined import Homes, forgetful
from .mortal import Fate

BRIDGE = {"name": "west-east", "from": "west", "to": "memory://east", "subscriptions": ["a/>"]}
ARRIVES = {"name": "west-east", "from": "memory://west", "to": "east", "subscriptions": [">"]}
TINY = Limits(
    live_rows=5, segment_rows=3, bridge_rows=7, bridge_bytes=900, bridge_holds=2, delivery_rows=5,
)  # fmt: skip


class BothEngines:
    """The engines of both homes, as if they were one."""

    def __init__(self, homes: Homes) -> None:
        self._homes = homes
        self._engines = list(homes.engines.values())

    @property
    def now(self) -> int:
        return self._engines[0].now

    def advance(self, duration: Any) -> None:
        self._homes.advance(duration)

    def restart(self) -> None:
        for engine in self._engines:
            engine.restart()

    def cut(self, name: str) -> None:
        self._homes.copier.is_cut = True

    def mend(self, name: str) -> None:
        self._homes.copier.is_cut = False
        self.advance("0s")

    def fated(self, fate: Fate | None) -> None:
        for engine in self._engines:
            engine.fated(fate)  # type: ignore[attr-defined]
        if fate is None:
            self._homes.copier.begin_again()  # type: ignore[attr-defined]
        forgetful(self._homes.copier, fate)


class _Joined(Homes):
    BROKERS = (("west", "west"), ("east", "east"))
    NAME = BRIDGE["name"]

    def __init__(self, limits: Any) -> None:
        super().__init__(limits, expected=False, leaves=None)


class Two:
    """Two homes, `west` and `east`, and the ways of these tests to them."""

    def __init__(self, limits: Limits | None = None, **bridge: Any) -> None:
        homes = _Joined(limits)
        self.engine: Any = BothEngines(homes)
        self.west, self.east = homes.west, homes.east
        self.producer = homes.producer
        self.east.admin().bridge(ARRIVES)
        if bridge.pop("made", True):
            self.west.admin().bridge(BRIDGE | bridge)

    def define(self, name: str, *topics: str, **keys: Any) -> None:
        own = {"name": name, "message_type": "binary", "type": "LocalQueue", "broker": "east"}
        self.east.admin().define(own | {"subscriptions": list(topics)} | keys)

    def send(self, to: str, *bodies: Any, **options: Any) -> None:
        for body in bodies:
            self.producer.send(to, str(body).encode(), **options)

    def receive(self, queue: str) -> list[Any]:
        """All that is in a queue, acknowledged."""
        found = []
        with self.east.consumer(queue, max_backlog=100, ack_mode="individual") as consumer:
            while (message := consumer.receive(timeout=0)) is not None:
                message.ack()
                found.append(message)
        return found

    def bodies(self, queue: str) -> list[str]:
        return [m.payload.decode() for m in self.receive(queue)]

    def seen(self) -> dict[str, Any]:
        return self.west.admin().describe_bridge("west-east")

    def depth(self, queue: str) -> int:
        return int(self.east.admin().describe(queue)["depth"])

    def events(self, name: str) -> list[dict[str, Any]]:
        return [e for e in self.west.admin().events() if e["event"] == name]
