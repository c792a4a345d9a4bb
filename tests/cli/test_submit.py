"""`lakequeue submit`: the arguments of spark-submit for each kind of cluster. On a real standalone
cluster: `tests/job/test_standalone.py`."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from lakequeue.cli import main
from lakequeue.cli.start_engine import run
from lakequeue.cli.submit import PROGRAM, Submission, words

JARS = [Path("/jars/delta.jar"), Path("/jars/kafka.jar")]
SETTINGS = {"spark.executor.memory": "4g", "lakequeue.batch_s": "10"}


def told(master: str, mode: str, package: Path | None = None) -> list[str]:
    arguments = ["--bootstrap", "kafka:9092", "--home", "/data/lakequeue"]
    config = Path("/etc/lakequeue/queues.yaml")
    return list(words(Submission(master, mode, JARS, SETTINGS, config, arguments, package)))


def option(line: list[str], name: str) -> str:
    return line[line.index(name) + 1]


def configured(line: list[str]) -> dict[str, str]:
    pairs = [line[i + 1] for i, word in enumerate(line) if word == "--conf"]
    return {pair.partition("=")[0]: pair.partition("=")[2] for pair in pairs}


@pytest.mark.parametrize(
    ("master", "mode", "program"),
    [
        ("spark://spark:7077", "client", str(PROGRAM)),
        ("yarn", "client", str(PROGRAM)),
        ("yarn", "cluster", str(PROGRAM)),
        ("k8s://https://host:6443", "client", str(PROGRAM)),
        ("k8s://https://host:6443", "cluster", f"local://{PROGRAM}"),
    ],
)
def test_the_arguments_of_spark_submit(master: str, mode: str, program: str) -> None:
    """Arguments for Java come before the program; `run` understands the others."""
    line = told(master, mode)
    assert (option(line, "--master"), option(line, "--deploy-mode")) == (master, mode)
    assert option(line, "--jars") == "/jars/delta.jar,/jars/kafka.jar"
    settings = configured(line)
    assert settings["spark.executor.memory"] == "4g"
    assert settings["spark.driver.memory"] == "3g"  # of conf/spark.conf
    assert "-Xss8m" in settings["spark.driver.extraJavaOptions"]
    assert not any(key.startswith("lakequeue.") for key in settings)
    at = line.index(program)
    assert line[at + 1] == "run"
    context = run.make_context("run", line[at + 2 :])
    assert context.params["bootstrap"] == "kafka:9092"
    assert context.params["master"] == master
    assert set(context.params["settings"]) == {f"{k}={v}" for k, v in SETTINGS.items()}


def test_a_remote_driver_gets_local_files() -> None:
    """YARN copies files to the driver; an image has them at fixed paths."""
    line = told("yarn", "cluster", Path("/cache/lakequeue.zip"))
    assert option(line, "--files") == "/etc/lakequeue/queues.yaml"
    assert option(line, "--py-files") == "/cache/lakequeue.zip"
    assert option(line[line.index("run") :], "--config") == "queues.yaml"
    line = told("k8s://https://host:6443", "cluster")
    assert "--files" not in line
    assert option(line[line.index("run") :], "--config") == "/etc/lakequeue/queues.yaml"
    for mode, here in (("client", True), ("cluster", False)):
        java = configured(told("yarn", mode))["spark.driver.extraJavaOptions"]
        assert ("-Dlog4j2.configurationFile=" in java) is here


def test_the_command_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    done = CliRunner().invoke(
        main, ["submit", "--master", "spark://spark:7077", "--home", str(tmp_path), "--print"]
    )
    line = shlex.split(done.stdout)
    assert line[0].endswith("pyspark/bin/spark-submit")
    assert option(line, "--master") == "spark://spark:7077"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_spark_submit_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    done = CliRunner().invoke(main, ["submit", "--master", "yarn", "--print"])
    assert done.exit_code == 3
    assert "set SPARK_HOME to a Spark of version 4.2.0" in done.output


SPARK_SUBMIT = """#!/bin/sh
exec 2>&1  # as spark-submit does for Python
echo 'WARNING: noise of Java'
{python} {program} monitor --url memory://submitted --port 0 --json &
trap 'echo Java ends; kill -9 $!' TERM INT
wait $!
"""


def submitted(script: str, home: Path) -> subprocess.Popen[str]:
    """`submit --json` with this spark-submit, which starts another command of ours as driver."""
    file = home / "bin" / "spark-submit"
    file.parent.mkdir()
    file.write_text(script.format(python=sys.executable, program=PROGRAM))
    file.chmod(0o755)
    command = ["submit", "--master", "yarn", "--home", str(home), "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "lakequeue.cli", *command], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, cwd=home, env={**os.environ, "SPARK_HOME": str(home)},
    )  # fmt: skip


def test_a_signal_stops_the_driver_cleanly_and_only_json_is_printed(tmp_path: Path) -> None:
    """The signal goes to the driver, not to Java."""
    process = submitted(SPARK_SUBMIT, tmp_path)
    assert json.loads(process.stdout.readline())["event"] == "ready"
    process.send_signal(signal.SIGHUP)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert rest == ""
    assert "noise of Java" in errors
    assert "Java ends" not in errors


LOUD_SUBMIT = """#!/bin/sh
echo 'WARNING: Using incubator modules: jdk.incubator.vector' >&2
echo 'Error: before the driver' >&2
until [ -e heard ]; do sleep 0.05; done
{python} {program} monitor --url memory://loud --port 0 --json 2>&1 &
until [ -e said ]; do sleep 0.05; done
echo 'java.lang.InterruptedException' >&2
wait $!
exit 5
"""


def test_javas_output_beside_a_running_driver_goes_to_the_homes_log(tmp_path: Path) -> None:
    """As with `run`: when a batch is cut off at the end, Java prints a thousand lines. The
    launcher's usual lines are left out; the lines before the driver's start may help the user and
    stay."""
    process = submitted(LOUD_SUBMIT, tmp_path)
    assert process.stderr.readline() == "Error: before the driver\n"
    (tmp_path / "heard").touch()
    assert json.loads(process.stdout.readline())["event"] == "ready"
    (tmp_path / "said").touch()
    log, deadline = tmp_path / "spark.log", time.monotonic() + 90
    while not (log.is_file() and log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 5
    assert log.read_text() == "java.lang.InterruptedException\n"
    assert "InterruptedException" not in errors
