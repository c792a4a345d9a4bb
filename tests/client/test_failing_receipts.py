"""What fails when a record has arrived is said, and the next record's arrival is heard all the
same."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from lakequeue.client.kafka import confluent


class FailingOnce:
    """A producer of the library whose first callback fails; the second ends the service."""

    def __init__(self, stop: threading.Event) -> None:
        self.polled = 0
        self._stop = stop

    def poll(self, seconds: float) -> None:
        self.polled += 1
        if self.polled == 1:
            raise RuntimeError("of a callback")
        self._stop.set()


def test_a_callback_that_fails_is_told_and_others_are_called(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confluent, "_FAILED_SECONDS", 0.0)
    stop = threading.Event()
    producer: Any = FailingOnce(stop)
    with caplog.at_level(logging.ERROR, confluent.LOGGER.name):
        confluent._serve(producer, stop)
    assert producer.polled == 2
    (record,) = caplog.records
    assert "of a callback" in caplog.text
    assert record.name == "lakequeue.client"
