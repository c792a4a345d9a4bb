"""Requests to add or remove a broker, or to move a queue, in a VPN's directory.

A client that may write `<vpn>.directory` may write:

    wish/<name>    {"id": …, "wish": "add"}, with "group" to put it into one
    wish/<name>    {"id": …, "wish": "remove"}, with "to" to name the broker for its local queues
    wish/<queue>   {"id": …, "wish": "move", "to": …}, for a queue of this VPN

The engine makes the change while the home rests (`engine_rehoming`) and answers under the same key,
with the same id: `done` and `moved` (VPN, queue and broker of each), or `refused` with a reason. If
it dies before the answer, its next start answers: the home stores the last change.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from confluent_kafka import KafkaException, Message, TopicPartition

from ...client.session.queue_directory import CHANGE_REQUEST
from ...client.session.transport import Transport
from ...protocol import LakequeueError, NotConnected, topics
from ...protocol.bounds import CANNOT_DECODE
from ..home.home_folder import HomeFolder
from ..watch_thread import TopicReader
from .engine_rehoming import EngineRehoming

log = logging.getLogger("lakequeue.engine")

MOVED_LISTED_MAX = 1_000  # queues that an answer names
ASK_S_MAX = 10.0


def await_partition(transport: Transport, topic: str, partition: int) -> None:
    """Wait until this Kafka client has a new partition in its metadata; until then it refuses to
    write there. On a busy Kafka even the new topic may be missing. Raises NotConnected."""
    deadline = time.monotonic() + ASK_S_MAX
    while True:
        missing = NotConnected(f"partition {partition} of topic {topic!r} does not exist yet")
        try:
            if transport.partitions(topic) > partition:
                return
        except NotConnected as error:
            missing = error
        if time.monotonic() > deadline:
            raise missing
        time.sleep(0.1)


class ChangeRequest(NamedTuple):
    """A request. id: distinguishes it from others. name: of a broker, or of a queue."""

    id: str
    what: str
    vpn: str
    name: str
    group: str
    to: str


def request_of(key: bytes | None, value: bytes | None, vpn: str) -> ChangeRequest | None:
    """The request in a record of a VPN's directory; None if it is something else, such as an
    answer."""
    if key is None or value is None or not key.startswith(CHANGE_REQUEST):
        return None
    try:
        asked = json.loads(value)
        what, number = str(asked["wish"]), str(asked["id"])[:100]
        group, to = (str(asked.get(key) or "")[:100] for key in ("group", "to"))
    except (*CANNOT_DECODE, KeyError, TypeError, AttributeError):
        return None
    name = key.removeprefix(CHANGE_REQUEST).decode("utf-8", "replace")
    return ChangeRequest(number, what, vpn, name, group, to)


def late_answer(request: ChangeRequest, folder: HomeFolder) -> dict[str, Any]:
    """The answer to a request that an earlier engine left unanswered when it died."""
    moved = folder.moved()
    match request.what:
        case "add" if request.name in folder.brokers(()):
            return {"done": True}
        case "remove" if request.name in folder.removed():
            return {"done": True, "moved": moved[:MOVED_LISTED_MAX]}
        case "move" if (request.vpn, request.name, request.to) in moved:
            return {"done": True, "moved": moved[:MOVED_LISTED_MAX]}
    return {"refused": "the engine ended before it did this: try again"}


class ChangeRequests(TopicReader):
    """Reads requests from now on. rehoming: makes the changes. answer: writes a key and a value to
    the directory of each VPN."""

    def __init__(
        self, bootstrap: str, vpns: list[str], rehoming: EngineRehoming,
        answer: Callable[[bytes, bytes], None],
    ) -> None:  # fmt: skip
        places = [TopicPartition(topics.topic(vpn, topics.DIRECTORY), 0) for vpn in vpns]
        super().__init__(bootstrap, "lakequeue-changes", places)
        self._rehoming, self._answer = rehoming, answer
        self._over: set[str] = set()  # requests that were answered

    def open(self, newest: Callable[[str], dict[bytes, bytes]], folder: HomeFolder) -> None:
        """Begin to read requests in a thread, and answer earlier ones now. newest: returns the
        newest record of each key of a topic. Raises LakequeueError."""
        try:
            # before they are answered: an end that is looked up later may lie behind a new request
            for place in self._places:
                place.offset = self._consumer.get_watermark_offsets(place, ASK_S_MAX)[1]
        except KafkaException as error:
            raise LakequeueError(f"the directory cannot be read: {error}") from error
        for place in self._places:
            self.answer_old(newest(str(place.topic)), str(place.topic), folder)
        self.start()

    def answer_old(self, records: dict[bytes, bytes], topic: str, folder: HomeFolder) -> None:
        """Answer the requests that an earlier engine left unanswered when it died."""
        for key, value in records.items():
            request = request_of(key, value, topics.vpn_of(topic) or "")
            if request is not None:
                self._over.add(request.id)
                self._send_answer(key, {"id": request.id, **late_answer(request, folder)})

    def take(self, message: Message) -> None:
        vpn = topics.vpn_of(str(message.topic())) or ""
        self.read(message.key(), message.value(), vpn)

    def read(self, key: bytes | None, value: bytes | None, vpn: str = "") -> None:
        """Read one record of a VPN's directory. Other records than requests are ignored."""
        request = request_of(key, value, vpn)
        if request is None or request.id in self._over:
            return
        assert key is not None
        self._over.add(request.id)  # Kafka may hold it twice
        answer: dict[str, Any] = {"id": request.id, "done": True}
        try:
            match request.what:
                case "add":
                    self._rehoming.add(request.name, request.group)
                case "remove":
                    moved = self._rehoming.remove(request.name, request.to)
                    answer["moved"] = moved[:MOVED_LISTED_MAX]
                case "move":
                    answer["moved"] = self._rehoming.move(vpn, request.name, request.to)
                case _:
                    allowed = "allowed are 'add', 'move' and 'remove'"
                    raise LakequeueError(f"wish: {request.what[:100]!r} – {allowed}")
        except LakequeueError as error:
            answer = {"id": request.id, "refused": str(error)}
        except Exception as error:  # such as an error of Java: the watch restarts the queries
            log.exception("broker %r: this could not be done: %s", request.name, request.what)
            answer = {"id": request.id, "refused": f"{type(error).__name__}: {error}"[:500]}
        self._send_answer(key, answer)

    def _send_answer(self, key: bytes, answer: dict[str, Any]) -> None:
        try:
            self._answer(key, json.dumps(answer).encode())
        except LakequeueError as error:
            log.warning("an answer was not sent: %s", error)
