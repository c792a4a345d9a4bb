"""Walks over three brokers on which all that may happen happens at once (`everything_walk`)."""

import pytest
from lakequeue.client import following

from . import everything_walk, moving_walk
from .everything_walk import EverythingWalk


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of clients that ask again."""
    for module in (following, moving_walk, everything_walk):
        monkeypatch.setattr(module, "PAUSE_S", 0.002)


@pytest.mark.parametrize("order", ["abc", "cab"])
@pytest.mark.parametrize("seed", [3, 24, 27, 80])
def test_S1_each_message_is_once_where_it_belongs_whatever_happens(seed: int, order: str) -> None:
    walk = EverythingWalk(seed, death=0.05 if seed % 3 == 0 else 0.0, order=order)
    walk.go(200)
    assert len(walk.sent) > 20


@pytest.mark.parametrize("seed", [0, 9, 20, 22])
def test_R3_and_nothing_is_lost_where_brokers_are_made_again(seed: int) -> None:
    walk = EverythingWalk(seed, rebuilt=True)
    walk.go(200)
    assert len(walk.sent) > 20
