"""Walks over queues that move while everything takes its time (`moving_walk`)."""

import pytest
from lakequeue.client import following

from . import moving_walk


@pytest.mark.parametrize(("seed", "death"), [(0, 0.0), (3, 0.0), (4, 0.0), (15, 0.0), (1, 0.05)])
def test_S5_P1_queues_move_slowly(seed: int, death: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PAUSE_S", 0.002)
    monkeypatch.setattr(moving_walk, "PAUSE_S", 0.002)
    walk = moving_walk.MovingWalk(seed, death)
    walk.go(150)
    went = [row for row in walk.engine.journal() if row["event"] == "went"]
    assert went
    assert len(walk.sent) > 20
    assert walk.fate.deaths > 5 or not death
