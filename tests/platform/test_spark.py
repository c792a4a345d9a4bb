"""Spark's settings and processes: the zip from which executors import the package, Java's log and
end, the priority of its threads, the daemon that forks workers, and errors that went through Java
and Python, as an operator sees them."""

from __future__ import annotations

import atexit
import json
import logging
import os
import subprocess
import sys
import threading
import zipfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import lakequeue
import pyspark
import pytest
from lakequeue.protocol import LakequeueError
from lakequeue.protocol.folders import folder
from lakequeue.sinks.spark_state import check_place, readable
from lakequeue.streaming.application import SparkApplication
from lakequeue.streaming.jars import java_executable
from lakequeue.streaming.loop.worker_process import BELOW
from lakequeue.streaming.spark import queries
from lakequeue.streaming.spark import spark_session as spark
from lakequeue.streaming.spark.error_causes import cause_of, keep_record
from lakequeue.streaming.spark.spark_session import (
    executors,
    package_zip,
    read_conf,
    spark_settings,
)
from py4j.java_gateway import JavaGateway, launch_gateway
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext


def python(
    code: str, *arguments: object, status: int = 0, cwd: Path | None = None, **environment: str
) -> str:
    """A program's output; status: its exit status; if it failed, its errors."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True,
        timeout=60, cwd=cwd, env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


def test_the_zip_is_the_same_every_time(tmp_path: Path) -> None:
    one, two = package_zip(tmp_path / "a"), package_zip(tmp_path / "b")
    assert (one.name, one.read_bytes()) == (two.name, two.read_bytes())
    names = zipfile.ZipFile(one).namelist()
    assert "lakequeue/__init__.py" in names
    assert "lakequeue/conf/jars.xml" in names
    assert all(name.startswith("lakequeue/") and "__pycache__" not in name for name in names)
    assert not any(name.startswith("lakequeue/tests/") for name in names)
    assert [p.name for p in (tmp_path / "a").iterdir()] == [one.name]


def test_extra_settings_win() -> None:
    settings = spark_settings(master="local[2]", jars=[], extra={"spark.driver.memory": "1g"})
    wanted = {
        "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1",
        "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
    }  # fmt: skip
    assert settings | wanted == settings
    assert "-Xss8m" in settings["spark.driver.extraJavaOptions"]


def test_the_users_java_options_follow_ours() -> None:
    """Of two contradicting options Java uses the last; the log's configuration stays."""
    extra = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4"}
    settings = spark_settings(master="local[2]", jars=[], extra=extra)
    *ours, last = settings["spark.driver.extraJavaOptions"].split()
    assert last == "-XX:TieredStopAtLevel=4"
    assert "-XX:TieredStopAtLevel=1" in ours
    assert any(option.startswith("-Dlog4j2.configurationFile=") for option in ours)


def test_the_users_class_path_follows_our_jars() -> None:
    """Java's archive has only classes of the class path, and matches only that: a home on an object
    store has the same one. A cluster gets the jars by file transfer."""
    jars = [Path("/c/delta.jar"), Path("/c/hadoop-bare-naked-local-fs-0.1.0.jar")]
    extra = {"spark.driver.extraClassPath": "/own.jar"}
    settings = spark_settings(master="local[2]", jars=jars, extra=extra)
    ours = ":".join(map(str, jars))
    assert settings["spark.driver.extraClassPath"] == f"{ours}:/own.jar"
    assert settings["spark.executor.extraClassPath"] == ours
    assert "spark.jars" not in settings
    stored = spark_settings(master="local[2]", jars=[*jars, Path("/s3/aws.jar")], extra=extra)
    assert stored == settings | {"spark.jars": "/s3/aws.jar"}
    settings = spark_settings(master="spark://host:7077", jars=jars, extra=extra)
    assert settings["spark.jars"] == ",".join(map(str, jars))
    assert settings["spark.driver.extraClassPath"] == "/own.jar"


def test_a_cluster_gets_no_settings_of_this_machine() -> None:
    settings = spark_settings(master="spark://host:7077", jars=[], ui_port=4050)
    assert "spark.driver.bindAddress" not in settings
    assert "spark.executor.extraJavaOptions" not in settings
    assert settings["spark.ui.port"] == "4050"


