"""What brokers say to each other about where queues are (`state/mesh/keeper.py`).

One broker keeps the directory, at first the home's first. It has other brokers carry out what
changes a queue (`Carry`, `Carried`), tells all of them what stands in the directory (`Entries`),
and hears from them what clients said to the wrong one (`PassOn`). Before it is removed itself, it
hands the directory over (`BridgesKept`, `Keeps`, `KnowsKeeper`; `state/mesh/keepership.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Self

import msgspec

from .bounds import Count, Name, Partition, Text, Topic
from .mesh import BrokerNumber, Said, slices
from .signing import Speaker

COMMAND_BYTES_MAX = 1_000_000

State = Annotated[str, msgspec.Meta(max_length=20)]
CommandBytes = Annotated[bytes, msgspec.Meta(max_length=COMMAND_BYTES_MAX)]


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a queue is. hosts: its brokers' numbers, ascending, none where it is gone; type: see
    Q5; state: `there`, or what is being done: `placing`, `deleting`, `moving`; dead: its dead
    message queue; target: the topic that stands for its name (Q3); whole: its hosts
    follow from its definition, so that brokers that are added may be of them; owner, permission,
    permissions: who may change it, as its definition says; base: where a local queue was made, -1:
    where it is; reads: plain records are read for it there; captures: the expression of the topics
    that it captures, where it is one: else these are `target`."""

    hosts: list[BrokerNumber] = []
    type: Name = ""
    state: State = ""
    dead: Name = ""
    target: Text = ""
    whole: bool = False
    owner: Name | None = None
    permission: State = "delete"
    permissions: list[tuple[Name, State]] = []
    base: int = -1
    reads: bool = False
    captures: Text = ""


class Carry(Said, frozen=True):
    """Carry out a command of a VPN as if a client had given it to you, and say what came of it."""

    kind: ClassVar[str] = "carry"
    ticket: Count
    vpn: Name
    command: CommandBytes


class Carried(Said, frozen=True):
    """It is done; error: or it is refused, with this sentence and these problems, as a reply says
    them; about_values: whether the sentence is about what was given (ConfigError)."""

    kind: ClassVar[str] = "carried"
    ticket: Count
    error: str | None = None
    about_values: bool = False
    problems: list[tuple[str, str, str | int | float | None, str]] | None = None


class Entries(Said, frozen=True):
    """What the directory of a VPN says now about these queues."""

    kind: ClassVar[str] = "entries"
    vpn: Name
    names: list[Name]
    entries: list[Entry]

    def parts(self) -> Iterator[Self]:
        """See `Said.parts`."""
        both = zip(self.names, self.entries, strict=True)
        sizes = [
            4 * (len(name) + len(entry.target) + len(entry.captures))
            + 1_000 * (1 + len(entry.permissions))
            for name, entry in both
        ]
        for part in slices(sizes):
            yield type(self)(self.vpn, self.names[part], self.entries[part])


class PassOn(Said, frozen=True):
    """A client said this to a broker that does not keep the directory. speaker: who it was, where
    clients must prove that (`auth: required`): the broker that heard it has looked."""

    kind: ClassVar[str] = "pass_on"
    vpn: Name
    command: CommandBytes
    speaker: Speaker | None = None


class BridgesKept(Said, frozen=True):
    """To who is to keep the directory: these are the bridges of a VPN, as they are defined."""

    kind: ClassVar[str] = "bridges_kept"
    vpn: Name
    definitions: list[dict[str, Any]]

    def parts(self) -> Iterator[Self]:
        """See `Said.parts`."""
        sizes = [len(msgspec.msgpack.encode(one)) for one in self.definitions]
        for part in slices(sizes):
            yield type(self)(self.vpn, self.definitions[part])


class Keeps(Said, frozen=True):
    """Who keeps the directory, to all: from now on this broker does. partings, entries: how often
    removals were begun, and what was said in the directory so far; brokers: who hears this."""

    kind: ClassVar[str] = "keeps"
    keeper: BrokerNumber
    partings: Count
    entries: Count
    brokers: list[BrokerNumber]


class KnowsKeeper(Said, frozen=True):
    """To who keeps the directory now: I know it, and have heard all that was said before."""

    kind: ClassVar[str] = "knows_keeper"


class SayDefinition(Said, frozen=True):
    """Say how a queue of yours is defined (`PassOn` of its definition): a broker was added, and may
    be one of its hosts."""

    kind: ClassVar[str] = "say_definition"
    vpn: Name
    queue: Name


class QueueCaptures(Said, frozen=True):
    """To the keeper, from a host of a queue: it captures the topics of this expression, and an
    earlier version did not say so."""

    kind: ClassVar[str] = "queue_captures"
    vpn: Name
    queue: Name
    text: Text


class SaySinceDefined(Said, frozen=True):
    """From a new host of a queue (``asks``), to one that has it (``host``), by way of the keeper
    where they do not know each other yet: say what was said to you since it was defined. has: what
    the queue has subscribed to at the new host; None: it is not there yet."""

    kind: ClassVar[str] = "say_since_defined"
    vpn: Name
    queue: Name
    host: BrokerNumber
    asks: BrokerNumber
    has: list[Topic] | None = None


class SinceDefined(Said, frozen=True):
    """The answer to that, the same way: what was said to a queue's hosts since it was defined (Q2,
    H5). topics: subscribed to besides what who asks has, or the definition; gone: of these, those
    that were ended; ingress, egress: whether they are open."""

    kind: ClassVar[str] = "since_defined"
    vpn: Name
    queue: Name
    asks: BrokerNumber
    topics: list[Topic]
    gone: list[Topic]
    ingress: bool
    egress: bool

    def parts(self) -> Iterator[Self]:
        """See `Said.parts`."""
        both = [(t, True) for t in self.topics] + [(t, False) for t in self.gone]
        for part in slices([4 * len(t) for t, _ in both]) if both else (slice(0),):
            yield type(self)(
                self.vpn, self.queue, self.asks, [t for t, added in both[part] if added],
                [t for t, added in both[part] if not added], self.ingress, self.egress,
            )  # fmt: skip


class PassMessage(Said, frozen=True):
    """A message of no producer that counts, for a queue of yours: a record's columns. queue: the
    one that it is for, where no header says so."""

    kind: ClassVar[str] = "pass_message"
    vpn: Name
    topic: Topic
    partition: Partition
    offset: Count
    timestamp: int
    key: bytes | None
    value: bytes
    meta: bytes | None
    headers: str | None
    queue: Name
