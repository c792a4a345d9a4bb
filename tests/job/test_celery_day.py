"""A day in the life of Celery (`celery_day.py`), a short one: `make soak` lives a longer one."""

from __future__ import annotations

from pathlib import Path

import pytest
from job.celery_day import HERE, Day


@pytest.mark.job
def test_a_day_in_the_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    told = Day(tmp_path, tasks=300, kills=2, workers=2, seed=37).run()
    assert told["tasks"] + told["not known to be stored"] >= 300
    assert told["engines killed"] == 1
    assert told["explained by trace"] >= 10
