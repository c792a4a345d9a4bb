"""The administrator's face of a connection: definitions, looks, purges (R6, Q7, Q9, S7)."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ..protocol import ConfigError, LakequeueError, commands
from ..protocol.bounds import shown
from ..protocol.checked import checked
from ..protocol.descriptions import add_up, add_up_usage
from ..protocol.patterns import kind_of
from .message import BrowsedMessage, moment
from .session.all_hosts import change, merged, remove
from .session.session import Session
from .values import function_of, ids_text, truth

MOVE_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Redriven:
    """What a redrive did.

    moved, stayed: numbers of messages; queues: how many went to each; why: how many stayed for
    each reason. Those are the reasons of a refused message, and `leased` (a consumer of the dead
    message queue holds it), `not_dead` (it was published there), `no_such_queue`, `queue_moves` (to
    another broker, just now), `filter`, `already_there`, `keeps_last_message`, `failed`.
    """

    moved: int
    stayed: int
    queues: dict[str, int]
    why: dict[str, int]


@dataclass(frozen=True, slots=True)
class Changed:
    """What a move or an edit did, or would do.

    count: messages that were changed; stayed: those that were meant and were not; why: how many for
    each reason. Those are the reasons of a refused message, and `leased`, `filter`,
    `already_there`, `keeps_last_message`, `edited_too_much`, `payload_missing`.
    """

    count: int
    stayed: int
    why: dict[str, int]


class Admin:
    """Made by `Connection.admin`; every call waits for the engine's answer."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._epoch = session.epoch  # of the home whose messages were seen last

    def define(self, definition: dict[str, Any], replace: bool = False) -> None:
        """Define a queue, or define it again (Q9): then keys that are not named stay as they are,
        and one that is None has its default again. replace: so has every key that is not named.
        Raises ConfigError with every problem."""
        if not isinstance(definition, dict):
            raise ConfigError(
                f"definition: {shown(definition)} – allowed is a dict of one queue's keys; "
                "`lakequeue define FILE` reads a file"
            )
        truth(replace, "replace")
        self._session.request(commands.Define(definition=definition, replace=replace))

    def delete(self, queue: str) -> None:
        """Delete a queue; its messages are gone, not delivered (S7)."""
        self._session.request(commands.Delete(queue=queue))

    def queues(self) -> list[dict[str, Any]]:
        """All queues of the VPN, as `describe` gives them, by name; `broker` says where each is."""
        session = self._session
        found = session.request_of_each(
            lambda broker: session.request_list(commands.Queues(), "after", broker=broker)
        )
        by_name: dict[str, dict[str, Any]] = {}
        for queue in found:
            by_name.setdefault(queue["name"], {})[queue["broker"]] = queue
        return self._seen([add_up(parts) for _, parts in sorted(by_name.items())])

    def move_queue(self, queue: str, broker: str, pause: bool = False) -> None:
        """Move a LocalQueue with its messages to another broker, while it is in use; returns when
        it is there. Producers and consumers follow by themselves; what consumers held returns, as
        at a disconnect. pause: all of the home rests meanwhile, for some seconds; a queue that
        captures plain Kafka topics moves in no other way. Raises ConfigError or LakequeueError,
        and then it stays where it is. A move that waits for a broker which stays away is called
        back by a move to where it is."""
        if pause:
            self.describe(queue)  # nobody rests for a queue that is not there
            self._session.wish({"wish": "move", "to": broker}, queue)
            return
        command = checked(commands.MoveQueue(queue=queue, broker=broker))
        known = {one["name"]: one for one in self._session.brokers()}
        state = known[broker]["state"] if broker in known else ""
        if state in ("failed", "restarting"):
            raise LakequeueError(
                f"broker {broker!r}: is {state}; a queue moves to a broker that runs"
            )
        self._session.request(command, MOVE_TIMEOUT_S)

    def describe(self, queue: str) -> dict[str, Any]:
        """Depth, states, consumers, why delivery waits, counters, definition. Of a distributed
        queue what its hosts say added up, and under `brokers` what each of them says."""
        session, command = self._session, checked(commands.Describe(queue=queue))
        return self._seen(
            add_up(session.each_host(queue, lambda host: session.request(command, broker=host)))
        )

    def usage(self) -> dict[str, Any]:
        """What the VPN (`["vpn"]`) and the broker (`["broker"]`) use of their limits, which alerts
        are set, and under `refused` how many messages were refused without a queue, by reason. Of
        several brokers added up, and under `brokers` what each of them says."""
        session = self._session
        return add_up_usage(
            session.request_of_each(lambda host: [session.request(commands.Usage(), broker=host)])
        )

    def brokers(self) -> list[dict[str, Any]]:
        """Every broker, by number: `name`, `number`, `epoch` (of the home), `group` (empty: none),
        `state` (`starting`, `running`, `restarting`, `failed`), `why` it failed, and as of its last
        batch, None before: `worker` (host and process), `steps` since the engine started, `load` (0
        to 1: the share of the time in which it did not wait for input)."""
        return self._session.brokers()

    def add_broker(self, name: str, group: str | None = None) -> None:
        """Add a broker to a running engine, in a group of brokers or in none; returns when it has
        begun to start. The home rests meanwhile, for some seconds. Raises LakequeueError with the
        reason when the engine refuses, Timeout when it does not answer."""
        self._session.wish({"wish": "add", "group": group or ""}, name)

    def remove_broker(self, name: str, to: str | None = None) -> list[dict[str, str]]:
        """Remove a broker from a running engine; returns when it is no more. The home rests
        meanwhile, for some seconds. Its local queues are at other brokers then: each where a new
        one would be made, or all at the broker `to`. Gives which is where, each `vpn`, `queue` and
        `broker`; of more than 1,000 the first. Raises LakequeueError with the reason when the
        engine refuses, and then the home is as it was. Timeout when it does not answer."""
        said = self._session.wish({"wish": "remove", "to": to or ""}, name)
        moved = said.get("moved", [])
        return [{"vpn": vpn, "queue": queue, "broker": at} for vpn, queue, at in moved]

    def events(self, limit: int = 1000) -> list[dict[str, Any]]:
        """The newest notable events, oldest first; `time` is an aware datetime."""
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
        """Messages in the queue's order, without taking them (R6). Of a distributed queue those of
        all brokers, each broker's in its order.

        where: an expression; state: `ready`, `leased` or `delayed`.
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
        """Remove messages, all or by predicate or ids, at every broker that hosts the queue;
        returns how many. dry_run: only says how many; why: for the journal, beside this client's
        name. Raises LakequeueError if what was last looked at is of another home than the engine's,
        and where a broker is away, with what was done where."""
        return remove(
            self._session, commands.Purge(**self._change(queue, where, ids, dry_run, why))
        )

    def shutdown(self, queue: str, ingress: bool = False, egress: bool = False) -> None:
        """Shut down ingress and egress of a queue (H5); sets both, False opens again.

        While ingress is shut down messages are discarded, or refused by the queue's policy (S4);
        while egress is, consumers keep and may settle what they hold, and get nothing new.
        """
        truth(ingress, "ingress")
        truth(egress, "egress")
        change(self._session, commands.Shutdown(queue=queue, ingress=ingress, egress=egress))

    def subscribe_topic(self, queue: str, topic: str) -> bool:
        """The queue also takes what is published to a topic from now on (Q2).

        topic: a topic, one with wildcards (`a/*/c`, `a/re*`, `a/>`), or a regular expression. It
        holds for messages sent to a destination; which Kafka topics are read is said by the
        queue's `underlying_topic`. Answers whether the subscription is new. Raises ConfigError.
        """
        _check_topic(topic)
        return change(self._session, commands.SubscribeTopic(queue=queue, topic=topic))

    def unsubscribe_topic(self, queue: str, topic: str) -> None:
        """End a topic subscription, named as it was made; what was stored for it is still
        delivered (S7). Raises ConfigError if the queue has none such."""
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
        """Publish messages of the past once more, to this queue alone (R4).

        Those that came for the queue and that it does not hold any more: acknowledged, expired,
        discarded, purged, as far back as the Delta tables reach (`begins` of the answer). They get
        new ids, and headers that say so: `lq-replay-of`, `lq-replay-time`, `lq-replay-by`.

        since, until: when they were published, aware datetimes or ISO-8601 text; since may also be
        a message id, a bookmark: that message and later ones, or `epoch`. where: an expression;
        ids: as for `purge`; dry_run: only counts, with some `examples`; rate: messages a second;
        home: the engine's, whose tables are read, by default `$LAKEQUEUE_HOME` or `.lakequeue`;
        progress: told now and then how many were published. Answers with `count`, `refused` by
        reason, and `left`: what of it the tables do not hold any more. Raises ConfigError for what
        is not understood or wholly gone, LakequeueError without tables.
        """
        truth(dry_run, "dry_run")
        if progress is not None:
            function_of(progress, "progress")
        if home is not None and not isinstance(home, str | os.PathLike):
            raise ConfigError(f"home: {shown(home)} – allowed is the path of the engine's home")
        where_it_is = home or os.environ.get("LAKEQUEUE_HOME") or ".lakequeue"
        text = None if ids is None else ids_text(ids)
        # By name: who does not replay needs neither the tables nor what reads them.
        work = importlib.import_module("lakequeue.lake.replaying")
        return work.replay(
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
        """Put messages into another queue of the VPN, all or by predicate or ids (R6).

        They keep id, payload, key and headers, and enter it anew, behind what is there: its filter,
        priority, quotas apply. Leased ones stay. dry_run, why: as for `purge`. Raises ConfigError
        for a queue that is not there, LakequeueError as `purge`.
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
        """Change headers of messages in this queue, all or by predicate or ids (R6).

        headers: the new text of each, at most 1,000 characters in all; None removes a header. The
        same message in another queue stays as it is; who holds one sees it at the next delivery.
        dry_run, why: as for `purge`. Raises as `move`.
        """
        command = commands.Edit(headers=headers, **self._change(queue, where, ids, dry_run, why))
        return Changed(**change(self._session, command))

    def _change(
        self, queue: str, where: str | None, ids: list[str] | str | None, dry_run: bool, why: str
    ) -> dict[str, Any]:
        """What commands that change messages have in common."""
        text = None if ids is None else ids_text(ids)
        return {
            "queue": queue, "epoch": self._epoch, "where": where, "ids": text,
            "dry_run": truth(dry_run, "dry_run"), "who": self._session.client_name, "why": why,
        }  # fmt: skip

    def redrive(
        self, queue: str, where: str | None = None, ids: list[str] | str | None = None
    ) -> Redriven:
        """Send dead messages of a queue back to where they came from, all or by predicate or ids.

        They keep id, payload, key and headers (X6); the publisher's TTL no longer counts (X5).
        What cannot go back stays, and the answer says why. Raises LakequeueError if what was last
        looked at is of another home than the engine's, and Timeout while a broker is away that has
        such a queue: what is for it goes there later.
        """
        text = None if ids is None else ids_text(ids)
        command = commands.Redrive(queue=queue, epoch=self._epoch, where=where, ids=text)
        return Redriven(**change(self._session, command))

    def bridge(self, definition: dict[str, Any], replace: bool = False) -> None:
        """Make a bridge to another broker, or define it again (H1–H3): then keys that are not named
        stay as they are; None and replace are as for `define`. Raises ConfigError.

        Keys: `name`, `to`, `subscriptions`; `from` (default: the broker that is asked), `lanes`
        (`per-destination` or `none`), `max_spool_usage`. Lanes apply to what comes from then on.
        """
        self._session.request(commands.Bridge(definition=definition, replace=replace))

    def delete_bridge(self, name: str) -> int:
        """Delete a bridge; what waits at its near end is gone, not sent. Returns how many messages
        that were. Raises ConfigError if there is none of that name."""
        return int(self._session.request(commands.DeleteBridge(name=name)))

    def bridges(self) -> list[dict[str, Any]]:
        """All bridges of the VPN, as `describe_bridge` gives them, by name."""
        return [self.describe_bridge(name) for name in self._session.request(commands.Bridges())]

    def describe_bridge(self, name: str) -> dict[str, Any]:
        """One bridge: what waits, what is on its way, and under `blocked` which endpoints at its
        far end hold it, for how long, and how many messages wait for each (H2)."""
        return self._session.request(commands.DescribeBridge(name=name))

    def _seen(self, result: Any) -> Any:
        """What was looked at is of the home that answered."""
        self._epoch = self._session.epoch
        return result

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _check_topic(topic: str) -> None:
    try:
        kind_of(topic)
    except ValueError as error:
        raise ConfigError(str(error)) from error