@pytest.mark.parametrize(
    ("name", "is_linked"), [("a@b,c=1-ü", False), ("a b", True), ("a%b", True)]
)
def test_a_path_that_spark_would_encode_twice_is_read_through_a_link(
    tmp_path: Path, name: str, is_linked: bool
) -> None:
    """That Spark reads it: `tests/job/test_away.py`."""
    (tmp_path / name).mkdir()
    place = readable(tmp_path / name)
    assert (place != str(tmp_path / name), Path(place).resolve()) == (is_linked, tmp_path / name)
    assert place == readable(tmp_path / name), "one link for all checks"
    assert readable(folder("s3a://lake/a b")) == "s3a://lake/a b"


@pytest.mark.parametrize(
    ("place", "is_local", "is_refused"),
    [
        ("/homes/a b", True, False), ("/homes/a-ü", False, False), ("/homes/a b", False, True),
        ("/homes/#1", False, True), ("s3a://lake/a", False, False), ("s3a://lake/a b", True, True),
    ],
)  # fmt: skip
def test_checkpoints_that_executors_elsewhere_could_not_read_are_refused(
    place: str, is_local: bool, is_refused: bool
) -> None:
    """They do not see the link. There was no history, and brokers could not be changed."""
    with pytest.raises(LakequeueError) if is_refused else nullcontext() as error:
        check_place(folder(place), is_local)
    if is_refused:
        assert f"checkpoints: {place!r} – allowed on a cluster" in str(error.value)


def test_a_line_without_a_value(tmp_path: Path) -> None:
    (tmp_path / "spark.conf").write_text("# fine\nspark.a 1\n\nspark.b\n")
    with pytest.raises(LakequeueError, match=r"line 4: 'spark\.b' has no value"):
        read_conf(tmp_path / "spark.conf")


FROM_ZIP = """
import lakequeue
assert ".zip" in lakequeue.__file__, lakequeue.__file__
from lakequeue.expressions import compile_program
assert compile_program(("/n > 1",)).run(b'{"n": 2}', 4, None)
"""


def test_the_zip_for_executors_reads_expressions(tmp_path: Path) -> None:
    python(FROM_ZIP, cwd=tmp_path, PYTHONPATH=str(package_zip(tmp_path)))


STARTS = """
import sys, threading
from pathlib import Path
from lakequeue.streaming.spark.spark_session import spark_session
ended = threading.Event()
def tell():
    while not ended.wait(0.02):
        print("of another thread", file=sys.stderr)
thread = threading.Thread(target=tell)
thread.start()
try:
    spark_session("x", master="local[2]", jars=[], log_file=Path(sys.argv[1]))
finally:
    ended.set()
    thread.join()
"""


def test_a_java_that_does_not_start_is_reported_with_its_reason(tmp_path: Path) -> None:
    """Java names the wrong option first, and closes with two useless lines. Other programs' output
    is not in its log."""
    java, log = tmp_path / "java" / "bin" / "java", tmp_path / "spark.log"
    java.parent.mkdir(parents=True)
    ends = "".join(f"echo '{line}'\n" for line in spark.JAVA_ENDS)
    java.write_text(
        f"""#!/bin/sh
case "$*" in
    -version) echo 'version "17.0.1"' >&2; exit 0 ;;
    *launcher.Main*) printf '\\n%s\\0-Xmxlots\\0' "$0"; exit 0 ;;  # what Spark starts next
esac
echo 'Invalid maximum heap size: -Xmxlots'
{ends}exit 1
"""
    )
    java.chmod(0o755)
    log.write_text("what an earlier start said\n")
    home = {"JAVA_HOME": str(tmp_path / "java"), "LAKEQUEUE_CACHE": str(tmp_path)}
    assert python(STARTS, log, status=1, **home).splitlines()[-1] == (
        "lakequeue.protocol.errors.LakequeueError: Spark's Java process did not start: Invalid "
        f"maximum heap size: -Xmxlots: see {log}."
    )
    assert "of another thread" not in log.read_text()


