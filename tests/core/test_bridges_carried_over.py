"""A home with bridges goes on on the live core, at either end, whatever is on its way (H1–H3)."""

from __future__ import annotations

import pytest
from core.carrying import CarriedBroker
from lakequeue.memory.in_process import MemoryEngine
from rules import mortal
from rules.bridged import TINY
from rules.joined import Homes
from rules.test_vpn_bridges import TwoVpns


@pytest.fixture(autouse=True)
def _carried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mortal.MortalEngine, "BROKER", CarriedBroker)


def carry(engine: MemoryEngine) -> None:
    """The engine's broker goes on on the live core."""
    (broker,) = engine.brokers
    broker.carry()  # type: ignore[attr-defined]


@pytest.mark.parametrize("who", [("west",), ("east",), ("west", "east")])
@pytest.mark.parametrize("lanes", ["per-destination", "none"])
def test_h1_what_waits_for_another_home_and_what_is_on_its_way_arrives_once(
    who: tuple[str, ...], lanes: str
) -> None:
    homes = Homes(TINY, lanes=lanes)
    homes.define("small", "a/0", max_spool_messages=2)
    homes.define("all", "a/1", "a/2")
    for n in range(9):
        homes.send(f"a/{n % 3}", n)
    homes.advance("1s")
    bring = homes.copier.bring
    arrived: list[object] = []
    homes.copier.bring = lambda *given: arrived.append(given)  # type: ignore[method-assign]
    for n in range(9, 30):
        homes.send(f"a/{n % 3}", n)
    homes.copier.is_cut = True
    before = homes.seen()
    for one in arrived[:2]:  # taken in over there; the answers have not come
        bring(*one)  # type: ignore[misc]
    for name in who:
        carry(homes.engines[name])
    same = ("waiting", "on_its_way", "taken", "sent", "spool_bytes", "blocked", "state")
    assert [homes.seen()[key] for key in same] == [before[key] for key in same]
    homes.copier.bring = bring  # type: ignore[method-assign]
    homes.copier.is_cut = False
    for one in arrived:
        bring(*one)  # type: ignore[misc]
    got: list[int] = []
    for _ in range(20):
        got += map(int, [*homes.bodies("small"), *homes.bodies("all")])
        homes.advance("6s")
    assert sorted(got) == list(range(30))
    for rest in range(3):
        own = [n for n in got if n % 3 == rest]
        assert own == sorted(own)
    seen, far = homes.seen(), homes.seen_far()
    assert (seen["waiting"], seen["on_its_way"], seen["taken"], far["taken"]) == (0, 0, 30, 30)


def test_h1_what_waits_for_another_vpn_arrives_once() -> None:
    vpns = TwoVpns(TINY)
    vpns.define("small", "a/0", max_spool_messages=2)
    vpns.define("all", "a/1")
    for n in range(20):
        vpns.send(f"a/{n % 2}", n)
    carry(vpns.engine)
    assert vpns.seen()["blocked"][0]["waiting"] == 8
    got = [int(body) for body in vpns.bodies("all")]
    for _ in range(12):
        got += map(int, vpns.bodies("small"))
        vpns.engine.advance("6s")
    assert sorted(got) == list(range(20))
    assert [n for n in got if not n % 2] == list(range(0, 20, 2))
