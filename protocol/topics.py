"""The Kafka topics of a message VPN. The VPN's name is the prefix, so ACLs are tenant borders.

A broker has two of its own: the log of its steps, and what the engine says to its loop. A VPN's
`commands` and `publish` are shared by all brokers, each with partitions of its own, by its number.
So an ACL is for a topic, and a broker more is partitions more.
"""

from __future__ import annotations

PUBLISH = "publish"
COMMANDS = "commands"
DELIVERIES = "deliveries"
RECEIPTS = "receipts"
JOURNAL = "journal"
REJECTED = "rejected"
STEPS = "steps"
CONTROL = "control"
ENGINE = "engine"  # heartbeats: the engine says that it lives

DIRECTORY = "directory"  # compacted: which brokers there are
PUBLISH_PARTITIONS = 8  # of each broker; a producer writes to one of them

OWN = (
    PUBLISH, COMMANDS, DELIVERIES, RECEIPTS, JOURNAL, REJECTED, STEPS, CONTROL, ENGINE, DIRECTORY,
)  # fmt: skip


def topic(vpn: str, kind: str) -> str:
    """The name of a VPN's topic: ``topic("default", "commands")`` → ``"default.commands"``."""
    return f"{vpn}.{kind}"


def commands_partition(number: int) -> int:
    """The partition of a VPN's `commands` that the broker with this number reads."""
    return number


def publish_partitions(number: int) -> range:
    """The partitions of a VPN's `publish` that the broker with this number reads."""
    return range(number * PUBLISH_PARTITIONS, (number + 1) * PUBLISH_PARTITIONS)


def split(name: str) -> tuple[str, str] | None:
    """``"default.commands"`` → ``("default", "commands")``; None for a topic that is not ours."""
    vpn, dot, kind = name.rpartition(".")
    return (vpn, kind) if dot and vpn and kind in OWN else None


def is_inbox_of(vpn: str, name: str) -> bool:
    """Whether a VPN's clients may be answered there: in its deliveries topic, or in one of theirs
    whose name begins with it. Never in another topic of the engine's, this VPN's or another's."""
    own = topic(vpn, DELIVERIES)
    return name == own or (name.startswith(f"{own}.") and split(name) is None)
