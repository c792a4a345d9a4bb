"""The Kafka topics of a message VPN. The VPN's name is the prefix, so ACLs are tenant borders.

A broker has four of its own: the log of its steps, what the engine says to its loop, what the
engine says to the broker itself, and what other brokers say to it. No client of any VPN writes
there.

Of the topics that clients write to, partitions are shared out among the brokers of a home by their
numbers: of a VPN's commands, partition *n* is broker *n*'s; of its publish topic, a block of
`PUBLISH_PARTITIONS`. So a home with one broker has what it always had, a broker that is added adds
partitions, and ACLs stay per topic. Nobody else computes this.
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
MESH = "mesh"  # what other brokers say to this one
BRIDGE_OUT = "bridge-out"  # a broker's: what it says to other homes
BRIDGE_IN = "bridge-in"  # a VPN's: what other homes say to it
BRIDGE_ANSWERS = "bridge-answers"  # a VPN's: what it answers them
INSTRUCTIONS = "instructions"  # what the engine says to this one: peers, limits, queues, time
ENGINE = "engine"  # heartbeats: the engine says that it lives

DIRECTORY_QUEUE = "queue/"  # keys of the directory: where the queue of this name is
DIRECTORY_BRIDGE = "bridge/"  # where bridges between homes are
DIRECTORY = "directory"  # compacted: which brokers there are

OWN = (
    PUBLISH, COMMANDS, DELIVERIES, RECEIPTS, JOURNAL, REJECTED, STEPS, CONTROL, MESH, INSTRUCTIONS,
    ENGINE, DIRECTORY, BRIDGE_OUT, BRIDGE_IN, BRIDGE_ANSWERS,
)  # fmt: skip


PUBLISH_PARTITIONS = 8  # of one broker, in each VPN


def commands_partition(broker: int) -> int:
    """The partition of each VPN's commands topic that the broker with this number takes."""
    return broker


def bridge_partition(broker: int) -> int:
    """The partition of a VPN's topics for bridges between homes that this broker takes, and in
    which it answers."""
    return broker


def publish_partitions(broker: int) -> range:
    """The partitions of each VPN's publish topic that the broker with this number takes."""
    return range(broker * PUBLISH_PARTITIONS, (broker + 1) * PUBLISH_PARTITIONS)


def topic(vpn: str, kind: str) -> str:
    """The name of a VPN's topic: ``topic("default", "commands")`` → ``"default.commands"``."""
    return f"{vpn}.{kind}"


def split(name: str) -> tuple[str, str] | None:
    """``"default.commands"`` → ``("default", "commands")``; None for a topic that is not ours."""
    vpn, dot, kind = name.rpartition(".")
    return (vpn, kind) if dot and vpn and kind in OWN else None


def vpn_of(name: str) -> str | None:
    """The VPN of one of our topics, clients' inboxes among them; None for a topic that is not."""
    own = split(name)
    if own is not None:
        return own[0]
    vpn, found, _ = name.partition(f".{DELIVERIES}.")
    return vpn if found else None


def is_instruction(name: str) -> bool:
    """Whether a topic holds what the engine says to a broker: commands that no client may give."""
    own = split(name)
    return own is not None and own[1] == INSTRUCTIONS


def is_mesh(name: str) -> bool:
    """Whether a topic holds what brokers say to one. It is made before anybody hears of that
    broker, and no client may name it."""
    own = split(name)
    return own is not None and own[1] == MESH


def is_within(name: str, owner: str) -> bool:
    """Whether an ACL for the prefix of an owner's topics, a VPN's or a broker's, opens this one."""
    return name.startswith(f"{owner}.")


def is_inbox_of(vpn: str, name: str) -> bool:
    """Whether a VPN's clients may be answered there: in its deliveries topic, or in one of theirs
    whose name begins with it. Never in another topic of the engine's, this VPN's or another's."""
    own = topic(vpn, DELIVERIES)
    return name == own or (name.startswith(f"{own}.") and split(name) is None)
