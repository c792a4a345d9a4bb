"""Java does not end in time: a stop is cut off, also where it is our parent (`spark-submit`)."""

from __future__ import annotations

import atexit
import subprocess
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from lakequeue.streaming.application import SparkApplication
from lakequeue.streaming.spark import spark_session as spark
from pyspark import SparkContext


def test_a_parent_is_halted_when_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked nothing before, for it would not answer."""
    gateway, at_exit = MagicMock(spec=["jvm"]), []
    monkeypatch.setattr(SparkContext, "_gateway", gateway)
    monkeypatch.setattr(atexit, "register", lambda call, *given: at_exit.append((call, given)))
    hanging: Any = SimpleNamespace(spark=MagicMock())
    SparkApplication.kill(hanging)
    hanging.spark.sparkContext.stop.assert_not_called()
    runtime = gateway.jvm.java.lang.Runtime.getRuntime()
    runtime.halt.assert_not_called()
    ((call, given),) = at_exit
    call(*given)
    runtime.halt.assert_called_once_with(0)


def test_a_child_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(["sleep", "60"])
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
    assert spark.kill_java()
    assert process.returncode == -9
