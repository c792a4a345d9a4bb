"""The choice of a client's Kafka library, and its log lines."""

from __future__ import annotations

import logging
import sys
import threading
from types import SimpleNamespace

import lakequeue
import pytest
from lakequeue.client import kafka
from lakequeue.client.kafka import confluent
from lakequeue.client.kafka.base import LibraryLog
from lakequeue.protocol import ConfigError


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The libraries that were opened, without a broker."""
    opened: list[str] = []
    for name in ("gevent.monkey", "eventlet.patcher"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delenv(kafka.LIBRARY_VARIABLE, raising=False)
    monkeypatch.setattr(
        "importlib.import_module",
        lambda module, package: SimpleNamespace(
            ConfluentTransport=lambda *_: opened.append("confluent-kafka"),
            KafkaPythonTransport=lambda *_: opened.append("kafka-python"),
        ),
    )
    return opened


@pytest.mark.parametrize(
    ("module", "question", "threads"),
    [
        ("gevent.monkey", "is_module_patched", "threading"),
        ("eventlet.patcher", "is_monkey_patched", "thread"),
    ],
)
def test_green_threads_get_the_cooperative_library(
    taken: list[str], monkeypatch: pytest.MonkeyPatch, module: str, question: str, threads: str
) -> None:
    kafka.open_kafka("localhost:1", "client")
    patched: set[str] = set()
    asks = SimpleNamespace(**{question: lambda name: name in patched})
    monkeypatch.setitem(sys.modules, module, asks)
    kafka.open_kafka("localhost:1", "client")
    patched.add(threads)
    kafka.open_kafka("localhost:1", "client")
    kafka.open_kafka("localhost:1", "client", "confluent-kafka")
    assert taken == ["confluent-kafka", "confluent-kafka", "kafka-python", "confluent-kafka"]


def test_the_library_is_chosen(taken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kafka-python", "confluent-kafka"):
        monkeypatch.setenv(kafka.LIBRARY_VARIABLE, name)
        kafka.open_kafka("localhost:1", "client")
    assert taken == ["kafka-python", "confluent-kafka"]
    monkeypatch.setenv(kafka.LIBRARY_VARIABLE, "pykafka")
    with pytest.raises(ConfigError, match="one of confluent-kafka, kafka-python"):
        kafka.open_kafka("localhost:1", "client")


def test_a_failing_callback_is_logged_and_others_are_called(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The callback of a record that arrived; the next record's arrival is reported all the same."""
    monkeypatch.setattr(confluent, "_FAILED_SECONDS", 0.0)
    stop, polled = threading.Event(), []

    def poll(seconds: float) -> None:
        polled.append(seconds)
        if len(polled) == 1:
            raise RuntimeError("of a callback")
        stop.set()

    confluent._serve(SimpleNamespace(poll=poll), stop)
    assert len(polled) == 2
    (record,) = caplog.records
    assert "of a callback" in caplog.text
    assert (record.name, record.levelname) == ("lakequeue.client", "ERROR")


def test_a_failing_log_handler_ends_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = logging.LogRecord("rdkafka", logging.ERROR, "", 0, "%d records", ("many",), None)
    LibraryLog().emit(record)
    assert "--- Logging error ---" in capsys.readouterr().err


def test_a_repeated_warning_is_logged_once_in_30_s(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a topic is missing, each record would log a line: one of the library, one of the
    session."""
    now = [100.0]
    monkeypatch.setattr("lakequeue.client.session.repeats.monotonic", lambda: now[0])
    session = lakequeue.connect("memory://")
    library = LibraryLog()

    def told() -> list[str]:
        caplog.clear()
        for n in range(3):
            session.report(f"record {n} is not sent")
            text = ("topic [%d]: unknown", (n,))
            library.emit(logging.LogRecord("rdkafka", logging.ERROR, "", 0, *text, None))
        return [r.getMessage() for r in caplog.records if r.name == "lakequeue.client"]

    assert told() == ["record 0 is not sent", "rdkafka: topic [0]: unknown"]
    now[0] += 29
    assert told() == []
    session.report("another one")
    assert "another one" in caplog.text
    now[0] += 2
    assert len(told()) == 2
    for n in range(1_000):
        session.report("of " + "abcdefghij"[n % 10] * (n // 10 + 1))
    assert len(session._repeats._told) <= 501
