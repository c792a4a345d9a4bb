"""Commands, requests and messages, each sent to the broker that handles it.

With several brokers the directory says where queues are (`queue_directory`). If a broker answers
that a queue moved, the request is sent again there.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any
from zlib import crc32

import msgspec

from ...protocol import (
    ConfigError,
    LakequeueError,
    NotConnected,
    Problem,
    Timeout,
    commands,
    topics,
)
from ...protocol.checked import checked, encode_checked
from ...protocol.errors import Moved, PermissionDenied
from ...protocol.signing import Credentials, Signature, sign
from ..spans import Spans
from ..values import text_of
from .queue_directory import QueueDirectory, ask_for_change, known_brokers
from .repeats import Repeats
from .runner import Runner
from .transport import Transport

log = logging.getLogger("lakequeue.client")

REQUEST_TIMEOUT_S = 30.0
ASKED_MOST = 1_000  # requests without an answer; older ones are dropped
LOOK_FOR_OTHERS_S = 1.0
IDLE_LOOK_FOR_OTHERS_S = 30.0  # for a session that asks nothing and only consumes
NAME_MAX = 200  # characters; a suffix makes the client's name a session's or a consumer's
LOOK_AGAIN_S = 0.1  # pause while a queue is moving between brokers

ERRORS = {"ConfigError": ConfigError, "PermissionDenied": PermissionDenied}  # by kind

Answer = dict[str, Any]


class BrokerRequests:
    """The base of a session. number: the home broker, which handles everything that belongs to no
    queue."""

    def __init__(
        self, transport: Transport, vpn: str, client_name: str, runner: Runner, number: int,
        credentials: Credentials | None,
    ) -> None:  # fmt: skip
        self._transport = transport
        self._repeats = Repeats()
        self.runner = runner
        self.vpn = text_of(vpn, "vpn", NAME_MAX)
        self.client_name = text_of(client_name, "client_name", NAME_MAX)
        self.number = number
        self.is_open, self.is_forked = True, False
        self.session = f"{client_name}-{runner.tag}"
        self.changed = threading.Condition()
        self.epoch = 0  # of the home that gave the newest result
        self._credentials = credentials
        self._signed = itertools.count(1)
        self.spans: Spans | None = None  # see `Connection.trace`
        self._names = itertools.count(1)
        self._pid = os.getpid()
        self._asked: dict[str, Callable[[Answer], None]] = {}
        self._spoken_to = {number}  # brokers that may know this session
        self._where = QueueDirectory(number)
        self._commands = topics.topic(vpn, topics.COMMANDS)
        self._directory = topics.topic(vpn, topics.DIRECTORY)
        self.publish_topic = topics.topic(vpn, topics.PUBLISH)
        deliveries = topics.topic(vpn, topics.DELIVERIES)
        receipts = topics.topic(vpn, topics.RECEIPTS)
        spread = crc32(self.session.encode())
        partition = spread % transport.partitions(deliveries)
        self.inbox = commands.Inbox(deliveries, partition)
        self.receipts_partition = spread % transport.partitions(receipts)
        self._publish_size = transport.partitions(self.publish_topic)
        self._commands_size = transport.partitions(self._commands)
        self._alone = self._commands_size == 1
        self._looked_s = time.monotonic()
        transport.listen(deliveries, partition)
        transport.listen(receipts, self.receipts_partition)
        if not self._alone:
            self._read_directory()

    # ------------------------------------------------------------ which broker

    def _read_directory(self) -> None:
        """Start reading where queues are. Records that arrive meanwhile are read twice, which is
        harmless."""
        self._transport.listen(self._directory, 0)
        for key, value in self._transport.newest(self._directory).items():
            self._where.take(key, value)

    def _block(self, broker: int) -> range:
        """The partitions of the publish topic that a broker reads; all of them if it is the only
        one."""
        if self._alone:
            return range(self._publish_size)
        block = topics.publish_partitions(broker)
        if self._publish_size < block.stop:  # read before this broker existed
            self._publish_size = self._transport.partitions(self.publish_topic)
        if self._publish_size <= block.start:
            raise NotConnected(
                f"topic {self.publish_topic!r} has no partitions yet for broker {broker}"
            )
        return range(block.start, min(block.stop, self._publish_size))

    def _commands_partition(self, broker: int) -> int:
        """The partition of the commands topic that a broker reads. Kafka clients refuse partitions
        made since they last looked, so look again when needed."""
        place = topics.commands_partition(broker)
        if self._commands_size <= place:
            self._commands_size = self._transport.partitions(self._commands)
        if self._commands_size <= place:
            raise NotConnected(f"topic {self._commands!r} has no partition yet for broker {broker}")
        return place

    @property
    def publish_partitions(self) -> int:
        """How many partitions of the home broker this session's producers share."""
        return len(self._block(self.number))

    def publish_partition(self, producer_id: str, broker: int) -> int:
        """The partition for a producer's messages to a broker. It is always the same one, so the
        messages keep their order whatever their keys."""
        block = self._block(broker)
        return block[crc32(producer_id.encode()) % len(block)]

    def broker_of(self, name: str) -> int:
        """The number of the broker for this queue or destination."""
        return self._where.broker_of(name)

    def learn(self, queue: str, hosts: dict[str, int]) -> None:
        """Note where a broker said a queue is (numbers by name)."""
        if self._alone:
            self._meet_others()
        self._where.learn(queue, hosts)

    def _meet_others(self) -> None:
        """A second broker has appeared."""
        self._alone = False
        self._publish_size = self._transport.partitions(self.publish_topic)
        self._read_directory()

    def _is_alone(self, every_s: float = LOOK_FOR_OTHERS_S) -> bool:
        """True if the home still has one broker. A connection older than the second broker is not
        told of it unless it uses a queue there, so look, but not more often than this."""
        now_s = time.monotonic()
        if self._alone and (now_s - self._looked_s >= every_s or not self.runner.waits):
            self._looked_s = now_s
            self._commands_size = self._transport.partitions(self._commands)
            if self._commands_size > 1:
                self._meet_others()
        return self._alone

    def _taker(self, command: commands.Command) -> int:
        """The broker a command is for: the directory's leader, the queue's broker, or the home
        broker."""
        if isinstance(command, commands.OF_KEEPER):
            return commands.KEEPER
        queue = getattr(command, "queue", None)
        return self.number if queue is None else self.broker_of(queue)

    def brokers(self) -> list[dict[str, Any]]:
        """The engine's brokers, see `Admin.brokers`."""
        self.check_open()
        return known_brokers(self._transport, self.vpn)

    def request_change(self, change: dict[str, str], name: str) -> dict[str, Any]:
        """Ask the engine to add or remove a broker or to move a queue, see `Admin.add_broker`;
        returns its answer."""
        self.check_open()
        return ask_for_change(
            self._transport, self.vpn, change, name, self.new_name("change"), self.pause
        )

    # ------------------------------------------------------------ time and waiting

    def now_ms(self) -> int:
        """The wall clock, epoch ms; on `memory://` the engine's clock."""
        return self.runner.now_ms()

    def clock_ms(self) -> float:
        """A monotonic clock in ms, by which leases and intervals are counted."""
        return self.runner.clock_ms()

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until a condition holds; on `memory://` nothing waits."""
        return self.runner.wait(condition, timeout)

    def pause(self, seconds: float) -> None:
        """Wait this long. The thread that reads answers reads on, and keeps the session alive."""
        if self.runner.is_reader():
            self.wait(lambda: False, seconds)
        else:
            time.sleep(seconds)

    def wake(self) -> None:
        """Let waiting calls check their conditions again."""
        with self.changed:
            self.changed.notify_all()

    def report(self, text: str) -> None:
        """Log a warning the application should see, without repeats."""
        if self._repeats.is_news(text):
            log.warning(text)

    def closed(self, text: str) -> NotConnected:
        """The error for a use after the end: ``text``, or that this is a forked child."""
        if self.is_forked:
            text = f"this connection was opened in process {self._pid}; open a new one after a fork"
        return NotConnected(text)

    def forked(self) -> None:
        """Close in a forked child of the process that opened the connection. The session's threads
        do not exist there, they may have held locks, and whatever they were sending would be sent
        twice."""
        self.is_open, self.is_forked = False, True
        self.changed = threading.Condition()

    def check_process(self) -> None:
        """Raise NotConnected in a forked child."""
        if self.is_forked:
            self.check_open()

    def check_open(self) -> None:
        """Raise NotConnected if the connection is closed."""
        if not self.is_open:
            raise self.closed("the connection is closed")

    # ------------------------------------------------------------ saying

    def new_name(self, base: str) -> str:
        """A name that no other session uses."""
        return f"{base}-{self.runner.tag}-{next(self._names)}"

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
        """Send a command without waiting, to its broker unless another is named. Commands to one
        broker keep their order. Raises ConfigError before sending if the engine could not read it.
        """
        value = encode_checked(command)
        number = self._taker(command) if broker is None else broker
        self._spoken_to.add(number)
        self._transport.command(
            self._commands, self.session.encode(), self._with_signature(value, number),
            self._commands_partition(number),
        )  # fmt: skip
        self.runner.sent()

    def _with_signature(self, value: bytes, number: int) -> bytes:
        """The record's value, signed if the connection has a key."""
        if self._credentials is None:
            return value
        who = Signature(
            self._credentials.client, self.session, next(self._signed), self.now_ms(), number
        )
        return sign(self._credentials, self.vpn, who, value)

    def ask(
        self,
        command: commands.Command,
        on_answer: Callable[[Answer], None],
        broker: int | None = None,
    ) -> str:
        """Send a command without waiting; ``on_answer`` gets the answer. Returns the request's
        name."""
        request = self.new_name("request")
        for oldest in list(self._asked)[: -ASKED_MOST + 1]:  # the engine is away
            self._asked.pop(oldest, None)
        self._asked[request] = on_answer
        reply = commands.ReplyTo(self.inbox.topic, self.inbox.partition, request)
        try:
            self.command(msgspec.structs.replace(command, reply=reply), broker)
        except BaseException:  # it was not sent
            self._asked.pop(request, None)
            raise
        return request

    def request(
        self, command: commands.Command, timeout: float = REQUEST_TIMEOUT_S,
        broker: int | None = None, heard: Callable[[Answer], None] | None = None,
    ) -> Any:  # fmt: skip
        """Send a command and return its result; raises the engine's error.

        timeout: seconds. heard: called with the answer by the receiving thread, if the engine has
        done it. Deliveries ahead of the answer in the inbox have been handed out by then, later
        ones have not.
        """
        return self.answer_to(command, timeout, broker, heard)["result"]

    def hosts_of(self, queue: str) -> dict[str, int]:
        """The numbers of a queue's brokers, by name; empty if nothing is known."""
        self._is_alone()
        self.wait(lambda: True, 0)  # on memory:// this reads the directory
        return self._where.hosts_of(queue)

    def each_host(self, queue: str, ask: Callable[[int | None], Any]) -> dict[str, Any]:
        """Ask every broker that hosts a queue; returns the answers by broker name. With one broker,
        ``ask`` gets None and the name is ''. Raises the error if no broker has an answer, and
        Timeout, with the broker's name, if one is silent."""
        hosts = self.hosts_of(queue)
        if len(hosts) < 2:
            return {"": ask(None)}
        answers: dict[str, Any] = {}
        refusals: list[LakequeueError] = []
        for name, number in hosts.items():
            try:
                answers[name] = ask(number)
            except (ConfigError, Moved) as refusal:  # it does not host the queue any more
                refusals.append(refusal)
            except Timeout as error:
                raise Timeout(f"broker {name!r}, a host of queue {queue!r}: {error}") from error
        if not answers:
            raise refusals[0]
        return answers

    def request_of_each(self, ask: Callable[[int], list[Any]]) -> list[Any]:
        """Ask every broker in turn, by number; returns all rows."""
        if self._is_alone():
            return ask(self.number)
        rows: list[Any] = []
        for broker in self.brokers():
            try:
                rows += ask(broker["number"])
            except Timeout as error:
                raise Timeout(f"broker {broker['name']!r}: {error}") from error
        return rows

    def request_list(
        self, command: Any, place: str, count: str | None = None, broker: int | None = None,
        timeout: float = REQUEST_TIMEOUT_S,
    ) -> list[Any]:  # fmt: skip
        """Like `request`, for a list that the engine may return in parts.

        place: the command's field that says where a part begins. count: the field that says how
        many rows are wanted in all. timeout: seconds for each part.
        """
        return all_parts(command, place, count, lambda c: self.answer_to(c, timeout, broker))

    def answer_to(
        self, command: commands.Command, timeout: float, broker: int | None = None,
        heard: Callable[[Answer], None] | None = None, undo: commands.Command | None = None,
    ) -> Answer:  # fmt: skip
        """The answer, from the broker that has the queue now; its key `by` names that broker. undo:
        sent if no answer comes, because the broker may still carry out the command."""
        checked(command)
        until = time.monotonic() + timeout
        tried: set[int] = set()
        while True:
            asked = self._taker(command) if broker is None else broker
            tried.add(asked)
            left = max(until - time.monotonic(), 0.0)
            try:
                answer = self._answer_once(command, left, asked, heard)
            except Timeout:
                if undo is not None:
                    self.command(undo, asked)
                raise
            answer["by"] = asked
            if answer["kind"] != "Moved" or broker is not None:
                break
            queue: str = getattr(command, "queue", "")
            self.learn(queue, answer["result"]["hosts"])
            if self._taker(command) in tried:  # it is moving, and each broker may name the other
                if not self.runner.waits or time.monotonic() > until:
                    break
                self.pause(LOOK_AGAIN_S)
        return self._checked(answer)

    def _answer_once(
        self, command: commands.Command, timeout: float, broker: int,
        heard: Callable[[Answer], None] | None,
    ) -> Answer:  # fmt: skip
        self.check_open()
        answers: list[Answer] = []

        def on_answer(answer: Answer) -> None:
            if heard is not None and answer["error"] is None:
                heard(answer)
            answers.append(answer)

        request = self.ask(command, on_answer, broker)
        if not self.wait(lambda: bool(answers), timeout):
            self._asked.pop(request, None)
            raise self._no_answer(timeout)
        return answers[0]

    def _checked(self, answer: Answer) -> Answer:
        """Return the answer, or raise its error."""
        if answer["error"] is None:
            self.epoch = answer.get("epoch", 0) or self.epoch
            return answer
        if answer["problems"]:
            raise ConfigError([Problem(*p) for p in answer["problems"]])
        if answer["kind"] == "Moved":
            raise Moved(answer["error"], answer["result"]["hosts"])
        raise ERRORS.get(answer["kind"], LakequeueError)(answer["error"])

    def _no_answer(self, timeout: float) -> LakequeueError:
        if not self.is_open:
            return self.closed("the connection was closed before the engine answered")
        return Timeout(
            f"the engine did not answer within {timeout:.1f} s; is it running? (lakequeue doctor)"
        )


def all_parts(
    command: Any, place: str, count: str | None, ask: Callable[[Any], Answer]
) -> list[Any]:
    """The rows of all parts of an answer, see `BrokerRequests.request_list`. ask: asks for one."""
    rows: list[Any] = []
    while True:
        answer = ask(command)
        rows += answer["result"]
        if answer.get("more") is None:
            return rows
        changes = {place: answer["more"]}
        if count is not None:
            changes[count] = getattr(command, count) - len(answer["result"])
        command = msgspec.structs.replace(command, **changes)