class Conf(dict[str, str]):
    """A session's settings."""

    set, unset = dict.__setitem__, dict.__delitem__


class Starting:
    """Stands for a session and for what writes a stream: it notes the settings at a start, during
    which `meanwhile` happens."""

    def __init__(self, conf: Conf, meanwhile: Any = lambda: None) -> None:
        self.conf, self.sparkContext, self.writeStream = conf, MagicMock(), self
        self.meanwhile, self.seen = meanwhile, []

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self

    def start(self) -> None:
        self.seen.append(dict(self.conf))
        self.meanwhile()
        self.seen.append(dict(self.conf))


def test_queries_starting_at_once_each_have_their_own_settings(tmp_path: Path) -> None:
    """A query copies the session's settings while it starts. Those of a loop must not reach the
    tables' queries, and must not stay in the session."""
    conf = Conf(mine="1")
    tables, other = Starting(conf), Starting(conf)
    begun = [
        threading.Thread(target=queries.start_every, args=(1, tables, None, "t", tmp_path)),
        threading.Thread(target=queries._start, args=(other, other, "b", tmp_path, {})),
    ]

    def meanwhile() -> None:
        for thread in begun:
            thread.start()
            thread.join(0.1)

    loop = Starting(conf, meanwhile)
    queries._start(loop, loop, "a", tmp_path, {})  # type: ignore[arg-type]
    for thread in begun:
        thread.join(10)
    assert tables.seen == [{"mine": "1"}] * 2
    assert loop.seen == other.seen == [{"mine": "1", **queries.QUERY_SETTINGS}] * 2
    assert conf == {"mine": "1"}


def test_a_stopped_spark_has_no_executors() -> None:
    """It has released Java. The thread that watches the brokers asks, and must survive."""
    stopped = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
    assert executors(stopped) == []


NOISE = ("org.apache.hadoop.util.NativeCodeLoader", "org.apache.kafka.clients.NetworkClient")


def said(log_format: str, file: Path) -> list[str]:
    """Java's output: warnings without a remedy, an important one, and ordinary lines."""
    settings = spark_settings(master=None, jars=[], log_level="WARN", log_format=log_format)
    java = settings["spark.driver.extraJavaOptions"].split()
    options = [word for word in java if word.startswith(("-D", "-XX:"))]
    jars = Path(pyspark.__file__).parent / "jars"
    wanted = [jar for name in ("py4j", "log4j", "jackson") for jar in jars.glob(f"{name}*")]
    with file.open("w") as errors:
        port = launch_gateway(
            classpath=":".join(map(str, wanted)), javaopts=["-Xmx128m", *options], die_on_exit=True,
            java_path=str(java_executable()), redirect_stderr=errors,
            redirect_stdout=subprocess.DEVNULL,
        )  # fmt: skip
        gateway = JavaGateway()
        gateway = JavaGateway(gateway_parameters=type(gateway.gateway_parameters)(port=port))
        manager = gateway.jvm.org.apache.logging.log4j.LogManager
        for name in NOISE:
            manager.getLogger(name).warn("nobody can act on this")
        manager.getLogger("org.apache.spark.Anything").warn("the disk is full\nindeed")
        manager.getLogger("org.apache.spark.Anything").info("fine")
        gateway.shutdown()
    return file.read_text().splitlines()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_javas_log_has_one_line_an_event_and_no_noise(log_format: str, tmp_path: Path) -> None:
    lines = said(log_format, tmp_path / "spark.log")
    if log_format == "json":
        (line,) = map(json.loads, lines)
        assert [line[name] for name in ("message", "log.level", "log.logger")] == [
            "the disk is full\nindeed", "WARN", "org.apache.spark.Anything",
        ]  # fmt: skip
    else:
        assert lines[0].endswith("WARN  the disk is full")
        assert "nobody can act on this" not in str(lines)


