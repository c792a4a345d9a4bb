"""Commands of clients, administrators and the engine, as JSON records.

Each is one JSON object on ``<vpn>.commands``, to which every client of a VPN may write, or from the
engine on ``<broker>.instructions``, where the record's key names the VPN. Commands that only the
engine may give (`OF_ENGINE`) are refused on ``<vpn>.commands``. The field ``command`` names the
kind. Unknown fields are refused, so that typing errors are noticed. Ids are ranges in text
(`ids.py`), times are in ms. A command with ``reply`` gets one record as its answer, in the inbox
that it names.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .bounds import (
    CANNOT_DECODE,
    Count,
    DurationMs,
    Ids,
    Name,
    Number,
    OrderKey,
    Partition,
    Text,
    Topic,
    explain,
)
from .mesh_messages import BrokerNumber


class Inbox(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The Kafka topic and partition in which a client reads."""

    topic: Topic
    partition: Partition = 0


class ReplyTo(Inbox, frozen=True):
    """The inbox for the answer, which repeats ``request``."""

    request: Name = ""


class Command(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="command", forbid_unknown_fields=True
):
    """Base of all commands."""

    reply: ReplyTo | None = None


# ---------------------------------------------------------------- definitions


class Begin(Command, frozen=True, tag="begin"):
    """Marks a start of the engine: commands before it were for an earlier home. joins_homes: the
    engine serves bridges to other homes."""

    epoch: Count
    joins_homes: bool = True


class Configure(Command, frozen=True, tag="configure"):
    """Set the limits of the system and of VPNs."""

    system: dict[str, Any] = {}
    vpns: dict[str, Any] = {}


