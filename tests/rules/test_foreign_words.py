"""Q7: another system's key is refused with the name of ours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from lakequeue.definitions import SystemLimits, VpnLimits, parse_configuration
from lakequeue.definitions.clients import ClientEntry
from lakequeue.definitions.configuration import SECTIONS
from lakequeue.definitions.definition import KEYS
from lakequeue.definitions.definition_values import keys_of
from lakequeue.definitions.foreign_words import WORDS, Word, foreign_word, letters
from lakequeue.protocol import ConfigError


def refusal(configuration: dict[str, object], key: str) -> str:
    """The error of a configuration with an unknown key."""
    with pytest.raises(ConfigError) as caught:
        parse_configuration(configuration)
    (problem,) = [p for p in caught.value.problems if p.key == key]
    return problem.allowed


def of_a_queue(key: str) -> str:
    return refusal({"queues": [{"name": "orders", "message_type": "json", key: 1}]}, key)


@pytest.mark.parametrize(("key", "says"), [
    ("visibility_timeout", "is not a known key but SQS's word for lease_period"),
    ("VisibilityTimeout", "SQS's word for lease_period"),
    ("max_receive_count", "SQS's word for max_deliveries"),
    ("x-max-length", "RabbitMQ's word for max_spool_messages"),
    ("max-length", "RabbitMQ's word for max_spool_messages"),
    ("x-message-ttl", "RabbitMQ's word for expiration"),
    ("dead-letter-exchange", "RabbitMQ's word for dead_message_queue"),
    ("prefetch", "RabbitMQ's word for max_per_subscription_backlog (and max_backlog of the"),
    ("x-delayed-type", "RabbitMQ's word: give delay to send()"),
    ("x-single-active-consumer", "RabbitMQ's word: partition_key: \"'all'\" keeps its order"),
    ("DelaySeconds", "SQS's word: give delay to send()"),
    ("eta", "Celery's word: give deliver_at to send()"),
    ("durable", "RabbitMQ's word: every queue is durable"),
    ("share.delivery.count.limit", "Kafka's word for max_deliveries"),
    ("share.auto.offset.reset", "Kafka's word for recovery_point (epoch is earliest,"),
    ("auto.offset.reset", "Kafka's word for recovery_point"),
    ("session.timeout.ms", "Kafka's word for heartbeat_timeout of system"),
    ("max_retries", "Celery's word for max_cancels"),
    ("lease_periods", "did you mean lease_period?"),
])  # fmt: skip
def test_Q7_a_queue_key_of_another_system(key: str, says: str) -> None:
    assert says in of_a_queue(key)


@pytest.mark.parametrize(("configuration", "says"), [
    ({"system": {"visibility_timeout": "30s"}}, "word for lease_period of a queue"),
    ({"system": {"session.timeout.ms": 1}},
     "is not a known key but Kafka's word for heartbeat_timeout ("),
    ({"dlq": "dead"}, "word for dead_message_queue of a queue"),
])  # fmt: skip
def test_Q7_a_foreign_key_in_the_wrong_section_names_the_right_one(
    configuration: dict[str, Any], says: str
) -> None:
    section, value = next(iter(configuration.items()))
    assert says in refusal(configuration, next(iter(value)) if section == "system" else section)


@pytest.mark.parametrize("word", WORDS, ids=[word.theirs for word in WORDS])
def test_every_foreign_key_leads_to_a_key_or_advice(word: Word) -> None:
    section, dot, key = word.ours.partition(".")
    if dot:
        assert section == "system"
        assert key in keys_of(SystemLimits)
    elif word.ours:
        assert word.ours in KEYS
    else:
        assert word.note
    assert foreign_word(word.theirs) is word
    assert f"{word.of}'s word" in of_a_queue(word.theirs)


def test_no_foreign_key_is_listed_twice_or_hides_one_of_ours() -> None:
    known = [letters(word.theirs) for word in WORDS]
    assert len(known) == len(set(known))
    ours = {letters(key) for key in (*KEYS, *keys_of(SystemLimits), *SECTIONS)}
    assert ours.isdisjoint(known)
    assert not ours & {word.removeprefix("x") for word in known}


ODD = {"qqqqqq": 1}


@pytest.mark.parametrize(("configuration", "allowed"), [
    (ODD, SECTIONS),
    ({"system": ODD}, keys_of(SystemLimits)),
    ({"vpns": {"default": ODD}}, keys_of(VpnLimits)),
    ({"queues": [{"name": "q", "message_type": "json", **ODD}]}, KEYS),
    ({"brokers": [{"name": "b", **ODD}]}, ("name", "group")),
    ({"clients": [{"name": "c", "key": {"env": "C"}, **ODD}]}, keys_of(ClientEntry)),
], ids=["a section", "system", "a VPN", "a queue", "a broker", "a client"])  # fmt: skip
def test_Q7_an_unknown_key_is_answered_with_the_allowed_keys(
    configuration: dict[str, Any], allowed: Iterable[str]
) -> None:
    says = refusal(configuration, *ODD)
    assert says == f"is not a known key; allowed are {', '.join(allowed)}"


@pytest.mark.parametrize("key", ["", "x", "…", "x-", "\n", "é" * 200])
def test_any_text_as_a_key_gets_an_answer(key: str) -> None:
    assert foreign_word(key) is None
    assert "not a known key" in of_a_queue(key)
