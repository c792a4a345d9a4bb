"""A session with the engine: what is said to it, and who hears what comes from it.

One inbox, shared by replies and deliveries, one partition of the receipts, one name whose
heartbeats keep the subscriptions alive (C3). Consumers and producers are known here only as those
who listen: to a subscription's deliveries, to a producer's receipts.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol
from zlib import crc32

import msgspec

from ..protocol import ConfigError, LakequeueError, NotConnected, Problem, Timeout, commands, topics
from ..protocol.wire import FRAMING
from .brokers import known_brokers
from .directory import Directory
from .runner import Runner
from .transport import Record, Transport

log = logging.getLogger("lakequeue.client")

HEARTBEAT_S = 4.0
REQUEST_TIMEOUT_S = 30.0
ASKED_MOST = 1_000
LOOK_AGAIN_S = 0.1  # a queue that is on its way from one broker to another

Answer = dict[str, Any]


class Consuming(Protocol):
    """Who listens to a subscription."""

    queue: str

    @property
    def broker(self) -> int | None:
        """The number of the broker with which it is bound; None until it is."""
        ...

    def on_record(self, value: bytes) -> None:
        """A record of deliveries."""
        ...

    def tick(self) -> None:
        """Do what is due."""
        ...

    def due(self) -> int | None:
        """When `tick` has something to do next, by the runner's clock; None: nothing."""
        ...

    def subscribe(self) -> None:
        """Bind again, after the session was lost."""
        ...

    def close(self) -> None:
        """Return what is held, end the subscription."""
        ...

    def forked(self) -> None:
        """Closed: this is a forked child."""
        ...


class Producing(Protocol):
    """Who listens to receipts."""

    def on_receipt(self, value: Answer) -> None:
        """The engine's answer to messages."""
        ...

    def retransmit(self, now_s: float) -> None:
        """Send again what waits too long."""
        ...

    def send_gathered(self) -> None:
        """Send what was gathered."""
        ...

    def close(self) -> None:
        """Flush; raises Timeout if messages stay without an answer."""
        ...

    def forked(self) -> None:
        """Closed: this is a forked child."""
        ...