class KnownClient(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A client that may send commands: its VPN, name, key (sealed, see `signing`), and whether it
    is an administrator."""

    vpn: Name
    name: Name
    sealed: bytes
    admin: bool = False


class Clients(Command, frozen=True, tag="clients"):
    """Set which clients may send commands. ``required``: a VPN's unsigned commands are refused."""

    required: bool
    clients: list[KnownClient] = []


class Peers(Command, frozen=True, tag="peers"):
    """Set the home's brokers with their numbers, and their groups."""

    brokers: dict[Name, BrokerNumber]
    groups: dict[Name, Name] = {}


class Define(Command, frozen=True, tag="define"):
    """Define a queue, or define it again (Q9). Missing keys get their defaults; with
    ``replace=false`` they keep their values, and null sets a key's default."""

    definition: dict[str, Any]
    replace: bool = True


class Delete(Command, frozen=True, tag="delete"):
    """Delete a queue with its messages (S7)."""

    queue: Name


class MoveQueue(Command, frozen=True, tag="move_queue"):
    """Move a local queue with its messages to another broker."""

    queue: Name
    broker: Name


# ---------------------------------------------------------------- sessions


class Subscribe(Command, frozen=True, tag="subscribe"):
    """Bind a consumer to a queue. ``subscription``: an id that was never used in the VPN."""

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
    """Change a subscription's own backlog (B3). Answer: `{"backlog": number}`, as it applies."""

    queue: Name
    subscription: Name
    max_backlog: Number


class Unsubscribe(Command, frozen=True, tag="unsubscribe"):
    """End a subscription; its leased messages return to the queue (L1)."""

    queue: Name
    subscription: Name


class Heartbeat(Command, frozen=True, tag="heartbeat"):
    """Keep the session alive."""

    session: Name


class Bye(Command, frozen=True, tag="bye"):
    """End the session and all its subscriptions."""

    session: Name


# ---------------------------------------------------------------- settling


class Named(Command, frozen=True, kw_only=True):
    """Base of commands that name messages by id. An id is valid in one home only.

    epoch: the home's, from the delivery or an answer; 0: none given. The engine refuses a command
    with the epoch of another home.
    """

    epoch: Count = 0


class Ack(Named, frozen=True, kw_only=True, tag="ack"):
    """Remove messages: those in ``ids``, all that the subscription has received ``up_to`` an id, or
    all that match ``where``."""

    queue: Name
    subscription: Name = ""
    ids: Ids | None = None
    up_to: Ids | None = None
    where: Text | None = None
    received: Count = 0
    quiet: bool = False


class TransportAck(Named, frozen=True, kw_only=True, tag="transport_ack"):
    """Confirm that the flow has arrived up to number ``received`` (C1)."""

    queue: Name
    subscription: Name
    received: Count


class Cancel(Named, frozen=True, kw_only=True, tag="cancel"):
    """Return messages to the queue (L6), after ``delay_ms`` or the queue's back-off (L11)."""

    queue: Name
    subscription: Name
    ids: Ids
    delay_ms: DurationMs | None = None


class Reject(Named, frozen=True, kw_only=True, tag="reject"):
    """Send messages straight to the dead message queue (C7)."""

    queue: Name
    subscription: Name
    ids: Ids
    reason: Text = ""


class Renew(Named, frozen=True, kw_only=True, tag="renew"):
    """Extend leases (L10) by ``period_ms`` from now, default the queue's lease period. A lease
    without end stays so. Answer: ``{"lease_ms": …, "renewed": ids}``."""

    queue: Name
    subscription: Name
    ids: Ids
    period_ms: DurationMs | None = None


class Returned(Named, frozen=True, kw_only=True, tag="return"):
    """Return messages untouched: this counts neither as a cancel nor as an attempt (L5), even after
    the lease has ended. Send it once."""

    queue: Name
    subscription: Name
    ids: Ids


# ---------------------------------------------------------------- administration and time


class Queues(Command, frozen=True, tag="queues"):
    """The VPN's queues, sorted by name, each as in `describe`. If the answer has ``more``, ask
    again with it as ``after``."""

    after: Name = ""


class Captures(Command, frozen=True, tag="captures"):
    """The topics and expressions that the VPN's queues capture. If the answer has ``more``, ask
    again with it as ``start``."""

    start: Count = 0


class Usage(Command, frozen=True, tag="usage"):
    """How much of their limits the VPN and the broker use, and refusals that name no queue."""


class Describe(Command, frozen=True, tag="describe"):
    """Everything about one queue."""

    queue: Name


class Browse(Command, frozen=True, tag="browse"):
    """Look at messages without taking them (R6). ``state``: ready, leased or delayed. If the answer
    has ``more``, ask again with it as ``start``."""

    queue: Name
    where: Text | None = None
    state: Text | None = None
    limit: Count = 100
    start: OrderKey | None = None


class Change(Named, frozen=True, kw_only=True):
    """Base of an administrator's changes to messages of a queue: all, or by predicate or ids (R6).

    dry_run: change nothing, and answer how many messages would change; who, why: for the journal.
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
    """Send dead messages back to the queue they died in: all, or by predicate or ids (X6)."""

    queue: Name
    where: Text | None = None
    ids: Ids | None = None


class Shutdown(Command, frozen=True, tag="shutdown"):
    """Shut down or open ingress and egress of a queue (H5); sets both."""

    queue: Name
    ingress: bool = False
    egress: bool = False


class SubscribeTopic(Command, frozen=True, tag="subscribe_topic"):
    """Add a topic or pattern whose messages the queue also gets."""

    queue: Name
    topic: Topic


class UnsubscribeTopic(Command, frozen=True, tag="unsubscribe_topic"):
    """End a topic subscription; messages that were spooled for it are still delivered (S7)."""

    queue: Name
    topic: Topic


class Events(Command, frozen=True, tag="events"):
    """The newest notable events, oldest first."""

    limit: Count = 1000


class Bridge(Command, frozen=True, tag="bridge"):
    """Create a bridge, or define it again (H1–H3). Without ``from`` it begins at this broker.
    ``replace``: as in `define`."""

    definition: dict[str, Any]
    replace: bool = True


class DeleteBridge(Command, frozen=True, tag="delete_bridge"):
    """Delete a bridge with its waiting messages. Answer: the number of these messages. ``waited``:
    that number, between brokers."""

    name: Name
    waited: Count | None = None


class Bridges(Command, frozen=True, tag="bridges"):
    """The names of the VPN's bridges, sorted."""


class DescribeBridge(Command, frozen=True, tag="describe_bridge"):
    """One bridge: its waiting messages, those in transit, and the endpoints that block it."""

    name: Name


class RecordsLost(Command, frozen=True, tag="records_lost"):
    """Record an event: Kafka deleted records of a topic before they were read, or the topic was
    recreated. ``reader``: ``engine``, or ``tables`` if only the Delta tables lack them."""

    topic: Topic
    records: Count
    reader: Name = "engine"
    event: Name = "records_lost"


class Stuck(Command, frozen=True, tag="stuck"):
    """Record an event: this broker took no more steps and was restarted."""

    why: Text


class RecordRefused(Command, frozen=True, tag="record_refused"):
    """Record an event: Kafka permanently refuses a record for this topic."""

    topic: Topic
    why: Text


class Undeliverable(Command, frozen=True, tag="undeliverable"):
    """Kafka permanently refuses the deliveries of these messages, so they become dead messages.
    ``reason``: one of `Reason`."""

    queue: Name
    ids: Ids
    topic: Topic
    reason: Name
    why: Text


class BeginAgain(Command, frozen=True, tag="begin_again"):
    """This queue was rebuilt from the Delta tables: end its leases, and count deliveries from 0
    (R3)."""

    queue: Name


class Tables(Command, frozen=True, tag="tables"):
    """Report how far the Delta tables are written, for receipts with `durability: delta`.
    ``written``: whether there are tables, null for no change; ``stopped``: the reason why they
    cannot be written now, empty if they can."""

    written: bool | None = True
    up_to: dict[Text, Count] = {}
    stopped: Text | None = None


class ExistingTopics(Command, frozen=True, tag="existing_topics"):
    """Report which of the topics that queues name exist in Kafka, sorted."""

    topics: list[Topic]


class Tick(Command, frozen=True, tag="tick"):
    """Time has passed: act on deadlines that are due."""


AnyCommand = (
    Begin | Configure | Clients | Peers | Define | Delete | Subscribe | SetBacklog | Unsubscribe
    | Heartbeat | Bye | Ack | TransportAck | Cancel | Reject | Renew | Returned | Queues | Usage
    | Describe | Browse | Purge | Move | Edit | Redrive | Shutdown | SubscribeTopic
    | UnsubscribeTopic | Events | RecordsLost | Stuck | BeginAgain | Tick | Captures | Bridge
    | DeleteBridge | Bridges | DescribeBridge | MoveQueue | Tables | RecordRefused | Undeliverable
    | ExistingTopics
)  # fmt: skip

# The keeper of the directory executes these commands; other brokers forward them.
OF_KEEPER = (Define, Delete, MoveQueue)
KEEPER = 0  # the keeper of a new home; if that broker is removed, another one takes over
# Commands of the engine, not of a tenant.
OF_ENGINE = (
    Configure, Clients, Peers, RecordsLost, Stuck, BeginAgain, Tables, Tick, RecordRefused,
    Undeliverable, ExistingTopics,
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
    except CANNOT_DECODE as e:
        raise ValueError(f"not a command: {e}") from e


class _Asks(msgspec.Struct):
    reply: ReplyTo | None = None


_asks_decoder = msgspec.json.Decoder(_Asks)


def reply_of(value: bytes | None) -> ReplyTo | None:
    """The inbox that a malformed command names for its answer, if any."""
    try:
        return _asks_decoder.decode(value or b"").reply
    except CANNOT_DECODE:
        return None


def encode_command(command: Command) -> bytes:
    """Write a command as its record value."""
    return _encoder.encode(command)
