"""A standalone Spark cluster on this machine: a master and workers, processes of PySpark's own
classes, each worker with its executor.

They are in the session of their starter, as when Spark's own scripts are called from a shell. With
a session for each process, the kernel would give a new executor as much CPU time as all brokers of
the other one together (`sched_autogroup_enabled`, decision 0028); separate machines have no such
effect.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil
import pyspark
from job.hosts import Host
from job.processes import _adopts, free_port, runs, until
from lakequeue.streaming.jars import ensure_jars, java_executable
from lakequeue.streaming.java import JavaArchive
from lakequeue.streaming.loop.worker_daemon import DAEMON
from lakequeue.streaming.spark.spark_session import _CLASS_PATHS, LOCAL_FILES, spark_settings

SPARK = Path(pyspark.__file__).parent
JAVA = ("-Xmx160m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
EXECUTOR, REGISTERED = "CoarseGrainedExecutorBackend", "Successfully registered with driver"
MARK = "LAKEQUEUE_TEST_CLUSTER"  # in the environment of all processes of one cluster


def ours() -> str:
    """Our jars, in the order of an engine with a local master: so all Java processes have its class
    path, and map its archive of classes."""
    settings = spark_settings(master="local[1]", jars=ensure_jars().spark)
    return settings["spark.driver.extraClassPath"]


def archived() -> list[str]:
    """The Java options for that archive. None where there is none yet: then the start is slower."""
    files = [*map(Path, ours().split(":")), *sorted((SPARK / "jars").iterdir())]
    words = [ours(), *(os.environ.get(name, "") for name in _CLASS_PATHS)]
    return JavaArchive("spark").options(java_executable(), files, words)


class Standalone:
    """A master and workers with so many task slots each. hosts: one for the master and the driver,
    then one for each worker; by default all are on this one."""

    def __init__(self, folder: Path, workers: int, slots: int, hosts: Sequence[Host] = ()) -> None:
        self._log, self._hosts = folder / "spark-processes.log", hosts
        self._port, self._slots = free_port(), workers * slots
        self.address = hosts[0].address if hosts else "127.0.0.1"
        self.master = f"spark://{self.address}:{self._port}"
        self._processes = [self._start(0, "master.Master", "--port", str(self._port))]
        until(lambda: self._said("Starting Spark master"), 60, "the master is there")
        for i in range(workers):
            work = ("--work-dir", str(folder / f"worker-{i}"))
            given = ("--cores", str(slots), "--memory", "2g", *work, self.master)
            self._processes.append(self._start(i + 1, "worker.Worker", *given))
        until(lambda: self._said("Registering worker") >= workers, 60, "the workers are there")

    def _start(self, at: int, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        host = self._hosts[at] if self._hosts else None
        address = host.address if host else self.address
        (first,) = (SPARK / "jars").glob("slf4j-api-*.jar")  # as in Spark's scripts
        places = f"{ours()}:{SPARK}/conf:{first}:{SPARK}/jars/*"
        command = [str(java_executable()), *JAVA, *archived(), "-cp", places]
        command += [f"org.apache.spark.deploy.{name}", "--host", address, "--webui-port", "0"]
        command += arguments
        environment = {
            **os.environ,
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_IP": address,
            MARK: self.master,
            # otherwise Spark looks for a build tree
            "SPARK_SCALA_VERSION": "2.13",
        }
        with self._log.open("ab") as log, host() if host else contextlib.nullcontext():
            return subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, process_group=0,
                preexec_fn=_adopts,
            )  # fmt: skip

    def _said(self, sentence: str) -> int:
        return self._log.read_text(errors="replace").count(sentence)

    def settings(self) -> list[str]:
        """The engine's settings here: paths and addresses of this machine."""
        archive = " ".join(archived())
        given = {
            "spark.driver.host": self.address, "spark.driver.bindAddress": self.address,
            "spark.executor.memory": "800m", "spark.python.daemon.module": DAEMON,
            "spark.driver.extraClassPath": ours(), "spark.executor.extraClassPath": ours(),
            "spark.driver.extraJavaOptions": archive,
            "spark.hadoop.fs.file.impl": LOCAL_FILES,
            # Brokers start once all executors run; otherwise most would be on the first.
            "spark.cores.max": str(self._slots),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.executor.extraJavaOptions": f"{archive} {' '.join(JAVA[1:])}",
        }  # fmt: skip
        pairs = [f"{key}={value}" for key, value in given.items()]
        return ["--master", self.master, *(word for pair in pairs for word in ("--set", pair))]

    def family(self) -> list[psutil.Process]:
        """Every living process of the cluster, executors and Python workers included."""
        out = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                ours = process.environ().get(MARK) == self.master
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    out.append(process)
        return out

    def executors(self) -> list[psutil.Process]:
        """The Java processes that run tasks, each from its registration with the driver on."""
        return [p for p in self.family() if runs(p, EXECUTOR) and _is_registered(p)]

    def kill(self) -> None:
        """Kill everything."""
        for process in [*self.family(), *self.family()]:  # twice: for children born meanwhile
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        for leader in self._processes:
            leader.wait(30)


def _is_registered(executor: psutil.Process) -> bool:
    """Whether its log, in its working directory, says so."""
    with contextlib.suppress(psutil.Error, OSError):
        return REGISTERED in (Path(executor.cwd()) / "stderr").read_text(errors="replace")
    return False
