"""Error classes that users see, and the reasons of refusals.

An error's message names the thing, its value, and what is allowed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class LakequeueError(Exception):
    """Base of every error that lakequeue raises on purpose."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in a definition or a configuration file.

    where: the location, such as ``queues[2] 'orders'``; key: the wrong key; value: its value;
    allowed: what is allowed, as part of a sentence.
    """

    where: str
    key: str
    value: object
    allowed: str

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.key}: {self.value!r} – {self.allowed}"


def first_line(error: Exception) -> str:
    """The first line of an error's text: Spark and Delta append pages of stack traces."""
    return (str(error) or type(error).__name__).strip().splitlines()[0]


class ConfigError(LakequeueError, ValueError):
    """A definition or a configuration was refused; the error lists every problem in it (Q7)."""

    def __init__(self, problems: tuple[Problem, ...] | list[Problem] | str) -> None:
        self.problems: tuple[Problem, ...] = () if isinstance(problems, str) else tuple(problems)
        super().__init__(
            problems if isinstance(problems, str) else "\n".join(str(p) for p in problems)
        )


def no_such_queue(queue: str, vpn: str, key: str = "queue") -> ConfigError:
    """The error for a queue that does not exist. key: the field that names it."""
    return ConfigError(
        f"{key}: {queue!r} – there is no such queue in VPN {vpn!r}; `lakequeue queues` lists the "
        "queues, `lakequeue define` creates one"
    )


REMEDIES = {  # by reason, for a refusal whose detail names no remedy
    "no_matching_destination": "check the name, and the queues' topics and filters",
    "broker_quota": "consume messages, or raise system.max_spool_usage",
    "vpn_quota": "consume messages, or raise max_spool_usage of the VPN",
    "queue_quota": "consume messages, or raise the queue's max_spool_usage or max_spool_messages",
    "message_too_large": "send less (headers count), or raise its max_message_size (at most 11MB)",
    "queue_shutdown": "its ingress is shut down; admin.shutdown(queue) opens it again",
    "low_priority_limit": "send later, or with a priority of 4 or more",
    "spool_files": "acknowledge or purge messages, or raise system.max_spool_files",
}


class Rejected(LakequeueError):
    """The engine refused a message; ``reason`` is one of `Reason`, ``queue`` the refusing queue."""

    def __init__(self, reason: str, queue: str | None = None, detail: str = "") -> None:
        self.reason = reason
        self.queue = queue
        self.detail = detail
        at = f" by queue {queue!r}" if queue else ""
        remedy = REMEDIES.get(reason)
        more = f": {detail}" if detail else ""
        if remedy and (not detail or reason == Reason.NO_MATCHING_DESTINATION):
            more += f" – {remedy}"
        super().__init__(f"message rejected{at}: {reason}{more}")


class LeaseLost(LakequeueError):
    """The message is no longer leased to this consumer (its lease ended or it was returned)."""


class Timeout(LakequeueError):
    """No answer came in time. The request may or may not have been carried out."""


class Moved(LakequeueError):
    """The queue is on another broker. Clients follow it automatically."""

    def __init__(self, sentence: str, hosts: dict[str, int]) -> None:
        self.hosts = hosts  # the numbers of the queue's brokers, by name
        super().__init__(sentence)


class PermissionDenied(LakequeueError):
    """The client may not send a command, or its signature is missing or invalid. ``reason`` is
    `permission_denied`; ``queue`` is the command's queue, if any."""

    def __init__(self, why: str, queue: str | None = None) -> None:
        self.reason = Reason.PERMISSION_DENIED.value
        self.queue = queue
        super().__init__(why)


class WindowFull(LakequeueError):
    """The producer's window is full, and the call must not wait (P5)."""


class NotConnected(LakequeueError):
    """Kafka does not answer, or the connection, producer or consumer is closed."""


class Reason(enum.StrEnum):
    """The reason why a message was refused, discarded or dead-lettered."""

    BROKER_QUOTA = "broker_quota"
    VPN_QUOTA = "vpn_quota"
    QUEUE_QUOTA = "queue_quota"
    MESSAGE_TOO_LARGE = "message_too_large"
    QUEUE_SHUTDOWN = "queue_shutdown"
    LOW_PRIORITY_LIMIT = "low_priority_limit"
    SPOOL_FILES = "spool_files"
    NO_MATCHING_DESTINATION = "no_matching_destination"
    PERMISSION_DENIED = "permission_denied"
    MALFORMED = "malformed"
    NO_TABLES = "no_tables"  # `durability: delta`, but the Delta tables are missing or behind
    SUPERSEDED = "superseded"  # a newer producer with the same id has started
    # Reasons of dead messages (X5).
    REFUSED_BY_KAFKA = "refused_by_kafka"  # Kafka refused the delivery, but not for its size
    EXPIRED = "expired"
    MAX_DELIVERIES = "max_deliveries"
    MAX_CANCELS = "max_cancels"
    REJECTED = "rejected"
