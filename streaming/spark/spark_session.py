"""The Spark session: `conf/spark.conf`, and settings that depend on the machine.

Paths (Python, log configuration, jars) and addresses depend on the machine; all other settings are
in that file, each with its reason. `package_zip` makes the zip from which a cluster's executors
import this package.

A broker is one long task, so it occupies a task slot for good, and the tables' queries need another
one. `check_slots` refuses a master with too few.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...protocol.errors import LakequeueError
from ..jars import CONF, java_executable, pyspark_folder
from ..java import JavaArchive
from ..loop.worker_daemon import DAEMON
from .error_causes import keep_record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOMS = sorted(init.parent.name for init in CONF.parent.glob("*/__init__.py"))
LOCAL_FILES = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
CLASS_PATHS = ("spark.driver.extraClassPath", "spark.executor.extraClassPath")
# Variables by which Spark's scripts add to the class path.
_CLASS_PATHS = ("SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
JAVA_END_S_MAX = 10.0  # the wait for Java's end, whose hooks remove temporary files
JAVA_ENDS = (
    "Error: Could not create the Java Virtual Machine.",
    "Error: A fatal exception has occurred. Program will exit.",
)
_DATA_SUFFIXES = {".py", ".lark", ".yaml", ".xml", ".properties", ".conf", ".json"}
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


def read_conf(path: Path = CONF / "spark.conf") -> dict[str, str]:
    """The settings of a file in Spark's own format: ``key value`` lines and ``#`` comments."""
    settings: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        key, _, value = text.partition(" ")
        if not value.strip():
            raise LakequeueError(f"{path}, line {number}: {key!r} has no value: write KEY VALUE.")
        settings[key] = value.strip()
    return settings


def spark_settings(
    *,
    master: str | None,
    jars: Sequence[Path],
    extra: Mapping[str, str] | None = None,
    ui_port: int | None = None,
    log_level: str = "ERROR",
    log_format: str = "text",
) -> dict[str, str]:
    """All settings of a session; pure. See `spark_session` for the parameters."""
    settings = read_conf()
    if master is not None:
        settings["spark.master"] = master
    settings["spark.ui.enabled"] = "false" if ui_port is None else "true"
    if ui_port is not None:
        settings["spark.ui.port"] = str(ui_port)
    logging = f"-Dlog4j2.configurationFile={(CONF / 'spark-log4j2.xml').as_uri()}"
    logging += f" -Dlakequeue.log.level={log_level} -Dlakequeue.log.format={log_format}"
    given = {key: str(value) for key, value in (extra or {}).items()}
    options = (settings.get(JAVA_OPTIONS), logging, given.pop(JAVA_OPTIONS, None))
    settings[JAVA_OPTIONS] = " ".join(filter(None, options))
    if is_local(master):  # all processes share this machine's paths and address
        settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.driver.bindAddress"] = "127.0.0.1"
        settings["spark.executor.extraJavaOptions"] = logging
        settings["spark.python.daemon.module"] = DAEMON
        # Java does not archive classes of `spark.jars`, and Spark copies these jars at each start.
        # Only jars for an object store, which have their own folder, stay there, so that all homes
        # share one archive.
        ours = [jar for jar in jars if jar.parent == jars[0].parent]
        for key in CLASS_PATHS:
            settings[key] = ":".join([*map(str, ours), *filter(None, [given.pop(key, "")])])
        if len(ours) < len(jars):
            settings["spark.jars"] = ",".join(str(jar) for jar in jars if jar not in ours)
        if any(jar.name.startswith("hadoop-bare-naked-local-fs") for jar in jars):  # conf/jars.xml
            settings["spark.hadoop.fs.file.impl"] = LOCAL_FILES
    elif jars:
        settings["spark.jars"] = ",".join(map(str, jars))
    settings.update(given)
    return settings


def _why_java_ended(log: Path, begins: int) -> str:
    """Why Java ended: its last line in the log after an offset, except lines with which it always
    ends. Empty if there is none."""
    with log.open("rb") as file:
        file.seek(begins)
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    told = [line for line in lines if line and line not in JAVA_ENDS]
    return told[-1] if told else ""


