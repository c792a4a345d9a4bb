"""Archives of Java's classes: which is meant, how it is made, and that a bad one does no harm."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from itertools import islice
from pathlib import Path

import pytest
from client.threaded import wait_for
from lakequeue.streaming import java as module
from lakequeue.streaming.jars import cache_directory, ensure_jars, java_executable
from lakequeue.streaming.java import JavaArchive, make_later
from lakequeue.streaming.kafka.embedded_kafka import EmbeddedKafka
from lakequeue.streaming.spark.spark_session import _add_archive, spark_settings

CLASSES = "java/lang/Object id: 0\njava/lang/String id: 1\njava/lang/Hal"

# Stands in for Java: the archive is the list that it was given, and its runs are counted.
FAKE_JAVA = """#!/bin/sh
echo run >> "$RUNS"
sleep 0.2
for word in "$@"; do
    case "$word" in
        -XX:SharedClassListFile=*) list="${word#*=}" ;;
        -XX:SharedArchiveFile=*) archive="${word#*=}" ;;
    esac
done
cat "$list" > "$archive"
exit "${FAILS:-0}"
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, and memory enough."""
    monkeypatch.setenv("LAKEQUEUE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "MEMORY_BYTES_MIN", 0)
    return tmp_path / "cache"


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "java"
    path.write_text(FAKE_JAVA)
    path.chmod(0o755)
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    return path


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    path = tmp_path / "a.jar"
    path.write_text("a")
    return path


def recorded(java: Path, jar: Path) -> JavaArchive:
    """An archive that is still to be made, of a Java that runs."""
    archive = JavaArchive("test", jar.parent / "test.classes")
    (word,) = archive.options(java, [jar])[1:]
    assert word == f"-XX:DumpLoadedClassList={jar.parent / 'test.classes'}"
    (jar.parent / "test.classes").write_text(CLASSES)
    archive.class_path = str(jar)
    return archive


def test_the_name_says_of_what_it_is(cache: Path, java: Path, jar: Path) -> None:
    def path(*words: str) -> Path:
        archive = JavaArchive("test")
        assert archive.options(java, [jar], words) == []  # there is none, and nothing to write
        assert archive.path is not None
        return archive.path

    seen = {first := path(), path("other")}
    assert path() == first
    os.utime(jar, (1, 1))
    seen.add(path())
    jar.write_text("ab")
    seen.add(path())
    os.utime(java, (1, 1))
    seen.add(path())
    assert len(seen) == 5
    assert {found.parent for found in seen} == {cache / "classes"}


def test_it_is_made_once_and_used_then(cache: Path, java: Path, jar: Path) -> None:
    """Of the lines that Java has finished, also where several make it."""
    archives = [recorded(java, jar) for _ in range(3)]
    threads = [threading.Thread(target=archive.make) for archive in archives]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (jar.parent / "runs").read_text() == "run\n"
    path = archives[0].path
    assert path.read_text() == CLASSES.rpartition("\n")[0] + "\n"
    assert sorted(p.name for p in path.parent.iterdir()) == ["lock", path.name]
    assert f"-XX:SharedArchiveFile={path}" in JavaArchive("test").options(java, [jar])


def test_a_java_that_fails_leaves_nothing(
    cache: Path, java: Path, jar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "1")
    archive = recorded(java, jar)
    archive.make()
    assert (jar.parent / "runs").exists()
    assert [p.name for p in (cache / "classes").iterdir()] == ["lock"]
    assert archive.options(java, [jar])[1].startswith("-XX:DumpLoadedClassList=")


def test_where_nothing_can_be_made_nothing_happens(
    cache: Path, java: Path, jar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, no_folder, not_started = (recorded(java, jar) for _ in range(3))
    monkeypatch.setattr(module, "MEMORY_BYTES_MIN", 1 << 60)
    short.make()
    monkeypatch.setattr(module, "MEMORY_BYTES_MIN", 0)
    not_started.class_path = ""
    not_started.make()
    assert not (cache / "classes").exists()
    cache.write_text("a file, where the folder is to be")
    no_folder.make()
    assert not (jar.parent / "runs").exists()


def test_what_nobody_uses_goes(cache: Path, java: Path, jar: Path) -> None:
    folder = cache / "classes"
    folder.mkdir(parents=True)
    old, used = folder / "test-old.jsa", folder / "test-used.jsa"
    left = folder / "test-killed.partial"  # its process died while it made it
    left.touch()
    for path, age_s in ((old, module.UNUSED_S_MAX + 60), (used, module.UNUSED_S_MAX - 60)):
        path.touch()
        os.utime(path, (time.time() - age_s,) * 2)
    recorded(java, jar).make()
    assert not old.exists()
    assert not left.exists()
    assert used.exists()


def test_in_the_background(cache: Path, java: Path, jar: Path) -> None:
    archive = recorded(java, jar)
    make_later([archive], after_s=0.0)
    assert archive.path is not None
    wait_for(archive.path.exists)


def test_sparks_options(
    cache: Path, java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the user come last; where Spark's home is another each time there are none."""
    (tmp_path / "jars").mkdir()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    extra = {"spark.driver.extraJavaOptions": "-Dlast=1"}
    for master, recording in (("local[2]", True), ("local-cluster[1,1,512]", False)):
        settings = spark_settings(master=master, jars=[], extra=extra)
        _add_archive(settings, JavaArchive("spark", tmp_path / "a b" / "spark.classes"), java)
        options = settings["spark.driver.extraJavaOptions"]
        assert options.endswith(" -Dlast=1")
        quoted = f"'-XX:DumpLoadedClassList={tmp_path / 'a b' / 'spark.classes'}'"
        assert (quoted in options) is recording


