"""A bridge and its two ends: between two homes in one process, or between two VPNs of a home."""

from __future__ import annotations

from typing import Any

from lakequeue.definitions import parse_configuration
from lakequeue.memory import MemoryConnection, MemoryEngine
from lakequeue.memory.joined_homes import MemoryCopier
from lakequeue.state import Limits

from .mesh import take
from .mortal import MortalEngine

BRIDGE = {"name": "out", "from": "near", "to": "memory://east", "subscriptions": ["a/>"]}
ARRIVES = {"name": "out", "from": "memory://west", "to": "far"}
TINY = Limits(
    live_rows=5, segment_rows=3, bridge_rows=7, bridge_bytes=900, bridge_holds=2, delivery_rows=5,
)  # fmt: skip


class Ends:
    """A publisher at the near end of a bridge, a consumer at the far one."""

    producer: Any
    near: MemoryConnection
    far: MemoryConnection
    bridge = "out"
    far_broker: str | None = None

    def define(self, name: str, *topics: str, **keys: Any) -> None:
        own = {"name": name, "message_type": "binary", "type": "LocalQueue"}
        at = {"broker": self.far_broker} if self.far_broker else {}
        self.far.admin().define(own | at | {"subscriptions": list(topics)} | keys)

    def send(self, to: str, *bodies: Any, **options: Any) -> None:
        for body in bodies:
            self.producer.send(to, str(body).encode(), **options)

    def bodies(self, queue: str) -> list[str]:
        """All messages of a queue, acknowledged."""
        with self.far.consumer(queue, max_backlog=100, ack_mode="individual") as consumer:
            return [message.payload.decode() for message in take(consumer)]

    def seen(self) -> dict[str, Any]:
        return self.near.admin().describe_bridge(self.bridge)

    def seen_far(self) -> dict[str, Any]:
        return self.far.admin().describe_bridge(self.bridge)

    def depth(self, queue: str) -> int:
        return int(self.far.admin().describe(queue)["depth"])


class Two(Ends):
    """The homes `west`, with the broker `near`, and `east`, with the broker `far`. expects: topics
    that may arrive; None: no bridge may; leaves: None: no bridge is made."""

    ENGINE: type[MortalEngine] = MortalEngine

    def __init__(
        self, limits: Limits | None = None, expects: str | None = ">",
        leaves: dict[str, Any] | None = BRIDGE, **bridge: Any,
    ) -> None:  # fmt: skip
        self.engines: dict[str, MemoryEngine] = {}
        for name, broker in (("west", "near"), ("east", "far")):
            engine = self.ENGINE(parse_configuration({"brokers": [broker]}), limits)
            engine.checking = True
            engine.homes.find = self.engines.get
            self.engines[name] = engine
        self.engines["east"].now = self.engines["west"].now
        self.near = self.west = self.engines["west"].connect(name="publisher")  # type: ignore
        self.far = self.east = self.engines["east"].connect(name="consumer")  # type: ignore
        self.producer = self.west.producer()
        if expects is not None:
            self.expect(expects)
        if leaves is not None:
            self.west.admin().bridge(leaves | bridge)

    def expect(self, topics: str = ">", **changes: Any) -> None:
        """Allow a bridge to arrive; recreate it if it was there before."""
        if self.east.admin().bridges():
            self.east.admin().delete_bridge("out")
        self.east.admin().bridge(ARRIVES | {"subscriptions": [topics]} | changes)

    @property
    def copier(self) -> MemoryCopier:
        (found,) = self.engines["west"].homes.copiers(self.bridge)
        return found

    def cut(self) -> None:
        self.copier.is_cut = True

    def mend(self) -> None:
        self.copier.is_cut = False
        self.advance("0s")

    def advance(self, duration: str) -> None:
        for engine in self.engines.values():
            engine.advance(duration)

    def events(self, home: str, name: str) -> list[dict[str, Any]]:
        admin = {"west": self.west, "east": self.east}[home].admin()
        return [e for e in admin.events() if e["event"] == name]


class Vpns(Ends):
    """A home of the brokers `one`, `two` and `three` with the VPNs `a` and `b`, and a bridge from a
    to b. near, far: the brokers of its ends; b: keys of b's definition."""

    bridge = "ab"

    def __init__(
        self, near: str = "one", far: str = "one", limits: Limits | None = None,
        expects: bool = True, b: dict[str, Any] | None = None,
        engine: type[MortalEngine] = MortalEngine, brokers: Any = ("one", "two", "three"),
        **bridge: Any,
    ) -> None:  # fmt: skip
        config = {"brokers": list(brokers), "vpns": {"a": None, "b": b}}
        self.engine = engine(parse_configuration(config), limits)
        self.engine.checking = True
        self.far_broker = far
        self.near, self.far = self.a(near), self.b(far)
        self.producer = self.near.producer()
        if expects:
            self.expect()
        there = {
            "name": "ab",
            "from": near,
            "to": f"vpn://b?broker={far}",
            "subscriptions": ["a/>"],
        }
        self.a(brokers[-1]).admin().bridge(there | bridge)

    def expect(self, **changes: Any) -> None:
        """Allow the bridge to arrive."""
        one = {"name": "ab", "from": "vpn://a", "to": self.far_broker, "subscriptions": ["a/>"]}
        self.b("one").admin().bridge(one | changes)

    def a(self, broker: str, name: str = "publisher") -> MemoryConnection:
        return MemoryConnection(self.engine, "a", name, broker)

    def b(self, broker: str) -> MemoryConnection:
        return MemoryConnection(self.engine, "b", "consumer", broker)

    def advance(self, duration: str) -> None:
        self.engine.advance(duration)
