"""A producer's messages for queues that moved to another broker.

The client learns from the directory that a queue has moved. Earlier messages may still be
unanswered at the old broker, which passes them on. Later ones wait here until those are answered,
so a producer's messages stay in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .receipts import Pending
from .window import Window

KNOWN_MOST = 10_000  # destinations whose last broker is remembered


@dataclass(slots=True)
class _Held:
    """Messages for one queue, in order of sending. at: the broker with unanswered earlier ones."""

    at: int
    messages: list[Pending] = field(default_factory=list)


class MovedMessages:
    """One producer's messages for moved queues, under its lock."""

    def __init__(
        self, windows: dict[int, Window], window: Callable[[int], Window],
        broker_of: Callable[[str], int],
    ) -> None:  # fmt: skip
        self._windows = windows
        self._window = window
        self._broker_of = broker_of
        self._queues: dict[str, _Held] = {}
        self._went: dict[str, int] = {}  # broker of each destination's last message

    def __len__(self) -> int:
        return len(self.all())

    def waiting(self, queue: str) -> list[Pending]:
        """The messages for this queue that wait."""
        held = self._queues.get(queue)
        return [] if held is None else held.messages

    def keep_back(self, sent: Pending, number: int) -> bool:
        """Keep a message that is about to be sent to this broker, if an earlier one for its queue
        is unanswered at another broker. Returns whether it has to wait."""
        queue = sent.to
        known = self._went.pop(queue, None)
        self._went[queue] = number
        if len(self._went) > KNOWN_MOST:
            del self._went[next(iter(self._went))]
        if known != number and queue not in self._queues:
            others = [n for n in self._windows if n != number] if known is None else [known]
            at = next((n for n in others if self._windows[n].waits_for(queue)), None)
            if at is not None:
                self._queues[queue] = _Held(at)
        if queue not in self._queues:
            return False
        self._queues[queue].messages.append(sent)
        return True

    def all(self) -> list[Pending]:
        waiting = list(self._queues.values())  # also asked without the lock
        return [sent for held in waiting for sent in held.messages]

    def go_on(self) -> None:
        """Send what needs to wait no longer to its queue's new broker."""
        for queue, held in list(self._queues.items()):
            # On memory:// answers arrive while sending, and lead here again.
            if self._queues.get(queue) is not held or self._windows[held.at].waits_for(queue):
                continue
            window = self._window(self._broker_of(queue))
            del self._queues[queue]
            for sent in held.messages:  # all of them first: what cannot be sent now is sent again
                window.number(sent)
            window.sends.send()
            for sent in held.messages:
                window.sends.alone(sent.seq, *sent.record)
