"""A partition has a new leader or leader epoch, as after Kafka froze for some seconds. librdkafka's
admin client keeps the old one for minutes; a metadata request for the topics refreshes it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec
from lakequeue.client.kafka.confluent import ConfluentTransport
from lakequeue.protocol.kafka_settings import OLD_LEADER
from lakequeue.sources.same_topic import TopicsNow


class Admin:
    """Answers as librdkafka 2.16 did after Kafka had been stopped for 8 s."""

    def __init__(self, code: int) -> None:
        self.code: int | None = code

    def list_offsets(self, asked: dict[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        answers: dict[Any, Future[Any]] = {place: Future() for place in asked}
        for answer in answers.values():
            if self.code is None:
                answer.set_result(type("Info", (), {"offset": 7}))
            else:
                answer.set_exception(KafkaException(KafkaError(self.code)))
        return answers

    def list_topics(self, **_: Any) -> None:
        self.code = None


@pytest.mark.parametrize("code", OLD_LEADER)
def test_the_engine_retries_an_end_offset_with_fresh_metadata(code: int) -> None:
    topics = object.__new__(TopicsNow)
    topics._admin = Admin(code)
    assert topics.ends([("t", 0)], OffsetSpec.latest()) == {}
    assert topics.ends([("t", 0)], OffsetSpec.latest()) == {("t", 0): 7}


@pytest.mark.parametrize("code", OLD_LEADER)
def test_a_client_retries_an_end_offset_with_fresh_metadata(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakequeue.client.kafka.kafka_bounds.ASK_SECONDS_MAX", 0.5)
    transport, admin = object.__new__(ConfluentTransport), Admin(code)
    monkeypatch.setattr(transport, "_lookup", lambda: admin, raising=False)
    monkeypatch.setattr(transport, "_check", lambda: None, raising=False)
    monkeypatch.setattr(transport, "partitions", lambda topic: 1, raising=False)
    assert transport._end("t", 0) == 7


@pytest.mark.parametrize(("at", "then"), [(3, 3), (9, 0)])  # 9: the topic was recreated
def test_the_stalled_consumer_watch_recovers(at: int, then: int) -> None:
    admin = Admin(KafkaError.FENCED_LEADER_EPOCH)
    transport = object.__new__(ConfluentTransport)
    transport._admin, transport._consumer = admin, None
    transport._listening = threading.RLock()
    transport._next, transport._asked_next, transport._helped = {("t", 0): at}, {("t", 0): at}, {}
    transport._asked = {}
    for _ in range(3):
        transport._look_at = 0.0
        transport._watch()
    assert (transport._helped, transport._next) == ({("t", 0): 7}, {("t", 0): then})


def test_the_error_codes_match_the_library() -> None:
    names = ("NOT_LEADER_FOR_PARTITION", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH")
    assert tuple(getattr(KafkaError, name) for name in names) == OLD_LEADER
