"""The jar cache and the search for Java, without a network: Ivy is replaced by small programs."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from pathlib import Path

import pytest
from lakequeue.protocol import LakequeueError
from lakequeue.streaming import jars as module
from lakequeue.streaming.jars import cached_jars, ensure_jars, java_executable

# Stands in for Ivy: makes the files that the list names, and counts its runs.
FAKE_IVY = """#!/bin/sh
[ "$1" = -version ] && { echo 'openjdk version "21.0.1"' >&2; exit 0; }
echo run >> "$RUNS"
sleep 0.1
for last in "$@"; do case "$last" in */\\[conf\\]/*) folder="${last%%/\\[conf\\]*}";; esac; done
for jar in $JARS; do mkdir -p "$folder/$(dirname $jar)"; echo x > "$folder/$jar"; done
"""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def java(path: Path, version: str) -> Path:
    return program(path, f"#!/bin/sh\necho '{version}' >&2\n")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no Java but the one that a test makes."""
    monkeypatch.setenv("LAKEQUEUE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def ivy(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java whose Ivy works; the file counts its runs."""
    expected = module._expected(Path("/folder"))
    names = [str(p.relative_to("/folder")) for p in expected.spark + expected.broker]
    monkeypatch.setenv("JARS", " ".join(names))
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    program(tmp_path / "java/bin/java", FAKE_IVY)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    return tmp_path / "runs"


def test_the_list_is_pinned_and_flat() -> None:
    text = re.sub(r"<!--.*?-->", "", module.JARS_XML.read_text(), flags=re.S)
    entries = re.findall(r"<dependency (.*?)/>", text, re.S)
    assert len(entries) == 41
    assert all('transitive="false"' in entry and 'rev="' in entry for entry in entries)
    jars = module._expected(Path("x"))
    assert (len(jars.spark), len(jars.broker)) == (7, 34)


def test_fetched_once(ivy: Path, cache: Path) -> None:
    assert cached_jars() is None
    lines: list[str] = []
    first = ensure_jars(lines.append)
    assert all(p.is_file() and p.is_relative_to(cache) for p in first.spark + first.broker)
    assert lines[0].startswith("Fetching 41 jars")
    assert ensure_jars(lines.append) == first == cached_jars()
    assert len(lines) == 2
    assert ivy.read_text() == "run\n"
    first.spark[0].unlink()
    assert cached_jars() is None
    assert ensure_jars(print).spark[0].is_file(), "a lost one is fetched again"


def test_two_at_once_fetch_once(ivy: Path) -> None:
    threads = [threading.Thread(target=ensure_jars, args=(print,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ivy.read_text() == "run\n"


def test_another_list_is_another_folder(
    ivy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ensure_jars(print)
    (tmp_path / "jars.xml").write_text(module.JARS_XML.read_text() + "<!-- changed -->\n")
    monkeypatch.setattr(module, "JARS_XML", tmp_path / "jars.xml")
    assert cached_jars() is None
    assert ensure_jars(print).spark[0].parent != before.spark[0].parent


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (":: org.apache.kafka#kafka_2.13;9.9.9: not found", "kafka_2.13;9.9.9: not found"),
        (
            "HttpClientHandler: Connect to 127.0.0.1:9 failed: Connection refused url=x\n"
            ":: org.apache.kafka#kafka_2.13;4.2.0: not found",
            "no Maven repository answered",
        ),
    ],
)
def test_ivy_fails(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, sentence: str
) -> None:
    program(
        tmp_path / "java/bin/java",
        '#!/bin/sh\n[ "$1" = -version ] && { echo \'version "17.0.1"\' >&2; exit 0; }\n'
        f"echo '{said}'; exit 1\n",
    )
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    with pytest.raises(LakequeueError, match=re.escape(sentence)) as caught:
        ensure_jars(print)
    assert "\n" not in str(caught.value)
    assert cached_jars() is None


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("/proc/nowhere", "No such file or directory"),
        ("/" + "x" * 300, "File name too long"),  # not even looked into, as without a right to
    ],
)
def test_the_cache_cannot_be_used(
    ivy: Path, monkeypatch: pytest.MonkeyPatch, place: str, why: str
) -> None:
    monkeypatch.setenv("LAKEQUEUE_CACHE", place)
    assert cached_jars() is None
    with pytest.raises(LakequeueError) as refused:
        ensure_jars(print)
    assert str(refused.value) == (
        f"The jar cache {place} cannot be written ({why}): make room and give access there, or set "
        "LAKEQUEUE_CACHE to another directory."
    )


def test_java_home_comes_first(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java(tmp_path / "path/java", 'openjdk version "17.0.9"')
    chosen = java(tmp_path / "home/bin/java", 'openjdk version "21"')
    monkeypatch.setenv("PATH", f"{tmp_path}/path:/bin")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert java_executable() == chosen
    java(chosen, 'java version "1.8.0_392"')  # too old: the one on the PATH does
    assert java_executable() == tmp_path / "path/java"


@pytest.mark.parametrize("version", ['java version "1.8.0_392"', 'openjdk version "11.0.2"', "?"])
def test_no_good_java(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    java(tmp_path / "java", version)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LakequeueError, match=r"^Java 17 or newer is needed \(.*java is ") as caught:
        java_executable()
    assert "\n" not in str(caught.value)


def test_no_java(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LakequeueError, match=r"Java 17 or newer is needed \(there is none"):
        java_executable()


@pytest.mark.job
def test_the_real_jars_hold_kafka(spark_jars: list[Path]) -> None:
    assert any(p.name.startswith("spark-sql-kafka") for p in spark_jars)
    broker = ":".join(map(str, ensure_jars().broker))
    command = [str(java_executable()), "-cp", broker, "kafka.Kafka", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert "4.2.0" in done.stdout
