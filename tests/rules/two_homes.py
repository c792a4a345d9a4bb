"""Two homes of one broker each, whose bridge takes what lies below `a`; the far one expects all."""

from __future__ import annotations

from typing import Any

from lakequeue.state import Limits

from .joined import Homes

BRIDGE = {"name": "west-east", "from": "west", "to": "memory://east", "subscriptions": ["a/>"]}
ARRIVES = {"name": "west-east", "from": "memory://west", "to": "east", "subscriptions": [">"]}
TINY = Limits(
    live_rows=5, segment_rows=3, bridge_rows=7, bridge_bytes=900, bridge_holds=2, delivery_rows=5,
)  # fmt: skip


class Two(Homes):
    """The brokers are called as their homes."""

    BROKERS = (("west", "west"), ("east", "east"))
    NAME = BRIDGE["name"]

    def __init__(self, limits: Limits | None = None, **bridge: Any) -> None:
        super().__init__(limits, expected=False, leaves=None)
        self.east.admin().bridge(ARRIVES)
        self.west.admin().bridge(BRIDGE | bridge)

    def cut(self) -> None:
        self.copier.is_cut = True

    def mend(self) -> None:
        self.copier.is_cut = False
        self.advance("0s")

    def depth(self, queue: str) -> int:
        return int(self.east.admin().describe(queue)["depth"])