class Session:
    """One session, with the broker of this number. Its runner calls `receive`, `upkeep` and `beat`;
    all else may be called from any thread."""

    def __init__(
        self, transport: Transport, runner: Runner, vpn: str, client_name: str, number: int = 0
    ) -> None:
        self._transport = transport
        self.runner = runner
        self.vpn = vpn
        self.client_name = client_name
        self.is_open = True
        self.session = f"{client_name}-{runner.tag}"
        self.changed = threading.Condition()
        self.epoch = 0  # of the home that gave the newest result that somebody asked for
        self._names = 0
        self._pid = os.getpid()
        self._consumers: dict[str, Consuming] = {}
        self._producers: dict[str, Producing] = {}
        self._hooks: dict[Consuming, Callable[[], None]] = {}
        self._asked: dict[str, Callable[[Answer], None]] = {}
        self.is_silent = False  # the last question at a close was not answered
        self._subscribing = False  # again, after the session was lost
        self._last_heartbeat = time.monotonic()
        self._heartbeat_s = HEARTBEAT_S
        self.number = number
        self._spoken_to = {number}  # brokers that may know this session
        self._lost: set[int] = set()  # of these, those that missed its heartbeats
        self._follow: set[Consuming] = set()  # whose queue is on another broker now
        self._commands = topics.topic(vpn, topics.COMMANDS)
        self._where = Directory(number)
        deliveries = topics.topic(vpn, topics.DELIVERIES)
        receipts = topics.topic(vpn, topics.RECEIPTS)
        spread = crc32(self.session.encode())
        partition = spread % transport.partitions(deliveries)
        self.inbox = commands.Inbox(deliveries, partition)
        self.publish_topic = topics.topic(vpn, topics.PUBLISH)
        self._publish_size = transport.partitions(self.publish_topic)
        self._alone = transport.partitions(self._commands) == 1
        self.receipts_partition = spread % transport.partitions(receipts)
        transport.listen(deliveries, partition)
        transport.listen(receipts, self.receipts_partition)
        self._directory = topics.topic(vpn, topics.DIRECTORY)
        if not self._alone:
            self._read_directory()
        runner.start(self)

    def _read_directory(self) -> None:
        """Know where queues are, from now on. What comes while it is read is told once more."""
        self._transport.listen(self._directory, 0)
        for key, value in self._transport.newest(self._directory).items():
            self._where.take(key, value)

    def _block(self, broker: int) -> range:
        """The partitions of the publish topic that a broker reads: where there are no others, all
        of them."""
        if self._alone:
            return range(self._publish_size)
        block = topics.publish_partitions(broker)
        return range(block.start, min(block.stop, self._publish_size))

    @property
    def publish_partitions(self) -> int:
        """How many partitions of a broker the producers of this session share."""
        return len(self._block(self.number))

    def publish_partition(self, producer_id: str, broker: int | None = None) -> int:
        """Where a producer sends what is for a broker, by default the home: one partition, so its
        messages keep their order, whatever their keys."""
        block = self._block(self.number if broker is None else broker)
        return block[crc32(producer_id.encode()) % len(block)]

    def broker_of(self, name: str) -> int:
        """The number of the broker for this queue or destination."""
        return self._where.broker_of(name)

    def learn(self, queue: str, where: str) -> None:
        """A broker says where a queue is: JSON of names and numbers."""
        self._where.learn(queue, msgspec.json.decode(where, type=dict[str, int]))

    def _taker(self, command: commands.Command) -> int:
        """Whom a command is for: who keeps the directory, the queue's broker, or the home."""
        if isinstance(command, commands.OF_KEEPER):
            return commands.KEEPER
        queue = getattr(command, "queue", None)
        return self.number if queue is None else self.broker_of(queue)

    def brokers(self) -> list[dict[str, Any]]:
        """The engine's brokers, see `Admin.brokers`."""
        self.check_open()
        return known_brokers(self._transport, self.vpn)

    # ------------------------------------------------------------ time and waiting

    def now_ms(self) -> int:
        """What a clock on the wall shows, epoch ms; on ``memory://`` the engine's."""
        return self.runner.now_ms()

    def clock_ms(self) -> float:
        """Milliseconds that only grow, by which leases and intervals are counted."""
        return self.runner.clock_ms()

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until a condition holds; in memory nothing waits."""
        return self.runner.wait(condition, timeout)

    def wake(self) -> None:
        """Whoever waits looks again."""
        with self.changed:
            self.changed.notify_all()

    def report(self, text: str) -> None:
        """Something that the application should hear of."""
        log.warning(text)

    def closed(self, text: str) -> NotConnected:
        """The error for a use after the end: ``text``, or that this is a forked child."""
        if self.is_forked:
            text = f"this connection was opened in process {self._pid}; open a new one after a fork"
        return NotConnected(text)

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process that opened the connection."""
        return os.getpid() != self._pid

    def check_open(self) -> None:
        """Raise NotConnected once it is closed."""
        if not self.is_open:
            raise self.closed("the connection is closed")

    def forked(self) -> None:
        """In a forked child: nothing of this connection works here. Its threads are not here, locks
        may be held for ever by threads that are not here, and what it sent would be sent twice."""
        self.is_open = False
        for consumer in self._consumers.values():
            consumer.forked()
        for producer in self._producers.values():
            producer.forked()

    # ------------------------------------------------------------ saying

    def new_name(self, base: str) -> str:
        """A name that no other session gives."""
        self._names += 1
        return f"{base}-{self.runner.tag}-{self._names}"

    def publish(
        self,
        value: bytes,
        key: bytes | None,
        headers: list[tuple[str, bytes]],
        partition: int,
        acked: Callable[[], None] | None = None,
    ) -> None:
        """Send a message record; acked: see `Transport.publish`."""
        self._transport.publish(self.publish_topic, value, key, headers, partition, acked)
        self.runner.sent()

    def command(self, command: commands.Command, broker: int | None = None) -> None:
        """Send a command without waiting, to the broker that it is for unless one is named; a
        session's commands to one keep their order."""
        number = self._taker(command) if broker is None else broker
        self._spoken_to.add(number)
        self._transport.command(
            self._commands, self.session.encode(), commands.encode_command(command),
            topics.commands_partition(number),
        )  # fmt: skip
        self.runner.sent()

    def ask(
        self, command: commands.Command, told: Callable[[Answer], None], broker: int | None = None
    ) -> str:
        """Send a command without waiting; ``told`` gets the answer. Gives the question's name."""
        request = self.new_name("request")
        while len(self._asked) >= ASKED_MOST:  # the engine is away: nobody will be told
            self._asked.pop(next(iter(self._asked)), None)
        self._asked[request] = told
        reply = commands.ReplyTo(self.inbox.topic, self.inbox.partition, request)
        self.command(msgspec.structs.replace(command, reply=reply), broker)
        return request

    def request(
        self, command: commands.Command, timeout: float = REQUEST_TIMEOUT_S,
        broker: int | None = None,
    ) -> Any:  # fmt: skip
        """Send a command and wait for its answer; raises what the engine answers."""
        return self._answer_to(command, timeout, broker)["result"]

    def request_each(self, command: commands.Command) -> dict[str, Any]:
        """Ask every broker that hosts a queue; their answers by name, '' where there is only one to
        ask. Raises what all of them answer, where none has an answer."""
        self.wait(lambda: True, 0)  # in memory: what is known of queues is what has come
        hosts = self._where.hosts_of(getattr(command, "queue", ""))
        if len(hosts) < 2:
            return {"": self.request(command)}
        answers: dict[str, Any] = {}
        refusals: list[ConfigError] = []
        for name, number in hosts.items():
            try:
                answers[name] = self.request(command, broker=number)
            except ConfigError as refusal:  # it hosts no such queue any more
                refusals.append(refusal)
        if not answers:
            raise refusals[0]
        return answers

    def request_of_each(self, ask: Callable[[int], list[Any]]) -> list[Any]:
        """What every broker answers, one after the other, by number; ``ask`` asks one."""
        if self._alone:
            return ask(self.number)
        return [row for broker in self.brokers() for row in ask(broker["number"])]

    def request_list(
        self, command: Any, place: str, count: str | None = None, broker: int | None = None
    ) -> list[Any]:
        """As `request`, for a list that the engine may give in parts.

        place: the command's field that says where a part begins; count: the field that says how
        many are wanted in all.
        """
        rows: list[Any] = []
        while True:
            answer = self._answer_to(command, REQUEST_TIMEOUT_S, broker)
            rows += answer["result"]
            if answer.get("more") is None:
                return rows
            changes = {place: answer["more"]}
            if count is not None:
                changes[count] = getattr(command, count) - len(answer["result"])
            command = msgspec.structs.replace(command, **changes)

    def _answer_to(
        self, command: commands.Command, timeout: float, broker: int | None = None
    ) -> Answer:
        """The answer, from where the queue is: who hears that it is elsewhere asks there."""
        until = time.monotonic() + timeout
        while True:
            asked = self._taker(command) if broker is None else broker
            answer = self._answer_once(command, max(until - time.monotonic(), 0.0), asked)
            if answer["kind"] != "Moved":
                break
            queue: str = getattr(command, "queue", "")
            self._where.learn(queue, answer["result"]["hosts"])
            if self._taker(command) == asked:  # it is on its way
                if not self.runner.waits or time.monotonic() > until:
                    break
                time.sleep(LOOK_AGAIN_S)
        return self._checked(answer)

    def _answer_once(
        self, command: commands.Command, timeout: float, broker: int
    ) -> Answer:
        self.check_open()
        answers: list[Answer] = []
        request = self.ask(command, answers.append, broker)
        if not self.wait(lambda: bool(answers), timeout):
            self._asked.pop(request, None)
            raise Timeout(
                f"the engine did not answer within {timeout:g} s; is it running? "
                "(lakequeue doctor)"
            )
        return answers[0]

    def _checked(self, answer: Answer) -> Answer:
        """The answer, or its error raised."""
        if answer["error"] is None:
            self.epoch = answer.get("epoch", 0) or self.epoch
            return answer
        if answer["problems"]:
            raise ConfigError([Problem(*p) for p in answer["problems"]])
        if answer["kind"] == "ConfigError":
            raise ConfigError(answer["error"])
        raise LakequeueError(answer["error"])

    # ------------------------------------------------------------ who listens

    def attach_consumer(self, subscription: str, consumer: Consuming) -> None:
        """Deliveries for this subscription go to this consumer, and to no earlier one of its."""
        for name in [n for n, c in self._consumers.items() if c is consumer]:
            del self._consumers[name]
        self._consumers[subscription] = consumer

    def detach_consumer(self, subscription: str, consumer: Consuming) -> None:
        """No deliveries any more."""
        self._consumers.pop(subscription, None)
        self._hooks.pop(consumer, None)

    def attach_producer(self, producer_id: str, producer: Producing) -> None:
        """Receipts for this producer go to it."""
        self._producers[producer_id] = producer

    def detach_producer(self, producer_id: str) -> None:
        """No receipts any more."""
        self._producers.pop(producer_id, None)

    def on_delivery(self, consumer: Consuming, hook: Callable[[], None]) -> None:
        """Call this when something may have been delivered."""
        self._hooks[consumer] = hook

    def session_of(self, subscription: str) -> str:
        """The session whose heartbeats keep a subscription."""
        return self.runner.session_of(self.vpn, self.session, subscription)

    def silence(self, subscription: str) -> None:
        """On ``memory://``: a consumer's heartbeats stop, as when its process is killed."""
        self.runner.silence(self.vpn, self.session, subscription)

    def heartbeat_within(self, timeout_s: float) -> None:
        """Send heartbeats at least three times within the engine's timeout."""
        self._heartbeat_s = min(HEARTBEAT_S, timeout_s / 3)

    # ------------------------------------------------------------ duties, called by the runner

    def receive(self, timeout_s: float) -> None:
        """Take what came in to those whom it concerns."""
        records = self._transport.poll(timeout_s)
        for record in records:
            self._dispatch(record)
        if records:
            self.wake()
            for hook in list(self._hooks.values()):
                hook()

    def _dispatch(self, record: Record) -> None:
        name = (record.key or b"").decode("utf-8", "replace")
        if record.topic == self.inbox.topic:
            framing = next((v for k, v in record.headers if k == FRAMING), b"")
            if framing == b"reply":
                told = self._asked.pop(name, None)
                if told is not None:
                    self.is_silent = False
                    told(msgspec.json.decode(record.value or b""))
            elif framing == b"batch":
                consumer = self._consumers.get(name)
                if consumer is not None:
                    consumer.on_record(record.value or b"")
            return
        if record.topic == self._directory:
            self._hear_where(record)
            return
        producer = self._producers.get(name)
        if producer is not None:
            producer.on_receipt(msgspec.json.decode(record.value or b""))

    def _hear_where(self, record: Record) -> None:
        """A queue is elsewhere now: its consumers go there."""
        name = self._where.take(record.key, record.value)
        for consumer in list(self._consumers.values()) if name is not None else ():
            # One that is being bound finds it by itself. One that is bound has lost what it held,
            # also if the queue comes back before this is acted on.
            if consumer.queue == name and consumer.broker not in (None, self.broker_of(name)):
                self._follow.add(consumer)

    def upkeep(self) -> None:
        """Acks and renewals that are due, messages without an answer."""
        if self._follow and not self._subscribing:
            left = [c for c in list(self._consumers.values()) if c in self._follow]
            self._follow.clear()
            self._bind_again(left)
        for consumer in list(self._consumers.values()):
            consumer.tick()
        now_s = time.monotonic()
        for producer in list(self._producers.values()):
            producer.retransmit(now_s)

    def due(self) -> int | None:
        """When `upkeep` has something to do for a consumer next, by the runner's clock."""
        times = [t for c in list(self._consumers.values()) if (t := c.due()) is not None]
        return min(times, default=None)

    def send_gathered(self) -> None:
        """Send what producers have gathered."""
        try:
            for producer in list(self._producers.values()):
                producer.send_gathered()
        except LakequeueError as error:  # the messages are sent again, see `Unanswered.retransmit`
            self.report(str(error))

    def beat(self) -> None:
        """Say that the session is alive, if it is time; bind its consumers again if it was lost."""
        now_s = time.monotonic()
        if self._consumers and now_s - self._last_heartbeat >= self._heartbeat_s:
            self._last_heartbeat = now_s
            bound = {consumer.broker for consumer in list(self._consumers.values())}
            for number in sorted(n for n in bound if n is not None):
                told = partial(self._heard, number)
                self.ask(commands.Heartbeat(session=self.session), told, number)
        if self._lost and not self._subscribing:
            lost = [c for c in list(self._consumers.values()) if c.broker in self._lost]
            self._lost.clear()
            self.report("the engine missed this session's heartbeats; subscribing again")
            self._bind_again(lost)

    def _heard(self, broker: int, answer: Answer) -> None:
        if answer["result"] is False and self._consumers:
            self._lost.add(broker)
        else:
            self._lost.discard(broker)

    def _bind_again(self, consumers: list[Consuming]) -> None:
        """New subscriptions; in the background, where a call may wait."""
        self._subscribing = True
        if self.runner.waits:
            threading.Thread(target=self._subscribe_again, args=(consumers,), daemon=True).start()
        else:
            self._subscribe_again(consumers)

    def _subscribe_again(self, lost: list[Consuming]) -> None:
        """After a pause that was too long, or where the queue went; what was held is lost (C3)."""
        try:
            while lost and self.is_open:
                lost = [c for c in lost if not self._subscribed(c)]
        finally:
            self._subscribing = False

    def _subscribed(self, consumer: Consuming) -> bool:
        """Whether nothing is left to try: it is bound, or it cannot be."""
        try:
            consumer.subscribe()
        except LakequeueError as error:
            self.report(f"subscribing to {consumer.queue!r} again failed: {error}")
            return not isinstance(error, Timeout)  # the engine is away: it may come back
        return True
