"""Spark starts beside what an engine does first, and ends with a start that failed."""

from __future__ import annotations

import subprocess
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from lakequeue.protocol import LakequeueError
from lakequeue.streaming.session_launch import SessionLaunch
from pyspark import SparkContext


def test_it_begins_at_once_and_is_waited_for() -> None:
    begun, may_come, session = threading.Event(), threading.Event(), MagicMock()

    def make() -> Any:
        begun.set()
        assert may_come.wait(10)
        return session

    launch = SessionLaunch(make)
    assert begun.wait(10)
    may_come.set()
    assert launch.session() is session


def test_what_it_failed_with_is_told_to_who_takes_it() -> None:
    def make() -> Any:
        raise LakequeueError("Spark's Java process did not start")

    launch = SessionLaunch(make)
    with pytest.raises(LakequeueError, match="did not start"):
        launch.session()


def test_its_java_ends_when_nobody_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a process that comes only after it was given up."""
    process = subprocess.Popen(["sleep", "60"])
    gone_wanted = threading.Event()

    def make() -> Any:
        assert gone_wanted.wait(10)
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
        process.wait()
        raise ConnectionError("Java ended")

    monkeypatch.setattr(SparkContext, "_gateway", None)
    launch = SessionLaunch(make)
    threading.Timer(0.2, gone_wanted.set).start()
    launch.give_up(10)
    assert process.returncode == -9
    assert SparkContext._gateway is None, "the next engine of this process gets its own"


def test_a_session_that_came_is_stopped() -> None:
    session = MagicMock()
    launch = SessionLaunch(lambda: session)
    launch.session()
    launch.give_up(10)
    session.stop.assert_called_once_with()
