"""`lakequeue submit`: the engine through spark-submit, on standalone, YARN or Kubernetes.

Spark's Java process starts before Python here, so its memory, options and jars must be given to
spark-submit; a session that is created later cannot change them. In client mode the driver is a
child of this command. A signal that ends this command is forwarded to the driver's Python process,
which stops cleanly, and not to Java, which would not.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import click
import psutil

from ..protocol.folders import folder
from ..protocol.home_places import CHECKPOINTS, TABLES, places_of
from ..streaming.jars import cache_directory, ensure_jars, object_store_jars
from ..streaming.spark.spark_session import package_zip, spark_settings
from .command_options import option
from .group import EnvironmentFault
from .signals import ending_signals
from .start_engine import EngineOptions, check_master, engine_options, spark_master

PROGRAM = Path(__file__).resolve().parent / "engine_program.py"
PACKAGE = "lakequeue-packages"
MODES = ("client", "cluster")
INCUBATOR = "WARNING: Using incubator modules: "
LAST_WORDS_S = 1.0


@dataclass(frozen=True, slots=True)
class Submission:
    """The parts of a submission. jars: of the connectors. package: our code as a zip, for drivers
    on other machines. settings: Spark's and the engine's. arguments: for `lakequeue run`."""

    master: str
    mode: str
    jars: Sequence[Path]
    settings: Mapping[str, str]
    config: Path
    arguments: Sequence[str]
    package: Path | None = None


@click.command()
@engine_options("Directory for checkpoint, tables, logs, as the driver's machine names it.")
@option(
    "--bootstrap", default="127.0.0.1:9092", show_default=True, envvar="LAKEQUEUE_BOOTSTRAP",
    help="Kafka's addresses, host:port, separated by commas, as the driver reaches them.",
)  # fmt: skip
@option(
    "--master", required=True, envvar="LAKEQUEUE_MASTER", callback=spark_master,
    help="spark://host:7077, yarn, or k8s://https://host:6443.",
)  # fmt: skip
@option(
    "--deploy-mode", type=click.Choice(MODES), default="client", show_default=True,
    help="Where the driver runs: here, or in the cluster (YARN and Kubernetes).",
)  # fmt: skip
@click.option("--print", "only_print", is_flag=True, help="Print the command, and do not run it.")
def submit(
    given: EngineOptions, bootstrap: str, master: str, deploy_mode: str, only_print: bool
) -> None:
    """Run the engine through spark-submit until SIGTERM or Ctrl-C, or hand it to the cluster.

    Like `lakequeue run`, with the spark-submit of SPARK_HOME, else PySpark's own.

    \b
    Examples:
      lakequeue submit --master spark://spark:7077 --bootstrap kafka:9092 --home /data/lakequeue
      lakequeue submit --master yarn --deploy-mode cluster --bootstrap kafka:9092 \\
          --home /shared/lakequeue --set spark.executor.memory=4g
      lakequeue submit --master spark://spark:7077 --print
    """
    given.configuration()  # Q7: a wrong file starts nothing
    settings = given.engine_settings()
    if deploy_mode == "cluster" and master.startswith(("spark://", "local")):
        raise click.UsageError(
            f"--deploy-mode cluster: {master} runs Python drivers on this machine only: use client"
        )
    home = given.absolute_home() if deploy_mode == "client" else given.home
    arguments = [
        "--bootstrap",
        bootstrap,
        "--home",
        str(home),
        *(["--json"] if given.as_json else []),
    ]
    given_places = {name: settings.get(f"lakequeue.{name}", "") for name in (TABLES, CHECKPOINTS)}
    places = places_of(home) | {name: place for name, place in given_places.items() if place}
    jars = [*ensure_jars().spark, *object_store_jars(map(folder, places.values()))]
    if not only_print:
        check_master(master)
    package = None
    if deploy_mode == "cluster" and not only_print:
        package = package_zip(cache_directory() / PACKAGE)  # for drivers on other machines
    what = Submission(
        master, deploy_mode, jars, settings, given.config.resolve(), arguments, package
    )
    command = [str(spark_submit()), *words(what)]
    if only_print:
        click.echo(shlex.join(command))
        return
    sys.exit(_run(command, given.as_json, home / "spark.log" if deploy_mode == "client" else None))


def words(what: Submission) -> Iterator[str]:
    """The arguments of spark-submit; pure."""
    here = what.mode == "client"
    spark = {k: v for k, v in what.settings.items() if not k.startswith("lakequeue.")}
    settings = spark_settings(master=what.master, jars=what.jars, extra=spark)
    jars = settings.pop("spark.jars", "")
    yield from ("--master", settings.pop("spark.master"), "--deploy-mode", what.mode)
    yield from ("--name", "lakequeue")
    if jars:
        yield from ("--jars", jars)
    if not here:
        # The log's configuration is a file on this machine.
        java = settings["spark.driver.extraJavaOptions"].split()
        kept = (word for word in java if not word.startswith("-Dlog4j2.configurationFile="))
        settings["spark.driver.extraJavaOptions"] = " ".join(kept)
    for key, value in sorted(settings.items()):
        yield from ("--conf", f"{key}={value}")
    config, program = str(what.config), str(PROGRAM)
    if what.master.startswith("k8s://") and not here:
        program = f"local://{PROGRAM}"  # the image has it at the same place
    elif not here:
        yield from ("--files", config)
        config = what.config.name  # in the driver's working directory
    if what.package is not None:
        yield from ("--py-files", str(what.package))
    yield from (program, "run", "--master", what.master, "--config", config, *what.arguments)
    for key, value in what.settings.items():
        yield from ("--set", f"{key}={value}")


def spark_submit() -> Path:
    """The path of spark-submit. Raises EnvironmentFault if there is none."""
    import pyspark

    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    program = Path(home) / "bin" / "spark-submit"
    if not program.is_file():
        raise EnvironmentFault(
            f"{program} does not exist: set SPARK_HOME to a Spark of version "
            f"{pyspark.__version__}, or unset it to use PySpark's own"
        )
    return program


def _run(command: list[str], as_json: bool, log: Path | None) -> int:
    """Run spark-submit; returns its exit status. It runs in its own process group, because Ctrl-C
    must not reach Java. log: the file for Java's output of a local driver.

    spark-submit writes Python's standard error to standard output; programs read only the JSON
    lines.
    """
    import pyspark

    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment = {"SPARK_HOME": str(Path(pyspark.__file__).parent), **python, **os.environ}
    output = subprocess.PIPE if as_json else None
    process = subprocess.Popen(
        command, env=environment, process_group=0, stdout=output, stderr=subprocess.PIPE, text=True
    )
    # A daemon, since other processes may keep the pipe open after this one has ended.
    errors = threading.Thread(target=_pass_on, args=(process.stderr, process.pid, log), daemon=True)
    errors.start()

    def end(number: int, frame: object) -> None:
        _end(process.pid)

    before = {which: signal.signal(which, end) for which in ending_signals()}
    try:
        for line in process.stdout or ():
            print(line, end="", file=sys.stdout if line.startswith("{") else sys.stderr, flush=True)
        return process.wait()
    finally:
        errors.join(LAST_WORDS_S)
        for which, handler in before.items():
            signal.signal(which, handler)


def _pass_on(errors: IO[str] | None, pid: int, log: Path | None) -> None:
    """Forward Java's standard error, except for a line of Spark's launcher that no option silences.

    Once the driver's Python runs, Java's output goes to the home's log, as with `run`: the driver
    reports everything that its user must know, while Java prints a thousand lines for a batch that
    is cut off at the end.
    """
    with contextlib.ExitStack() as closing:
        file: IO[str] | None = None
        for line in errors or ():
            if line.startswith(INCUBATOR):
                continue
            if file is None and log is not None and _drivers(pid):
                with contextlib.suppress(OSError):
                    file = closing.enter_context(log.open("a"))
            print(line, end="", file=file or sys.stderr, flush=True)


def _end(pid: int) -> None:
    """Let the driver's Python process stop cleanly; before it exists, end all processes."""
    with contextlib.suppress(psutil.Error):
        whole = psutil.Process(pid)
        for one in _drivers(pid) or [whole, *whole.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                one.terminate()


def _drivers(pid: int) -> list[psutil.Process]:
    """The Python processes that run the driver."""
    drivers = []
    with contextlib.suppress(psutil.Error):
        for one in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                line = one.cmdline()  # Java's arguments also include the program's name
                if len(line) > 1 and line[1] == str(PROGRAM):
                    drivers.append(one)
    return drivers
