"""Drivers take their steps when the test says."""

import pytest


@pytest.fixture(autouse=True)
def _nobody_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that can wait goes on at once, as where nobody has traffic."""
    monkeypatch.setattr("lakequeue.replica.driver.RECENT_S", 0.0)
