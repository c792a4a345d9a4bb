"""A broker more in a home, or one less: asked for in a VPN's directory, answered there.

Whoever may write `<vpn>.directory` may ask: key `wish/<name>`, JSON `{"id": …, "wish": "add"}`, and
`"group"` where it is to be in one; or `"wish": "remove"`, and `"to"` where one broker is to have
all its local queues. `wish/<queue>`, `"wish": "move"` and `"to"` move a queue of this VPN. The
engine does it while the home rests (`brokers_at_rest`) and answers under the same key, with the
same id: `done`, and `moved` (VPN, queue, broker of each), or `refused` with a sentence.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from ..client.transport import Transport
from ..definitions.broker_changes import check_added
from ..protocol import LakequeueError, NotConnected, topics
from ..sources.live import quiet_client
from .application import SparkApplication
from .broker_query import BrokerQuery
from .brokers_at_rest import Moves
from .home import HomeFolder

log = logging.getLogger("lakequeue.engine")

PREFIX = "wish/"
POLL_S = 0.5
MOVED_TOLD = 1_000  # queues that an answer names
ASK_S_MAX = 10.0


def check_new(
    new: BrokerQuery, application: SparkApplication, folder: HomeFolder, vpns: list[str]
) -> None:
    """Raise LakequeueError where this broker cannot be added."""
    groups = {broker.name: broker.group for broker in application.brokers.values()}
    check_added(new.name, new.group, groups, folder.removed(), vpns)
    application.check_slots(len(groups) + 1)


def await_partition(transport: Transport, topic: str, partition: int) -> None:
    """Until this client of Kafka knows a partition that was just made; without that it refuses to
    write there. Raises NotConnected."""
    deadline = time.monotonic() + ASK_S_MAX
    while transport.partitions(topic) <= partition:
        if time.monotonic() > deadline:
            raise NotConnected(f"partition {partition} of topic {topic!r} is not there yet")
        time.sleep(0.1)


class Wishes(threading.Thread):
    """Reads what is asked for, from now on. add, remove, move: carry it out; answer: puts a key and
    a value on the directory of each VPN."""

    def __init__(
        self,
        bootstrap: str,
        vpns: list[str],
        add: Callable[[str, str], None],
        answer: Callable[[bytes, bytes], None],
        remove: Callable[[str, str], Moves],
        move: Callable[[str, str, str], Moves],
    ) -> None:
        super().__init__(daemon=True, name="lakequeue-wishes")
        self._kafka = quiet_client(bootstrap, "lakequeue-wishes")
        self._places = [TopicPartition(topics.topic(vpn, topics.DIRECTORY), 0) for vpn in vpns]
        self._add, self._answer = add, answer
        self._remove, self._move = remove, move
        self._stopping = threading.Event()

    def open(self) -> None:
        """From now on every wish is heard; the thread reads them. Raises LakequeueError."""
        self._consumer = Consumer(
            {
                **self._kafka,
                "group.id": "lakequeue-engine",  # asked for, and not used
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
            }
        )
        try:
            for place in self._places:  # now: an end that is looked up later is behind a wish
                place.offset = self._consumer.get_watermark_offsets(place, ASK_S_MAX)[1]
        except KafkaException as error:
            raise LakequeueError(f"the directory cannot be read: {error}") from error
        self._consumer.assign(self._places)
        self.start()

    def run(self) -> None:
        """The thread."""
        consumer = self._consumer
        while not self._stopping.is_set():
            message = consumer.poll(POLL_S)
            if message is not None and message.error() is None:
                vpn = topics.vpn_of(str(message.topic())) or ""
                self.read(message.key(), message.value(), vpn)
        consumer.close()

    def read(self, key: bytes | None, value: bytes | None, vpn: str = "") -> None:
        """One record of a VPN's directory; whatever is no wish is passed over."""
        if key is None or value is None or not key.startswith(PREFIX.encode()):
            return
        try:
            asked = json.loads(value)
            wish, number = asked["wish"], str(asked["id"])[:100]
            group, to = (str(asked.get(key) or "")[:100] for key in ("group", "to"))
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # an answer of ours, or nothing that we know
        name = key.decode("utf-8", "replace").removeprefix(PREFIX)
        said: dict[str, Any] = {"id": number, "done": True}
        try:
            match wish:
                case "add":
                    self._add(name, group)
                case "remove":
                    said["moved"] = self._remove(name, to)[:MOVED_TOLD]
                case "move":
                    said["moved"] = self._move(vpn, name, to)
                case _:
                    allowed = "allowed are 'add', 'move' and 'remove'"
                    raise LakequeueError(f"wish: {str(wish)[:100]!r} – {allowed}")
        except LakequeueError as error:
            said = {"id": number, "refused": str(error)}
        except Exception as error:  # of Java, say: the watch looks after the queries
            log.exception("broker %r: this could not be done: %s", name, wish)
            said = {"id": number, "refused": f"{type(error).__name__}: {error}"[:500]}
        try:
            self._answer(key, json.dumps(said).encode())
        except LakequeueError as error:
            log.warning("an answer was not sent: %s", error)

    def stop(self) -> None:
        """End the thread, soon."""
        self._stopping.set()