@pytest.fixture
def with_jars(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The jars of the usual cache, and no archive."""
    monkeypatch.delenv("LAKEQUEUE_CACHE")
    (folder,) = {path.parents[1] for path in ensure_jars().spark}
    cache.mkdir()
    (cache / folder.name).symlink_to(folder)
    monkeypatch.setenv("LAKEQUEUE_CACHE", str(cache))
    assert cache_directory() == cache
    return cache


def shorten(record: Path) -> None:
    """An archive of few classes is made in seconds, and used in the same way."""
    with record.open() as classes:
        few = list(islice(classes, 3_000))
    record.write_text("".join(few))


def maps(pid: int | None, archive: JavaArchive) -> bool:
    """Whether a Java process has it."""
    return str(archive.path) in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.job
def test_kafka_maps_it_and_a_bad_one_does_no_harm(with_jars: Path, tmp_path: Path) -> None:
    """The classes are those of a Kafka that only says its version."""
    kafka = EmbeddedKafka(tmp_path / "kafka")
    java, jars = java_executable(), ensure_jars().broker
    recording = JavaArchive("kafka", tmp_path / "kafka.classes")
    recording.class_path = ":".join(map(str, jars))

    def run(options: list[str]) -> str:
        command = [str(java), *options, "-cp", recording.class_path, "kafka.Kafka", "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    run(recording.options(java, jars))
    shorten(tmp_path / "kafka.classes")
    recording.make()
    with kafka:
        assert maps(kafka.pid, kafka.archive)
    path = kafka.archive.path
    assert path is not None
    good = path.read_bytes()
    path.chmod(0o644)
    middle = len(good) // 2
    damaged = good[:middle] + bytes(b ^ 255 for b in good[middle : middle + 64])
    path.write_bytes(damaged + good[middle + 64 :])
    bad = kafka.archive.options(java, jars)
    assert f"-XX:SharedArchiveFile={path}" in bad
    assert "shared" not in run(bad).lower(), "it is not a word of Java's"


JAVA_ALONE = """
import sys
from pathlib import Path
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway
from lakequeue.streaming.jars import ensure_jars
from lakequeue.streaming.java import JavaArchive
from lakequeue.streaming.spark import spark_session as ours
archive = JavaArchive("spark", Path(sys.argv[1]))
settings = ours.spark_settings(master="local[1]", jars=ensure_jars().spark)
ours._add_archive(settings, archive, ours._prepare_environment("local[1]"))
java = launch_gateway(SparkConf(loadDefaults=False).setAll(settings.items()))
print(archive.path, java.jvm.java.lang.System.getProperty("java.class.path"))
java.shutdown()
java.proc.stdin.close()
java.proc.wait(60)
"""
SESSION = """
import sys
from pathlib import Path
from lakequeue.streaming.jars import ensure_jars
from lakequeue.streaming.java import JavaArchive
from lakequeue.streaming.spark.spark_session import spark_session
archive = JavaArchive("spark", Path(sys.argv[1]))
spark = spark_session("test", master="local[1]", jars=ensure_jars().spark, archive=archive)
java = spark.sparkContext._gateway.proc.pid
print(archive.class_path, str(archive.path) in Path(f"/proc/{java}/maps").read_text())
spark.stop()
"""


@pytest.mark.job
def test_sparks_java_maps_it(with_jars: Path, tmp_path: Path) -> None:
    """The first Java has the same options, and lists its classes, without a session."""

    def run(program: str) -> list[str]:
        command = [sys.executable, "-c", program, str(tmp_path / "spark.classes")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    archive = JavaArchive("spark", tmp_path / "spark.classes")
    path, archive.class_path = run(JAVA_ALONE)
    archive._java, archive.path = java_executable(), Path(path)
    shorten(tmp_path / "spark.classes")
    archive.make()
    assert run(SESSION)[-2:] == [archive.class_path, "True"]
