"""Fixtures of the command line's tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from memory_shell import Engine


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the developer's own settings from the environment."""
    for name in [name for name in os.environ if name.startswith("LAKEQUEUE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def shell() -> Iterator[Engine]:
    """An engine in memory without queues, and the command line on it."""
    one = Engine()
    yield one
    one.connection.close()