def test_a_java_that_started_us_is_halted_at_our_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before that it gets no request, because it would not answer."""
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


def test_a_java_that_we_started_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(["sleep", "60"])
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
    assert spark.kill_java()
    assert process.returncode == -9


# A process with a thread stands for Java; its child for the daemon; that one's child is the worker.
_WORKER = """
import os
from lakequeue.streaming.loop.worker_process import set_priorities
print(set_priorities({alone}), set_priorities({alone}), os.getpriority(os.PRIO_PROCESS, 0))
"""
_DAEMON = "import subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}], check=True)"
_JAVA = """
import os, subprocess, sys, threading
ends = threading.Event()
threading.Thread(target=ends.wait).start()
begun = subprocess.Popen([sys.executable, "-c", {daemon!r}])
os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + {later})
begun.wait()
print(*(os.getpriority(os.PRIO_PROCESS, int(t)) for t in os.listdir("/proc/self/task")))
ends.set()
"""


def _said(alone: bool, later: int) -> list[list[int]]:
    """The output of the worker and of Java. later: how much Java's priority was lowered before."""
    daemon = _DAEMON.format(worker=_WORKER.format(alone=alone))
    java = _JAVA.format(daemon=daemon, later=later)
    return [[int(word) for word in line.split()] for line in python(java).splitlines()]


def test_all_threads_of_java_yield_once_to_a_single_broker() -> None:
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    below = min(ours + BELOW, 19)
    assert _said(True, 0) == [[2 if below > ours else 0, 0, ours], [below, below]]


def test_several_brokers_have_the_same_priority() -> None:
    """A broker that was alone gets the priority that Java has, as a new one inherits it."""
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert _said(False, 0) == [[0, 0, ours], [ours, ours]]
    first, again, then = _said(False, 3)[0]
    assert (first > 0, again, then) == (ours < 19, 0, min(ours + 3, 19))


FORKS = """
import os, sys, threading
from lakequeue.streaming.loop.worker_daemon import load
load()
before = set(sys.modules)
assert threading.active_count() == 1, threading.enumerate()
for _ in range(2):
    child = os.fork()
    if child == 0:
        import numpy, pandas, pyarrow
        from lakequeue.sources.live import kafka_client
        from confluent_kafka import Producer
        numpy.ones((300, 300)) @ numpy.ones((300, 300))
        frame = pandas.DataFrame({"a": range(100_000)})
        assert pyarrow.Table.from_pandas(frame).to_pandas().a.sum() == 4_999_950_000
        Producer(kafka_client("127.0.0.1:1", "forked")).flush(0.01)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
assert "lakequeue.streaming.loop.loop" in before and "pyspark.worker" in before
print("done")
"""


def test_libraries_work_in_workers_forked_after_the_imports() -> None:
    """Threads of libraries are not forked: numpy, Arrow and Kafka must start theirs anew."""
    assert python(FORKS) == "done\n"


LETS_GO = """
import psutil
from lakequeue.streaming.loop.worker_daemon import load
from lakequeue.streaming.loop.worker_process import return_free_memory
load()
before = psutil.Process().memory_info().rss
kept = []
for _ in range(3):
    blocks = []
    for n in range(100):  # less than may be free at the heap's end
        blocks.append(b"x" * 1_000_000)
        kept.append(b"y" * (600 + n))  # what comes to stand between them
    del blocks
return_free_memory()
kept_mb = (psutil.Process().memory_info().rss - before) // 1_000_000
return_free_memory(0.0)
print(kept_mb, (psutil.Process().memory_info().rss - before) // 1_000_000)
"""


def test_freed_memory_is_reused_and_then_returned() -> None:
    """Once a minute, because getting it anew costs time."""
    kept, stays = map(int, python(LETS_GO).split())
    assert kept >= 80, f"{kept} MB are kept"
    assert stays < 20, f"{stays} MB stay"


WHAT_STATE = """
import sys
import pyspark.sql.streaming.transform_with_state_driver_worker
from lakequeue.streaming.loop.realtime import LoopProcessor
heavy = {"pandas", "numpy", "pyarrow", "confluent_kafka", "lakequeue.client", "lakequeue.state"}
print(sorted(heavy & set(sys.modules)))
"""


def test_the_process_that_describes_the_state_imports_little() -> None:
    """A query's start waits for that process."""
    assert python(WHAT_STATE) == "[]\n"


