"""The limits of restarts, and the reports of lost records."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from client.threaded import wait_for
from lakequeue.client.kafka.base import require_broker
from lakequeue.definitions import Configuration
from lakequeue.protocol.errors import LakequeueError, NotConnected
from lakequeue.streaming import Engine
from lakequeue.streaming import restarts as supervision
from lakequeue.streaming.kafka import kafka_watch
from lakequeue.streaming.kafka.kafka_watch import KafkaAnswers
from lakequeue.streaming.restarts import RESTARTS_MAX, Restarts, within
from lakequeue.streaming.watch import batch_notes
from lakequeue.streaming.watch import query_watch as engine_watch
from lakequeue.streaming.watch.batch_notes import Loss, LossWatch, losses, missing
from py4j.protocol import Py4JError


@pytest.mark.parametrize(
    ("times", "apart_s"), [(1, 0.0), (3, supervision.RESTART_WINDOW_S / RESTARTS_MAX + 1)]
)
def test_a_sixth_end_within_five_minutes_is_not_restarted(
    monkeypatch: pytest.MonkeyPatch, times: int, apart_s: float
) -> None:
    """Earlier ends do not count."""
    monkeypatch.setattr(supervision, "PAUSE_S_MAX", 0.0)
    now = 0.0
    monkeypatch.setattr(supervision.time, "monotonic", lambda: now)
    said: list[str] = []
    restarts = Restarts(threading.Event(), said.append)
    for _ in range(times * RESTARTS_MAX):
        now += apart_s
        restarts.again("Kafka", "by signal 9", "kafka.log")
    sentence = "Kafka ended, by signal 9; it is started again"
    assert said == [sentence] * times * RESTARTS_MAX
    with pytest.raises(LakequeueError, match=r"6th end within 5 minutes.*kafka\.log"):
        restarts.again("Kafka", "by signal 9", "kafka.log")


def failed(engine: Engine, reason: str = "a batch could not be committed") -> None:
    """Its query has ended."""
    why = f"{reason}\nat some line of Java"
    query = SimpleNamespace(name="lakequeue", isActive=False, exception=lambda: why)
    engine.brokers["broker-0"].query = query


def look(engine: Engine) -> None:
    """Check twice as often as restarts are allowed."""
    for _ in range(2 * RESTARTS_MAX):
        engine.watch.look_after()


Supervised = tuple[Engine, list[bool]]


@pytest.fixture
def supervised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervised:
    """An engine whose Kafka answers and whose pauses end at once; returns its queries' starts."""
    monkeypatch.setattr(supervision, "PAUSE_S_MAX", 0.0)
    monkeypatch.setattr(engine_watch, "require_broker", lambda bootstrap: None)
    engine, started = Engine("127.0.0.1:1", tmp_path, Configuration()), list[bool]()
    monkeypatch.setattr(engine._stopping, "wait", lambda seconds: False)
    monkeypatch.setattr(engine.application, "start_query", lambda broker: started.append(True))
    return engine, started


def test_a_temporary_cause_does_not_end_a_start(supervised: Supervised) -> None:
    engine, started = supervised
    failed(engine, "Python worker failed to connect back.")
    engine.watch.restart_if_passing()
    assert started == [True]
    failed(engine, "the checkpoint is of another query")
    with pytest.raises(LakequeueError, match=r"query failed: the checkpoint .*spark\.log"):
        engine.watch.restart_if_passing()
    assert started == [True]


