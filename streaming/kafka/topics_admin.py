"""The topics that the engine needs. Missing ones are created."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import InvalidPartitionsError, KafkaError, TopicAlreadyExistsError

from ...client.kafka.kafka_python import admin_client
from ...protocol import LakequeueError, NotConnected, topics
from ...protocol.bounds import RECORD_BYTES_MAX

log = logging.getLogger("lakequeue.engine")

PARTITIONS = {
    # A producer writes to one partition, so its messages delay few other messages.
    topics.PUBLISH: topics.PUBLISH_PARTITIONS,  # of each broker
    topics.COMMANDS: 1,  # of each broker
    topics.DELIVERIES: 8,
    topics.RECEIPTS: 8,
    topics.JOURNAL: 1,
    topics.REJECTED: 1,
    topics.ENGINE: 1,
    topics.DIRECTORY: 1,
}
SHARED = (topics.COMMANDS, topics.PUBLISH)  # each broker has its own partitions
CLIENT = "lakequeue-engine"
LATE_S, LATE_S_MAX = 0.1, 30.0  # how often to look for a topic that Kafka does not list yet
# The engine removes a step's record when no snapshot needs it; Kafka never removes it for its age.
STEPS_CONFIG = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
# Records between brokers, and the engine's instructions, stay for a week, whatever their size.
MESH_CONFIG = {"retention.ms": "604800000", "retention.bytes": "-1", "cleanup.policy": "delete"}
CONTROL_CONFIG = {"retention.ms": "3600000"}
HEARTBEATS_CONFIG = {"retention.ms": "3600000"}  # only the newest record is read
# A TTL and a delay count from the time when Kafka received the message, not by the publisher's
# clock (X4).
PUBLISH_CONFIG = {"message.timestamp.type": "LogAppendTime"}
DIRECTORY_CONFIG = {"cleanup.policy": "compact"}
CONFIGS = {
    topics.STEPS: STEPS_CONFIG,
    topics.BRIDGE_OUT: STEPS_CONFIG,
    topics.CONTROL: CONTROL_CONFIG,
    topics.INSTRUCTIONS: MESH_CONFIG,
    topics.MESH: MESH_CONFIG,
    topics.BRIDGE_IN: MESH_CONFIG,
    topics.BRIDGE_ANSWERS: MESH_CONFIG,
    topics.ENGINE: HEARTBEATS_CONFIG,
    topics.DIRECTORY: DIRECTORY_CONFIG,
    topics.PUBLISH: PUBLISH_CONFIG,
}


def ensure_topics(
    bootstrap: str,
    vpns: Collection[str],
    others: Iterable[str],
    brokers: Iterable[str] = (),
    count: int = 1,
    before: int = 0,
) -> dict[str, int]:
    """Create missing topics: those of the VPNs and the brokers, and others with one partition.
    Captured topics are not created; that is up to their producers.

    count: how many numbers brokers have had; with more than one, each gets its own partitions.
    before: the number of brokers with which these topics were used so far; 0: none.

    Returns all topics of the cluster with their numbers of partitions. Raises NotConnected if Kafka
    does not answer, and LakequeueError for topics whose partitions cannot be shared.
    """
    shared = {topics.topic(vpn, k): n * count for vpn in vpns for k, n in PARTITIONS.items()
              if k in SHARED}  # fmt: skip
    wanted = {topics.topic(vpn, kind): n for vpn in vpns for kind, n in PARTITIONS.items()} | shared
    kinds = [topics.STEPS, topics.CONTROL, topics.INSTRUCTIONS]
    kinds += [topics.MESH] if count > 1 else []
    wanted |= {topics.topic(b, kind): 1 for b in brokers for kind in kinds}
    wanted |= {t: 1 for t in others if t not in wanted}
    with admin_client(bootstrap, CLIENT) as admin:
        missing = sorted(set(wanted) - set(admin.list_topics()))
        made = [name for name in missing if _create(admin, name, wanted[name])]
        described = _described(admin, missing, {*missing}.difference(made))
        # Kafka may have listed one of these late: it was missing, but was not made here.
        publishes = {topics.topic(vpn, topics.PUBLISH) for vpn in vpns}
        _have_kafkas_time(admin, sorted(publishes.difference(made)))
        sizes = _sizes(described, {name: wanted[name] for name in made})
        if count == 1:
            return sizes
        for name, size in shared.items():
            most = size // count * before if 0 < before < count else size
            if sizes[name] > most:
                raise LakequeueError(_too_many(name, sizes[name], most))
        return sizes | _extended(admin, sizes, shared)


def ensure_own(bootstrap: str, wanted: Mapping[str, int]) -> None:
    """Create these topics of the engine, one after the other, or give them more partitions. wanted:
    their numbers of partitions. Raises NotConnected."""
    try:
        with admin_client(bootstrap, CLIENT) as admin:
            there = set(admin.list_topics())
            for name, count in wanted.items():
                if name not in there:
                    _create(admin, name, count)
            known = sorted(there & wanted.keys())
            sizes = _sizes(admin.describe_topics(known), {}) if known else {}
            _extended(admin, sizes, {name: wanted[name] for name in known})
    except KafkaError as error:
        names = ", ".join(sorted(wanted))
        raise NotConnected(f"topics cannot be made ({names}): {error}") from error


def _create(admin: Any, name: str, partitions: int) -> bool:
    """Create a topic. Returns False if it exists already: a busy Kafka may list it late."""
    config = {"max.message.bytes": str(RECORD_BYTES_MAX), **CONFIGS.get(topics.kind(name), {})}
    try:
        admin.create_topics([NewTopic(name, partitions, -1, topic_configs=config)])
    except TopicAlreadyExistsError:
        return False
    return True


def _described(admin: Any, missing: Collection[str], late: Collection[str]) -> list[dict[str, Any]]:
    """All topics, as Kafka describes them. missing: topics that it did not list. late: those of
    them that exist nevertheless; wait until Kafka lists them."""
    until = time.monotonic() + LATE_S_MAX
    while True:
        described = list(admin.describe_topics(sorted({*admin.list_topics(), *missing})))
        sized = {topic["name"] for topic in described if topic["partitions"]}
        if sized.issuperset(late):
            return described
        if time.monotonic() > until:
            names = ", ".join(sorted({*late} - sized))
            raise NotConnected(
                f"Kafka says that these topics exist, but does not list them: {names}; try again"
            )
        time.sleep(LATE_S)


def _have_kafkas_time(admin: Any, names: list[str]) -> None:
    """Set Kafka's time for topics of earlier versions and of operators too, if the engine may alter
    them."""
    for name in names:
        resource = ConfigResource(ConfigResourceType.TOPIC, name, PUBLISH_CONFIG)
        try:
            told = admin.alter_configs([resource], raise_on_unknown=False)
            why = next((w for of in told.values() for w in of.values() if w != "OK"), None)
        except KafkaError as error:
            why = str(error)
        if why is not None:
            log.warning(
                "topic %r: message.timestamp.type cannot be set to LogAppendTime, so times to live "
                "and delays use the publishers' clocks: %s", name, why,
            )  # fmt: skip


def _extended(admin: Any, sizes: dict[str, int], shared: dict[str, int]) -> dict[str, int]:
    """Add missing partitions to the topics that brokers share."""
    short = {name: count for name, count in shared.items() if sizes[name] < count}
    for name, count in short.items():
        # A busy Kafka may still describe a topic as it was before.
        with contextlib.suppress(InvalidPartitionsError):
            admin.create_partitions({name: count})
    return short


def _too_many(name: str, size: int, most: int) -> str:
    """Why brokers cannot share these partitions: nobody would read some of them, or a new broker
    would read records again."""
    return (
        f"topic {name!r} has {size} partitions, and these brokers share {most}: several brokers "
        "need topics that lakequeue created; use a Kafka without them, or stay with one broker"
    )


def _sizes(described: Iterable[dict[str, Any]], made: dict[str, int]) -> dict[str, int]:
    """Topics with their numbers of partitions, as Kafka describes them or as they were just
    created. A busy broker may describe a new topic without partitions, or not at all; receipts
    there would go to `<vpn>.rejected`."""
    found = {topic["name"]: len(topic["partitions"]) for topic in described}
    return found | {name: found.get(name) or count for name, count in made.items()}
