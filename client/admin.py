"""The administration interface of a connection: define, look, change, move (R6, Q7, Q9, S7)."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ..protocol import ConfigError, LakequeueError, commands
from ..protocol.bounds import NAME_CHARACTERS_MAX, shown
from ..protocol.checked import checked
from ..protocol.descriptions import add_up, add_up_usage
from ..protocol.patterns import kind_of
from .message import BrowsedMessage, moment
from .session.all_hosts import change, merged, remove
from .session.session import Session
from .values import function_of, ids_text, text_of, truth

MOVE_TIMEOUT_S = 300.0
# By name: it stands above the client, and needs packages that only a replay needs.
REPLAY = "lakequeue.lake.replaying:replay"


@dataclass(frozen=True, slots=True)
class Redriven:
    """The outcome of `Admin.redrive`.

    moved, stayed: numbers of messages. queues: how many went to each queue. why: how many stayed,
    by reason: a reason for refusing a message, or `leased` (a consumer of the dead message queue
    holds it), `not_dead` (it was published there), `no_such_queue`, `filter`,
    `already_there`, `keeps_last_message`, `failed`.
    """

    moved: int
    stayed: int
    queues: dict[str, int]
    why: dict[str, int]


@dataclass(frozen=True, slots=True)
class Changed:
    """The outcome of `Admin.move` or `Admin.edit`, or what it would be.

    count: messages changed. stayed: messages selected but not changed. why: how many stayed, by
    reason: a reason for refusing a message, or `leased`, `filter`, `already_there`,
    `keeps_last_message`, `edited_too_much`, `payload_missing`.
    """

    count: int
    stayed: int
    why: dict[str, int]


def _name(value: str | None, what: str) -> str:
    """A name that may be left out."""
    return "" if value is None or value == "" else text_of(value, what, NAME_CHARACTERS_MAX)


class Admin:
    """Administration of queues; made by `Connection.admin`.

    Every call waits for the engine's answer. All raise ConfigError for a wrong argument or an
    unknown queue, PermissionDenied if this client may not do it, Timeout if the engine does not
    answer within 30 s, and NotConnected if the connection is closed.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._epoch = session.epoch  # of the home whose messages were seen last

    def define(self, definition: dict[str, Any], replace: bool = False) -> None:
        """Define a queue, or change its definition (Q9).

        definition: the queue's keys, such as ``{"name": "orders", "message_type": "json"}``. In a
        new definition, keys left out keep their values and None restores a key's default. replace:
        keys left out get their defaults too. Raises ConfigError with every problem found.
        """
        if not isinstance(definition, dict):
            raise ConfigError(
                f"definition: {shown(definition)} – allowed is a dict of one queue's keys; "
                "`lakequeue define FILE` reads a file"
            )
        truth(replace, "replace")
        self._session.request(commands.Define(definition=definition, replace=replace))

    def delete(self, queue: str) -> None:
        """Delete a queue with its messages, which are not delivered (S7)."""
        self._session.request(commands.Delete(queue=queue))

    def queues(self) -> list[dict[str, Any]]:
        """All queues of the VPN, by name, each as `describe` returns it with its `broker`."""
        session = self._session
        found = session.request_of_each(
            lambda broker: session.request_list(commands.Queues(), "after", broker=broker)
        )
        by_name: dict[str, dict[str, Any]] = {}
        for queue in found:
            by_name.setdefault(queue["name"], {})[queue["broker"]] = queue
        return self._seen([add_up(parts) for _, parts in sorted(by_name.items())])

    def move_queue(self, queue: str, broker: str, pause: bool = False) -> None:
        """Move a LocalQueue with its messages to another broker while it is in use.

        Returns when it has moved, at most 5 minutes later. Producers and consumers follow by
        themselves; what consumers held returns to the queue, as at a disconnect. pause: stop the
        whole home for some seconds meanwhile, which a queue that captures plain Kafka topics needs.
        Raises ConfigError or LakequeueError, and then the queue has not moved; Timeout if it is not
        known after 5 minutes. To cancel a move to a broker that stays away, move the queue to where
        it is.
        """
        if truth(pause, "pause"):
            self.describe(queue)  # do not pause the home for a queue that does not exist
            to = text_of(broker, "broker", NAME_CHARACTERS_MAX)
            self._session.request_change({"wish": "move", "to": to}, queue)
            return
        command = checked(commands.MoveQueue(queue=queue, broker=broker))
        known = {one["name"]: one for one in self._session.brokers()}
        if broker in known and known[broker]["state"] == "failed":  # others come back: wait
            raise LakequeueError(
                f"broker: {broker!r} is failed – allowed is a running broker (lakequeue brokers)"
            )
        self._session.request(command, MOVE_TIMEOUT_S)

    def describe(self, queue: str) -> dict[str, Any]:
        """One queue: depth, states, consumers, why delivery waits, counters, definition. For a
        distributed queue the hosts' figures are added up, and `brokers` has each host's own."""
        session, command = self._session, checked(commands.Describe(queue=queue))
        return self._seen(
            add_up(session.each_host(queue, lambda host: session.request(command, broker=host)))
        )

    def usage(self) -> dict[str, Any]:
        """Usage of limits: `["vpn"]`, `["broker"]`, the alerts that are set, and under `refused`
        how many messages were refused without a queue, by reason. With several brokers the figures
        are added up, and `brokers` has each broker's own."""
        session = self._session
        return add_up_usage(
            session.request_of_each(lambda host: [session.request(commands.Usage(), broker=host)])
        )

    def brokers(self) -> list[dict[str, Any]]:
        """Every broker, by number: `name`, `number`, `epoch` (of the home), `group` (may be empty),
        `state` (`starting`, `running`, `restarting`, `failed`) and `why` it failed. As of its last
        batch (None before the first): `worker` (host and process), `steps` since the engine
        started, `load` (0 to 1: the share of time spent working)."""
        return self._session.brokers()

    def add_broker(self, name: str, group: str | None = None) -> None:
        """Add a broker to a running engine; returns when it has begun to start.

        group: a group of brokers, or None. The home pauses for some seconds. Raises LakequeueError
        with the reason if the engine refuses, Timeout if it does not answer.
        """
        text_of(name, "name", NAME_CHARACTERS_MAX)
        self._session.request_change({"wish": "add", "group": _name(group, "group")}, name)

    def remove_broker(self, name: str, to: str | None = None) -> list[dict[str, str]]:
        """Remove a broker from a running engine; returns when it is gone.

        The home pauses for some seconds. The broker's local queues go where new ones would be made,
        or all to broker ``to``. Returns where they are: dicts with `vpn`, `queue`, `broker`, at
        most 1,000. Raises LakequeueError with the reason if the engine refuses (nothing has changed
        then), Timeout if it does not answer.
        """
        text_of(name, "name", NAME_CHARACTERS_MAX)
        answer = self._session.request_change({"wish": "remove", "to": _name(to, "to")}, name)
        moved = answer.get("moved", [])
        return [{"vpn": vpn, "queue": queue, "broker": at} for vpn, queue, at in moved]

    def events(self, limit: int = 1000) -> list[dict[str, Any]]:
        """The newest ``limit`` events, oldest first; `time` is an aware datetime."""
        session, command = self._session, checked(commands.Events(limit=limit))
        events = session.request_of_each(lambda broker: session.request(command, broker=broker))
        events.sort(key=lambda event: event["time"])
        return [{**e, "time": moment(e["time"])} for e in events[max(len(events) - limit, 0) :]]

    def browse(
        self,
        queue: str,
        where: str | None = None,
        state: str | None = None,
        limit: int = 100,
    ) -> list[BrowsedMessage]:
        """Look at messages without taking them, in the queue's order (R6).

        where: an expression. state: `ready`, `leased` or `delayed`. limit: the most messages
        returned. For a distributed queue, the messages of all brokers, each broker's in its order.
        """
        command = checked(commands.Browse(queue=queue, where=where, state=state, limit=limit))
        parts = self._session.each_host(
            queue,
            lambda host: self._session.request_list(command, "start", "limit", broker=host),
        )
        return [BrowsedMessage.of(queue, row) for row in self._seen(merged(parts)[:limit])]

    def purge(
        self,
        queue: str,
        where: str | None = None,
        ids: list[str] | str | None = None,
        *,
        dry_run: bool = False,
        why: str = "",
    ) -> int:
        """Remove messages: all, or those chosen by ``where`` or ``ids``. Returns how many.

        where: an expression. ids: message ids, or ranges as text (`'17,20-25'`). dry_run: only
        count them. why: noted in the journal, with this client's name. Removes at every broker that
        hosts the queue. Raises LakequeueError if the messages last looked at belong to another home
        than the engine's, or if a broker is away; the error says what was done where.
        """
        return remove(
            self._session, commands.Purge(**self._change(queue, where, ids, dry_run, why))
        )

    def shutdown(self, queue: str, ingress: bool = False, egress: bool = False) -> None:
        """Shut down or open a queue's ingress and egress; sets both (H5).

        With ingress shut down, messages are discarded or refused, by the queue's policy (S4). With
        egress shut down, consumers get nothing new, but may keep and settle what they hold.
        """
        truth(ingress, "ingress")
        truth(egress, "egress")
        change(self._session, commands.Shutdown(queue=queue, ingress=ingress, egress=egress))

    def subscribe_topic(self, queue: str, topic: str) -> bool:
        """Let the queue also take messages published to a topic from now on (Q2).

        topic: a topic, one with wildcards (`a/*/c`, `a/re*`, `a/>`), or a regular expression. It
        applies to messages sent to a destination; `underlying_topic` decides which Kafka topics are
        read. Returns True if the subscription is new.
        """
        try:
            kind_of(topic)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return change(self._session, commands.SubscribeTopic(queue=queue, topic=topic))

    def unsubscribe_topic(self, queue: str, topic: str) -> None:
        """End a topic subscription, named as it was made. Messages already stored are still
        delivered (S7). Raises ConfigError if the queue has no such subscription."""
        change(self._session, commands.UnsubscribeTopic(queue=queue, topic=topic))

    def replay(
        self,
        queue: str,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        where: str | None = None,
        ids: list[str] | str | None = None,
        *,
        dry_run: bool = False,
        rate: float | None = None,
        home: Path | str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Any:
        """Publish past messages again, to this queue only (R4).

        Replays messages that came for the queue and are no longer in it: acknowledged, expired,
        discarded or purged, as far back as the Delta tables reach (`begins` of the answer). They
        get new ids and the headers `lq-replay-of`, `lq-replay-time` and `lq-replay-by`.

        since, until: when they were published, as aware datetimes or ISO-8601 text; since may also
        be a message id (that message and later ones) or `epoch`. where: an expression. ids: as for
        `purge`. dry_run: only count, with some `examples`. rate: messages per second. home: the
        engine's home, whose tables are read; by default `$LAKEQUEUE_HOME` or `.lakequeue`.
        progress: called now and then with the number published.

        Returns an object with `count`, `refused` (by reason) and `left` (a sentence about messages
        that the tables no longer hold). Raises ConfigError for a wrong argument or if everything
        asked for is gone, LakequeueError if there are no tables.
        """
        truth(dry_run, "dry_run")
        if progress is not None:
            function_of(progress, "progress")
        if home is not None and not isinstance(home, str | os.PathLike):
            raise ConfigError(f"home: {shown(home)} – allowed is the path of the engine's home")
        where_it_is = home or os.environ.get("LAKEQUEUE_HOME") or ".lakequeue"
        text = None if ids is None else ids_text(ids)
        replay = pkgutil.resolve_name(REPLAY)
        return replay(
            self._session, queue, home=where_it_is, since=since, until=until, where=where,
            ids=text, dry_run=dry_run, rate=rate, progress=progress,
        )  # fmt: skip

    def move(
        self,
        queue: str,
        to: str,
        where: str | None = None,
        ids: list[str] | str | None = None,
        *,
        dry_run: bool = False,
        why: str = "",
    ) -> Changed:
        """Move messages into another queue of the VPN: all, or those chosen by ``where`` or ``ids``
        (R6).

        They keep id, payload, key and headers. They enter the other queue as new ones, behind what
        is there; its filter, priority and quotas apply. Leased messages stay. where, ids, dry_run,
        why and errors: as for `purge`.
        """
        command = commands.Move(to=to, **self._change(queue, where, ids, dry_run, why))
        return Changed(**change(self._session, command))

    def edit(
        self,
        queue: str,
        headers: dict[str, str | None],
        where: str | None = None,
        ids: list[str] | str | None = None,
        *,
        dry_run: bool = False,
        why: str = "",
    ) -> Changed:
        """Change headers of messages in a queue: all, or those chosen by ``where`` or ``ids`` (R6).

        headers: new text by name, at most 1,000 characters in all; None removes a header. The same
        message in another queue does not change. A consumer that holds the message sees the change
        at the next delivery. where, ids, dry_run, why and errors: as for `purge`.
        """
        command = commands.Edit(headers=headers, **self._change(queue, where, ids, dry_run, why))
        return Changed(**change(self._session, command))

    def _change(
        self, queue: str, where: str | None, ids: list[str] | str | None, dry_run: bool, why: str
    ) -> dict[str, Any]:
        """The fields that all commands which change messages share."""
        text = None if ids is None else ids_text(ids)
        return {
            "queue": queue, "epoch": self._epoch, "where": where, "ids": text,
            "dry_run": truth(dry_run, "dry_run"), "who": self._session.client_name, "why": why,
        }  # fmt: skip

    def redrive(
        self, queue: str, where: str | None = None, ids: list[str] | str | None = None
    ) -> Redriven:
        """Send messages of a dead message queue back to where they came from: all, or those chosen
        by ``where`` or ``ids`` (as for `purge`).

        They keep id, payload, key and headers (X6); the publisher's TTL no longer applies (X5).
        Messages that cannot go back stay, and the answer says why. Raises LakequeueError if the
        messages last looked at belong to another home than the engine's, and Timeout while a broker
        with one of the target queues is away: its messages go there later.
        """
        text = None if ids is None else ids_text(ids)
        command = commands.Redrive(queue=queue, epoch=self._epoch, where=where, ids=text)
        return Redriven(**change(self._session, command))

    def bridge(self, definition: dict[str, Any], replace: bool = False) -> None:
        """Define a bridge to another broker, or change it (H1–H3).

        Keys: `name`, `to`, `subscriptions`, `from` (default: the broker that is asked), `lanes`
        (`per-destination` or `none`; applies to new messages), `max_spool_usage`. Keys left out,
        None and replace: as for `define`.
        """
        self._session.request(commands.Bridge(definition=definition, replace=replace))

    def delete_bridge(self, name: str) -> int:
        """Delete a bridge. Messages waiting at its near end are removed, not sent; returns how
        many. Raises ConfigError if there is no such bridge."""
        return int(self._session.request(commands.DeleteBridge(name=name)))

    def bridges(self) -> list[dict[str, Any]]:
        """All bridges of the VPN, by name, each as `describe_bridge` returns it."""
        return [self.describe_bridge(name) for name in self._session.request(commands.Bridges())]

    def describe_bridge(self, name: str) -> dict[str, Any]:
        """One bridge: what waits, what is on its way, and under `blocked` which endpoints at the
        far end block it, for how long, and how many messages wait for each (H2)."""
        return self._session.request(commands.DescribeBridge(name=name))

    def _seen(self, result: Any) -> Any:
        """Remember which home has answered, and return the result."""
        self._epoch = self._session.epoch
        return result

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        pass
