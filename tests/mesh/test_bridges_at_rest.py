"""Bridges of a home whose brokers change (H1, M4)."""

from __future__ import annotations

import re

import pytest
from lakequeue.protocol import ConfigError
from mesh.rehomed import RestingEngine
from rules import joined
from rules.joined import LEAVES, Homes


def test_m4_a_bridge_goes_on_beside_a_broker_that_is_added_and_its_own_cannot_be_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joined, "MortalEngine", RestingEngine)
    homes = Homes()
    homes.define("q", "a/>")
    west = homes.engines["west"]
    assert isinstance(west, RestingEngine)
    homes.copier.is_cut = True
    homes.send("a/1", 1, 2, 3)
    before = homes.seen()
    assert (before["on_its_way"], before["waiting"]) == (1, 2)
    west.change(add="another")
    assert homes.seen() == before
    for changes, why in (
        ({"to": "another"}, "to: 'another' – is a broker of this home, whose queues"),
        ({"to": "nobody"}, "which has 'near', 'another'"),
    ):
        with pytest.raises(ConfigError, match=re.escape(why)):
            homes.west.admin().bridge(LEAVES | {"name": "two"} | changes)
    homes.copier.is_cut = False
    homes.send("a/1", 4)
    homes.advance("1s")
    assert homes.bodies("q") == ["1", "2", "3", "4"]
    with pytest.raises(ConfigError, match="'near' – is an end of bridge 'out' of VPN 'default'"):
        west.change(remove="near")
    homes.west.admin().delete_bridge("out")
    homes.advance("1s")
    west.change(remove="near")
