"""Spark's settings, and the zip that a cluster's executors import the package from."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from lakequeue.protocol import LakequeueError
from lakequeue.streaming.spark import spark_session as spark
from lakequeue.streaming.spark.spark_session import (
    executors,
    package_zip,
    read_conf,
    spark_settings,
)

ROOT = Path(spark.__file__).parents[2]


def test_rooms_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["setuptools"]["packages"]
    rooms = [name for name in sorted(packages) if name.count(".") == 1]
    assert [f"lakequeue.{room}" for room in spark.ROOMS] == rooms


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
    assert settings["spark.driver.memory"] == "1g"
    assert settings["spark.sql.shuffle.partitions"] == "1"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert "-Xss8m" in settings["spark.driver.extraJavaOptions"]


def test_java_options_are_put_behind_ours() -> None:
    """Java takes the last of two that contradict each other; the log's configuration stays."""
    extra = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4"}
    settings = spark_settings(master="local[2]", jars=[], extra=extra)
    options = settings["spark.driver.extraJavaOptions"].split()
    assert options[-1] == "-XX:TieredStopAtLevel=4"
    assert options.index("-XX:TieredStopAtLevel=1") < len(options) - 1
    assert any(option.startswith("-Dlog4j2.configurationFile=") for option in options)


def test_a_class_path_is_put_behind_our_jars() -> None:
    """Java's archive has only classes of the class path, and fits that alone: a home on an object
    store has the same one. A cluster gets the jars sent."""
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


def test_a_cluster_is_not_told_of_this_machine() -> None:
    settings = spark_settings(master="spark://host:7077", jars=[], ui_port=4050)
    assert "spark.driver.bindAddress" not in settings
    assert "spark.executor.extraJavaOptions" not in settings
    assert settings["spark.ui.port"] == "4050"


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
    done = subprocess.run(
        [sys.executable, "-c", FROM_ZIP], capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(package_zip(tmp_path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_java_that_does_not_start_is_told_with_its_reason(tmp_path: Path) -> None:
    """Java names the wrong option first, and closes with two lines that help nobody."""
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
    program = (
        "import sys; from pathlib import Path\n"
        "from lakequeue.streaming.spark.spark_session import spark_session\n"
        "spark_session('x', master='local[2]', jars=[], log_file=Path(sys.argv[1]))"
    )
    environment = {
        **os.environ,
        "JAVA_HOME": str(tmp_path / "java"),
        "LAKEQUEUE_CACHE": str(tmp_path),
    }
    ended = subprocess.run(
        [sys.executable, "-c", program, str(log)],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.stderr.splitlines()[-1] == (
        "lakequeue.protocol.errors.LakequeueError: Spark's Java process did not start: Invalid "
        f"maximum heap size: -Xmxlots: see {log}."
    )


def test_a_stopped_spark_has_no_executors() -> None:
    """It has let go of Java. The thread that watches the brokers asks, and must not end of it."""
    stopped = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
    assert executors(stopped) == []
