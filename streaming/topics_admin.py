"""The topics that the engine needs, made if they are missing."""

from __future__ import annotations

from collections.abc import Iterable

from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from kafka.errors import KafkaError, TopicAlreadyExistsError

from ..protocol import NotConnected, topics
from ..sources.kafka import LEGAL_TOPIC

PARTITIONS = {
    topics.PUBLISH: 2,
    topics.COMMANDS: 1,
    topics.DELIVERIES: 8,
    topics.RECEIPTS: 8,
    topics.JOURNAL: 1,
    topics.REJECTED: 1,
}
MESSAGE_BYTES_MAX = 12_000_000


def ensure_topics(
    bootstrap: str, vpns: Iterable[str], captured: Iterable[str]
) -> dict[str, int]:
    """Make the VPNs' topics and the topics that queues capture by name, where they are missing.

    Returns all topics of the cluster, each with its number of partitions.

    Raises NotConnected in one sentence when Kafka does not answer.
    """
    wanted = {topics.topic(vpn, kind): n for vpn in vpns for kind, n in PARTITIONS.items()}
    wanted |= {t: 1 for t in captured if LEGAL_TOPIC.fullmatch(t) and t not in wanted}
    try:
        admin = KafkaAdminClient(bootstrap_servers=bootstrap, client_id="lakequeue-engine")
    except KafkaError as error:
        raise NotConnected(
            f"no Kafka broker answers at {bootstrap} – start it, or name another with --bootstrap"
        ) from error
    try:
        missing = sorted(set(wanted) - set(admin.list_topics()))
        config = {"max.message.bytes": str(MESSAGE_BYTES_MAX)}
        for name in missing:
            try:
                admin.create_topics([NewTopic(name, wanted[name], -1, topic_configs=config)])
            except TopicAlreadyExistsError:
                continue
        names = sorted({*admin.list_topics(), *missing})
        return {t["name"]: len(t["partitions"]) for t in admin.describe_topics(names)}
    finally:
        admin.close()
