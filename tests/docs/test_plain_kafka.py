"""The example for plain Kafka clients, run on the in-memory engine behind a small kafka-python.

Another test runs it on the real job; here it is run because it is quick and needs nothing.
"""

import importlib.util
import sys
from collections import deque
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import lakequeue
import pytest
from lakequeue.memory import MemoryEngine

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plain_kafka.py"


class Place(NamedTuple):
    topic: str
    partition: int


class FakeKafka:
    """The part of kafka-python that the example uses, on a `MemoryEngine`."""

    def __init__(self, engine: MemoryEngine) -> None:
        self.engine = engine
        self.made: list[str] = []
        self.repeat = False  # write every delivery twice, as after a crash

    def producer(self, **_: Any) -> Any:
        def send(topic: str, value: bytes, key: bytes | None = None) -> Any:
            if topic.endswith(".commands"):
                self.engine.command(topic, key or b"", value)
            else:
                self.engine.publish(topic, value, key, [])
            return SimpleNamespace(get=lambda timeout: None)

        return SimpleNamespace(send=send, close=lambda: None)

    def consumer(self, **_: Any) -> Any:
        inbox: deque[Any] = deque()

        def assign(places: list[Place]) -> None:
            nonlocal inbox
            inbox = self.engine.open_inbox(places[0].topic)

        def poll(timeout_ms: int) -> dict[Place, list[Any]]:
            records = [inbox.popleft() for _ in range(len(inbox))]
            if self.repeat:
                records = [r for r in records for _ in range(2)]
            return {Place("t", 0): records} if records else {}

        return SimpleNamespace(
            assign=assign, poll=poll, close=lambda: None, seek=lambda place, offset: None,
            end_offsets=lambda places: dict.fromkeys(places, 0),
        )  # fmt: skip

    def admin(self, **_: Any) -> Any:
        return SimpleNamespace(
            list_topics=list, create_topics=lambda new: self.made.extend(t.name for t in new),
            close=lambda: None,
        )  # fmt: skip


@pytest.fixture
def connection() -> lakequeue.Connection:
    return lakequeue.connect("memory://")


@pytest.fixture
def fake(connection: lakequeue.Connection) -> FakeKafka:
    return FakeKafka(connection.engine)


@pytest.fixture
def example(fake: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("plain_kafka_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "KafkaAdminClient", fake.admin)
    monkeypatch.setattr(module, "KafkaProducer", fake.producer)
    monkeypatch.setattr(module, "KafkaConsumer", fake.consumer)
    monkeypatch.setattr(module, "TopicPartition", Place)
    return module


def test_it_needs_kafka_python_only() -> None:
    assert "import lakequeue" not in EXAMPLE.read_text()
    assert "kafka" in sys.modules or importlib.util.find_spec("kafka") is not None


@pytest.mark.parametrize(
    "definition",
    [
        {"message_type": "json"},
        {"message_type": "json", "max_per_subscription_backlog": 10, "lease_period": "30s"},
        {"message_type": "text", "underlying_topic": "lines"},
        {
            "message_type": "json",
            "underlying_topic": "orders-.*",
            "default_publish_target": "orders-new",
        },
        {"message_type": "json", "semantics": "at-most-once"},
    ],
    ids=["plain", "backlog", "text", "pattern", "at-most-once"],
)
def test_it_ends_well(
    definition: dict[str, Any],
    connection: lakequeue.Connection,
    example: ModuleType,
    capsys: pytest.CaptureFixture[str],
) -> None:
    admin = connection.admin()
    admin.define({"name": "orders", **definition})
    assert example.main(["memory", "orders", "--timeout", "5"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.count("delivered   ") == 3
    seen = admin.describe("orders")
    assert seen["counters"]["acknowledged"] == 3
    assert (seen["depth"], seen["consumers"]) == (0, [])


def test_repeated_deliveries_are_dropped(
    connection: lakequeue.Connection,
    fake: FakeKafka,
    example: ModuleType,
    capsys: pytest.CaptureFixture[str],
) -> None:
    connection.admin().define({"name": "orders", "message_type": "json"})
    fake.repeat = True
    assert example.main(["memory", "orders", "--timeout", "5"]) == 0
    assert capsys.readouterr().out.count("delivered   ") == 3


def test_messages_of_others_stay(connection: lakequeue.Connection, example: ModuleType) -> None:
    connection.admin().define({"name": "orders", "message_type": "json"})
    connection.producer().send("orders", b'{"mine": true}')
    assert example.main(["memory", "orders", "--timeout", "5"]) == 0
    (left,) = connection.admin().browse("orders")
    assert (left.state, left.payload) == ("ready", b'{"mine": true}')


def test_a_queue_that_is_not_there(
    connection: lakequeue.Connection, example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert example.main(["memory", "orders", "--timeout", "5"]) == 1
    assert "there is no such queue" in capsys.readouterr().err


def test_an_engine_that_does_not_answer(
    example: ModuleType, fake: FakeKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.engine.command = lambda topic, key, value: None
    assert example.main(["memory", "orders", "--timeout", "0.2"]) == 1
    assert "is the engine running?" in capsys.readouterr().err
