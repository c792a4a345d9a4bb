"""The Kafka topics of VPNs and brokers, and the partitions of each broker.

A VPN's name is the prefix of its topics, so ACLs can separate tenants. A broker has topics of its
own: the log of its steps, messages from the engine to its loop, commands from the engine, and
messages from other brokers and homes. Clients never write to these.

The brokers of a home share the partitions of the topics that clients write to: partition *n* of a
VPN's commands is broker *n*'s, and each broker has a block of `PUBLISH_PARTITIONS` of the publish
topic. Adding a broker only adds partitions, and ACLs still apply per topic. Only this module
computes partitions.
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
MESH = "mesh"  # a broker's: messages from other brokers
BRIDGE_OUT = "bridge-out"  # a broker's: messages to other homes
BRIDGE_IN = "bridge-in"  # a VPN's: messages from other homes
BRIDGE_ANSWERS = "bridge-answers"  # a VPN's: answers to other homes
INSTRUCTIONS = "instructions"  # a broker's: commands from the engine (peers, limits, queues, time)
ENGINE = "engine"  # the engine's heartbeats

DIRECTORY_QUEUE = "queue/"  # prefix of the directory's keys for queues
# Prefix of the directory's keys for ends of bridges between homes. Earlier versions used "bridge/".
DIRECTORY_BRIDGE = "bridge-end/"
DIRECTORY = "directory"  # compacted: brokers, queues, bridges

OWN = (
    PUBLISH, COMMANDS, DELIVERIES, RECEIPTS, JOURNAL, REJECTED, STEPS, CONTROL, MESH, INSTRUCTIONS,
    ENGINE, DIRECTORY, BRIDGE_OUT, BRIDGE_IN, BRIDGE_ANSWERS,
)  # fmt: skip


PUBLISH_PARTITIONS = 8  # per broker and VPN


def commands_partition(broker: int) -> int:
    """The partition of each VPN's commands topic that belongs to this broker."""
    return broker


def bridge_partition(broker: int) -> int:
    """The partition of a VPN's topics for bridges between homes that belongs to this broker."""
    return broker


def publish_partitions(broker: int) -> range:
    """The partitions of each VPN's publish topic that belong to this broker."""
    return range(broker * PUBLISH_PARTITIONS, (broker + 1) * PUBLISH_PARTITIONS)


def topic(owner: str, kind: str) -> str:
    """The name of a VPN's or broker's topic: ``topic("default", "commands")`` →
    ``"default.commands"``."""
    return f"{owner}.{kind}"


def split(name: str) -> tuple[str, str] | None:
    """``"default.commands"`` → ``("default", "commands")``; None for any other topic."""
    vpn, dot, kind = name.rpartition(".")
    return (vpn, kind) if dot and vpn and kind in OWN else None


def kind(name: str) -> str:
    """``"default.commands"`` → ``"commands"``; empty for any other topic."""
    own = split(name)
    return own[1] if own else ""


def vpn_of(name: str) -> str | None:
    """The VPN of one of our topics, including clients' inboxes; None for any other topic."""
    own = split(name)
    if own is not None:
        return own[0]
    vpn, found, _ = name.partition(f".{DELIVERIES}.")
    return vpn if found else None


def is_instruction(name: str) -> bool:
    """Whether a topic carries the engine's commands to a broker, which no client may send."""
    return kind(name) == INSTRUCTIONS


def is_within(name: str, owner: str) -> bool:
    """Whether an ACL for the prefix of a VPN's or broker's topics allows this topic."""
    return name.startswith(f"{owner}.")


def is_inbox_of(vpn: str, name: str) -> bool:
    """Whether a topic may be an inbox of a VPN's clients: its deliveries topic, or a topic whose
    name begins with that one's, unless it is another topic of the engine."""
    own = topic(vpn, DELIVERIES)
    return name == own or (name.startswith(f"{own}.") and split(name) is None)
