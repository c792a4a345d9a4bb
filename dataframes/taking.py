"""The driver's side of a job: takes messages for a batch, acknowledges them when it is done.

It is a consumer (C3, L4) like any other. What makes a batch and its acknowledgement one:

- the batch is in Spark's log, with ids and places, before it runs: a batch that runs again has the
  same rows, whoever holds the messages by then;
- the ids of the last batch are acknowledged, and the engine has said so, before anything is taken
  for the next one; at a start that is before the consumer is bound, so what came back to the queue
  while the job was away is gone before it can come again;
- what came again while the batch ran (a lease ended, a session was lost) is forgotten with the
  engine's answer, see `Prefetch.forget_unseen`.
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

LOOK_S = 0.1  # how long Spark waits for an answer when the queue is empty
QUIET_S = 5.0  # "what is there now" has ended when nothing has come for so long
RENEW_LIMIT = "1h"  # of the leases of one batch


class QueueTaker:
    """One query's. Opened when it is first needed."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._connection: Connection | None = None
        self._consumer: Consumer | None = None
        self._settled = 0  # the number of the last batch whose messages are acknowledged
        self._left: int | None = None  # of what was there at the start; None: no end

    def take(self, last: TakenBatch, most: int | None) -> TakenBatch:
        """The batch that follows, or ``last`` itself where nothing has come. Where the engine does
        not answer, nothing has come."""
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
        if self._left is not None and not self._waits_for_the_rest(consumer):
            return []
        timeout = LOOK_S
        while len(found) < room and (message := consumer.receive(timeout)) is not None:
            # The first of two: its session was lost meanwhile, and it came again.
            found.setdefault(message.number, message)
            timeout = 0.0
        return list(found.values())

    def settle(self, batch: TakenBatch) -> bool:
        """Acknowledge a batch that is done; whether it is. An ack may be sent again: it speaks of
        messages that are gone then, and has no effect. Raises LakequeueError if they are another
        home's."""
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
        except (Timeout, NotConnected) as error:  # nothing is lost: it is tried again
            log.warning("batch %d of queue %r: %s", batch.number, batch.queue, error)
            return False
        self._settled = batch.number
        return True

    def take_what_is_there(self) -> None:
        """Trigger `availableNow`: end with what is in the queue now."""
        seen = self._connected().admin().describe(self._options.queue)
        self._left = seen["ready"] + seen["leased"]

    def _waits_for_the_rest(self, consumer: Consumer) -> bool:
        """Wait until something has come; False when nothing more is there, or comes."""
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
        """End the consumer: what is not acknowledged returns, and what a batch of Spark's log has
        of it is acknowledged by that batch when it has run again."""
        connection, self._connection, self._consumer = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(NotConnected):
                connection.close()
