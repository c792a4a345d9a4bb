"""Checks of this machine: the first part of `lakequeue doctor`.

Checks change nothing: they fetch no jar and start no broker. A failed check has advice. Pip checks
versions only when it installs a package; a later installation may replace it, so the versions are
checked here, too.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ..protocol.errors import LakequeueError

PYTHON_MIN = (3, 11)
DISK_BYTES_MIN = 2 * 1024**3  # jars 0.1 GB, Kafka's logs and the tables of a first day
MEMORY_BYTES_MIN = 5 * 1024**3  # Spark's driver 3 GB, broker 0.7 GB, Python workers
CORES_MIN = 2
# Distribution, and the versions that pyproject.toml allows, as [from, before).
PACKAGES: tuple[tuple[str, str, str], ...] = (
    ("pyspark", "4.2.0", "4.2.1"),
    ("delta-spark", "4.4.0", "4.4.1"),
    ("kafka-python", "3.0", "4"),
    ("pyarrow", "18", ""),
    ("pandas", "2.2", ""),
)


@dataclass(frozen=True, slots=True)
class Check:
    """One check's result.

    ok: True if lakequeue works with the result. advice: what to do; empty for nothing. required:
    False if the thing is merely useful; ``ok`` is then always True.
    """

    name: str
    ok: bool
    found: str
    wanted: str
    advice: str = ""
    required: bool = True


def result(name: str, ok: bool, found: str, wanted: str, advice: str) -> Check:
    """A required check. advice: what to do if it failed."""
    return Check(name, ok, found, wanted, "" if ok else advice)


def verdict(name: str, wrong: list[str], good: str, wanted: str, advice: str) -> Check:
    """A check with the faults that it found. good: the result if there are none."""
    return result(name, not wrong, "; ".join(wrong) or good, wanted, advice)


def diagnose(home: Path | str | None = None) -> list[Check]:
    """Check this machine and, if named, the location of a home (within 1 s). `engine_checks` checks
    the engine's needs."""
    place = Path(home).expanduser().absolute() if home is not None else Path.cwd()
    return [
        python_check(sys.version_info[:3]),
        java_check(),
        *(package_check(*package) for package in PACKAGES),
        jars_check(),
        home_check(place),
        disk_check(place),
        memory_check(memory_bytes()),
        cores_check(cores()),
        port_check(),
    ]


def python_check(version: tuple[int, ...]) -> Check:
    """Is this Python new enough?"""
    ok = version[:2] >= PYTHON_MIN
    wanted = ".".join(map(str, PYTHON_MIN))
    advice = f"Install Python {wanted} or newer and recreate the environment."
    return result("Python", ok, ".".join(map(str, version)), f"{wanted} or newer", advice)


def java_check() -> Check:
    """Is there a Java that runs Spark and Kafka?"""
    from ..streaming.jars import JAVA_MAJOR_MIN, java_executable, java_version

    wanted = f"{JAVA_MAJOR_MIN} or newer"
    try:
        java = java_executable()
    except LakequeueError as error:
        return Check("Java", False, "none", wanted, str(error))
    return Check("Java", True, f"{java_version(java)} ({java})", wanted)


def package_check(name: str, lowest: str, before: str) -> Check:
    """Is a Python package installed, from version ``lowest`` to below ``before``?"""
    exact = before == f"{lowest.rpartition('.')[0]}.{_numbers(lowest)[-1] + 1}"
    wanted = lowest if exact else f"{lowest} or newer" + (f", below {before}" if before else "")
    span = f"=={lowest}" if exact else f">={lowest}" + (f",<{before}" if before else "")
    advice = f"Run `pip install '{name}{span}'` in this environment."
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(name, False, "not installed", wanted, advice)
    numbers = _numbers(found)
    ok = numbers >= _numbers(lowest) and not (before and numbers >= _numbers(before))
    return result(name, ok, found, wanted, advice)


def jars_check() -> Check:
    """Are the jars of Spark's connectors and of the broker in the cache?"""
    from ..streaming.jars import cache_directory, cached_jars

    jars = cached_jars()
    place = cache_directory()
    found = f"not all in {place}" if jars is None else f"{len(jars.spark + jars.broker)} in {place}"
    advice = (
        "Run `python -m lakequeue.streaming.jars` once with a network (40 s), or let the first "
        "`lakequeue up` fetch them."
    )
    return result("jars", jars is not None, found, "all in the cache", advice)


def home_check(home: Path) -> Check:
    """Can the home, or its nearest existing parent, be written?"""
    place = _existing(home)
    ok = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    advice = "Choose another home with --home, or change the directory's owner."
    return result("home", ok, f"{home} {'can' if ok else 'cannot'} be written", "writable", advice)


def disk_check(home: Path) -> Check:
    """Does the home's disk have room?"""
    free = shutil.disk_usage(_existing(home)).free
    wanted = f"{_size(DISK_BYTES_MIN)} or more"
    advice = "Free disk space, or choose a home on another disk with --home."
    return result("free disk", free >= DISK_BYTES_MIN, _size(free), wanted, advice)


def memory_check(total_bytes: int | None) -> Check:
    """Does the machine, or its container, have enough memory?"""
    wanted = f"{_size(MEMORY_BYTES_MIN)} or more"
    if total_bytes is None:
        return Check("memory", True, "unknown", wanted, required=False)
    advice = "Give it more memory, or lower spark.driver.memory to 1g."
    return result("memory", total_bytes >= MEMORY_BYTES_MIN, _size(total_bytes), wanted, advice)


def cores_check(count: int) -> Check:
    """Are there enough cores? With one it works, but Kafka and Spark share it."""
    advice = "" if count >= CORES_MIN else "It works, with delays: Kafka and Spark share one core."
    return Check("cores", True, str(count), f"{CORES_MIN} or more", advice, required=False)


def port_check() -> Check:
    """Can the broker listen on 127.0.0.1?"""
    from ..streaming.kafka.embedded_kafka import free_port

    try:
        port = free_port()
    except LakequeueError as error:
        return Check("free port", False, "none", "one on 127.0.0.1", str(error))
    return Check("free port", True, f"{port} and others", "one on 127.0.0.1")


def cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int | None:
    """The memory of the machine or, if less, of the container; None if unknown."""
    sizes: list[int] = []
    with contextlib.suppress(ValueError, OSError):
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            sizes.append(int(Path(limit).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(sizes, default=None)


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _size(count_bytes: int) -> str:
    return f"{count_bytes / 1024**3:.1f} GB"


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, without suffixes (rc1, +local)."""
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, leading.group().split("."))) if leading else ()
