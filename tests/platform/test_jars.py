"""The jar cache, the search for Java, and archives of Java's classes, without a network: small
programs stand for Ivy and for Java. That a bad archive does no harm is tested with the real
ones."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import pytest
from client.threaded import wait_for
from lakequeue.protocol import LakequeueError
from lakequeue.streaming import jars as module
from lakequeue.streaming import java as archives
from lakequeue.streaming.jars import cache_directory, cached_jars, ensure_jars, java_executable
from lakequeue.streaming.java import JavaArchive, make_later
from lakequeue.streaming.kafka.embedded_kafka import EmbeddedKafka
from lakequeue.streaming.spark.spark_session import _add_archive, spark_settings

# Stands for Ivy: creates the files of the list, and counts its runs.
FAKE_IVY = """
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


def java(path: Path, version: str, more: str = "") -> Path:
    """A Java that prints its version; more: its answers to other requests."""
    says = f"echo '{version}' >&2"
    return program(path, f'#!/bin/sh\n[ "$1" = -version ] && {{ {says}; exit 0; }}\n{more}')


def at_once(work: Sequence[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("LAKEQUEUE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def ivy(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java whose Ivy works; the file counts its runs."""
    expected = module._expected(Path("/folder"))
    names = [str(p.relative_to("/folder")) for p in expected.spark + expected.broker]
    monkeypatch.setenv("JARS", " ".join(names))
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    java(tmp_path / "java/bin/java", 'openjdk version "21.0.1"', FAKE_IVY)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    return tmp_path / "runs"


def test_the_list_is_pinned_and_flat() -> None:
    text = re.sub(r"<!--.*?-->", "", module.JARS_XML.read_text(), flags=re.S)
    entries = re.findall(r"<dependency (.*?)/>", text, re.S)
    assert len(entries) == 41
    assert all('transitive="false"' in entry and 'rev="' in entry for entry in entries)
    jars = module._expected(Path("x"))
    assert (len(jars.spark), len(jars.broker)) == (7, 34)


def test_jars_are_fetched_once(ivy: Path, cache: Path) -> None:
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
    assert ensure_jars(print).spark[0].is_file(), "a missing one is fetched again"


def test_concurrent_callers_fetch_jars_once(ivy: Path) -> None:
    at_once([lambda: ensure_jars(print)] * 3)
    assert ivy.read_text() == "run\n"


def test_another_list_of_jars_has_another_folder(
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
        ("HttpClientHandler: Connect to 127.0.0.1:9 failed: Connection refused url=x\n"
         ":: org.apache.kafka#kafka_2.13;4.2.0: not found", "no Maven repository answered"),
    ],
)  # fmt: skip
def test_a_failing_ivy_is_reported(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, sentence: str
) -> None:
    java(tmp_path / "java/bin/java", 'version "17.0.1"', f"echo '{said}'; exit 1\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    with pytest.raises(LakequeueError, match=re.escape(sentence)) as caught:
        ensure_jars(print)
    assert "\n" not in str(caught.value)
    assert cached_jars() is None


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("/proc/nowhere", "No such file or directory"),
        ("/" + "x" * 300, "File name too long"),  # unreadable, as without permission
    ],
)
def test_an_unusable_cache_is_reported(
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


def test_java_home_comes_before_the_path(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    java(tmp_path / "path/java", 'openjdk version "17.0.9"')
    chosen = java(tmp_path / "home/bin/java", 'openjdk version "21"')
    monkeypatch.setenv("PATH", f"{tmp_path}/path:/bin")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert java_executable() == chosen
    assert caplog.messages == []
    java(chosen, 'java version "1.8.0_392"')  # too old: the one on the PATH is used
    chosen_old = f"JAVA_HOME: {chosen} is version 8, and Java 17 or newer is needed; "
    for _ in range(2):
        assert java_executable() == tmp_path / "path/java"
    assert caplog.messages == [chosen_old + f"{tmp_path}/path/java is used instead"], "once"
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert java_executable() == tmp_path / "path/java"
    assert "JAVA_HOME: /nowhere/bin/java is not a working Java" in caplog.messages[-1]


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("version", "said"),
    [('java version "1.8.0_392"', ".*java is "), ('openjdk version "11.0.2"', ".*java is "),
     ("?", ".*java is "), ("", "there is none")],
)  # fmt: skip
def test_a_missing_or_old_java_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, said: str
) -> None:
    if version:
        java(tmp_path / "java", version)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LakequeueError, match=rf"^Java 17 or newer is needed \({said}") as caught:
        java_executable()
    assert "\n" not in str(caught.value)


CLASSES = "java/lang/Object id: 0\njava/lang/String id: 1\njava/lang/Hal"

# Stands for Java: the archive is the list that it got, and its runs are counted.
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