def test_a_broker_that_hung_may_end_for_another_reason_later(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each end is reported with its own cause, also before the broker answers again."""
    engine, _ = supervised
    broker = engine.brokers["broker-0"]
    monkeypatch.setattr(engine.application, "start_query", lambda _: broker.begin())
    broker.hangs = "it has taken no step"
    for _ in range(2):
        failed(engine, "Python worker failed to connect back.")
        engine.watch.look_after()
    assert [line for line in caplog.messages if " ended, " in line] == [
        f"the query 'lakequeue' ended, {why}; it is started again"
        for why in ("it has taken no step", "Python worker failed to connect back.")
    ]


LATE = (
    "Python worker failed to connect back.",
    "Caused by: java.net.SocketTimeoutException: Timed out while waiting for the Python worker to "
    "connect back",
    "Streaming Runner initialization failed. Socket connection timeout. Cause: none",
)


@pytest.mark.parametrize("why", LATE)
def test_late_workers_never_end_the_engine(
    supervised: Supervised, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    """The machine is busy, and giving up would not help. Other ends count as usual, and a pause
    follows each."""
    engine, started = supervised
    failed(engine, why)
    look(engine)
    assert len(started) == 2 * RESTARTS_MAX
    assert len([m for m in caplog.messages if m.endswith("it is started again")]) == len(started)
    failed(engine)
    with pytest.raises(LakequeueError, match="6th end within 5 minutes"):
        look(engine)
    assert len(started) == 3 * RESTARTS_MAX


def test_S1_steps_that_reject_records_never_end_the_engine(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start takes the step without the failing record: at once, also while starting, and
    whatever the number of bad records."""
    engine, started = supervised
    monkeypatch.setattr(supervision, "PAUSE_S_MAX", 100.0)  # no pauses
    for looks in [engine.watch.restart_if_passing, engine.watch.look_after] * RESTARTS_MAX:
        failed(engine, "lakequeue.replica.driver.StepPutAside: a step failed at ('x', 0, 1): no")
        looks()
    assert len(started) == 2 * RESTARTS_MAX


def test_an_unreachable_kafka_does_not_end_the_supervisor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic was created and Kafka does not answer: the change is repeated, not forgotten. The log
    has it once, however often the engine asks, in both threads."""
    engine = Engine("127.0.0.1:1", tmp_path, Configuration())
    engine._folder.open()
    engine.captured.watch()
    engine.captured.more = True
    engine.captured.ask_again(engine.brokers)
    for _ in range(2):
        engine.watch.look_after()
        engine.watch._ask_once()
    engine.captured.stop()
    assert caplog.text.count("captured topics are not known yet") == 1
    assert engine.captured.more


def test_queries_wait_for_kafka_and_disk(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka and a writable disk, checked again and again: one log line each."""
    engine, started = supervised
    monkeypatch.setattr(engine_watch, "require_broker", require_broker)
    failed(engine)
    look(engine)
    (sentence,) = caplog.messages
    assert "no Kafka broker answers at 127.0.0.1:1" in sentence
    assert sentence.endswith("it continues when Kafka answers")
    monkeypatch.setattr(engine_watch, "require_broker", lambda bootstrap: None)
    read_only = "checkpoint cannot be written (Read-only file system)"
    monkeypatch.setattr(engine._folder, "unwritable", lambda: read_only)
    look(engine)
    assert caplog.messages[1:] == [
        f"the query 'lakequeue' ended: {read_only}; it continues when it can write there"
    ]
    assert not started
    monkeypatch.setattr(engine._folder, "unwritable", lambda: "")
    engine.watch.look_after()
    assert started == [True]


def test_a_vanished_checkpoint_is_not_recreated(tmp_path: Path, live: Any) -> None:
    """As after an unmount: Spark would silently start with an empty one."""
    live(tmp_path, checkpoint="broker-0")
    engine = Engine("127.0.0.1:1", tmp_path, Configuration())
    engine._folder.open(engine.trigger)
    (tmp_path / "checkpoint" / "broker-0").rename(tmp_path / "elsewhere")
    failed(engine)
    with pytest.raises(LakequeueError, match=r"broker-0 is gone.*Restore it"):
        engine.watch.look_after()
    (tmp_path / "lakequeue.json").unlink()
    with pytest.raises(LakequeueError, match=r"lakequeue\.json is gone"):
        engine.watch.look_after()


def test_queries_wait_for_an_unreachable_store(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody knows whether the checkpoint is there: Spark must not create one."""
    engine, started = supervised
    silent = Mock(side_effect=OSError("connection refused"))
    monkeypatch.setattr(engine._folder, "problem", silent)
    failed(engine)
    look(engine)
    (sentence,) = caplog.messages
    assert sentence.endswith("checkpoint cannot be read (connection refused)")
    assert not started
    monkeypatch.setattr(engine._folder, "problem", lambda trigger: "")
    engine.watch.look_after()
    assert started == [True]


def test_an_unreachable_kafka_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = NotConnected("no Kafka broker answers at host:1 – connection refused")
    monkeypatch.setattr(
        kafka_watch, "require_broker", Mock(side_effect=[away] * 5 + [None] * 1_000)
    )
    monkeypatch.setattr(kafka_watch, "EVERY_S", 0.01)
    watch = KafkaAnswers("host:1")
    with caplog.at_level(logging.INFO):
        watch.start()
        wait_for(lambda: len(caplog.messages) == 2)
        watch.stop()
        watch.join(20)
    assert caplog.messages == [
        f"{away}; messages wait meanwhile, and nothing is lost",
        "Kafka answers again, after 0 s",
    ]


def test_an_end_is_awaited_for_a_limited_time_and_its_error_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fails = Mock(side_effect=ValueError("no such thing\n\tat org.apache.spark.SparkContext.stop"))
    with caplog.at_level(logging.INFO):
        assert within(5, lambda: None, "done")
        assert within(5, fails, "stop-it")
        assert not within(0.01, lambda: time.sleep(1), "hangs")
    assert caplog.messages == ["stop-it ended with ValueError: no such thing"]


# ---------------------------------------------------------------- lost records


def source(start: Any, end: Any, rows: int) -> dict[str, Any]:
    return {"startOffset": start, "endOffset": end, "numInputRows": rows}


def test_a_complete_batch_reports_no_loss() -> None:
    whole = source({"t": {"0": 5}}, {"t": {"0": 9}, "u": {"0": 7}}, 4)  # u is new: from its first
    first = source(None, {"t": {"0": 9}}, 2)
    rate = source(0, 1, 1)
    assert missing({"sources": [whole, first, rate]}) == {}


def test_only_records_before_kafkas_first_offset_are_lost() -> None:
    """Transaction markers take offsets too, and are no loss."""
    progress = {"sources": [source({"t": {"0": 5, "1": 0}}, {"t": {"0": 9, "1": 8}}, 3)]}
    spans = missing(progress)
    assert spans == {("t", 0): (5, 9), ("t", 1): (0, 8)}
    assert losses(spans, {("t", 0): 0, ("t", 1): 0}) == []
    assert losses(spans, {("t", 0): 7, ("t", 1): 20}) == [Loss("t", 0, 5, 7), Loss("t", 1, 0, 8)]


def test_a_loss_is_reported_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found: Queue[Loss] = Queue()
    first = Mock(side_effect=lambda bootstrap, places: dict.fromkeys(places, 1005))
    monkeypatch.setattr(batch_notes, "first_offsets", first)
    watch = LossWatch("nobody:1", found.put)
    watch.batch({"name": "q", "sources": [source({"t": {"0": 5}}, {"t": {"0": 2000}}, 995)]})
    assert found.get(timeout=60) == Loss("t", 0, 5, 1005, "q")
    assert found.empty()
    assert "1,000 records of t, partition 0 (offsets 5 to 1004) are lost" in caplog.text


def test_a_call_that_java_did_not_receive_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A lost connection is no failure of the engine unless it stays lost."""
    monkeypatch.setattr(engine_watch, "LOOK_S", 0.0)
    engine = Engine("127.0.0.1:1", tmp_path, Configuration())
    cut = Py4JError("An error occurred while calling o1.isActive")
    calls = iter([cut, cut])

    def look() -> None:
        if error := next(calls, None):
            raise error
        engine._stopping.set()

    monkeypatch.setattr(engine.watch, "look_after", look)
    engine.watch.watch(threading.RLock())
    assert len([m for m in caplog.messages if "did not answer" in m]) == 2
    engine._stopping.clear()
    always = Mock(side_effect=cut)
    monkeypatch.setattr(engine.watch, "look_after", always)
    with pytest.raises(Py4JError):
        engine.watch.watch(threading.RLock())
    assert always.call_count == engine_watch.CALLS_LOST_MAX + 1
