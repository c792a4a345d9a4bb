"""What a producer sends to one broker: numbers of its own, a window of its own (P1, P5).

A broker knows a producer by its name and counts what comes from it. So a producer counts for each
broker by itself, and a message stays with the broker to which it was sent first, also when it is
sent again (P2).
"""

from __future__ import annotations

import threading
import time

from .batching import Batcher
from .headers import Template, sent_after
from .pending import Pending
from .session import Session
from .window import Window

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
