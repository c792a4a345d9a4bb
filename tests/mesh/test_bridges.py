"""Bridges to another home: what waits in the cold part, whose an endpoint is, and what fails at the
far end (H1, H3)."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.state import Limits as CoreLimits
from lakequeue.state.phases.admission import Admission
from rules.joined import Homes


@pytest.mark.parametrize("lanes", ["per-destination", "none"])
def test_h1_what_waits_in_the_cold_part_goes_over_in_order(
    lanes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = CoreLimits(live_rows=8, segment_rows=4, bridge_rows=7, delivery_rows=5)
    homes = Homes(tiny, lanes=lanes)
    homes.define("small", "a/0", max_spool_messages=20)
    homes.define("all", "a/1", "a/2", "a/3")
    homes.copier.is_cut = True
    for n in range(120):
        homes.send(f"a/{n % 4}", n)
    for engine in homes.engines.values():
        engine.restart()
    assert homes.seen()["on_its_way"] == {"none": 1, "per-destination": 4}[lanes]
    homes.copier.is_cut = False
    homes.advance("0s")
    if lanes == "per-destination":
        (blocked,) = homes.seen()["blocked"]
        assert (blocked["endpoint"], blocked["waiting"], homes.seen()["waiting"]) == (
            "small", 10, 10,
        )  # fmt: skip
    got: list[int] = []
    for _ in range(12):
        got += map(int, [*homes.bodies("small"), *homes.bodies("all")])
        homes.advance("6s")
    assert sorted(got) == list(range(120))
    for rest in range(4):
        own = [n for n in got if n % 4 == rest]
        assert own == sorted(own)


def test_h1_what_fails_at_the_far_end_holds_its_own_lane_and_fails_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    homes = Homes()
    homes.define("q", "a/>")
    failed = []
    offer = Admission.offer

    def poisoned(self: Any, vpn: str, messages: Any, sender: Any) -> bool:
        if b"poison" in messages.payloads:
            failed.append(len(messages))
            raise ZeroDivisionError("poison")
        return offer(self, vpn, messages, sender)

    monkeypatch.setattr(Admission, "offer", poisoned)
    homes.copier.is_cut = True
    homes.send("a/0", "first")
    homes.west.admin().shutdown("#bridge/out", egress=True)
    homes.send("a/1", "good", "poison", "behind")
    homes.send("a/2", "other")
    homes.west.admin().shutdown("#bridge/out")
    homes.copier.is_cut = False
    homes.advance("0s")
    homes.advance("1m")
    assert sorted(homes.bodies("q")) == ["first", "good", "other"]
    (blocked,) = homes.seen()["blocked"]
    assert (blocked["destinations"], blocked["reason"], blocked["waiting"]) == (
        ["a/1"], "malformed", 2,
    )  # fmt: skip
    assert homes.west.admin().describe("#bridge/out")["blocked"] == "held by malformed"
    tried = len(failed)
    homes.advance("1m")
    assert len(failed) == tried  # each one costs a replay
    homes.west.admin().purge("#bridge/out")
    assert homes.seen()["blocked"] == []
