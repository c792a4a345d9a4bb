"""The example for plain Kafka clients, run on the in-memory engine with a small kafka-python.

Another test runs it on the real job; this one is quick and needs nothing.
"""

import importlib.util
import sys
from collections import deque
from collections.abc import Callable
from runpy import run_path
from types import SimpleNamespace
from typing import Any, NamedTuple

import lakequeue
import pytest
from docs.printed import ROOT
from lakequeue.memory import MemoryEngine

EXAMPLE = ROOT / "examples" / "plain_kafka.py"
JSON = {"message_type": "json"}


class Place(NamedTuple):
    topic: str
    partition: int


class FakeKafka:
    """The part of kafka-python that the example uses, on a `MemoryEngine`."""

    def __init__(self, engine: MemoryEngine) -> None:
        self.engine = engine
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
        nothing = lambda *_: None  # noqa: E731
        return SimpleNamespace(list_topics=list, create_topics=nothing, close=nothing)


@pytest.fixture
def connection() -> lakequeue.Connection:
    return lakequeue.connect("memory://")


@pytest.fixture
def fake(connection: lakequeue.Connection) -> FakeKafka:
    return FakeKafka(connection.engine)


@pytest.fixture
def run(fake: FakeKafka) -> Callable[..., int]:
    """Run the example; returns its exit status."""
    names = run_path(str(EXAMPLE))
    main = names["main"]
    fakes = {"KafkaAdminClient": fake.admin, "KafkaProducer": fake.producer,
             "KafkaConsumer": fake.consumer, "TopicPartition": Place}  # fmt: skip
    main.__globals__.update(fakes)
    return lambda timeout="5": main(["memory", "orders", "--timeout", timeout])


def test_the_plain_example_needs_only_kafka_python() -> None:
    assert "import lakequeue" not in EXAMPLE.read_text()
    assert "kafka" in sys.modules or importlib.util.find_spec("kafka") is not None


PATTERN = {"underlying_topic": "orders-.*", "default_publish_target": "orders-new"}


@pytest.mark.parametrize(
    ("definition", "repeat"),
    [
        pytest.param(JSON, False, id="plain"),
        pytest.param(JSON, True, id="repeated deliveries are dropped"),
        pytest.param(
            {"max_per_subscription_backlog": 10, "lease_period": "30s", **JSON}, False, id="backlog"
        ),
        pytest.param({"message_type": "text", "underlying_topic": "lines"}, False, id="text"),
        pytest.param(PATTERN | JSON, False, id="pattern"),
        pytest.param({"semantics": "at-most-once", **JSON}, False, id="at-most-once"),
    ],
)
def test_the_plain_example_succeeds(
    definition: dict[str, Any], repeat: bool, connection: lakequeue.Connection, fake: FakeKafka,
    run: Callable[..., int], capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    admin, fake.repeat = connection.admin(), repeat
    admin.define({"name": "orders", **definition})
    assert run() == 0
    said = capsys.readouterr()
    assert (said.err, said.out.count("delivered   ")) == ("", 3)
    seen = admin.describe("orders")
    assert (seen["counters"]["acknowledged"], seen["depth"], seen["consumers"]) == (3, 0, [])


def test_the_plain_example_leaves_messages_of_others(
    connection: lakequeue.Connection, run: Callable[..., int]
) -> None:
    connection.admin().define({"name": "orders", **JSON})
    connection.producer().send("orders", b'{"mine": true}')
    assert run() == 0
    (left,) = connection.admin().browse("orders")
    assert (left.state, left.payload) == ("ready", b'{"mine": true}')


def test_the_plain_example_reports_an_unknown_queue(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 1
    assert "there is no such queue" in capsys.readouterr().err


def test_an_engine_that_does_not_answer(
    fake: FakeKafka, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    fake.engine.command = lambda topic, key, value: None
    assert run(timeout="0.2") == 1
    assert "is the engine running?" in capsys.readouterr().err