def spark_session(
    app_name: str,
    *,
    master: str | None = None,
    jars: Sequence[Path],
    extra: Mapping[str, str] | None = None,
    ui_port: int | None = None,
    log_file: Path | None = None,
    log_format: str = "text",
    archive: JavaArchive | None = None,
) -> SparkSession:
    """Start Spark, or return the running session.

    master: such as ``local[2]`` or ``spark://host:7077``; None: ``local[*]``, or the master given
    to the `spark-submit` that started this program. jars: `ensure_jars().spark`; on a cluster that
    has them, an empty list. extra: any setting by its name; it overrides everything else. Java
    options of the driver, and a class path, are added after ours, since Java uses the last of two
    that contradict each other. ui_port: of Spark's web page; None means no page. With a local
    master, all of Spark's ports listen on 127.0.0.1. log_file: receives the output of the Java
    process and the Python workers, at WARN; without it they print errors to standard error.
    log_format: `text`, or `json` for one JSON object per line. archive: used if it exists;
    otherwise Java records the classes for it. Raises LakequeueError if there is no Java or Spark
    does not start.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master is None and not submitted:
        master = (extra or {}).get("spark.master", "local[*]")
    settings = spark_settings(
        master=master,
        jars=jars,
        extra=extra,
        ui_port=ui_port,
        log_level="ERROR" if log_file is None else "WARN",
        log_format=log_format,
    )
    archive = archive or JavaArchive("spark")
    if not submitted:
        java = _prepare_environment(settings.get("spark.master"))
        _add_archive(settings, archive, java)
    # The pinned versions were tested together; users cannot act on the warning.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    begins = log_file.stat().st_size if log_file is not None and log_file.is_file() else 0
    try:
        if log_file is not None and not submitted and SparkContext._gateway is None:
            _launch_java({"spark.app.name": app_name, **settings}, log_file)
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if log_file is None:
            why = "its reason is printed above"
        else:
            why = ": ".join(filter(None, (_why_java_ended(log_file, begins), f"see {log_file}")))
        raise LakequeueError(f"Spark's Java process did not start: {why}.") from error
    jvm: Any = spark._jvm
    archive.class_path = str(jvm.java.lang.System.getProperty("java.class.path"))
    for name in ("py4j.clientserver", None):  # py4j logs a lost connection by the root logger
        logging.getLogger(name).addFilter(keep_record)
    # When the Java process dies, PySpark's server prints a traceback of its own.
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None
    return spark


def java_ended(wait_s: float = 0.0) -> str:
    """How Spark's Java process ended, such as "by signal 9"; empty while it runs. wait_s: how long
    to wait for its end, which the kernel may report a moment after the connection was lost. Under
    `spark-submit` Java is our parent, and ends only with us."""
    process = _java_process()
    if process is None:
        return ""
    try:
        status = process.wait(wait_s)
    except subprocess.TimeoutExpired:
        return ""
    return f"by signal {-status}" if status < 0 else f"with status {status}"


def executors(spark: SparkSession) -> list[str]:
    """The addresses of the driver and its executors; empty after Java's end."""
    java = spark.sparkContext._jsc
    if java is None:
        return []
    known = java.sc().getExecutorMemoryStatus()
    return sorted(known.keySet().mkString(" ").split())


def kill_java() -> bool:
    """Kill Spark's Java process; Python calls that wait for it fail. If Java is our parent, as
    under `spark-submit`, do nothing and return False."""
    process = _java_process()
    if process is None:
        return False
    if process.poll() is None:
        process.kill()
        process.wait()
    return True


def halt_java_at_exit() -> None:
    """When this process exits, halt the Java process that started it. Until then Java passes on our
    output; afterwards its threads would keep it alive for ever."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        atexit.register(_halt, gateway.jvm.java.lang.Runtime.getRuntime())


def await_java_at_exit() -> None:
    """At exit, wait for a Java child, which still writes into the home: users may copy the home
    when this process has ended."""
    process = _java_process()
    if process is not None:
        atexit.register(_await, process)


def _await(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        if process.stdin is not None:
            process.stdin.close()  # Java ends when its input closes
        process.wait(JAVA_END_S_MAX)


def _halt(runtime: Any) -> None:
    with contextlib.suppress(Exception):  # it ends without an answer
        runtime.halt(0)


def forget_session(spark: SparkSession) -> None:
    """Forget a session whose Java process has died, so that the next session starts a new one.
    PySpark keeps the process's address in its classes, and its own `stop` needs the process."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession as Session
    from pyspark.sql import SQLContext

    gateway = SparkContext._gateway
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")  # PySpark's own stop fails without Java
        spark.sparkContext.stop()
    for end in [] if gateway is None else [gateway.shutdown_callback_server, gateway.close]:
        with contextlib.suppress(Exception):  # its connections may be broken in any way
            end()
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    Session._instantiatedSession = None
    Session._activeSession = None
    SQLContext._instantiatedContext = None


def _java_process() -> subprocess.Popen[bytes] | None:
    from pyspark import SparkContext

    return getattr(SparkContext._gateway, "proc", None)


def is_local(master: str | None) -> bool:
    """Whether all of Spark runs on this machine (``local[…]`` or ``local-cluster[…]``)."""
    return master is not None and master.startswith("local")


