"""Makes `loop.memory` importable; and drivers take their steps when the test says."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(autouse=True)
def _nobody_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that can wait goes on at once, as where nobody has traffic."""
    monkeypatch.setattr("lakequeue.replica.driver.RECENT_S", 0.0)
