"""The schedule of the tables' upkeep, and what a user may say of it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lakequeue
import pytest
from lakequeue.protocol import ConfigError
from lakequeue.sinks.metrics import Metrics
from lakequeue.sinks.queue_figures import Look
from lakequeue.sinks.upkeep import Rules
from lakequeue.streaming.engine_settings import EngineSettings, engine_conf
from lakequeue.streaming.tables.table_care import (
    MARGIN_S,
    MARK,
    TableCare,
    disk_use,
    rules_of,
    upkeep_s,
)


def care(tables: Path, metrics: Metrics | None = None, **look: Any) -> TableCare:
    found = Look(queues=[{"oldest_age_s": age} for age in look.get("ages", [])])
    none = lambda: None  # noqa: E731
    return TableCare(tables, tables, Rules(), 3_600.0, none, lambda: found, metrics or Metrics())


def test_nothing_is_deleted_by_default() -> None:
    """`conf/engine.conf` says what holds without it, and the page names each with its default."""
    for settings in (EngineSettings({}), EngineSettings(engine_conf())):
        assert rules_of(settings) == Rules(0.0, 48.0)
        assert upkeep_s(settings) == 86_400.0
    page = (Path(lakequeue.__file__).parent / "docs" / "how-to" / "keep.md").read_text()
    for name, value in engine_conf().items():
        assert f"| `{name}` | {value} |" in page


@pytest.mark.parametrize(
    ("name", "value"),
    [("retention_days", "-1"), ("vacuum_hours", "0"), ("upkeep_hours", "nan"),
     ("retention_days", "long")],
)  # fmt: skip
def test_a_wrong_setting_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"lakequeue\.{name}: '{value}' – must be a number"):
        EngineSettings({f"lakequeue.{name}": value})


def test_the_schedule_goes_on_over_restarts(tmp_path: Path) -> None:
    now = time.time()
    assert care(tmp_path)._due(now) == pytest.approx(now + 3_600), "a new home has nothing to tidy"
    os.utime(tmp_path / MARK, (now - 3_000, now - 3_000))
    assert care(tmp_path)._due(now) == pytest.approx(now + 600)


def test_the_oldest_message_in_any_queue_holds(tmp_path: Path) -> None:
    assert care(tmp_path, ages=[None, 10.0, 500.0])._oldest(10_000.0) == 9_500.0 - MARGIN_S
    assert care(tmp_path, ages=[None])._oldest(10_000.0) is None


def test_what_fails_is_tried_again_and_nobody_hears_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = care(tmp_path)
    assert not one.tidy(), "Spark does not run"
    one._session = lambda: SimpleNamespace()
    assert not one.tidy()
    assert "upkeep of the tables failed" in caplog.text


def test_sizes_are_metrics(tmp_path: Path) -> None:
    log = tmp_path / "journal" / "_delta_log"
    log.mkdir(parents=True)
    (log / "0.json").write_bytes(b"x" * 10)
    (tmp_path / "journal" / "part").write_bytes(b"y" * 32)
    metrics = Metrics()
    care(tmp_path, metrics).measure()
    assert disk_use(tmp_path / "journal") == (42, 2)
    assert metrics.registry.get_sample_value("lakequeue_table_bytes", {"table": "journal"}) == 42
    assert metrics.registry.get_sample_value("lakequeue_table_files", {"table": "journal"}) == 2
