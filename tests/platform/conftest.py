"""Homes for the tests of the platform."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from lakequeue.streaming.home.home_folder import HomeFolder

Live = Callable[..., HomeFolder]


@pytest.fixture
def live() -> Live:
    """Make a home in which an engine ran and stopped. trigger: None is of a version that knew one
    only; checkpoint: that of its query, below the home's."""

    def make(path: Path, trigger: str | None = "real-time", checkpoint: str = "") -> HomeFolder:
        home = HomeFolder(path)
        home.open(trigger)
        (path / "checkpoint" / checkpoint).mkdir(parents=True)
        (path / "checkpoint" / checkpoint / "metadata").write_text(json.dumps({"id": "one"}))
        (path / "tables" / "journal" / "_delta_log").mkdir(parents=True)
        home.remember_checkpoints()
        return home

    return make
