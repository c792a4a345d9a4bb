"""A producer's channel to one broker, and its messages for queues that moved to another one.

A broker counts a producer's messages (P1). So a producer has sequence numbers and a window per
broker, and a message is sent again to the broker that it was first sent to (P2).

If a queue has moved, its old broker refuses the messages (reason ``moved``) and says where it is
now; or the client learns it from the directory. `MovedMessages` sends them to the new broker, under
that broker's numbers, once no message for the queue is unanswered at the old one. Later messages
wait behind them, so a producer's messages stay in order. A refused message was not stored, so none
arrives twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..session.session import Session
from .options import Template, sent_after
from .receipts import Pending
from .window import Batcher, Window

MOVED_MOST = 1_000  # destinations that a channel remembers as moved


class BrokerChannel:
    """A channel to one broker, under the producer's lock.

    sequence: the next message's number. moved: by destination, the highest sequence that this
    broker has refused as moved.
    """

    def __init__(
        self, session: Session, producer_id: str, broker: int, lock: threading.RLock,
        sequence: int, pub_ack_s: float, window: int,
    ) -> None:  # fmt: skip
        self._changed = session.changed
        self.sequence = sequence
        self.moved: dict[str, int] = {}
        self.sends = Batcher(session, session.publish_partition(producer_id, broker))
        self.window = Window(lock, self.sends, pub_ack_s, window, session.report)

    def number(
        self, payload: bytes, key: bytes | None, headers: list[tuple[str, bytes]] | None,
        template: Template, persistent: bool, to: str,
    ) -> Pending:  # fmt: skip
        """Number a message that is about to be sent; 0 if the engine will not answer it."""
        seq = self.sequence if persistent else 0
        template = self._template(template, to)
        sent = Pending(self._changed, seq, (payload, key, headers, template), time.monotonic())
        sent.to = to
        if persistent:
            self.sequence = seq + 1
            self.window.add(sent)
        return sent

    def renumber(self, sent: Pending) -> None:
        """Give a message that another broker refused this broker's next number."""
        sent.seq, sent.at = self.sequence, time.monotonic()
        *content, template = sent.record
        sent.record = (*content, self._template(template, sent.to))
        self.sequence += 1
        self.window.add(sent)

    def _template(self, template: Template, to: str) -> Template:
        return sent_after(template, self.moved.get(to, 0)) if self.moved else template

    def note_moved(self, to: str, seq: int) -> None:
        """The broker refused a message as moved; later headers say so."""
        self.moved[to] = max(self.moved.pop(to, 0), seq)
        if len(self.moved) > MOVED_MOST:
            del self.moved[next(iter(self.moved))]

    def take_back(self, sent: Pending) -> None:
        """The message was not sent; its number goes to the next one."""
        self.window.remove(sent)
        if sent.seq:
            self.sequence = sent.seq


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
        self, channels: dict[int, BrokerChannel], channel: Callable[[int], BrokerChannel],
        broker_of: Callable[[str], int],
    ) -> None:  # fmt: skip
        self._channels = channels
        self._channel = channel
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
        others = [n for n in self._channels if n != number] if known is None else [known]
        at = next((n for n in others if self._channels[n].window.waits_for(queue)), None)
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
            old = self._channels[held.at]
            if now < held.not_before or old.window.waits_for(queue):
                continue
            number = self._broker_of(queue)
            has_left = number == held.at and not held.not_before
            if has_left or (queue, number) in tried:
                held.not_before = now + PAUSE_S
                continue
            tried.add((queue, number))
            del self._queues[queue]
            channel = self._channel(number)
            channel.sends.send()
            for sent in held.messages:
                channel.renumber(sent)
                channel.sends.alone(sent.seq, *sent.record)
