"""Two homes with a bridge, which tests take for two brokers of one (`rules.bridged`)."""

from __future__ import annotations

from typing import Any

from rules.bridged import Two
from rules.joined import Homes, forgetful
from rules.mortal import Fate

BRIDGE = {"name": "west-east", "from": "west", "to": "memory://east", "subscriptions": ["a/>"]}
ARRIVES = {"name": "west-east", "from": "memory://west", "to": "east", "subscriptions": [">"]}


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


class TwoHomes(Two):
    """See `Two`."""

    def __init__(self, limits: Any = None, **bridge: Any) -> None:
        homes = _Joined(limits)
        self.engine = BothEngines(homes)  # type: ignore[assignment]
        self.west, self.east = homes.west, homes.east
        self.producer = homes.producer
        self.east.admin().bridge(ARRIVES)
        self.west.admin().bridge(BRIDGE | bridge)
