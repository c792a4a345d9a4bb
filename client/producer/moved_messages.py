"""A producer's messages for queues that moved to another broker.

If a queue has moved, its old broker refuses the messages (reason ``moved``) and says where it is
now; or the client learns it from the directory. `MovedMessages` sends them to the new broker, under
that broker's numbers, once no message for the queue is unanswered at the old one. Later messages
wait behind them, so a producer's messages stay in order. A refused message was not stored, so none
arrives twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .receipts import Pending
from .window import Window

PAUSE_S = 0.1  # while the queue is moving
KNOWN_MOST = 10_000  # destinations whose last broker is remembered


@dataclass(slots=True)
class _Held:
    """Messages for one moving queue.

    at: the broker that had it. refused: what that broker refused. behind: what was sent since.
    not_before: monotonic, s.
    """

    at: int
    refused: list[Pending] = field(default_factory=list)
    behind: list[Pending] = field(default_factory=list)
    not_before: float = 0.0

    @property
    def messages(self) -> list[Pending]:
        """All of them, in order of sending."""
        return self.refused + self.behind


class MovedMessages:
    """One producer's messages for moving queues, under its lock."""

    def __init__(
        self, windows: dict[int, Window], window: Callable[[int], Window],
        broker_of: Callable[[str], int],
    ) -> None:  # fmt: skip
        self._windows = windows
        self._window = window
        self._broker_of = broker_of
        self._queues: dict[str, _Held] = {}
        self._went: dict[str, int] = {}  # broker of each destination's last message
        self._goes_on = self._heard = False  # `go_on` is running; it was called again meanwhile

    def __len__(self) -> int:
        return sum(len(held.messages) for held in self._queues.values())

    def waiting(self, queue: str) -> list[Pending] | None:
        """The messages for this queue that wait, in order of sending; None if it is not moving."""
        held = self._queues.get(queue)
        return None if held is None else held.messages

    def goes_to(self, queue: str, number: int) -> None:
        """A message for this queue is about to be sent to this broker. It must wait if an earlier
        one is unanswered at another broker."""
        known = self._went.pop(queue, None)
        self._went[queue] = number
        if len(self._went) > KNOWN_MOST:
            del self._went[next(iter(self._went))]
        if known == number or queue in self._queues:
            return
        others = [n for n in self._windows if n != number] if known is None else [known]
        at = next((n for n in others if self._windows[n].waits_for(queue)), None)
        if at is not None:
            self._queues[queue] = _Held(at)

    def refused(self, at: int, sent: Pending) -> None:
        """A broker refused this message because the queue has moved."""
        held = self._queues.setdefault(sent.to, _Held(at))
        held.at = at
        held.refused.append(sent)

    def behind(self, sent: Pending) -> None:
        """Put a message at the end of those that wait."""
        self._queues[sent.to].behind.append(sent)

    def all(self) -> list[Pending]:
        return [sent for held in self._queues.values() for sent in held.messages]

    def take_all(self) -> list[Pending]:
        """Remove and return all waiting messages."""
        waiting = self.all()
        self._queues.clear()
        return waiting

    def go_on(self) -> None:
        """Send what can be sent to its queue's new broker. On `memory://`, answers arrive while
        sending and lead here again; they are looked at afterwards."""
        if self._goes_on:
            self._heard = True
            return
        tried: set[tuple[str, int]] = set()
        self._goes_on = self._heard = True
        try:
            while self._heard:
                self._heard = False
                self._send_on(tried)
        finally:
            self._goes_on = False

    def _send_on(self, tried: set[tuple[str, int]]) -> None:
        """One attempt for each queue. tried: pairs of queue and broker already used."""
        now = time.monotonic()
        for queue, held in list(self._queues.items()):
            if self._queues.get(queue) is not held:  # closed meanwhile
                continue
            if now < held.not_before or self._windows[held.at].waits_for(queue):
                continue
            number = self._broker_of(queue)
            has_left = number == held.at and not held.not_before
            if has_left or (queue, number) in tried:
                held.not_before = now + PAUSE_S
                continue
            tried.add((queue, number))
            del self._queues[queue]
            window = self._window(number)
            window.sends.send()
            for sent in held.messages:
                window.number(sent)
                window.sends.alone(sent.seq, *sent.record)