class Archiver:
    """A Java that makes archives of one jar in a folder, its cache, and enough memory."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.java = program(folder / "java", FAKE_JAVA)
        self.jar, self.runs, self.list = (folder / n for n in ("a.jar", "runs", "test.classes"))
        self.jar.write_text("a")
        self.classes = cache / "classes"

    def recorded(self, home: str = "") -> JavaArchive:
        """An archive still to be made, of a Java that runs for this home."""
        record = self.list.with_name(f"{home}{self.list.name}")
        archive = JavaArchive("test", record)
        assert self.options(archive)[1:] == [f"-XX:DumpLoadedClassList={record}"]
        record.write_text(CLASSES)
        archive.class_path = str(self.jar)
        return archive

    def options(self, archive: JavaArchive, *words: str) -> list[str]:
        return archive.options(self.java, [self.jar], words)


@pytest.fixture
def archiver(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Archiver:
    monkeypatch.setattr(archives, "MEMORY_BYTES_MIN", 0)
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    return Archiver(tmp_path, cache)


def test_the_archives_name_identifies_its_contents(archiver: Archiver) -> None:
    def path(*words: str) -> Path:
        archive = JavaArchive("test")
        assert archiver.options(archive, *words) == []  # there is none, and nothing to write
        assert archive.path is not None
        return archive.path

    seen = {first := path(), path("other")}
    assert path() == first
    os.utime(archiver.jar, (1, 1))
    seen.add(path())
    archiver.jar.write_text("ab")
    seen.add(path())
    os.utime(archiver.java, (1, 1))
    seen.add(path())
    assert len(seen) == 5
    assert {found.parent for found in seen} == {archiver.classes}


def test_the_archive_is_made_once_and_then_used(archiver: Archiver) -> None:
    """From Java's complete lines, also where several make it at once."""
    three = [archiver.recorded() for _ in range(3)]
    at_once([archive.make for archive in three])
    assert archiver.runs.read_text() == "run\n"
    path = three[0].path
    assert path.read_text() == CLASSES.rpartition("\n")[0] + "\n"
    assert sorted(p.name for p in path.parent.iterdir()) == ["lock", path.name]
    assert f"-XX:SharedArchiveFile={path}" in archiver.options(JavaArchive("test"))


def test_a_slow_java_does_not_count_as_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "home/bin/java"
    slow.parent.mkdir(parents=True)
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(module, "VERSION_S_MAX", 0.2)
    with pytest.raises(LakequeueError, match=rf"^{slow} did not print its version within 0.2 s"):
        java_executable()


def test_a_failing_java_leaves_no_archive(
    archiver: Archiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "1")
    archive = archiver.recorded()
    archive.make()
    assert archiver.runs.exists()
    assert [p.name for p in archiver.classes.iterdir()] == ["lock"]
    assert archiver.options(archive)[1].startswith("-XX:DumpLoadedClassList=")


def test_nothing_happens_where_no_archive_can_be_made(
    archiver: Archiver, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, no_folder, not_started = (archiver.recorded() for _ in range(3))
    with monkeypatch.context() as patch:
        patch.setattr(archives, "MEMORY_BYTES_MIN", 1 << 60)
        short.make()
    not_started.class_path = ""
    not_started.make()
    assert not archiver.classes.exists()
    cache.write_text("a file, where the folder is to be")
    no_folder.make()
    assert not archiver.runs.exists()


def test_unused_archives_are_deleted(archiver: Archiver) -> None:
    archiver.classes.mkdir(parents=True)
    limit = archives.UNUSED_S_MAX
    # The second is of a process that died while it made it.
    ages = {"test-old.jsa": limit + 60, "test-killed.partial": 0, "test-used.jsa": limit - 60}
    for name, age_s in ages.items():
        (archiver.classes / name).touch()
        os.utime(archiver.classes / name, (time.time() - age_s,) * 2)
    archiver.recorded().make()
    assert {p.name for p in archiver.classes.iterdir()} & set(ages) == {"test-used.jsa"}


def test_the_archive_is_made_in_the_background(archiver: Archiver) -> None:
    archive = archiver.recorded()
    make_later([archive], after_s=0.0)
    assert archive.path is not None
    wait_for(archive.path.exists)


def test_spark_gets_the_archive_options_before_the_users(
    archiver: Archiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's own come last; there are none where Spark's home changes each time."""
    (tmp_path / "jars").mkdir()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    extra = {"spark.driver.extraJavaOptions": "-Dlast=1"}
    for master, recording in (("local[2]", True), ("local-cluster[1,1,512]", False)):
        settings = spark_settings(master=master, jars=[], extra=extra)
        _add_archive(
            settings, JavaArchive("spark", tmp_path / "a b" / "spark.classes"), archiver.java
        )
        options = settings["spark.driver.extraJavaOptions"]
        assert options.endswith(" -Dlast=1")
        quoted = f"'-XX:DumpLoadedClassList={tmp_path / 'a b' / 'spark.classes'}'"
        assert (quoted in options) is recording


@pytest.fixture
def with_jars(archiver: Archiver, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
    """Whether a Java process maps it."""
    return str(archive.path) in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.job
def test_kafka_maps_the_archive_and_a_bad_one_does_no_harm(with_jars: Path, tmp_path: Path) -> None:
    """The classes are those of a Kafka that only prints its version."""
    kafka = EmbeddedKafka(tmp_path / "kafka")
    java, jars = java_executable(), ensure_jars().broker
    recording = JavaArchive("kafka", tmp_path / "kafka.classes")
    recording.class_path = ":".join(map(str, jars))

    def run(options: list[str]) -> str:
        command = [str(java), *options, "-cp", recording.class_path, "kafka.Kafka", "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    assert "4.2.0" in run(recording.options(java, jars))
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
    assert "shared" not in run(bad).lower(), "Java is silent about it"
