"""Which topics there are, told by a broker that has just made them."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from kafka.errors import TopicAlreadyExistsError, TopicAuthorizationFailedError
from lakequeue.client.kafka import kafka_python
from lakequeue.protocol import NotConnected
from lakequeue.streaming.kafka import topics_admin
from lakequeue.streaming.kafka.topics_admin import _sizes


def test_what_was_just_made_counts_though_kafka_does_not_describe_it_yet() -> None:
    """A receipt for a topic that seems not to be there would go to `<vpn>.rejected`, for ever."""
    described = [
        {"name": "old", "partitions": [0, 1, 2]},
        {"name": "default.receipts", "partitions": []},
        {"name": "default.publish", "partitions": [0, 1]},
    ]
    made = {"default.receipts": 8, "default.publish": 2, "default.journal": 1}
    assert _sizes(described, made) == {
        "old": 3, "default.receipts": 8, "default.publish": 2, "default.journal": 1,
    }  # fmt: skip


class Admin:
    """Kafka's administrator: topics, and what they are set to."""

    def __init__(self, **topics: dict[str, str]) -> None:
        self.topics = topics

    def list_topics(self) -> list[str]:
        return list(self.topics)

    def create_topics(self, new: list[Any]) -> None:
        for one in new:
            self.topics[one.name] = dict(one.topic_configs)

    def alter_configs(self, resources: list[Any], raise_on_unknown: bool) -> Any:
        for one in resources:
            self.topics[one.name] |= one.configs
        return {"topic": {one.name: "OK" for one in resources}}

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        return [{"name": name, "partitions": [0]} for name in names]

    def close(self) -> None: ...


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Admin], None]:
    """Makes this the administrator."""
    return lambda admin: monkeypatch.setattr(kafka_python, "KafkaAdminClient", lambda **_: admin)


class Late(Admin):
    """Lists the publish topic at the fourth look, and has it all the time."""

    def __init__(self, **topics: dict[str, str]) -> None:
        super().__init__(**topics)
        self.looks = 0
        self.grown: dict[str, int] = {}

    def list_topics(self) -> list[str]:
        self.looks += 1
        return [name for name in self.topics if self.looks > 3 or name != "v.publish"]

    def create_topics(self, new: list[Any]) -> None:
        if new[0].name in self.topics:
            raise TopicAlreadyExistsError
        super().create_topics(new)

    def create_partitions(self, counts: dict[str, int]) -> None:
        self.grown.update(counts)

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        there = dict.fromkeys(self.list_topics(), 1)
        there |= {name: 8 for name in there if name == "v.publish"}
        return [{"name": name, "partitions": [0] * there.get(name, 0)} for name in names]


def test_a_topic_that_kafka_lists_late_has_the_size_that_it_was_made_with(
    use: Callable[[Admin], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a home that grows would be told that its topics have too many partitions."""
    use(admin := Late(**{"v.publish": {}, "v.commands": {}}))
    sizes = topics_admin.ensure_topics("k:1", ["v"], [], ["a", "b"], count=2, before=1)
    grown = {"v.publish": 16, "v.commands": 2}
    assert sizes | grown == sizes
    assert admin.grown == grown
    admin.looks = -1_000
    monkeypatch.setattr(topics_admin, "LATE_S_MAX", 0.2)
    with pytest.raises(NotConnected, match=r"does not list them: v\.publish"):
        topics_admin.ensure_topics("k:1", ["v"], [], ["a", "b"], count=2, before=1)
    assert admin.grown == grown


def test_X4_messages_have_kafkas_time_in_new_topics_and_in_those_of_earlier_versions(
    use: Callable[[Admin], None],
) -> None:
    """Also in those that an operator made; what producers write plainly keeps its own."""
    use(admin := Admin(**{"old.publish": {"retention.ms": "1"}, "old.commands": {}, "orders": {}}))
    topics_admin.ensure_topics("k:1", ["old", "new"], ["orders"], ["broker-0"])
    times = {name: found.get("message.timestamp.type") for name, found in admin.topics.items()}
    kafkas = {name for name, kind in times.items() if kind == "LogAppendTime"}
    assert kafkas == {"old.publish", "new.publish"}
    assert admin.topics["old.publish"]["retention.ms"] == "1"


def test_X4_where_the_engine_may_not_say_so_it_starts_and_says_what_that_means(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refuses = Mock(alter_configs=Mock(side_effect=TopicAuthorizationFailedError))
    topics_admin._have_kafkas_time(refuses, ["default.publish"])
    assert "times to live and delays count by publishers' clocks" in caplog.text
