"""Records that Kafka refuses for good: clients name topics, so such records must not fill the
log."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from client.threaded import wait_for
from confluent_kafka import KafkaError, KafkaException
from lakequeue.protocol import once_a_minute, wire
from lakequeue.protocol.commands import Returned, decode_command
from lakequeue.protocol.once_a_minute import MINUTE_S, THINGS_MAX
from lakequeue.protocol.outputs import Deliveries
from lakequeue.protocol.wire import WireRecord
from lakequeue.sinks import outbox
from lakequeue.sinks.log_writer import StepLog
from lakequeue.sinks.outbox import Outbox
from lakequeue.sources.live import LiveInputs, kafka_client
from lakequeue.sources.live_reader import InputLimits
from rules.steps import Steps, define, subscribe

INSTRUCTIONS = "broker-0.instructions"


class Refusing:
    """A Kafka that has no topic but the broker's instructions."""

    def __init__(self, settings: object) -> None:
        self.took: list[str] = []
        self.values: list[bytes] = []

    def produce(self, topic: str, value: bytes, *_: Any, on_delivery: Any, **__: Any) -> None:
        if topic != INSTRUCTIONS:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC))
        self.took.append(topic)
        self.values.append(value)
        on_delivery(None, None)

    def poll(self, timeout: float) -> None: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr(outbox, "Producer", Refusing)
    for module in (outbox, once_a_minute):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def refuse(writer: Outbox, step: int, *topics: str) -> None:
    writer.send(step, [WireRecord(topic, 0, None, b"x", None) for topic in topics])
    assert writer.acked() is None, "a refused record blocks others"


def test_a_missing_topic_is_reported_once_a_minute(clock: list[float]) -> None:
    writer = Outbox({}, lambda: False, INSTRUCTIONS)
    for step in range(3):
        refuse(writer, step, *["default.deliveries.mine"] * 500)
    assert (writer.refused, len(writer.notes)) == (1_500, 1)
    assert writer._wide.took == [INSTRUCTIONS]
    clock[0] += MINUTE_S
    refuse(writer, 3, "default.deliveries.mine", "default.deliveries.other")
    assert len(writer.notes) == 3


def test_endless_unknown_topics_use_bounded_memory(clock: list[float]) -> None:
    writer = Outbox({}, lambda: False, INSTRUCTIONS)
    refuse(writer, 0, *[f"default.deliveries.{n}" for n in range(3 * THINGS_MAX)])
    assert len(writer.notes) == len(writer._logged._until) == THINGS_MAX
    clock[0] += MINUTE_S
    refuse(writer, 1, "default.deliveries.one-more")
    assert len(writer._logged._until) == 1


def delivery(ids: list[int], topic: str = "v.deliveries", **keys: Any) -> Deliveries:
    n = len(ids)
    return Deliveries(
        **{"queue": "q", "subscription": "s", "topic": topic, "partition": 3, "framing": "batch",
           "lease_ms": 0, "ids": ids, "numbers": ids, "counts": [1] * n, "priorities": [4] * n,
           "expires": [0] * n, "times": [0] * n, "payloads": [b"x"] * n, "keys": [None] * n,
           "headers": [None] * n, **keys}
    )  # fmt: skip


def test_L5_an_undeliverable_delivery_is_no_attempt(clock: list[float]) -> None:
    """Kafka has no such topic. This concerns refused deliveries and deliveries that are not even
    sent. A refused repetition does not count: the first delivery may have arrived."""
    writer = Outbox({}, lambda: False, INSTRUCTIONS)
    there = {"v.rejected": 1}

    def returned() -> list[tuple[str, str, str]]:
        assert writer.acked() is None
        values, writer._wide.values = writer._wide.values, []  # type: ignore[attr-defined]
        found = map(decode_command, values)
        return [(c.queue, c.subscription, c.ids) for c in found if isinstance(c, Returned)]

    flow = {"flow": (1, 1)}
    writer.send(1, wire.encode([delivery([1, 2], **flow)]))
    assert returned() == [("q", "s", "1-2")]
    writer.send(2, wire.encode([delivery([4, 3]), delivery([7], framing="single")]))
    writer.send(3, wire.encode([delivery([5]), delivery([9], subscription="t")], there))
    assert returned() == [], "not faster than once a second"
    clock[0] += outbox.RETURN_S
    assert returned() == [("q", "s", "3-5,7"), ("q", "t", "9")]
    clock[0] += outbox.RETURN_S
    again = delivery([6], again=True, **flow), delivery([8], framing="single", **flow)
    writer.send(4, wire.encode(list(again)))
    assert returned() == []


def test_L5_deliveries_the_engine_takes_back_never_exhaust_the_attempts() -> None:
    steps = Steps()
    given = [define(max_deliveries=1, lease_period="10s"), subscribe("s")]
    (out,) = (o for o in steps.run(given, [("orders", b"1")]) if isinstance(o, Deliveries))
    (again,) = (
        o for o in steps.run([Returned(queue="orders", subscription="s", ids=str(out.ids[0]))])
        if isinstance(o, Deliveries)
    )  # fmt: skip
    assert (again.ids, again.counts) == (out.ids, [1])
    assert again.numbers != out.numbers


NOWHERE = kafka_client("127.0.0.1:1", "test")


def _outbox() -> Outbox:
    one = Outbox(NOWHERE, lambda: False)
    one.send(1, [WireRecord("default.deliveries", 0, None, b"x", None)])
    one.close()
    return one


def _log() -> StepLog:
    mock = {"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0}
    one = StepLog(mock, "broker-0.steps", lambda: False)
    one.append(b"x")
    return one


@pytest.mark.parametrize("make", [_outbox, _log])
def test_a_loop_closes_its_kafka_clients(make: Callable[[], Outbox | StepLog]) -> None:
    """Also with records in flight, as when Kafka is away."""
    one = make()
    gone = weakref.ref(one)
    del one
    wait_for(lambda: gc.collect() is not None and gone() is None)


def test_a_workers_clients_print_nothing_while_kafka_is_down(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Their standard error goes to Spark's log, which is not rotated. One line a minute reports the
    errors."""
    outbox._errors._until.clear()
    inputs = LiveInputs(NOWHERE, InputLimits(), "broker-0.control", "run")
    inputs.also({("default.commands", 0): 0})
    inputs.start({})
    log, writer = StepLog(NOWHERE, "broker-0.steps", lambda: False), Outbox(NOWHERE, lambda: False)
    until = time.monotonic() + 2.0
    while time.monotonic() < until:
        writer.acked()
        time.sleep(0.05)
    inputs.close()
    writer.close()
    del log
    assert capfd.readouterr().err == ""
    lines = [message for message in caplog.messages if message.startswith("Kafka: ")]
    assert any("Connection refused" in line for line in lines)
    assert len(lines) <= 2, "one for each kind of error"
