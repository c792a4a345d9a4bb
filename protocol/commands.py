"""Commands: what clients, administrators and the driver say to the engine, as JSON records.

Each is one JSON object on ``<vpn>.commands``, or, from the engine, on ``<broker>.instructions``,
where the record's key names the VPN. What only the engine may say (`OF_ENGINE`) is refused on the
former, to which every client of a VPN may write. The field ``command`` names its kind. Unknown
fields are refused, so that a typing error is heard. Ids are ranges in text (`ids.py`), times are
ms.
A command with ``reply`` is answered by one record in the inbox that it names.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .bounds import Count, DurationMs, Ids, Name, Number, OrderKey, Partition, Text, Topic, explain
from .mesh_envelope import BrokerNumber


class Inbox(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a client reads: a Kafka topic and one partition of it."""

    topic: Topic
    partition: Partition = 0


class ReplyTo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the answer goes; ``request`` is repeated in it."""

    topic: Topic
    partition: Partition = 0
    request: Name = ""


class Command(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="command", forbid_unknown_fields=True
):
    """Base of all commands."""

    reply: ReplyTo | None = None


# ---------------------------------------------------------------- definitions


class Begin(Command, frozen=True, tag="begin"):
    """A home begins in this topic: what stands before it was for an earlier one. The engine says
    so in each VPN, whenever it starts."""

    epoch: Count


class Configure(Command, frozen=True, tag="configure"):
    """Set the limits of the system and of VPNs (sections ``system`` and ``vpns``)."""

    system: dict[str, Any] = {}
    vpns: dict[str, Any] = {}


class KnownClient(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A client that may speak: its VPN, name, key (sealed, see `signing`), and whether it is an
    administrator."""

    vpn: Name
    name: Name
    sealed: bytes
    admin: bool = False


class Clients(Command, frozen=True, tag="clients"):
    """Who may speak, and whether it must be proven: with ``required`` every command from a VPN's
    topic is signed, or refused."""

    required: bool
    clients: list[KnownClient] = []


class Peers(Command, frozen=True, tag="peers"):
    """The brokers of the home, by name, with their numbers, this one among them. The engine says so
    to each broker of a home that has several. groups: of those that are in one."""

    brokers: dict[Name, BrokerNumber]
    groups: dict[Name, Name] = {}


class Define(Command, frozen=True, tag="define"):
    """Define a queue, or define it again (Q9). replace: keys that are not named have their default
    then; else they stay as they are, and null gives one its default."""

    definition: dict[str, Any]
    replace: bool = True


class Delete(Command, frozen=True, tag="delete"):
    """Delete a queue; what it holds is gone, not delivered (S7)."""

    queue: Name


class MoveQueue(Command, frozen=True, tag="move_queue"):
    """Move a local queue with its messages to another broker."""

    queue: Name
    broker: Name


# ---------------------------------------------------------------- sessions


class Subscribe(Command, frozen=True, tag="subscribe"):
    """Bind a consumer to a queue. The client chooses the subscription's id, unique per VPN. A queue
    and a session have at most 10,000 subscriptions, a session to one queue 256.

    session: the connection that sends heartbeats for it; acks: ``explicit``, or ``none`` for
    removal on send; framing: ``single`` (a record a message) or ``batch``; transport_acks: the
    client says what has arrived, and what it does not is sent again (C1, C2); priority: with
    fairness model ``fast`` the higher is asked first (F1).
    """

    queue: Name
    subscription: Name
    inbox: Inbox
    session: Name = ""
    name: Name = ""
    max_backlog: Number | None = None
    filter: Text | None = None
    acks: Name = "explicit"
    framing: Name = "single"
    transport_acks: bool = False
    priority: Number = 0


class SetBacklog(Command, frozen=True, tag="set_backlog"):
    """Change a subscription's own backlog (B3)."""

    queue: Name
    subscription: Name
    max_backlog: Number


class Unsubscribe(Command, frozen=True, tag="unsubscribe"):
    """End a subscription; what it holds returns to the queue (L1)."""

    queue: Name
    subscription: Name


class Heartbeat(Command, frozen=True, tag="heartbeat"):
    """The session is alive."""

    session: Name


class Bye(Command, frozen=True, tag="bye"):
    """The session ends: all its subscriptions do."""

    session: Name


# ---------------------------------------------------------------- settling


class Named(Command, frozen=True, kw_only=True):
    """A command for messages of one home: their ids mean something there only.

    epoch: the home's, from the delivery or an answer; 0 says nothing. With another epoch than the
    home's a command is refused.
    """

    epoch: Count = 0


