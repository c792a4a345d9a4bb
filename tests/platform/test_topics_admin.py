"""Which topics there are, told by a broker that has just made them."""

from typing import Any

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


def test_a_topic_that_kafka_lists_late_has_the_size_that_it_was_made_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a home that grows would be told that its topics have too many partitions."""

    class Late(Admin):
        looks = 0

        def list_topics(self) -> list[str]:
            self.looks += 1
            return [name for name in self.topics if self.looks > 3 or name != "v.publish"]

        def create_topics(self, new: list[Any]) -> None:
            if new[0].name in self.topics:
                raise TopicAlreadyExistsError
            super().create_topics(new)

        def create_partitions(self, counts: dict[str, int]) -> None:
            grown.update(counts)

        def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
            made = {"v.publish": 8}
            there = set(self.list_topics())
            return [{"name": n, "partitions": [0] * (made.get(n, 1) if n in there else 0)}
                    for n in names]  # fmt: skip

    grown: dict[str, int] = {}
    admin = Late(**{"v.publish": {}, "v.commands": {}})
    monkeypatch.setattr(kafka_python, "KafkaAdminClient", lambda **_: admin)
    sizes = topics_admin.ensure_topics("k:1", ["v"], [], ["a", "b"], count=2, before=1)
    assert (sizes["v.publish"], sizes["v.commands"]) == (16, 2)
    assert grown == {"v.publish": 16, "v.commands": 2}
    admin.looks, grown_before = -1_000, dict(grown)
    monkeypatch.setattr(topics_admin, "LATE_S_MAX", 0.2)
    with pytest.raises(NotConnected, match=r"does not list them: v\.publish"):
        topics_admin.ensure_topics("k:1", ["v"], [], ["a", "b"], count=2, before=1)
    assert grown == grown_before


def test_X4_messages_have_kafkas_time_in_new_topics_and_in_those_of_earlier_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also in those that an operator made; what producers write plainly keeps its own."""
    own = {"retention.ms": "1"}
    admin = Admin(**{"old.publish": dict(own), "old.commands": {}, "orders": {}})
    monkeypatch.setattr(kafka_python, "KafkaAdminClient", lambda **_: admin)
    topics_admin.ensure_topics("k:1", ["old", "new"], ["orders"], ["broker-0"])
    times = {name: found.get("message.timestamp.type") for name, found in admin.topics.items()}
    assert {name for name, kind in times.items() if kind == "LogAppendTime"} == {
        "old.publish", "new.publish",
    }  # fmt: skip
    assert admin.topics["old.publish"] | own == admin.topics["old.publish"]


def test_X4_where_the_engine_may_not_say_so_it_starts_and_says_what_that_means(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Refuses(Admin):
        def alter_configs(self, resources: list[Any], raise_on_unknown: bool) -> Any:
            raise TopicAuthorizationFailedError

    topics_admin._have_kafkas_time(Refuses(), ["default.publish"])
    assert "times to live and delays count by publishers' clocks" in caplog.text
