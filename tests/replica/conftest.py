"""Drivers step only when the test tells them to."""

import pytest


@pytest.fixture(autouse=True)
def _nobody_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deferred work starts at once, as in a home without traffic."""
    monkeypatch.setattr("lakequeue.replica.driver.RECENT_S", 0.0)
