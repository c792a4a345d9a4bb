"""The checks of `lakequeue doctor`: what is missing fails with advice, the optional never fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from lakequeue.cli import machine_checks as doctor
from lakequeue.cli.machine_checks import Check, diagnose

GIB = 1024**3


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_this_machine(tmp_path: Path) -> None:
    checks = by_name(diagnose(tmp_path))
    for name in ("Python", "pyspark", "delta-spark", "kafka-python", "pyarrow", "home"):
        assert checks[name].ok, checks[name]
    assert {"Java", "jars", "free disk", "memory", "cores", "free port"} <= set(checks)


def test_every_failure_has_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("LAKEQUEUE_CACHE", str(tmp_path / "empty"))
    checks = by_name(diagnose("/proc/nowhere"))
    assert {name for name, check in checks.items() if not check.ok} >= {"Java", "jars"}
    assert all(check.advice for check in checks.values() if not check.ok)
    assert "Java 17 or newer is needed" in checks["Java"].advice


def test_it_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEQUEUE_CACHE", str(tmp_path / "cache"))
    diagnose(tmp_path / "home")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("check", "ok"),
    [
        (doctor.python_check((3, 10, 9)), False),
        (doctor.python_check((3, 11, 0)), True),
        (doctor.python_check((3, 13, 1)), True),
        (doctor.memory_check(2 * GIB), False),
        (doctor.memory_check(8 * GIB), True),
        (doctor.memory_check(None), True),
        (doctor.cores_check(1), True),
        (doctor.package_check("no-such-distribution", "1", ""), False),
        (doctor.package_check("pyspark", "4.2.0", "4.2.1"), True),
        (doctor.package_check("pyspark", "4.3", ""), False),
        (doctor.package_check("pyspark", "3.5", "4"), False),
    ],
)
def test_limits(check: Check, ok: bool) -> None:
    assert check.ok is ok
    assert check.ok or check.advice
