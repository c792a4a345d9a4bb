"""The largest record that each topic accepts, and the command that reports a larger one to a
broker.

Our topics accept `RECORD_BYTES_MAX`, but an operator may have lowered a topic's
`max.message.bytes`, or created a client's inbox with less. Without this check a larger record would
be sent again for ever: a delivery after each lease, and with micro-batches the whole failing batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource

from ..definitions import DEFAULT_VPN
from ..protocol import topics
from ..protocol.bounds import RECORD_BYTES_MAX
from ..protocol.commands import Command, RecordRefused, Undeliverable, encode_command
from ..protocol.errors import Reason
from ..protocol.ids import format_ranges
from ..protocol.record_splitting import BESIDE_MAX, delivered, fitting, size_of
from ..protocol.wire import WireRecord

ASK_S = 5.0


def limits_of(kafka: dict[str, Any], names: Iterable[str]) -> dict[str, int]:
    """`max.message.bytes` of the topics for which Kafka reports it."""
    asked = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
    limits: dict[str, int] = {}
    if not asked:
        return limits
    admin = AdminClient(kafka)  # without a reference to it, its requests would be dropped
    for resource, answer in admin.describe_configs(asked, request_timeout=ASK_S).items():
        try:
            limits[resource.name] = int(answer.result(ASK_S)["max.message.bytes"].value)
        except (KafkaException, FutureTimeout, KeyError, TypeError, ValueError):
            continue  # the topic does not exist, or we lack the permission
    return limits


def undeliverable(record: WireRecord, why: str, is_size: bool) -> Undeliverable | None:
    """The command that tells a broker that a topic refuses a delivery permanently; None for any
    other record. is_size: whether its size is the reason."""
    found = delivered(record)
    if found is None:
        return None
    reason = Reason.MESSAGE_TOO_LARGE if is_size else Reason.REFUSED_BY_KAFKA
    return Undeliverable(
        queue=found.queue, ids=format_ranges(found.ids), topic=record.topic, reason=reason.value,
        why=why,
    )  # fmt: skip


def refusal(record: WireRecord, error: str, limit: int | None) -> str:
    """A sentence about a record that its topic refuses."""
    allowed = "" if limit is None else f"; its max.message.bytes is {limit:,}"
    return f"{size_of(record):,} bytes for topic {record.topic!r}: {error}{allowed}"


def instruction(topic: str, about: str, command: Command) -> WireRecord:
    """A command for a broker, as a record of its instructions. about: the topic of the refused
    record."""
    vpn = topics.vpn_of(about) or DEFAULT_VPN
    return WireRecord(topic, 0, vpn.encode(), encode_command(command))


def within_limits(
    records: Iterable[WireRecord], limits: Mapping[str, int], instructions: str, notes: list[str]
) -> Iterator[WireRecord]:
    """Yield the records, split to fit their topics' limits. A record that cannot be split becomes a
    command that reports it to the broker. limits: of topics that accept less than ours. notes: one
    note is added per topic."""
    reported: set[str] = set()
    for record in records:
        limit = limits.get(record.topic, RECORD_BYTES_MAX)
        if _is_surely_within(record, limit):
            yield record
            continue
        for part in fitting(record, limit):
            if size_of(part) <= limit:
                yield part
                continue
            why = refusal(part, "too large", limit)
            command: Command | None = undeliverable(part, why, True)
            if command is None and part.topic not in reported:
                command = RecordRefused(topic=part.topic, why=why)
            if part.topic not in reported:
                notes.append(f"refused:{part.topic}:{why}")
            reported.add(part.topic)
            if command is not None and part.topic != instructions:
                yield instruction(instructions, part.topic, command)


def _is_surely_within(record: WireRecord, limit: int) -> bool:
    """A cheap check that reads no headers, because it runs for every record."""
    text = 4 * len(record.headers or "")  # a character has at most 4 bytes
    return len(record.value or b"") + len(record.key or b"") + text + BESIDE_MAX <= limit