class Ack(Named, frozen=True, kw_only=True, tag="ack"):
    """Messages are done: by ``ids``, by ``up_to`` (all held, up to this id), or by ``where``.

    received: as in `transport_ack`, which then need not be sent; 0 says nothing. quiet: it is said
    to other brokers too; of ids that are not here nothing is told.
    """

    queue: Name
    subscription: Name = ""
    ids: Ids | None = None
    up_to: Ids | None = None
    where: Text | None = None
    received: Count = 0
    quiet: bool = False


class TransportAck(Named, frozen=True, kw_only=True, tag="transport_ack"):
    """Everything up to the number ``received`` of the subscription's flow has arrived at the client
    (C1); nothing leaves the queue."""

    queue: Name
    subscription: Name
    received: Count


class Cancel(Named, frozen=True, kw_only=True, tag="cancel"):
    """Messages come back to the queue (L6), after ``delay_ms`` or the queue's back-off (L11)."""

    queue: Name
    subscription: Name
    ids: Ids
    delay_ms: DurationMs | None = None


class Reject(Named, frozen=True, kw_only=True, tag="reject"):
    """Messages go straight to the dead message queue (C7)."""

    queue: Name
    subscription: Name
    ids: Ids
    reason: Text = ""


class Renew(Named, frozen=True, kw_only=True, tag="renew"):
    """Extend leases (L10); ``period_ms`` counts from now, default the queue's lease period.

    Answered with ``{"lease_ms": …, "renewed": ids}``; a lease without end stays without end.
    """

    queue: Name
    subscription: Name
    ids: Ids
    period_ms: DurationMs | None = None


class Returned(Named, frozen=True, kw_only=True, tag="return"):
    """Messages come back untouched, as at a close: neither a cancel nor an attempt (L5). Where the
    lease or the subscription has ended already, that delivery counts no more. Say it once."""

    queue: Name
    subscription: Name
    ids: Ids


# ---------------------------------------------------------------- administration and time


class Queues(Command, frozen=True, tag="queues"):
    """The queues of the VPN by name, each as `Describe` gives it; after: only those behind this
    name. Where not all are given, the answer's ``more`` is the ``after`` to ask with next."""

    after: Name = ""


class Captures(Command, frozen=True, tag="captures"):
    """The topics, and the expressions, that the queues of the VPN capture, as a list of texts. The
    engine asks when it starts. start: the part of the list to begin with. Where not all are given,
    the answer's ``more`` is the ``start`` to ask with next."""

    start: Count = 0


class Usage(Command, frozen=True, tag="usage"):
    """What the VPN and the broker use of their limits, and refusals that are no queue's."""


class Describe(Command, frozen=True, tag="describe"):
    """Everything about one queue."""

    queue: Name


class Browse(Command, frozen=True, tag="browse"):
    """Look at messages without taking them (R6). Where not all that is asked for is given, the
    answer's ``more`` is the ``start`` to ask with next: a place in the queue's order."""

    queue: Name
    where: Text | None = None
    state: Text | None = None
    limit: Count = 100
    start: OrderKey | None = None


class Change(Named, frozen=True, kw_only=True):
    """An administrator changes messages of a queue, all or by predicate or ids (R6).

    dry_run: nothing is changed, and the answer is how many would be; who, why: for the journal.
    """

    queue: Name
    where: Text | None = None
    ids: Ids | None = None
    dry_run: bool = False
    who: Name = ""
    why: Name = ""


class Purge(Change, frozen=True, kw_only=True, tag="purge"):
    """Remove messages."""


class Move(Change, frozen=True, kw_only=True, tag="move"):
    """Put messages into another queue of the VPN; leased ones stay."""

    to: Name


class Edit(Change, frozen=True, kw_only=True, tag="edit"):
    """Change headers of messages in this queue: a text for each name, null removes the header."""

    headers: dict[Name, Text | None]


class Redrive(Named, frozen=True, kw_only=True, tag="redrive"):
    """Dead messages go back to the queue they died in, all or by predicate or ids (X6)."""

    queue: Name
    where: Text | None = None
    ids: Ids | None = None


class Shutdown(Command, frozen=True, tag="shutdown"):
    """Shut down or open ingress and egress of a queue (H5); sets both."""

    queue: Name
    ingress: bool = False
    egress: bool = False


class SubscribeTopic(Command, frozen=True, tag="subscribe_topic"):
    """The queue takes what is published to a topic, or to all that a pattern matches, as well."""

    queue: Name
    topic: Topic


class UnsubscribeTopic(Command, frozen=True, tag="unsubscribe_topic"):
    """End a topic subscription; what was spooled for it is still delivered (S7)."""

    queue: Name
    topic: Topic


