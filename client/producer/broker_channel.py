"""What a producer sends to one broker: numbers of its own, a window of its own (P1, P5).

A broker knows a producer by its name and counts what comes from it. So a producer counts for each
broker by itself, and a message stays with the broker to which it was sent first, also when it is
sent again (P2).

A producer's messages for a queue that went to another broker.

The broker that had it refuses them (reason ``moved``) and says where it is; or the client learns it
by itself. They are sent there under that broker's numbers, when none for this queue is without an
answer at the old one, and what is sent meanwhile waits behind them: so a producer's messages stay
in order. Refused is not stored, so none comes twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..session.session import Session
from .options import Template, sent_after
from .receipts import Pending
from .window import Batcher, Window

MOVED_MOST = 1_000  # destinations


class BrokerChannel:
    """A producer's channel to one broker, under the producer's lock. sequence: of the next message;
    moved: by destination the highest sequence that this broker has refused as moved."""

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
        """A message that is about to be sent, under the next number; 0 where nobody answers."""
        seq = self.sequence if persistent else 0
        template = self._template(template, to)
        sent = Pending(self._changed, seq, (payload, key, headers, template), time.monotonic())
        sent.to = to
        if persistent:
            self.sequence = seq + 1
            self.window.add(sent)
        return sent

    def renumber(self, sent: Pending) -> None:
        """A message that another broker has refused gets this one's next number."""
        sent.seq, sent.at = self.sequence, time.monotonic()
        *content, template = sent.record
        sent.record = (*content, self._template(template, sent.to))
        self.sequence += 1
        self.window.add(sent)

    def _template(self, template: Template, to: str) -> Template:
        return sent_after(template, self.moved.get(to, 0)) if self.moved else template

    def note_moved(self, to: str, seq: int) -> None:
        """The broker has refused a message as moved: what is sent from now on says so."""
        self.moved[to] = max(self.moved.pop(to, 0), seq)
        if len(self.moved) > MOVED_MOST:
            del self.moved[next(iter(self.moved))]

    def take_back(self, sent: Pending) -> None:
        """It was not sent after all: its number is the next one's."""
        self.window.remove(sent)
        if sent.seq:
            self.sequence = sent.seq


PAUSE_S = 0.1  # the queue is on its way
KNOWN_MOST = 10_000  # destinations of which it is known where the last message went


@dataclass(slots=True)
class _Held:
    """Of one queue. at: the number of the broker that had it; messages that it refused, and those
    that were sent since: each with whether nobody has its future; not_before: monotonic, s."""

    at: int
    refused: list[tuple[Pending, bool]] = field(default_factory=list)
    behind: list[tuple[Pending, bool]] = field(default_factory=list)
    not_before: float = 0.0

    @property
    def messages(self) -> list[tuple[Pending, bool]]:
        """All of them, in the order in which they were sent."""
        return self.refused + self.behind


class MovedMessages:
    """Of one producer, under its lock. channel: to a broker; broker_of: a destination's."""

    def __init__(
        self, channels: dict[int, BrokerChannel], channel: Callable[[int], BrokerChannel],
        broker_of: Callable[[str], int],
    ) -> None:  # fmt: skip
        self._channels = channels
        self._channel = channel
        self._broker_of = broker_of
        self._queues: dict[str, _Held] = {}
        self._went: dict[str, int] = {}  # to which broker a destination's last message went
        self._goes_on = self._heard = False  # `go_on` is at work; and was called again meanwhile

    def __len__(self) -> int:
        return sum(len(held.messages) for held in self._queues.values())

    def holds(self, queue: str) -> int | None:
        """How many messages for this queue wait; None: it is not on its way."""
        held = self._queues.get(queue)
        return None if held is None else len(held.messages)

    def goes_to(self, queue: str, number: int) -> None:
        """A message for this queue is about to go to that broker: it waits, if one of before is
        without an answer at another."""
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

    def refused(self, at: int, sent: Pending, untold: bool) -> None:
        """A broker does not have this message's queue any more."""
        held = self._queues.setdefault(sent.to, _Held(at))
        if held.at != at:
            held.at = at
        held.refused.append((sent, untold))

    def behind(self, sent: Pending) -> None:
        """This one goes behind those that wait."""
        self._queues[sent.to].behind.append((sent, False))

    def keep_for_flush(self, sent: Pending) -> bool:
        """Nobody will look at this message's future; False if it does not wait here."""
        held = self._queues.get(sent.to)
        for messages in () if held is None else (held.refused, held.behind):
            for at, (one, _) in enumerate(messages):
                if one is sent:
                    messages[at] = (one, True)
                    return True
        return False

    def payloads(self) -> list[bytes]:
        """What waits."""
        return [sent.record[0] for sent in self._pending()]

    def _pending(self) -> Iterable[Pending]:
        return [sent for held in self._queues.values() for sent, _ in held.messages]

    def take_all(self) -> list[Pending]:
        """What waits, and waits no more."""
        waiting = list(self._pending())
        self._queues.clear()
        return waiting

    def go_on(self) -> None:
        """Send what can be sent where its queue is now. In memory answers come while one sends, and
        lead here: what they change is looked at when all that was to be sent has been."""
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
        """Once for each queue. tried: which were sent to which broker already, without a pause."""
        now = time.monotonic()
        for queue, held in list(self._queues.items()):
            if self._queues.get(queue) is not held:  # whoever heard an answer has closed
                continue
            old = self._channels[held.at]
            if now < held.not_before or old.window.waits_for(queue):
                continue
            number = self._broker_of(queue)
            not_there = number == held.at and not held.not_before
            if not_there or (queue, number) in tried:
                held.not_before = now + PAUSE_S
                continue
            tried.add((queue, number))
            del self._queues[queue]
            channel = self._channel(number)
            channel.sends.send()
            for sent, untold in held.messages:
                channel.renumber(sent)
                if untold:
                    channel.window.keep_for_flush(sent)
                channel.sends.alone(sent.seq, *sent.record)
