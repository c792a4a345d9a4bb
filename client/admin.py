"""The administrator's face of a connection: definitions, looks, purges (R6, Q7, Q9, S7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..protocol import ConfigError, LakequeueError, commands
from ..protocol.descriptions import add_up
from ..protocol.ids import format_ranges
from ..protocol.patterns import kind_of
from .message import BrowsedMessage, moment
from .session import Session

MOVE_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Redriven:
    """What a redrive did.

    moved, stayed: numbers of messages; queues: how many went to each; why: how many stayed for
    each reason. Those are the reasons of a refused message, and `leased` (a consumer of the dead
    message queue holds it), `not_dead` (it was published there), `no_such_queue`, `filter`,
    `already_there`, `keeps_last_message`.
    """

    moved: int
    stayed: int
    queues: dict[str, int]
    why: dict[str, int]


class Admin:
    """Made by `Connection.admin`; every call waits for the engine's answer."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._epoch = session.epoch  # of the home whose messages were seen last

    def define(self, definition: dict[str, Any]) -> None:
        """Define a queue, or define it again (Q9). Raises ConfigError with every problem."""
        self._session.request(commands.Define(definition=definition))

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

    def move_queue(self, queue: str, broker: str) -> None:
        """Move a LocalQueue with its messages to another broker, while it is in use; returns when
        it is there. Producers and consumers follow by themselves; what consumers held returns, as
        at a disconnect. Raises ConfigError or LakequeueError, and then it stays where it is."""
        known = {one["name"]: one for one in self._session.brokers()}
        state = known[broker]["state"] if broker in known else ""
        if state in ("failed", "restarting"):
            raise LakequeueError(
                f"broker {broker!r}: is {state}; a queue moves to a broker that runs"
            )
        command = commands.MoveQueue(queue=queue, broker=broker)
        self._session.request(command, MOVE_TIMEOUT_S)

    def describe(self, queue: str) -> dict[str, Any]:
        """Depth, states, consumers, why delivery waits, counters, definition. Of a distributed
        queue what its hosts say added up, and under `brokers` what each of them says."""
        return self._seen(add_up(self._session.request_each(commands.Describe(queue=queue))))

    def usage(self) -> dict[str, Any]:
        """What the VPN (`["vpn"]`) and the broker (`["broker"]`) use of their limits, which alerts
        are set, and under `refused` how many messages were refused without a queue, by reason."""
        return self._session.request(commands.Usage())

    def brokers(self) -> list[dict[str, Any]]:
        """Every broker, by number: `name`, `number`, `epoch` (of the home), `state` (`starting`,
        `running`, `restarting`, `failed`), `why` it failed, and as of its last batch, None before:
        `worker` (host and process), `steps` since the engine started, `load` (0 to 1: the share of
        the time in which it did not wait for input)."""
        return self._session.brokers()

    def events(self, limit: int = 1000) -> list[dict[str, Any]]:
        """The newest notable events, oldest first; `time` is an aware datetime."""
        session = self._session
        events = session.request_of_each(
            lambda broker: session.request(commands.Events(limit=limit), broker=broker)
        )
        events.sort(key=lambda event: event["time"])
        return [{**e, "time": moment(e["time"])} for e in events[max(len(events) - limit, 0) :]]

    def browse(
        self,
        queue: str,
        where: str | None = None,
        state: str | None = None,
        limit: int = 100,
    ) -> list[BrowsedMessage]:
        """Messages in the queue's order, without taking them (R6).

        where: an expression; state: `ready`, `leased` or `delayed`.
        """
        rows = self._session.request_list(
            commands.Browse(queue=queue, where=where, state=state, limit=limit), "start", "limit"
        )
        return [BrowsedMessage.of(queue, row) for row in self._seen(rows)]

    def purge(
        self, queue: str, where: str | None = None, ids: list[str] | str | None = None
    ) -> int:
        """Remove messages, all or by predicate or ids; returns how many. Raises LakequeueError if
        what was last looked at is of another home than the engine's."""
        text = ids if ids is None or isinstance(ids, str) else format_ranges(map(int, ids))
        return self._session.request(
            commands.Purge(queue=queue, epoch=self._epoch, where=where, ids=text)
        )

    def shutdown(self, queue: str, ingress: bool = False, egress: bool = False) -> None:
        """Shut down ingress and egress of a queue (H5); sets both, False opens again.

        While ingress is shut down messages are discarded, or refused by the queue's policy (S4);
        while egress is, consumers keep and may settle what they hold, and get nothing new.
        """
        self._session.request(commands.Shutdown(queue=queue, ingress=ingress, egress=egress))

    def subscribe_topic(self, queue: str, topic: str) -> bool:
        """The queue also takes what is published to a topic from now on (Q2).

        topic: a topic, one with wildcards (`a/*/c`, `a/re*`, `a/>`), or a regular expression. It
        holds for messages sent to a destination; which Kafka topics are read is said by the
        queue's `underlying_topic`. Answers whether the subscription is new. Raises ConfigError.
        """
        _check_topic(topic)
        return self._session.request(commands.SubscribeTopic(queue=queue, topic=topic))

    def unsubscribe_topic(self, queue: str, topic: str) -> None:
        """End a topic subscription, named as it was made; what was stored for it is still
        delivered (S7). Raises ConfigError if the queue has none such."""
        self._session.request(commands.UnsubscribeTopic(queue=queue, topic=topic))

    def replay(self, queue: str, **_: Any) -> Any:
        """Not in this version: raises LakequeueError."""
        raise _later("replay", "read the Delta table 'messages' and publish again")

    def move(self, queue: str, **_: Any) -> Any:
        """Not in this version (R6): raises LakequeueError."""
        raise _later("move", "consume the messages and publish them again")

    def edit(self, queue: str, **_: Any) -> Any:
        """Not in this version (R6): raises LakequeueError."""
        raise _later("edit", "consume the messages and publish them with other headers")

    def redrive(
        self, queue: str, where: str | None = None, ids: list[str] | str | None = None
    ) -> Redriven:
        """Send dead messages of a queue back to where they came from, all or by predicate or ids.

        They keep id, payload, key and headers (X6); the publisher's TTL no longer counts (X5).
        What cannot go back stays, and the answer says why. Raises LakequeueError if what was last
        looked at is of another home than the engine's.
        """
        text = ids if ids is None or isinstance(ids, str) else format_ranges(map(int, ids))
        answer = self._session.request(
            commands.Redrive(queue=queue, epoch=self._epoch, where=where, ids=text)
        )
        return Redriven(**answer)

    def bridge(self, definition: dict[str, Any]) -> None:
        """Not in this version: raises LakequeueError."""
        raise _later("bridge", "there is one broker")

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


def _later(what: str, instead: str) -> LakequeueError:
    return LakequeueError(f"{what}: not supported by this version; {instead}")
