"""A binding: one consumer's subscription to a queue, and the commands about its messages.

Commands that name messages carry the epoch of the home that gave the ids, so that a new home on the
same Kafka does not take them for its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from ...protocol import commands
from ..session.requests import REQUEST_TIMEOUT_S
from ..session.session import Answer, Session

C = TypeVar("C", bound=commands.Command)


class Binding:
    """A subscription, made again whenever a consumer binds. wanted: what the consumer asks for.

    From the engine's answer: removes_on_send, backlog (the effective one, B2), lease_ms (the
    queue's lease period; None for no end), epoch, broker.
    """

    def __init__(self, session: Session, wanted: commands.Subscribe) -> None:
        self._session = session
        self.queue = wanted.queue
        self.id = session.new_name(wanted.name)
        self._wanted = msgspec.structs.replace(wanted, subscription=self.id)
        self.epoch = 0
        self.lease_ms: int | None = None
        self.backlog = 1
        self.broker: int | None = None
        self.removes_on_send = wanted.acks == "none"

    def bind(self) -> None:
        """Subscribe; raises the engine's error. If no answer comes, unsubscribe, so that nothing is
        leased to this binding later."""
        session = self._session
        own = session.runner.session_of(self.id) or session.session
        command = msgspec.structs.replace(self._wanted, session=own)
        found = session.answer_to(
            command, REQUEST_TIMEOUT_S, heard=self._note_answer, undo=self._end()
        )
        answer, self.broker = found["result"], found["by"]
        self.lease_ms = answer.get("lease_ms")
        self.epoch = answer.get("epoch", 0)
        session.heartbeat_within(answer["heartbeat_timeout_ms"] / 1000)

    def unbind(self) -> None:
        """End the subscription; what it holds returns (L1)."""
        self.send(self._end())

    def _end(self) -> commands.Unsubscribe:
        return commands.Unsubscribe(queue=self.queue, subscription=self.id)

    def send(self, command: commands.Command) -> None:
        """Send a command to the broker it is bound to. If the queue has left that broker, the
        subscription has ended, and no other broker knows it."""
        self._session.command(command, self.broker)

    @property
    def place(self) -> int | None:
        """The broker to ask: the bound one while that hosts the queue, else None (the broker that
        has the queue now)."""
        return self.broker if self.broker in self._session.hosts_of(self.queue).values() else None

    def about(self, kind: Callable[..., C], **fields: Any) -> C:
        """A command about messages of this subscription, to be sent or requested."""
        return kind(queue=self.queue, subscription=self.id, epoch=self.epoch, **fields)

    def set_backlog(self, max_backlog: int) -> None:
        """Change the backlog (B3). Returns when no more deliveries are on their way than fit."""
        command = self._set_backlog(max_backlog)
        self._session.request(command, REQUEST_TIMEOUT_S, self.place, self._note_answer)

    def stop_delivery(self, timeout_s: float) -> None:
        """Set the backlog to 0 for good. Does not look where the queue is: while Kafka is away,
        that takes longer than the timeout."""
        self._session.request(self._set_backlog(0), timeout_s, self.broker)

    def _set_backlog(self, most: int) -> commands.SetBacklog:
        return commands.SetBacklog(queue=self.queue, subscription=self.id, max_backlog=most)

    def _note_answer(self, answer: Answer) -> None:
        """In the thread that reads answers, so that what the engine says later counts."""
        if answer["result"] is not None:  # the engine knows the subscription
            self.note(answer["result"])

    def note(self, terms: Answer) -> None:
        """Note the backlog, and whether messages are removed when they are sent (L2)."""
        self.backlog = terms["backlog"]
        self.removes_on_send = terms.get("removes_on_send", self.removes_on_send)
