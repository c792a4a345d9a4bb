"""A kombu channel: AMQP's methods on lakequeue.

The engine does what kombu's virtual channels do in the client: bindings are topic subscriptions,
unacknowledged messages are leased, and returned messages keep their place.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from typing import Any

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from ..client import Message
from ..protocol import LakequeueError, LeaseLost, NotConnected
from . import envelope
from .bindings import subscription_of, topic_of
from .engine_link import BACKLOG_MAX, EngineLink
from .flow import Flow, Getter

UNLIMITED = 1_000  # the default prefetch
TURN_MAX = 1_000  # the most messages that one turn of the event loop hands over
SHARE_S = 1.0  # how long messages wait here behind tasks of another queue
TRANSIENT = 1

log = logging.getLogger("lakequeue.tasks")
_tags = itertools.count(1)


class KombuChannel(virtual.Channel):
    """See `kombu.transport.virtual.Channel`."""

    supports_fanout = True

    def __init__(self, connection: Any, **options: Any) -> None:
        super().__init__(connection, **options)
        self._flows: dict[str, Flow] = {}  # by the consumer's tag
        self._getters: dict[str, Getter] = {}
        self._unacked: dict[str, tuple[Flow, Message]] = {}  # by the delivery's tag
        self._retired: list[Flow] = []
        self._prefetch = 0
        self._transient: set[str] = set()  # declared here, see `transient`
        # while messages wait here that other workers could have
        self._full_since: float | None = None

    @property
    def link(self) -> EngineLink:
        """The connection to the engine. Raises NotConnected if this channel is closed, as kombu's
        pool does after any error: whoever publishes again gets a new one."""
        if self.connection is None:
            raise NotConnected("this channel is closed")
        return self.connection.link

    # ------------------------------------------------------------ queues and exchanges

    def prepare_queue_arguments(self, arguments: Any, **options: Any) -> Any:
        """Rename `message_ttl` and others to RabbitMQ's names."""
        return to_rabbitmq_queue_arguments(arguments or {}, **options)

    def queue_declare(
        self, queue: str | None = None, passive: bool = False, auto_delete: bool = False,
        exclusive: bool = False, arguments: dict[str, Any] | None = None, **_: Any,
    ) -> queue_declare_ok_t:  # fmt: skip
        name = queue or f"amq.gen-{uuid()}"
        if passive:
            found = self.link.look(name)
            if found is None:
                raise ChannelError(f"no queue {name!r}", (50, 10), "Channel.queue_declare", "404")
        else:
            found = self._declare(name, auto_delete or exclusive, arguments or {})
        return queue_declare_ok_t(name, found.get("ready", 0), 0)

    def _declare(self, name: str, transient: bool, arguments: dict[str, Any]) -> dict[str, Any]:
        own, link = _keys(arguments), self.link
        if not transient:
            expires_ms = arguments.get("x-expires")
            unused_s = None if expires_ms is None else expires_ms / 1000
            defaults = self.connection.queue_defaults
            return link.declare(name, defaults | own, bool(own), unused_s)
        if name in self._transient and link.transient.claims(name):
            return {}
        self._transient.add(name)
        return link.claim(name, own)

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "",
        arguments: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        self.link.admin.subscribe_topic(queue, self._subscription(exchange, routing_key))

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "",
        arguments: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        """Remove the topic subscription of a binding; messages in the queue stay."""
        self.link.admin.unsubscribe_topic(queue, self._subscription(exchange, routing_key))

    def _subscription(self, exchange: str | None, routing_key: str) -> str:
        known = self.state.exchanges.get(exchange or "amq.direct")
        kind = known["type"] if known is not None else "direct"
        try:
            return subscription_of(exchange or "amq.direct", kind, routing_key or "")
        except ValueError as error:
            raise ChannelError(str(error)) from error

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Forget an exchange's type; queues that are bound to it stay bound."""
        self.state.exchanges.pop(exchange, None)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any
    ) -> None:
        if if_unused or if_empty:
            found = self.link.look(queue)
            if found is None or (if_unused and found["consumers"]) or (if_empty and found["depth"]):
                return
        self._drop_flows(queue)
        self._transient.discard(queue)
        self.link.delete(queue)

    def _let_go(self, queue: str) -> None:
        """This channel no longer needs a transient queue."""
        self._transient.discard(queue)
        getter = self._getters.pop(queue, None)
        if getter is not None:
            getter.close()
        self.link.transient.let_go(queue)

    def _drop_flows(self, queue: str) -> None:
        """Drop the consumers of a queue that this channel deletes."""
        for tag in [t for t, flow in self._flows.items() if flow.queue == queue]:
            self._flows.pop(tag).close()
        getter = self._getters.pop(queue, None)
        if getter is not None:
            getter.close()

    def _size(self, queue: str) -> int:
        found = self.link.look(queue)
        return 0 if found is None else found["ready"]

    def _purge(self, queue: str) -> int:
        return self.link.admin.purge(queue)

    def _has_queue(self, queue: str, **_: Any) -> bool:
        return self.link.look(queue) is not None

    # ------------------------------------------------------------ publishing

    def basic_publish(
        self, message: dict[str, Any], exchange: str | None, routing_key: str, **_: Any
    ) -> None:
        """Publish; returns when the message is stored (see `EngineLink.send`)."""
        properties = message["properties"]
        properties["delivery_info"] = {"exchange": exchange or "", "routing_key": routing_key}
        options = envelope.options_of(message)
        safe = properties.get("delivery_mode") != TRANSIENT
        to = topic_of(exchange, routing_key or "") if exchange else routing_key
        link = self.link
        # kombu notes the publisher's retry policy there; None means for ever.
        patient = self.connection.client.transport_options.get("max_retries", 0) is None
        link.send(to, envelope.encode(message), options, safe, patient)

    # ------------------------------------------------------------ consuming

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        """How many unacknowledged messages the channel may have; 0: no limit."""
        self._prefetch = prefetch_count
        for flow in list(self._flows.values()):
            flow.set_prefetch(self._flow_prefetch)

    @property
    def _flow_prefetch(self) -> int:
        return min(self._prefetch or UNLIMITED, BACKLOG_MAX)

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], Any], consumer_tag: str, **_: Any
    ) -> str:

        def deliver(flow: Flow, message: Message) -> None:
            callback(self._taken(flow, message))

        flow = Flow(self.link, queue, self._flow_prefetch, bool(no_ack), deliver)
        self._flows[consumer_tag] = flow
        self.connection.hear(flow)
        return consumer_tag

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop taking messages; unacknowledged ones may still be acknowledged."""
        flow = self._flows.pop(consumer_tag, None)
        if flow is None:
            return
        flow.retire()
        if flow.held > 0:
            self._retired.append(flow)
        queue = flow.queue
        if queue in self._transient and all(f.queue != queue for f in self._flows.values()):
            self._let_go(queue)

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> virtual.Message | None:
        """The next message of a queue, if there is one."""
        getter = self._getters.get(queue)
        if getter is None or getter.consumer.is_closed:
            getter = self._getters[queue] = Getter(self.link, queue)
        message = getter.get()
        if message is None:
            return None
        taken = self._taken(getter, message)
        if no_ack:
            self.basic_ack(taken.delivery_tag)
        return taken

    def _taken(self, flow: Flow, message: Message) -> virtual.Message:
        raw = envelope.decode(message)
        tag = str(next(_tags))
        raw["properties"]["delivery_tag"] = tag
        if not flow.no_ack:
            self._unacked[tag] = (flow, message)
        return self.Message(raw, channel=self)

    @property
    def has_room(self) -> bool:
        """Whether the prefetch allows another message."""
        return not self._prefetch or len(self._unacked) < self._prefetch

    @property
    def is_ready(self) -> bool:
        """Whether a message waits here that can be handed over."""
        room = self.has_room
        return any(
            (f.is_ready and (room or f.no_ack)) or (f.parked and room)
            for f in list(self._flows.values())
        )

    def share(self) -> bool:
        """Return messages that wait here too long, so that other workers can have them: with
        several queues, each may bring as many messages as the prefetch. Returns whether to look
        again in `SHARE_S`."""
        flows = [f for f in list(self._flows.values()) if not f.no_ack and not f.retired]
        if self.has_room:
            self._full_since = None
            for flow in [f for f in flows if f.parked]:
                flow.unpark()
            return False
        waiting = [f for f in flows if f.consumer.has_messages]
        if not waiting:
            self._full_since = None
            return False
        now_s = time.monotonic()
        if self._full_since is None:
            self._full_since = now_s
        elif now_s - self._full_since >= SHARE_S:
            self._full_since = None
            for flow in waiting:
                flow.park()
            return False
        return True

    def hand_over(self) -> int:
        """Give the application the waiting messages, one of each consumer in turn; returns how
        many."""
        count = 0
        while count < TURN_MAX:
            before = count
            for flow in list(self._flows.values()):
                if flow.is_ready and (flow.no_ack or self.has_room):
                    message = flow.receive()
                    if message is not None:
                        count += 1
                        flow.deliver(flow, message)
            if count == before:
                break
        return count

    # ------------------------------------------------------------ settling

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        if multiple:
            tags = list(self._unacked)
            for tag in tags[: tags.index(delivery_tag)] if delivery_tag in tags else []:
                self._settle(tag, Message.ack, True)
        self._settle(delivery_tag, Message.ack, True)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Return a message to its place in the queue, or send it to the dead message queue, if
        there is one."""
        self._settle(delivery_tag, Message.cancel if requeue else Message.reject, False)

    def _settle(self, tag: str, how: Callable[[Message], None], acknowledged: bool) -> None:
        found = self._unacked.pop(tag, None)
        if found is None:
            return
        flow, message = found
        try:
            how(message)
        except LeaseLost as error:  # the connection was lost meanwhile: somebody else has it
            log.warning("%s", error)
        flow.settled(acknowledged)
        self.connection.look_again()

    def basic_recover(self, requeue: bool = False) -> None:
        if not requeue:
            raise NotImplementedError("recover: allowed is requeue=True")
        for tag in list(self._unacked):
            self.basic_reject(tag, requeue=True)

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Cancel all consumers; unacknowledged messages return."""
        if self.closed:
            return
        self.closed = True
        flows = [*self._flows.values(), *self._getters.values(), *self._retired]
        self._flows.clear()
        self._getters.clear()
        self._unacked.clear()
        try:
            if self.connection.verify_connection(self.connection):
                for flow in flows:
                    flow.close()
                for queue in list(self._transient):
                    self._let_go(queue)
        except LakequeueError as error:  # Kafka is away: the engine misses the heartbeats
            log.warning("closing a channel: %s", error)
        finally:
            self.connection.close_channel(self)
            self.exchange_types = {}


_ARGUMENTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "x-message-ttl": ("expiration", lambda ms: f"{ms}ms"),
    "x-dead-letter-routing-key": ("dead_message_queue", str),
    "x-delivery-limit": ("max_deliveries", lambda n: n + 1),
}


def _keys(arguments: dict[str, Any]) -> dict[str, Any]:
    """The keys of a definition in `queue_arguments`: some of RabbitMQ's, and lakequeue's own as
    they are. A queue that lakequeue cannot delete for lack of use keeps nothing for longer."""
    found = {k: v for k, v in arguments.items() if not k.startswith("x-")}
    for name, (key, read) in _ARGUMENTS.items():
        if arguments.get(name) is not None:
            found[key] = read(arguments[name])
    if "x-expires" in arguments:
        found.setdefault("expiration", f"{arguments['x-expires']}ms")
    return found
