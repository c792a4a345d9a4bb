"""Checks whether an offset still refers to the same topic: topics can be deleted and recreated.

Kafka's id of the topic is stored with each offset. In doubt, Kafka is asked where a partition
begins and ends. `go_on` decides where a reader continues; `TopicsNow` queries Kafka.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec, TopicDescription

from ..protocol.kafka_settings import OLD_LEADER
from .step_batch import PartitionId

CLUSTER_S = 10.0
# The timeout of a request to a partition's leader. While the leader is dead and has no successor,
# librdkafka 2.16 tries to connect 4,000 times per second until the request times out.
ASK_S = 2.0
_NO_ID = "A" * 22  # the id from a Kafka before 2.8
_UNKNOWN = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED)
ANEW, LOST, BACK = "anew", "lost", "back"
IDS = ""  # the key of the topics' ids in Spark's form of offsets; no topic has this name


class Found(NamedTuple):
    """The present state of a partition. topic_id: empty if Kafka has none."""

    topic_id: str
    first: int
    end: int


class Start(NamedTuple):
    """The offset from which to read a partition from now on. records: the number of records
    concerned. why:

    ``anew``: the topic was recreated; ``lost``: records were deleted before they were read;
    ``back``: Kafka lost records that had been read; empty: nothing happened.
    """

    at: int
    topic_id: str
    why: str = ""
    records: int = 0


def go_on(following: int, known_id: str, found: Found) -> Start:
    """Decide where to continue a partition. following: the next offset; known_id: of the topic that
    the offset refers to, empty if unknown."""
    topic_id = found.topic_id or known_id
    other = bool(known_id) and topic_id != known_id
    behind = following > found.end
    if other or (behind and not known_id):
        return Start(found.first, topic_id, ANEW, found.end - found.first)
    if behind:
        return Start(found.end, topic_id, BACK, following - found.end)
    if following < found.first:
        if following == 0 and not known_id:
            return Start(found.first, topic_id)  # before it was read for the first time
        return Start(found.first, topic_id, LOST, found.first - following)
    return Start(following, topic_id)


def ids_of(offsets: Mapping[str, Any]) -> dict[str, str]:
    """The ids of the topics, as far as known, in Spark's form of offsets."""
    return dict(offsets.get(IDS, ()))


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """The topics that were recreated."""
    return {topic for topic, known in before.items() if now.get(topic, known) != known}


def gone_back(
    before: Mapping[PartitionId, int], after: Mapping[PartitionId, int], known: Mapping[str, str]
) -> set[PartitionId]:
    """Partitions of the same topic that end before the stored offset: Kafka lost records. Reading
    from the beginning would repeat all others, so reading continues at the new end, as in a loop.
    known: the ids before."""
    return {p for p, at in after.items() if known.get(p[0]) and at < before.get(p, 0)}


class TopicsNow:
    """Queries Kafka, with its own client that any thread may use."""

    def __init__(self, kafka: dict[str, Any]) -> None:
        self._admin = AdminClient(kafka)

    def cluster(self) -> str:
        """The id of Kafka's cluster; empty if it has none. Raises KafkaException."""
        return str(self._admin.list_topics(timeout=CLUSTER_S).cluster_id or "")

    def ids(self, names: Iterable[str]) -> dict[str, str]:
        """The ids of existing topics, empty if Kafka has none. Raises KafkaException while Kafka is
        unreachable."""
        found = {name: str(one.topic_id) for name, one in self._described(names).items()}
        return {name: "" if known == _NO_ID else known for name, known in found.items()}

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """The numbers of partitions of the existing topics. Raises as `ids` does."""
        return {name: len(one.partitions) for name, one in self._described(names).items()}

    def all_sizes(self) -> dict[str, int]:
        """All topics of the cluster except Kafka's own, with their numbers of partitions. Raises
        KafkaException."""
        listed = self._admin.list_topics(timeout=CLUSTER_S).topics
        return {
            name: len(about.partitions)
            for name, about in listed.items()
            if about.error is None and not name.startswith("__")
        }

    def delete_before(self, offsets: Mapping[PartitionId, int]) -> None:
        """Delete the records of partitions before these offsets. Raises KafkaException and
        TimeoutError."""
        before = [TopicPartition(*place, at) for place, at in offsets.items()]
        for done in self._admin.delete_records(before, request_timeout=ASK_S).values():
            done.result(CLUSTER_S)

    def _described(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        asked = sorted(set(names))
        if not asked:
            return {}
        found = {}
        answers = self._admin.describe_topics(TopicCollection(asked), request_timeout=ASK_S)
        for name, answer in answers.items():
            try:
                found[name] = answer.result(2 * ASK_S)
            except TimeoutError as error:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error
            except KafkaException as error:
                if error.args[0].code() not in _UNKNOWN:
                    raise
        return found

    def ends(
        self, places: Iterable[PartitionId], spec: OffsetSpec, committed: bool = False
    ) -> dict[PartitionId, int]:
        """The beginnings or ends of partitions, as far as Kafka answers. committed: an open
        transaction counts as the end."""
        asked = {TopicPartition(*place): spec for place in places}
        if not asked:
            return {}
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        answers = self._admin.list_offsets(asked, request_timeout=ASK_S, isolation_level=level)
        found = {}
        old_leaders = False
        for p, answer in answers.items():
            try:
                found[p.topic, p.partition] = int(answer.result(2 * ASK_S).offset)
            except KafkaException as error:
                old_leaders |= error.args[0].code() in OLD_LEADER
            except TimeoutError:
                pass
        if old_leaders:
            with contextlib.suppress(KafkaException):
                self._admin.list_topics(timeout=CLUSTER_S)
        return found

    def places(self, places: Iterable[PartitionId]) -> dict[PartitionId, Found]:
        """The present state of partitions. Omits partitions without an answer, and topics that
        change meanwhile."""
        asked = list(places)
        before = self.ids(name for name, _ in asked)
        first = self.ends(asked, OffsetSpec.earliest())
        last = self.ends(asked, OffsetSpec.latest())
        after = self.ids(name for name, _ in asked)
        return {
            p: Found(before[p[0]], first[p], last[p])
            for p in asked
            if p in first and p in last and before.get(p[0]) == after.get(p[0]) and p[0] in before
        }
