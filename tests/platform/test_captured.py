"""The captured topics that queries read: all existing ones, and no others (Q2)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from client.threaded import wait_for
from confluent_kafka import KafkaError, KafkaException
from lakequeue.definitions import parse_configuration
from lakequeue.memory import MemoryEngine
from lakequeue.memory.memory_broker import MemoryBroker
from lakequeue.protocol.commands import decode_command
from lakequeue.protocol.errors import NotConnected
from lakequeue.protocol.outputs import Output
from lakequeue.replica.replica import Decided, sort_outputs
from lakequeue.sources import discovery
from lakequeue.sources.discovery import captured_topics
from lakequeue.sources.kafka_source import publish_topics, tables_topics
from lakequeue.streaming import Engine, captured
from lakequeue.streaming.broker_query import BrokerQuery
from lakequeue.streaming.captured import CapturedTopics
from lakequeue.streaming.home.home_folder import HomeFolder
from lakequeue.streaming.kafka.topics_admin import PARTITIONS
from lakequeue.streaming.watch.batch_notes import BatchNotes

OWN = {f"default.{kind}": count for kind, count in PARTITIONS.items()}
OWN |= dict.fromkeys(["broker-0.steps", "broker-0.control", "broker-0.instructions"], 1)
QUEUES = [
    {"name": "orders", "message_type": "json"},
    {
        "name": "sensors", "message_type": "json", "underlying_topic": "sensor-(?P<n>.*)",
        "default_publish_target": "sensor-1",
    },
]  # fmt: skip


class Kafka:
    """The part of Kafka's administration used here: the list of topics."""

    start = close = lambda self: None

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topics = dict(OWN)
        self.looks = 0
        self.away = False
        self.made: list[dict[str, int]] = []  # topics that were recreated, each time
        monkeypatch.setattr(captured, "Discovery", self._discovery)
        monkeypatch.setattr(captured, "require_broker", lambda bootstrap: None)
        monkeypatch.setattr(captured, "ensure_topics", lambda *_: dict(self.topics))
        monkeypatch.setattr(captured, "ensure_own", self._make)

    def _make(self, bootstrap: str, wanted: dict[str, int]) -> None:
        if self.away:
            raise NotConnected("no Kafka broker answers")
        self.made.append(wanted)
        self.topics |= wanted

    def _discovery(self, kafka: object, found: object) -> Kafka:
        self.tell = found
        return self

    def look(self) -> None:
        self.looks += 1

    def sizes(self) -> dict[str, int]:
        if self.away:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return dict(self.topics)

    def now(self, *gone: str, **more: int) -> None:
        """The thread's work every 10 s; gone, more: topics that changed since."""
        for name in gone:
            del self.topics[name]
        self.topics |= more
        self.tell(dict(self.topics))  # type: ignore[operator]


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    return Kafka(monkeypatch)


@pytest.fixture
def topics(kafka: Kafka, tmp_path: Path) -> CapturedTopics:
    return opened(tmp_path)


def opened(home: Path) -> CapturedTopics:
    folder = HomeFolder(home)
    folder.open()
    configuration = parse_configuration({"queues": QUEUES})
    brokers = {"broker-0": BrokerQuery("broker-0", 0)}
    topics = CapturedTopics(
        "k:1", folder, configuration, ["default"], brokers, lambda: b"begin"
    )  # fmt: skip
    topics.open()
    return topics


def test_queues_with_missing_topics_do_not_change_the_topics_read(
    kafka: Kafka, topics: CapturedTopics
) -> None:
    assert topics.reads == []
    for n in range(1_000):
        topics.heard(f"idle-{n}")
    assert kafka.looks == 1_000, "each may have a topic already"
    kafka.now()
    assert not topics.more


def test_new_topics_are_read_and_deleted_ones_are_not(kafka: Kafka, topics: CapturedTopics) -> None:
    kafka.now(**{"sensor-7": 3, "orders": 1, "others": 1, "sensor-7.receipts": 1})
    assert topics.more
    topics.learn()
    assert (topics.more, topics.reads) == (False, ["orders", "sensor-7"])
    assert topics.partitions["sensor-7"] == 3
    kafka.now()
    assert not topics.more
    kafka.now("orders")
    assert topics.more
    topics.learn()
    assert topics.reads == ["sensor-7"]


