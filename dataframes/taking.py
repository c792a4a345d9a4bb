"""The driver's side of a job: takes messages for a batch and acknowledges them when it is done.

It is an ordinary consumer (C3, L4). A batch and its acknowledgement are one unit, because:

- the batch is in Spark's log, with ids and offsets, before it runs. A batch that runs again has the
  same rows, whichever consumer has leased the messages by then;
- the last batch is acknowledged, and the engine has confirmed that, before the next one is taken.
  At a start this happens before the consumer binds, so messages that returned to the queue while
  the job was down are removed before they can be delivered again;
- messages that were delivered again while the batch ran (a lease ended, a session was lost) are
  dropped when the engine answers, see `Prefetch.forget`.
"""

from __future__ import annotations

import contextlib
import logging
import time

from ..client import Connection, Consumer, Message, connect
from ..protocol import NotConnected, Timeout, commands
from .job_options import ReadOptions
from .taken_batch import TakenBatch

log = logging.getLogger("lakequeue.dataframes")

LOOK_S = 0.1  # Spark waits this long at an empty queue
QUIET_S = 5.0  # `availableNow` ends if no message arrives for this long
RENEW_LIMIT = "1h"  # leases of a batch are renewed for this long at most


class QueueTaker:
    """One query's consumer, opened on first use."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._connection: Connection | None = None
        self._consumer: Consumer | None = None
        self._settled = 0  # number of the last acknowledged batch
        self._left: int | None = None  # messages still to take with `availableNow`, else None

    def take(self, last: TakenBatch, most: int | None) -> TakenBatch:
        """The next batch, or ``last`` itself if no message arrived or the engine does not
        answer."""
        if not self.settle(last):
            time.sleep(LOOK_S)
            return last
        consumer = self._bound()
        room = self._options.most if most is None else min(most, self._options.most)
        if self._left is not None:
            room = min(room, self._left)
        messages = self._received(consumer, room) if room > 0 else []
        if not messages:
            return last
        if self._left is not None:
            self._left -= len(messages)
        connection = self._connected()
        inbox = connection.inbox
        return last.next(messages, connection.epoch, inbox.topic, inbox.partition)

    def _received(self, consumer: Consumer, room: int) -> list[Message]:
        found: dict[int, Message] = {}
        if self._left is not None and not self._more_may_come(consumer):
            return []
        timeout = LOOK_S
        while len(found) < room and (message := consumer.receive(timeout)) is not None:
            # Keep the first of two deliveries: the session was lost, and the message sent again.
            found.setdefault(message.number, message)
            timeout = 0.0
        return list(found.values())

    def settle(self, batch: TakenBatch) -> bool:
        """Acknowledge a finished batch; returns whether it is acknowledged. Repeating an ack is
        harmless: its messages are gone. Raises LakequeueError if they belong to another home."""
        if batch.number <= self._settled:
            return True
        try:
            connection = self._connected()
            if self._consumer is not None and batch.epoch == connection.epoch:
                self._consumer.ack(ids=batch.ids)
            else:
                connection.request(
                    commands.Ack(queue=batch.queue, epoch=batch.epoch, ids=batch.ids)
                )
        except (Timeout, NotConnected) as error:  # nothing is lost: it will be retried
            log.warning("batch %d of queue %r: %s", batch.number, batch.queue, error)
            return False
        self._settled = batch.number
        return True

    def take_what_is_there(self) -> None:
        """Trigger `availableNow`: end after the messages that are in the queue now."""
        seen = self._connected().admin().describe(self._options.queue)
        self._left = seen["ready"] + seen["leased"]

    def _more_may_come(self, consumer: Consumer) -> bool:
        """Wait for a message; returns False if there is none and none is expected."""
        deadline = time.monotonic() + QUIET_S
        while not consumer.has_messages:
            seen = self._connected().admin().describe(self._options.queue)
            mine = (c for c in seen["consumers"] if c["subscription"] == consumer.subscription)
            comes = seen["ready"] or any(c["held"] for c in mine)
            if not comes or time.monotonic() > deadline:
                return consumer.has_messages
            time.sleep(LOOK_S / 5)
        return True

    def _connected(self) -> Connection:
        if self._connection is None:
            where = self._options.connecting
            self._connection = connect(where.url, vpn=where.vpn, client_name=where.name)
        return self._connection

    def _bound(self) -> Consumer:
        if self._consumer is None:
            options = self._options
            self._consumer = self._connected().consumer(
                options.queue, ack_mode="individual", max_backlog=options.most,
                filter=options.filter, auto_renew=True, auto_renew_limit=RENEW_LIMIT,
            )  # fmt: skip
        return self._consumer

    def close(self) -> None:
        """End the consumer. Unacknowledged messages return; those of a batch in Spark's log are
        acknowledged when that batch has run again."""
        connection, self._connection, self._consumer = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(NotConnected):
                connection.close()