def test_public_names_are_loaded_on_first_use() -> None:
    assert set(lakequeue.__all__) <= set(dir(lakequeue))
    assert all(getattr(lakequeue, name).__name__ == name for name in lakequeue.__all__)
    with pytest.raises(AttributeError, match="'lakequeue' has no attribute 'nothing'"):
        _ = lakequeue.nothing


SPARKS = """An error occurred while calling o199.collectToPython.
: org.apache.spark.SparkException: [FAILED_READ_FILE.FILE_NOT_EXIST] Error
You can explicitly invalidate the cache in Spark
\tat org.apache.spark.sql.errors.fileNotExistError(x.scala)
Caused by: java.io.FileNotFoundException: File `/t/part-0.parquet` does not exist.
\tat org.apache.spark.x(y.scala:1)
\t... 12 more
Caused by: java.nio.file.NoSuchFileException: /t/part-0.parquet
\tat org.apache.spark.x(y.scala:1)"""
WORKERS = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to a stage
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
lakequeue.replica.driver.Refused: the log belongs to another home
ValueError: 7 is no offset
\tat org.apache.spark.api.python.BasePythonRunner(PythonRunner.scala:1)
Caused by: java.io.EOFException
"""
OURS = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback
  File "replay_inputs.py", line 51, in read_steps
lakequeue.protocol.errors.NotConnected: topic 'broker-0.steps' did not answer within 30 s
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner(PythonRunner.scala:1)"""
SINKS = f"""[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function
Caused by: py4j.Py4JException: An exception was raised by the Python Proxy. Return Message:
Traceback
  File "delta.py", line 70, in __call__
py4j.protocol.Py4JJavaError: {SPARKS}
"""


class Captured(Exception):
    """An exception and its cause, as PySpark keeps them."""

    def __init__(self, text: str, cause: Exception | None = None) -> None:
        super().__init__(text)
        self._cause = cause


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (SPARKS, "NoSuchFileException: /t/part-0.parquet"),
        (WORKERS, "ValueError: 7 is no offset"),
        (OURS, "NotConnected: topic 'broker-0.steps' did not answer within 30 s"),
        ("lakequeue.sinks.log_writer.Stopping: the end", "Stopping: the end"),
        (SINKS, "NoSuchFileException: /t/part-0.parquet"),
        ("An error occurred while calling o1.sql.\n: java.lang.OutOfMemoryError: Java heap space",
         "OutOfMemoryError: Java heap space"),
        ("[DELTA_X] The table is so.\nAnd more", "[DELTA_X] The table is so."),
        (Captured("Job aborted", Captured("java.lang.ArithmeticException: long overflow")),
         "ArithmeticException: long overflow"),
        (KeyError("a"), "'a'"),
        (RuntimeError(), "RuntimeError"),
        (None, "no reason given"),
    ],
)  # fmt: skip
def test_the_innermost_cause_is_reported(error: object, cause: str) -> None:
    assert cause_of(error) == cause


CALL = "An error occurred while calling o3908.collectToPython"


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (Py4JNetworkError("Error while sending or receiving"), False),
        (Py4JError(CALL), False),
        (Py4JError(f"{CALL}.\n: java.lang.InterruptedException"), False),
        (Py4JError(f"{CALL}.\n: java.nio.channels.ClosedByInterruptException"), False),
        (Py4JError(f"{CALL}.\n: org.apache.spark.SparkException: Job 7 cancelled because "
                   "SparkContext was shut down"), False),
        (Py4JError(SPARKS), True),
        (Py4JError(f"{CALL}. Trace:\npy4j.Py4JException: Method x([]) does not exist"), True),
        (ConnectionRefusedError(111, "Connection refused"), False),
        (ValueError("no table"), True),
    ],
)  # fmt: skip
def test_an_interrupted_batch_is_no_error_in_the_log(error: Exception, kept: bool) -> None:
    def record(module: str) -> logging.LogRecord:
        try:
            raise error
        except Exception:
            path = f"/x/{module}.py"
            return logging.LogRecord("", logging.ERROR, path, 1, "failed", (), sys.exc_info())

    assert keep_record(record("clientserver")) is kept
    assert keep_record(record("a_program")) is True
