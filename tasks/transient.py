"""Queues that are deleted when nobody uses them: AMQP's `auto_delete`, `exclusive`, `x-expires`.

The engine deletes no queue by itself. So each process holds a *claim*, a subscription that takes
nothing, to each such queue that it declares. The process that releases the last claim deletes the
queue. If a process is killed, the others delete its queues: each process with a claim looks every
`LOOK_S` for queues without a consumer.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..client import Consumer
from ..client.connection import Connection
from ..protocol import ConfigError, LakequeueError

MARK = "transient"  # the first level of a topic subscription; the second is the time in seconds
UNUSED_S = 30.0  # how long a queue is without a consumer before others delete it, by default
LOOK_S = 60.0
CLAIMED = "declared"  # the name of the consumer that `describe` shows

log = logging.getLogger("lakequeue.tasks")


def mark_of(unused_s: float) -> str:
    """The topic subscription that marks a queue as transient for every process."""
    return f"{MARK}/{unused_s:g}"


def unused_s_of(described: dict[str, Any]) -> float | None:
    """After how many seconds without a consumer a queue may be deleted; None: never."""
    for topic in described["subscriptions"]:
        mark, _, unused_s = topic.partition("/")
        if mark == MARK:
            return float(unused_s)
    return None


@dataclass
class Claim:
    """users: how many channels of this process have declared the queue."""

    consumer: Consumer
    users: int = 0


class TransientQueues:
    """The claims of this process, and the search for queues that others left behind. looks: whether
    to search; in memory there are no others."""

    def __init__(self, connection: Connection, looks: bool) -> None:
        self._connection = connection
        self._admin = connection.admin()
        self._looks = looks
        self._claims: dict[str, Claim] = {}
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._unused: dict[str, float] = {}  # queue → when a look first found it unused

    def claims(self, queue: str) -> bool:
        """Whether this process has a claim, and the queue was not deleted since."""
        claim = self._claims.get(queue)
        return claim is not None and not claim.consumer.is_closed

    def claim(self, queue: str) -> None:
        """Keep a queue until `let_go`. Raises ConfigError if it is gone."""
        with self._lock:
            claim = self._claims.get(queue)
            if claim is None or claim.consumer.is_closed:
                users = 0 if claim is None else claim.users
                consumer = self._connection.consumer(
                    queue, ack_mode="individual", max_backlog=0, name=CLAIMED
                )
                claim = self._claims[queue] = Claim(consumer, users)
            claim.users += 1
            if self._looks and self._thread is None:
                self._thread = threading.Thread(
                    target=self._look_often, name="lakequeue-transient", daemon=True
                )
                self._thread.start()

    def let_go(self, queue: str) -> None:
        """A channel no longer needs the queue. Deletes it if no process needs it."""
        with self._lock:
            claim = self._claims.get(queue)
            if claim is None:
                return
            claim.users -= 1
            if claim.users > 0:
                return
            del self._claims[queue]
        if claim.consumer.is_closed:
            return
        claim.consumer.close()
        if self._connection.is_silent:  # the engine is away: do not wait for it, see `look`
            return
        with contextlib.suppress(ConfigError):  # somebody else has deleted it
            found = self._admin.describe(queue)
            if unused_s_of(found) is not None and not found["consumers"]:
                self._admin.delete(queue)

    def forget(self, queue: str) -> None:
        """The application deletes the queue."""
        with self._lock:
            claim = self._claims.pop(queue, None)
        if claim is not None:
            claim.consumer.close()

    def close(self, consumers: Iterable[Consumer]) -> None:
        """Release all claims, because the process ends. consumers: its own, closed first if their
        queue is claimed."""
        self._over.set()
        for consumer in consumers:
            if consumer.queue in self._claims:
                consumer.close()
        for queue, claim in list(self._claims.items()):
            claim.users = 1
            self.let_go(queue)

    # ------------------------------------------------------------ left behind by others

    def _look_often(self) -> None:
        while not self._over.wait(LOOK_S):
            try:
                self.look(time.monotonic())
            except LakequeueError as error:
                log.debug("looking for unused queues: %s", error)

    def look(self, now_s: float) -> None:
        """Delete transient queues that have had no consumer since an earlier look."""
        unused: dict[str, float] = {}
        for found in self._admin.queues():
            unused_s = unused_s_of(found)
            if unused_s is None or found["consumers"]:
                continue
            queue = found["name"]
            since_s = unused[queue] = self._unused.get(queue, now_s)
            if now_s - since_s >= max(unused_s, UNUSED_S):
                with contextlib.suppress(ConfigError):
                    self._admin.delete(queue)
                    log.info("queue %r was unused and is deleted", queue)
        self._unused = unused