class Events(Command, frozen=True, tag="events"):
    """The newest notable events, oldest first."""

    limit: Count = 1000


class Bridge(Command, frozen=True, tag="bridge"):
    """Make a bridge, or define it again (H1–H3). Without ``from`` it begins at the broker that is
    told. replace: as with `define`."""

    definition: dict[str, Any]
    replace: bool = True


class DeleteBridge(Command, frozen=True, tag="delete_bridge"):
    """Delete a bridge; what waits at its near end is gone, not sent. Answers how many that were."""

    name: Name


class Bridges(Command, frozen=True, tag="bridges"):
    """The names of the VPN's bridges, sorted."""


class DescribeBridge(Command, frozen=True, tag="describe_bridge"):
    """Everything about one bridge: what waits, what is on its way, which endpoints hold it."""

    name: Name


class RecordsLost(Command, frozen=True, tag="records_lost"):
    """Kafka deleted records of a topic before they were read, or the topic is not what it was: the
    engine says so, for the events. reader: ``engine``, or ``tables`` where only the Delta tables
    lack them. event: its name."""

    topic: Topic
    records: Count
    reader: Name = "engine"
    event: Name = "records_lost"


class Stuck(Command, frozen=True, tag="stuck"):
    """The engine started this broker again, since it took no step any more; for the events."""

    why: Text


class RecordRefused(Command, frozen=True, tag="record_refused"):
    """Kafka did not take a record that was for this topic, and will not; for the events."""

    topic: Topic
    why: Text


class Undeliverable(Command, frozen=True, tag="undeliverable"):
    """Kafka did not take these messages' deliveries for a topic, and will not: nobody will ever get
    them. So they die. reason: one of `Reason`."""

    queue: Name
    ids: Ids
    topic: Topic
    reason: Name
    why: Text


class BeginAgain(Command, frozen=True, tag="begin_again"):
    """The state of this queue was made again from the Delta tables: leases end, deliveries count
    from nothing (R3). The engine says so when it starts on a home that was rebuilt."""

    queue: Name


class Tables(Command, frozen=True, tag="tables"):
    """How far the Delta tables are: of ``topic/partition`` they have all before an offset. The
    engine says so, for receipts that wait for it (`durability: delta`). written: there are such
    tables at all; None: as was said before. stopped: why they cannot be written now, empty when
    they can be again; for the events."""

    written: bool | None = True
    up_to: dict[Text, Count] = {}
    stopped: Text | None = None


class Tick(Command, frozen=True, tag="tick"):
    """Time has passed: deadlines that are due are acted on."""


AnyCommand = (
    Begin | Configure | Clients | Peers | Define | Delete | Subscribe | SetBacklog | Unsubscribe
    | Heartbeat | Bye | Ack | TransportAck | Cancel | Reject | Renew | Returned | Queues | Usage
    | Describe | Browse | Purge | Move | Edit | Redrive | Shutdown | SubscribeTopic
    | UnsubscribeTopic | Events | RecordsLost | Stuck | BeginAgain | Tick | Captures | Bridge
    | DeleteBridge | Bridges | DescribeBridge | MoveQueue | Tables | RecordRefused | Undeliverable
)  # fmt: skip

# Who keeps the directory decides; others pass these on.
OF_KEEPER = (Define, Delete, MoveQueue)
KEEPER = 0  # its number at first; who reads on for that broker, where it is gone, knows it
# Of no tenant.
OF_ENGINE = (
    Configure, Clients, Peers, RecordsLost, Stuck, BeginAgain, Tables, Tick, RecordRefused,
    Undeliverable,
)  # fmt: skip

_decoder = msgspec.json.Decoder(AnyCommand)
_encoder = msgspec.json.Encoder()


def decode_command(value: bytes | None) -> AnyCommand:
    """Read one command record; raises ValueError with a sentence for anything else."""
    try:
        command: AnyCommand = _decoder.decode(value or b"")
        return command
    except msgspec.ValidationError as e:
        raise ValueError(f"not a command: {explain(e, value or b'')}") from e
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ValueError(f"not a command: {e}") from e


class _Asks(msgspec.Struct):
    reply: ReplyTo | None = None


_asks_decoder = msgspec.json.Decoder(_Asks)


def reply_of(value: bytes | None) -> ReplyTo | None:
    """Where an answer is wanted by a record that is otherwise no command."""
    try:
        return _asks_decoder.decode(value or b"").reply
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        return None


def encode_command(command: Command) -> bytes:
    """Write a command as its record value."""
    return _encoder.encode(command)
