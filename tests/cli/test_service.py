"""The output of `up` and `run` while they serve, and how they end."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from client.threaded import wait_for as until
from lakequeue.cli.group import EnvironmentFault
from lakequeue.cli.service import progress, run_engine, serve
from lakequeue.protocol.errors import LakequeueError
from lakequeue.streaming import restarts as supervision
from lakequeue.streaming.kafka.kafka_watch import KafkaWatch


class Engine:
    """An engine that waits until it is stopped."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def wait(self) -> None:
        self.stopped.wait(10)

    def stop(self) -> None:
        self.stopped.set()


def test_any_other_failure_ends_the_service() -> None:
    engine = Engine()
    with pytest.raises(LakequeueError, match="Kafka is not started again"):
        serve(engine, True, lambda: LakequeueError("Kafka is not started again"))
    assert engine.stopped.is_set()


# ---------------------------------------------------------------- the embedded Kafka


class Kafka:
    """A broker that runs, or fails to start again."""

    log = Path("kafka.log")

    def __init__(self, starts: bool = True) -> None:
        self.running, self.ended, self.starts = True, "", starts
        self.started = self.aborted = 0
        self.stopped_within: list[float] = []

    def die(self) -> None:
        self.running, self.ended = False, "by signal 9"

    def start(self) -> Any:
        self.started += 1
        if not self.starts:
            raise LakequeueError("Kafka died while starting: no room on the disk")
        self.running, self.ended = True, ""

    def stop(self, seconds: float = 20.0) -> None:
        self.stopped_within.append(seconds)

    def abort(self) -> None:
        self.aborted += 1


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "PAUSE_S_MAX", 0.0)


@pytest.mark.usefixtures("at_once")
def test_a_dead_kafka_is_restarted_and_reported() -> None:
    kafka, said = Kafka(), []
    watch = KafkaWatch(kafka, said.append)
    watch.start()
    kafka.die()
    until(lambda: "Kafka runs again" in said)
    assert said == ["Kafka ended, by signal 9; it is started again", "Kafka runs again"]
    assert kafka.started == 1
    watch.stop(2.0)
    assert kafka.stopped_within[-1] == 2.0
    assert watch.failure is None


@pytest.mark.usefixtures("at_once")
def test_a_kafka_that_does_not_start_ends_the_watch_with_the_reason() -> None:
    kafka, said = Kafka(starts=False), []
    watch = KafkaWatch(kafka, said.append)
    watch.start()
    kafka.die()
    until(lambda: watch.failure is not None)
    assert "no room on the disk" in str(watch.failure)
    assert "not started again" in str(watch.failure)
    watch.stop(2.0)


def test_a_stop_does_not_wait_for_a_pause() -> None:
    kafka = Kafka(starts=False)
    watch = KafkaWatch(kafka, lambda line: None)
    watch.start()
    kafka.die()
    until(lambda: kafka.started >= 1)
    begin = time.monotonic()
    watch.stop(20.0)
    assert time.monotonic() - begin < 10.0


def test_messages_during_the_start_have_the_logs_format(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress("json", "Starting Kafka …")
    progress("text", "Starting Kafka …")
    line, text = capsys.readouterr().err.splitlines()
    assert json.loads(line).items() >= {"level": "INFO", "message": "Starting Kafka …"}.items()
    assert text == "Starting Kafka …"


def test_log_lines_of_libraries_during_a_stop_go_to_the_log_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So do Java's stack traces if it ends while a thread still waits for an answer."""

    class Fails:
        log_format = "text"

        def start(self) -> None:
            raise LakequeueError("it cannot start")

        def stop(self) -> None:
            logging.getLogger("py4j").error("Answer from Java side is empty")

    engine: Any = Fails()
    with pytest.raises(EnvironmentFault, match="it cannot start"):
        run_engine(engine, tmp_path, False)
    assert "Answer from Java side is empty" in (tmp_path / "spark.log").read_text()
    assert capsys.readouterr().err == ""
