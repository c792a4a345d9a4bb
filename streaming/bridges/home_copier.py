"""Copies a bridge's messages to another home, and the answers back (H1).

    <broker>.bridge-out ─▶ far <vpn>.bridge-in    far <vpn>.bridge-answers ─▶ <broker>.mesh

Each bridge to another Kafka has a thread that copies bytes in their order. The far end accepts a
record once even if it is copied twice; a record that did not arrive is copied again with all later
ones. The thread begins at the oldest record without an answer. A consumer group's position in its
own Kafka remembers that record, and how far the answers were read. So every failure has one remedy:
log the reason, and begin there again after a pause.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from contextlib import closing
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from ...definitions.bridge import KAFKA, BridgeDefinition, FarAddress, far_address
from ...protocol import LakequeueError, NotConnected, home_bridges, topics
from ...protocol.kafka_settings import credentials
from ...sources.live import kafka_client
from ..watch_thread import WatchThread
from .far_home import READER, WRITER, FarHome, taken

log = logging.getLogger("lakequeue.engine")

PAUSE_S, PAUSE_S_MAX = 1.0, 30.0
SILENCE_S, SILENCE_S_MAX = 30.0, 600.0  # without an answer, until everything is copied again
SENT_S_MAX = 10.0
KEPT_S = 1.0  # how often the position is stored while it changes
KEPT_AGAIN_S = 3_600.0  # and while it does not: Kafka deletes it after a week


class HomeCopier(WatchThread):
    """The thread of one bridge. position: the oldest record of its broker's topic without an
    answer; None: not known yet."""

    def __init__(self, bootstrap: str, epoch: int, bridge: BridgeDefinition) -> None:
        super().__init__(f"lakequeue-bridge-{bridge.name}")
        self.bridge = bridge
        self.position: int | None = None
        self._epoch = epoch
        self._near = kafka_client(bootstrap, f"lakequeue-bridge-{bridge.name}")
        self._key = home_bridges.bridge_key(bridge.vpn, bridge.name)
        self._mesh = topics.topic(bridge.origin, topics.MESH)
        self._reported: home_bridges.CopierState | None = None
        self._pause_s = PAUSE_S
        self._silence_s = SILENCE_S

    def run(self) -> None:
        """Copy until it is stopped. If a copy fails, begin again after a pause."""
        self._writer = Producer({**self._near, **WRITER})
        while not self._stopping.is_set():
            try:
                self._copy()
            except LakequeueError as error:
                self._wait(str(error))
            except KafkaException as error:
                self._wait(f"{self.bridge.to}: {error.args[0].str()}")
            except Exception as error:  # one bridge must not end the others; it tries again
                log.exception("bridge %r", self.bridge.name)
                self._wait(f"{type(error).__name__}: {error}")
        self._writer.flush(KEPT_S)
        del self._writer

    def grow_patient(self) -> float:
        """Let the next silence be longer; returns the present one, in seconds. Until an answer can
        be read, the bridge does not count as open, so its state is reported once."""
        silence_s, self._silence_s = self._silence_s, min(2 * self._silence_s, SILENCE_S_MAX)
        return silence_s

    def _wait(self, why: str) -> None:
        self._report_state(home_bridges.WAITING, why)
        self._stopping.wait(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    def _report_state(self, state: str, why: str) -> None:
        """Report a new state of the connection to the near broker and the log. If Kafka does not
        take it, the state is reported again when it is known again."""
        report = home_bridges.CopierState(state, why[:900])  # type: ignore[arg-type]
        self._writer.poll(0)
        if report == self._reported:
            return
        try:
            self._writer.produce(
                self._mesh, home_bridges.encode(report), self._key, 0, on_delivery=self._told
            )
        except BufferError:
            log.warning("bridge %r: Kafka takes no records; its state is %s", self.bridge.name,
                        report)  # fmt: skip
            return
        self._reported = report
        if why:
            log.warning("bridge %r waits: %s", self.bridge.name, why)
        else:
            log.info("bridge %r is open", self.bridge.name)
        self._writer.poll(0)

    def _told(self, error: KafkaError | None, _: Any) -> None:
        if error is not None:
            self._reported = None

    # ------------------------------------------------------------ copying

    def _copy(self) -> None:
        address = far_address(self.bridge.to)
        if address.scheme != KAFKA:
            raise NotConnected(f"{self.bridge.to}: an engine on Kafka reaches kafka:// only")
        name = self.bridge.credentials
        kafka = {
            **{k: v for k, v in self._near.items() if not k.startswith(("sasl.", "ssl."))},
            "security.protocol": "PLAINTEXT",
            **({} if name is None else credentials(name)),
            "bootstrap.servers": address.place,
        }
        with FarHome(kafka, self.bridge, address, self._epoch) as far:
            if self._silence_s == SILENCE_S:  # else an answer opens it
                self._report_state(home_bridges.OPEN, "")
            group = f"lakequeue.bridge.{self._epoch}.{self.bridge.vpn}.{self.bridge.name}"
            with closing(Consumer({**self._near, **READER, "group.id": group})) as reader:
                attempt = _CopyAttempt(self, far, address, reader)
                while not self._stopping.is_set():
                    attempt.turn()


class _CopyAttempt:
    """One attempt: from the stored position on, until something fails."""

    def __init__(
        self, copier: HomeCopier, far: FarHome, address: FarAddress, reader: Consumer
    ) -> None:
        self._copier, self._far, self._reader = copier, far, reader
        self._out = topics.topic(copier.bridge.origin, topics.BRIDGE_OUT)
        self._own = home_bridges.answers_key(copier._epoch, copier.bridge.name)
        self._unanswered: deque[tuple[tuple[int, int], int]] = deque()  # (link, number), offset
        # the topic that the kept position of answers belongs to
        self._place = [address.place, far.number]
        self._kept: tuple[int, int] | None = None
        self._kept_at = 0.0
        self._heard_at = time.monotonic()
        self._refusal = ""  # the far end's last
        self._failures: list[KafkaError] = []
        (found,) = reader.committed([TopicPartition(self._out, 0)], SENT_S_MAX)
        self._next, self._answers_at = OFFSET_BEGINNING, OFFSET_BEGINNING
        if found.offset >= 0:
            self._next = found.offset
            about = json.loads(found.metadata or "{}")
            if about.get("place") == self._place:
                self._answers_at = about["at"]
        reader.assign([TopicPartition(self._out, 0, self._next)])
        far.listen(self._answers_at)

    def turn(self) -> None:
        """Copy waiting records in both directions."""
        self._send_records()
        self._return_answers()
        self._far.poll()
        self._store_position()
        if self._unanswered and time.monotonic() - self._heard_at > self._copier._silence_s:
            silent_s = self._copier.grow_patient()
            raise NotConnected(
                self._refusal
                or f"{self._copier.bridge.to}: has answered nothing for {silent_s:.0f} s; is its "
                f"engine running, and bridge {self._copier.bridge.name!r} defined there, with "
                "an address as its `from`?"
            )

    def _send_records(self) -> None:
        for message in taken(self._reader):
            self._next = message.offset() + 1
            if message.key() != self._copier._key:
                continue
            try:
                sent = home_bridges.decode_send(message.value()).send
            except ValueError as error:
                log.error("bridge %r, offset %d: %s", self._copier.bridge.name, message.offset(),
                          error)  # fmt: skip
                continue
            if not self._unanswered:
                self._heard_at = time.monotonic()
            self._unanswered.append(((sent.link, sent.number), message.offset()))
            self._far.bring(message.value())

    def _return_answers(self) -> None:
        writer, newest = self._copier._writer, None
        for message in self._far.answers():
            self._answers_at = message.offset() + 1
            if message.key() != self._own:
                continue
            try:
                answer = home_bridges.decode_copied(message.value())
            except ValueError as error:  # only another version of one of the homes helps
                self._copier._pause_s = self._copier.grow_patient()
                to = self._copier.bridge.to
                raise NotConnected(f"{to}: its answer cannot be read: {error}") from error
            writer.produce(self._copier._mesh, message.value(), self._copier._key, 0,
                           on_delivery=self._written)  # fmt: skip
            if isinstance(answer, home_bridges.HomeAnswer):
                newest, self._refusal = (answer.receipt.link, answer.receipt.number), ""
            else:
                self._refusal = answer.why
        if (newest or self._refusal) and (writer.flush(SENT_S_MAX) or self._failures):
            raise NotConnected("Kafka does not take a bridge's answers; they are sent again")
        if newest is None:  # nothing came, or only why the far end refuses
            return
        self._heard_at = time.monotonic()
        self._copier._pause_s, self._copier._silence_s = PAUSE_S, SILENCE_S
        self._copier._report_state(home_bridges.OPEN, "")
        while self._unanswered and self._unanswered[0][0] <= newest:
            self._unanswered.popleft()

    def _written(self, error: KafkaError | None, _: Any) -> None:
        if error is not None:
            self._failures.append(error)

    def _store_position(self) -> None:
        at = self._unanswered[0][1] if self._unanswered else self._next
        now = time.monotonic()
        old = now - self._kept_at
        if at < 0 or old < KEPT_S or ((at, self._answers_at) == self._kept and old < KEPT_AGAIN_S):
            return
        about = json.dumps({"place": self._place, "at": self._answers_at})
        self._reader.commit(offsets=[TopicPartition(self._out, 0, at, about)], asynchronous=False)
        self._kept, self._kept_at = (at, self._answers_at), now
        self._copier.position = at