@pytest.mark.parametrize(
    ("name", "partitions"),
    [
        ("default.deliveries", 8), ("default.bridge-in", 2), ("broker-0.instructions", 1),
        ("broker-0.control", 1), ("broker-0.steps", 1), ("broker-0.mesh", 1),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("topics")
def test_deleted_topics_of_the_engine_are_recreated(
    kafka: Kafka, caplog: pytest.LogCaptureFixture, name: str, partitions: int
) -> None:
    kafka.now(**{"default.bridge-in": 2, "broker-0.mesh": 1, "other.receipts": 8, "x.steps": 1})
    assert kafka.made == [], "nothing is missing"
    kafka.away = True
    kafka.now(name, "other.receipts", "x.steps")  # the last two are another home's
    assert "no Kafka broker answers" in caplog.text, "and the thread continues"
    kafka.away = False
    kafka.now()
    assert kafka.made == [{name: partitions}]
    assert name in caplog.text
    kafka.now()
    assert len(kafka.made) == 1


def test_brokers_rewrite_a_recreated_directory(kafka: Kafka, topics: CapturedTopics) -> None:
    heard: list[bytes] = []
    kafka.topics.pop("default.directory")
    for away in (True, False):
        kafka.away = away
        kafka.now()
        topics.tell(heard.append)
        topics.tell(heard.append)
    assert heard == [b"begin"]


def test_M4_present_and_removed_brokers_have_partitions(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics, given = opened(tmp_path), []
    monkeypatch.setattr(
        captured, "ensure_topics", lambda *all: (given.append(all[-2:]), dict(kafka.topics))[1]
    )
    topics._brokers["far"] = BrokerQuery("far", 4)  # type: ignore[index]
    topics.share_out(2)
    topics.share_out(9)
    topics.share_out()
    assert given == [(5, 2), (9, 9), (5, topics._folder.numbers)]


def test_removed_brokers_are_not_asked_for_captured_topics(topics: CapturedTopics) -> None:
    """`k:1` is no Kafka, so asking a broker there would fail."""
    topics.ask_again(["broker-0", "gone", "removed"])
    topics.forget("broker-0")
    topics.forget("removed")
    assert topics.unasked == {("gone", "default")}
    topics.ask(1.0)
    assert topics.unasked == set()


class Telling(str):
    """A broker's name that lets another thread run whenever it is put into a set."""

    meanwhile: Callable[[], None] | None = None

    def __hash__(self) -> int:
        if self.meanwhile is not None:
            self.meanwhile()
        return super().__hash__()


def test_the_list_of_brokers_not_asked_can_be_read_by_another_thread(tmp_path: Path) -> None:
    """The asking thread may shorten the list at any moment."""
    engine = Engine("127.0.0.1:1", tmp_path, parse_configuration({"brokers": ["a", "b"]}))
    unasked, name = engine.captured.unasked, Telling("a")
    unasked |= {(name, "default"), ("b", "default")}
    name.meanwhile = lambda: unasked.discard(("b", "default"))
    engine.watch._tell_who_runs()
    name.meanwhile = None
    assert unasked == {("a", "default")}


def test_topics_of_a_removed_broker_may_be_deleted(kafka: Kafka, topics: CapturedTopics) -> None:
    topics._brokers.clear()  # type: ignore[attr-defined]
    kafka.now("broker-0.steps")
    assert kafka.made == []


def test_the_brokers_learn_once_which_named_topics_exist(
    kafka: Kafka, topics: CapturedTopics
) -> None:
    def told(*gone: str, **more: int) -> list[list[str]]:
        kafka.now(*gone, **more)
        topics.learn()
        heard: list[Any] = []
        topics.tell(lambda value: heard.append(decode_command(value).topics))
        return heard

    assert told() == []
    assert told(**{"sensor-7": 3, "orders": 1}) == [["orders"]]
    assert told() == []
    topics.heard("sensor-7")  # it was read before, because of an expression
    assert told() == [["orders", "sensor-7"]]
    assert told("orders") == [["sensor-7"]]
    topics.heard("orders")
    kafka.now(orders=1)
    topics.learn()
    with pytest.raises(NotConnected):
        topics.tell(Mock(side_effect=NotConnected("away")))
    assert told() == [["orders", "sensor-7"]]


def test_captured_topics_of_the_last_run_are_read_without_asking_brokers(
    kafka: Kafka, topics: CapturedTopics, tmp_path: Path
) -> None:
    kafka.topics |= {"extra": 1, "gone": 1}
    topics.heard("extra")
    topics.heard("gone")
    topics.learn()
    del kafka.topics["gone"]
    again = opened(tmp_path)
    assert again.reads == ["extra"]
    kafka.now()
    assert not again.more


def test_X5_a_changed_topic_limit_restarts_micro_batch_queries(
    kafka: Kafka, topics: CapturedTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"default.publish": 12_000_000, "default.commands": 50_000, "orders": 1_000}
    monkeypatch.setattr(
        captured, "limits_of", lambda _, names: {n: limits[n] for n in names if n in limits}
    )

    def more() -> bool:
        kafka.now()
        return topics.more

    assert not more(), "in real time nobody asks"
    assert topics.low_limits() == {"default.commands": 50_000}
    assert not more()
    del limits["default.commands"]
    assert not more(), "Kafka did not answer"
    limits["default.commands"] = 12_000_000
    assert more()
    assert topics.low_limits() == {}


def test_topics_are_kept_while_kafka_does_not_list_them(
    kafka: Kafka, topics: CapturedTopics
) -> None:
    kafka.now(orders=1)
    kafka.away = True
    with pytest.raises(NotConnected, match="topics cannot be listed"):
        topics.learn()
    assert topics.more
    kafka.away = False
    topics.learn()
    assert topics.reads == ["orders"]


def test_M5_only_the_capturing_queues_broker_reads_the_topic(
    kafka: Kafka, topics: CapturedTopics
) -> None:
    """The loop reads the topics that the capturing queue's broker reports, as does the engine; the
    subscriber's broker gets the records from it."""
    said: dict[str, list[Decided]] = {"a": [], "b": []}

    class Deciding(MemoryBroker):
        def take(self, batch: Any, now: int) -> list[Output]:
            outputs = super().take(batch, now)
            said[self.home.name].append(sort_outputs(outputs))
            return outputs

    class Engine(MemoryEngine):
        BROKER = Deciding

    local = {"message_type": "json", "type": "LocalQueue"}
    queues = [
        {"name": "takes", "broker": "a", "underlying_topic": "extra", **local},
        {"name": "hears", "broker": "b", "subscriptions": ["extra", "others"], **local},
    ]
    Engine(parse_configuration({"brokers": ["a", "b"], "queues": queues}))
    there = {"extra": 1, "others": 1}
    read = {
        name: captured_topics(there, [text for one in decided for text in one.captures])
        for name, decided in said.items()
    }
    assert read == {"a": ["extra"], "b": []}
    notes = BatchNotes(topics, *[None] * 4)  # type: ignore[arg-type]
    for note in (note for one in said["a"] for note in one.notes):
        notes("a", note)
    kafka.now(**there)
    topics.learn()
    assert topics.reads == ["extra"]


def test_sparks_source_gets_a_list() -> None:
    assert publish_topics(["b", "a"], ["x", "c"]) == ["a.publish", "b.publish", "c", "x"]
    assert tables_topics(["a"], []) == ["a.publish", "a.journal"]


def test_checks_continue_after_an_unexpected_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise no new topic would ever be read."""
    monkeypatch.setattr(discovery, "EVERY_S", 0.01)
    found = Mock(side_effect=[ValueError("lakequeue.json is damaged"), *[None] * 1_000])
    looks = discovery.Discovery({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, found)
    monkeypatch.setattr(looks, "sizes", dict)
    looks.start()
    wait_for(lambda: found.call_count >= 3)
    looks.close()
    looks.join(20)
    assert not looks.is_alive()
