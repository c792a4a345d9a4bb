"""One consumer of one queue, as a kombu channel has it.

A canceled consumer stays open while it holds unacknowledged messages: AMQP lets an application
acknowledge these after canceling, and Celery does so at every warm shutdown.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..client import Consumer, Message
from .engine_link import EngineLink

GET_S = 0.5  # how long `basic_get` waits for a message that the engine has
GATHER_S = 0.01  # acks that follow the last ones by less than that travel together

Deliver = Callable[["Flow", Message], Any]


class Flow:
    """A consumer. prefetch: how many messages it may hold. deliver: called with each message."""

    def __init__(
        self, link: EngineLink, queue: str, prefetch: int, no_ack: bool, deliver: Deliver
    ) -> None:
        self.queue = queue
        self.no_ack = no_ack
        self.deliver = deliver
        self.held = 0
        self.retired = False  # canceled
        self.parked = False  # it has returned its waiting messages
        self._prefetch = prefetch
        self._sent_s = 0.0  # when it last sent acks
        mode = "no_ack" if no_ack else "individual"
        self.consumer: Consumer = link.connection.consumer(
            queue, ack_mode=mode, max_backlog=prefetch
        )
        link.consumers.add(self.consumer)
        self._link = link

    @property
    def is_ready(self) -> bool:
        """True if a message waits here, or the queue was deleted."""
        return not self.retired and (self.consumer.has_messages or self.consumer.is_closed)

    def receive(self, timeout_s: float = 0) -> Message | None:
        """The next message. Raises NotConnected, once, if its queue was deleted."""
        if self.consumer.is_closed and not self.retired:
            self.retired = True
            self.consumer.check_open()
        message = self.consumer.receive(timeout_s)
        if message is not None and not self.no_ack:
            self.held += 1
        return message

    def settled(self, acknowledged: bool) -> None:
        """Note that one message was settled. The client gathers acks (`settling`), but an ack after
        a pause, or with no other message left, is sent at once."""
        self.held -= 1
        if self.retired:
            if self.held <= 0:
                self.consumer.close()
        elif acknowledged and (
            not (self.held or self.consumer.has_messages)
            or time.monotonic() - self._sent_s >= GATHER_S
        ):
            self._sent_s = time.monotonic()
            self.consumer.send_acks()

    def set_prefetch(self, prefetch: int) -> None:
        """Change how many messages it may hold. Waiting ones beyond that return to the queue."""
        if prefetch != self._prefetch and not self.no_ack:
            self._prefetch, self.parked = prefetch, False
            self.consumer.set_max_backlog(prefetch)

    def park(self) -> None:
        """Return the waiting messages, so that other workers can have them."""
        self.parked = True
        self.consumer.set_max_backlog(self.held)

    def unpark(self) -> None:
        """Take messages again."""
        self.parked = False
        if not self.retired and not self.consumer.is_closed:
            self.consumer.set_max_backlog(self._prefetch)

    def retire(self) -> None:
        """Cancel: no more messages come, but those it holds may still be settled."""
        if self.retired:
            return
        self.retired = True
        if self.held <= 0:
            self.consumer.close()
        else:
            self.consumer.set_max_backlog(0)

    def close(self) -> None:
        """End: messages that it holds return to the queue."""
        self.retired = True
        self.consumer.close()


class Getter(Flow):
    """For `basic_get`: takes one message when asked, and none meanwhile."""

    def __init__(self, link: EngineLink, queue: str) -> None:
        super().__init__(link, queue, 0, False, lambda *_: None)

    @property
    def is_ready(self) -> bool:
        """Always False: it delivers nothing by itself."""
        return False

    def get(self) -> Message | None:
        """The next message, if there is one. The engine answers `look` after it has sent what the
        new backlog allows."""
        try:
            self.consumer.set_max_backlog(self.held + 1)
            found = self._link.look(self.queue)
            message = self.receive()
            if message is None and found is not None and found["ready"]:
                message = self.receive(GET_S)
            return message
        finally:
            if not self.consumer.is_closed:
                self.consumer.set_max_backlog(0)
