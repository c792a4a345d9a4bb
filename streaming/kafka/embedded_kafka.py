"""A real Apache Kafka broker as a child process, for `lakequeue up` and for tests.

Applications use the same Kafka as in production. It is one node (KRaft) on 127.0.0.1, with all its
files in one directory, its home.

- It never outlives this process, even after `kill -9` (`start_tied`).
- Only one process at a time may use a home. The broker also holds the lock (`home.lock`).
- A home keeps its port, so clients find the broker again after a restart.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from ...client.kafka.base import METADATA, ask
from ...protocol.errors import LakequeueError
from ..file_lock import OwnedLock
from ..jars import CONF, ensure_jars, java_executable
from ..java import JavaArchive, start_tied

START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 20.0
# Java options, in the variables of Kafka's own scripts. `heap` sets the memory.
JAVA_OPTIONS = "KAFKA_JVM_PERFORMANCE_OPTS"
LOCK_SECONDS_MAX = 5.0
PORTS_FILE = "ports.json"
# Below the range of ports for outgoing connections, so that no connection of another program uses
# our port while the broker restarts.
_PORTS = range(20_000, 32_000)


class EmbeddedKafka:
    """One Kafka broker in ``home``; a context manager, started on entry and stopped on exit.

    home: directory for data, configuration and logs, made if it is missing.
    port: 0 takes the port that this home had before, or a free one at the first start.
    heap: of the Java process, such as ``512m``.
    host: the address to listen on; with 127.0.0.1 only this machine reaches the broker.
    Every failure to start raises LakequeueError, whose message ends with the log's last useful
    line. Several threads must not share an object.
    """

    def __init__(
        self,
        home: Path | str,
        port: int = 0,
        heap: str = "512m",
        *,
        host: str = "127.0.0.1",
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.home = Path(home).expanduser().absolute()
        self.port = port
        self.host = host
        self.heap = heap
        self._progress = progress
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = OwnedLock(self.home / "home.lock", f"process {os.getpid()}", self._in_use)
        self._log_start_bytes = 0
        self.archive = JavaArchive("kafka", self.home / "kafka.classes")

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, such as ``127.0.0.1:23456``. Fixed from the first start on."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id while it runs, else None."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        """Whether the process runs. It may have died by itself."""
        return self._process is not None and self._process.poll() is None

    @property
    def ended(self) -> str:
        """How the process ended, such as "by signal 9"; empty while it runs."""
        status = self._process.poll() if self._process is not None else None
        if status is None:
            return ""
        return f"by signal {-status}" if status < 0 else f"with status {status}"

    @property
    def log(self) -> Path:
        """The broker's log file."""
        return self.home / "kafka.log"

    def start(self) -> EmbeddedKafka:
        """Start and wait until clients can work (2–5 s). Does nothing while it runs."""
        if self.running:
            return self
        java = java_executable()
        classpath = ":".join(map(str, ensure_jars(self._progress).broker))
        try:
            self._configure()
            self._format(java, classpath)
            self._launch(java, classpath)
            self._wait_until_ready()
        except OSError as error:  # no memory for a process, no room for its files
            self.kill()
            raise LakequeueError(f"Kafka cannot be started: {error}") from error
        except BaseException:  # also Ctrl-C: no half-started broker stays
            self.kill()
            raise
        return self

    def stop(self, seconds: float = STOP_SECONDS_MAX) -> None:
        """Stop it cleanly (SIGTERM, and SIGKILL after ``seconds``), and free the home."""
        self._end(signal.SIGTERM, seconds)

    def kill(self) -> None:
        """End it as a crash would (SIGKILL), and free the home. Acknowledged records stay."""
        self._end(signal.SIGKILL)

    def abort(self) -> None:
        """Kill the process from another thread: a `start` that is under way there fails."""
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()

    def __enter__(self) -> EmbeddedKafka:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _end(self, how: signal.Signals, seconds: float = STOP_SECONDS_MAX) -> None:
        process = self._process
        if process is not None:
            if process.poll() is None:
                process.send_signal(how)
            try:
                process.wait(max(seconds, 0.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._process = None
        self._lock.release()

    def _configure(self) -> None:
        """Take the home, choose the ports and write server.properties."""
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            self._lock.take(LOCK_SECONDS_MAX)  # a killed broker needs a moment to end
            self._write_properties()
        except OSError as error:
            raise LakequeueError(
                f"The home {self.home} cannot be written ({error.strerror or error}): choose "
                "another directory or make room there."
            ) from error

    def _in_use(self, owner: str) -> LakequeueError:
        return LakequeueError(
            f"Kafka's folder {self.home} is in use by another engine ({owner}): stop that "
            "one or choose another home."
        )

    def _write_properties(self) -> None:
        known = known_ports(self.home)
        port = self.port or known.get("port") or free_port(self.host)
        if not port_is_free(port, self.host):
            had = "" if self.port else f", which the home {self.home} had before,"
            raise LakequeueError(
                f"Port {port} on {self.host}{had} is taken by another program: stop that one or "
                "choose another port. `lakequeue up --port 0` takes a free one."
            )
        # Nobody but the broker itself uses the controller's port: it may change.
        controller_port = known.get("controller_port", 0)
        if not controller_port or controller_port == port or not port_is_free(controller_port):
            controller_port = free_port(besides=port)
        self.port = port
        (self.home / "server.properties").write_text(self._properties(controller_port))
        ports = {"port": port, "controller_port": controller_port}
        (self.home / PORTS_FILE).write_text(json.dumps(ports) + "\n")

    def _properties(self, controller_port: int) -> str:
        return _PROPERTIES.format(
            host=self.host,
            port=self.port,
            controller_port=controller_port,
            message_bytes_max=MESSAGE_BYTES_MAX,
        )

    def _cluster_id(self) -> str:
        return cluster_id()

    def _format(self, java: Path, classpath: str) -> None:
        """Write the cluster's id into an empty data directory, once."""
        if (self.home / "data" / "meta.properties").is_file():
            return
        # the archive has most classes of the tool: 0.8 s of CPU instead of 1.3
        mapped = JavaArchive("kafka").options(java, map(Path, classpath.split(":")))
        command = [str(java), *mapped, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command += [*self._logging(), "-cp", classpath, "kafka.tools.StorageTool", "format", "-t"]
        command += [self._cluster_id(), "-c", str(self.home / "server.properties")]
        done = subprocess.run(
            command, cwd=self.home, capture_output=True, text=True, errors="replace"
        )
        if done.returncode != 0:
            output = done.stdout + done.stderr
            raise LakequeueError(
                f"Kafka could not prepare {self.home / 'data'}: "
                f"{_cause(output) or _last_line(output) or 'it gave no reason'}"
            )

    def _logging(self) -> list[str]:
        config = (CONF / "kafka-log4j2.xml").as_uri()
        return [f"-Dlog4j2.configurationFile={config}", f"-Dlakequeue.log={self.log}"]

    def _launch(self, java: Path, classpath: str) -> None:
        options = os.environ.get(JAVA_OPTIONS, "-XX:+UseSerialGC").split()
        files = map(Path, classpath.split(":"))
        command = [str(java), *self.archive.options(java, files), *options]
        self.archive.class_path = classpath
        command += [f"-Xmx{self.heap}", "-Xms64m"]
        command += ["-XX:+ExitOnOutOfMemoryError", *self._logging(), "-cp", classpath]
        command += ["kafka.Kafka", str(self.home / "server.properties")]
        assert self._lock.file is not None
        self._log_start_bytes = self.log.stat().st_size if self.log.exists() else 0
        # Java's own messages (no memory, a bad option) come before any log. They go to a separate
        # file, which the next start empties.
        with (self.home / "kafka.out").open("wb") as output:
            self._process = start_tied(
                command,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(self._lock.file.fileno(),),
                # Ctrl-C in the terminal must reach the engine, not Kafka. Kafka stays in the
                # engine's session: Linux may divide CPU time by session, and in its own one Kafka
                # got none for seconds (decision 0028).
                process_group=0,
            )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not _answers(self.host, self.port):
            if not self.running:
                raise LakequeueError(f"Kafka died while starting: {self._why_ended()}")
            if time.monotonic() > deadline:
                raise LakequeueError(
                    f"Kafka did not answer on {self.bootstrap_servers} within "
                    f"{START_SECONDS_MAX:.0f} s: {self._why_ended()}"
                )
            time.sleep(0.05)

    def _why_ended(self) -> str:
        """Why this start failed: an error in the log, else what Java said, else the last line."""
        log = _tail(self.log, self._log_start_bytes)
        output = _tail(self.home / "kafka.out", 0)
        words = _cause(log) or _cause(output) or _last_line(output) or _last_line(log)
        return f"{words or 'it gave no reason'} (the whole log: {self.log})"


def cluster_id() -> str:
    """A new cluster's id, as Kafka writes them."""
    text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # otherwise Kafka's tool would read it as an option
    return "A" + text[1:] if text.startswith("-") else text


def known_ports(home: Path) -> dict[str, int]:
    """The ports that a broker's home had at its last start; empty before the first."""
    with contextlib.suppress(OSError, ValueError, TypeError):  # missing, or damaged
        return dict(json.loads((home / PORTS_FILE).read_text()))
    return {}


def free_port(host: str = "127.0.0.1", besides: int = 0) -> int:
    """A free port outside the range for outgoing connections."""
    for port in random.sample(_PORTS, 200):
        if port != besides and port_is_free(port, host):
            return port
    raise LakequeueError(f"No free port between {_PORTS.start} and {_PORTS.stop} on {host}.")


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now (connections that linger do not count)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def _answers(host: str, port: int) -> bool:
    """Whether a Metadata request names at least one broker. An open port is not enough: the broker
    listens before the controller has admitted it, and topics created in between fail."""
    try:
        with socket.create_connection((host, port), timeout=2) as peer:
            answer = ask(peer, METADATA, time.monotonic() + 2)
    except OSError:
        return False
    if answer is None or len(answer) < 8:
        return False
    _, brokers = struct.unpack_from(">ii", answer)  # behind the throttle time
    return brokers >= 1


def _tail(path: Path, start_bytes: int) -> str:
    """The file from this offset on, at most its last 64 KB; empty if it cannot be read."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(min(start_bytes, size), size - 65_536))
        return file.read().decode("utf-8", "replace")
    return ""


def _cause(text: str) -> str:
    """The most telling line of a log: the last cause, else the last error; empty if there is
    none."""
    lines = [line.strip() for line in text.splitlines()]
    for pattern in (r"^Caused by: ", r"(Exception|Error)\b.*:", r"\b(FATAL|ERROR)\b"):
        for line in reversed(lines):
            if re.search(pattern, line) and not line.startswith("at "):
                return line.removeprefix("Caused by: ")
    return ""


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


MESSAGE_BYTES_MAX = 12 * 1024 * 1024  # 10 MiB of payload (10,485,760), and room for headers


_PROPERTIES = """\
# Written by lakequeue at every start; changes here are lost.
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
# In the home, where Java runs. It would split a path at commas, and read it as Latin-1.
log.dirs=data
# A misspelt topic must be an error, not a new topic.
auto.create.topics.enable=false
# 10 MiB payloads.
message.max.bytes={message_bytes_max}
replica.fetch.max.bytes={message_bytes_max}
replica.fetch.response.max.bytes={message_bytes_max}
# Few internal partitions: the first consumer starts sooner.
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
group.initial.rebalance.delay.ms=0
# An idle broker writes no empty metadata record every half second.
metadata.max.idle.interval.ms=0
# After a crash the controller waits this long before it admits the broker again, so every restart
# after `kill -9` takes that much longer (default 9 s). With one node nothing else depends on it:
# a broker that was fenced after a long pause is back with its next heartbeat.
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=1000
num.network.threads=2
num.io.threads=4
background.threads=2
num.recovery.threads.per.data.dir=2
# 128 MB of the heap by default.
log.cleaner.dedupe.buffer.size=16777216
"""
