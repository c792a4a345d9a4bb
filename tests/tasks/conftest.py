"""Fixtures of the tests of the task queues."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from kombu import Connection


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Celery's workers set the root logger's level and handlers in this process: restore them after
    each test."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture
def quick_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker notices at once that it is to end, not every 2 s."""
    drain = Connection.drain_events
    monkeypatch.setattr(
        Connection, "drain_events", lambda self, timeout=0: drain(self, timeout=0.1)
    )