def package_zip(directory: Path) -> Path:
    """Write the package as ``lakequeue-<hash>.zip`` into ``directory``, for `addPyFile`.

    The same files give the same bytes and the same name: executors fetch it again only when the
    code has changed. Code that runs from it reads data files with `importlib.resources`.
    """
    root = CONF.parent
    files = {"lakequeue/__init__.py": root / "__init__.py"}
    for room in ROOMS:
        for path in sorted((root / room).rglob("*")):
            if path.suffix in _DATA_SUFFIXES and "__pycache__" not in path.parts:
                files[f"lakequeue/{path.relative_to(root).as_posix()}"] = path
    contents = {name: path.read_bytes() for name, path in sorted(files.items())}
    digest = hashlib.sha256()
    for name, data in contents.items():
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"lakequeue-{digest.hexdigest()[:16]}.zip"
    if not target.exists():
        partial = target.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in contents.items():
                entry = zipfile.ZipInfo(name, _ZIP_TIME)
                entry.external_attr = 0o644 << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, data)
        partial.replace(target)
    return target


def _prepare_environment(master: str | None) -> Path:
    """Set the environment that Spark's start scripts and workers read, and choose their Java."""
    java = java_executable()
    home = os.environ.get("JAVA_HOME")
    if home and java != Path(home) / "bin" / "java":
        del os.environ["JAVA_HOME"]  # Spark prefers it to the PATH, even if it is wrong
    if is_local(master):
        os.environ["SPARK_HOME"] = str(_spark_home(master))
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # the only switch of the web page
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return java


def _add_archive(settings: dict[str, str], archive: JavaArchive, java: Path) -> None:
    """Add the archive to the driver's Java options, before the user's. Only for ``local[…]``:
    otherwise Spark's home, and with it the class path, differs at each start or is unknown."""
    if not settings.get("spark.master", "").startswith("local["):
        return
    before = settings.get("spark.driver.extraClassPath", "")
    own = Path(os.environ["SPARK_HOME"]) / "jars"
    files = [*map(Path, filter(None, before.split(":"))), *sorted(own.iterdir())]
    words = [before, *(os.environ.get(name, "") for name in _CLASS_PATHS)]
    options = archive.options(java, files, words)
    settings[JAVA_OPTIONS] = f"{shlex.join(options)} {settings[JAVA_OPTIONS]}".strip()


def _spark_home(master: str | None) -> Path:
    """PySpark's own Spark, even where SPARK_HOME names another version.

    The workers of ``local-cluster[…]`` unpack 20 MB per executor and run into ``$SPARK_HOME/work``
    and never clean up. PySpark lives in site-packages, so they get a home of links instead, which
    goes away with this process.
    """
    pyspark = pyspark_folder()
    if master is None or not master.startswith("local-cluster"):
        return pyspark
    home = Path(tempfile.mkdtemp(prefix="lakequeue-spark-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for entry in pyspark.iterdir():
        if entry.name not in ("work", "__pycache__"):
            (home / entry.name).symlink_to(entry)
    return home


def _launch_java(settings: Mapping[str, str], log_file: Path) -> None:
    """Start Java as PySpark does, but let it print into this file. Java prints before its log
    configuration is read, and VACUUM prints how much it deleted; our own streams may have to stay
    JSON, and other threads write to them at the same time."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf().setAll(list(settings.items()))
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("ab") as file:
        gateway = launch_gateway(conf, {"stdout": file, "stderr": file})
    SparkContext._ensure_initialized(gateway=gateway)


SLOTS_MIN = 4
_LOCAL = re.compile(r"local(?:\[(?P<threads>\d+|\*)(?:,\s*\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[(\d+),\s*(\d+),\s*\d+\]")


def slots(master: str) -> int | None:
    """How many tasks a master runs at once; None if that depends on a cluster."""
    if found := _LOCAL.fullmatch(master):
        threads = found["threads"] or "1"
        return os.cpu_count() or 1 if threads == "*" else int(threads)
    if found := _LOCAL_CLUSTER.fullmatch(master):
        return int(found[1]) * int(found[2])
    return None


def default_master(brokers: int) -> str:
    """The default master. It has more task slots than cores, since most tasks wait, and one more
    than needed, for a broker that is added (M4). A task whose worker died is tried three more
    times, which is faster than restarting its query."""
    return f"local[{max(SLOTS_MIN, slots_needed(brokers + 1))},4]"


def check_slots(master: str, brokers: int, tables: bool) -> None:
    """Raise LakequeueError if one of several brokers would never run."""
    found, needed = slots(master), slots_needed(brokers, tables)
    if brokers > 1 and found is not None and found < needed:
        more = f"local[{needed},4]"
        raise LakequeueError(
            f"Spark's master {master} runs {found} tasks at once, and {brokers} brokers"
            f"{' and the tables' if tables else ''} need {needed}: start the engine with more, as "
            f"with --master {more}, or `lakequeue up` with --set spark.master={more}"
        )


def slots_needed(brokers: int, tables: bool = True) -> int:
    """One slot for each broker, and one for the tables, if any."""
    return brokers + tables
