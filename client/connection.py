"""The connection that `lakequeue.connect` returns: a session, with producers, consumers and
`Admin`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from ..protocol import ConfigError, LakequeueError, commands
from ..protocol.signing import Credentials
from .admin import Admin
from .consumer.consumer import CLOSE_S, Consumer
from .producer.producer import Producer
from .session.futures import SessionFuture
from .session.session import Session
from .spans import Spans
from .values import deadline_s, time_ms

FLUSH_S = 30.0  # for all producers together


class Connection(Session):
    """A connection to an engine, made by `lakequeue.connect`. Safe to use from several threads.
    Close it, or use it in a ``with`` statement."""

    def producer(self, **options: Any) -> Producer:
        """Make a producer; see `Producer` for the options and errors. Raises NotConnected if the
        connection is closed."""
        self.check_open()
        return Producer(self, **options)

    def consumer(
        self,
        queue: str,
        *,
        replay_from: datetime | str | None = None,
        replay_home: Path | str | None = None,
        **options: Any,
    ) -> Consumer:
        """Make a consumer of a queue; see `Consumer` for the options and errors.

        replay_from: also deliver past messages of the queue that are not in it any more (R4): those
        published since this time (an aware datetime or ISO-8601 text), from this message id on, or
        all of them (`epoch`). The replay runs beside the consumer, and its outcome is the future
        `consumer.replay`. It goes to all consumers of the queue, and is not repeated if this one
        has to subscribe again. A wrong request raises here, as `Admin.replay` does. replay_home:
        the engine's home, like `home` of `Admin.replay`.
        """
        self.check_open()
        if replay_from is None:
            return Consumer(self, queue, **options)
        replay = self._checked_replay(queue, replay_from, replay_home)
        consumer = Consumer(self, queue, **options)  # a replay goes to a queue's consumers
        consumer.replay = self._begun(replay)
        return consumer

    def _begun(self, work: Callable[[], Any]) -> Future[Any]:
        """Begin work in a thread, or do it now where nothing waits; returns a future with its
        outcome."""
        done: SessionFuture[Any] = SessionFuture(self)

        def run() -> None:
            try:
                done.set_result(work())
            except Exception as error:  # the tables were altered, the connection was closed
                done.set_exception(error)

        if self.runner.waits:
            threading.Thread(target=run, name="lakequeue-replay", daemon=True).start()
        else:
            run()
        return done

    def _checked_replay(
        self, queue: str, since: datetime | str, home: Path | str | None
    ) -> Callable[[], Any]:
        """Check a replay; returns the function that publishes the messages."""
        if since != "epoch" and not (isinstance(since, str) and since.isdecimal()):
            time_ms(since, "replay_from")
        replay = partial(Admin(self).replay, queue, since=since, home=home)
        if left := replay(dry_run=True).left:
            self.report(f"replay_from {since} of queue {queue!r}: {left}")
        return replay

    def admin(self) -> Admin:
        """The administration interface; see `Admin`. Raises NotConnected if the connection is
        closed."""
        self.check_open()
        return Admin(self)

    def now(self) -> datetime:
        """The engine's time as an aware datetime; over Kafka this machine's."""
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def trace(self, tracer_provider: Any = None) -> None:
        """Report each publish and each delivery to OpenTelemetry from now on.

        Each gets a span; the message header `traceparent` links them. tracer_provider: a
        TracerProvider; by default the process's. Raises ConfigError if the packages of the extra
        `otel` are missing.
        """
        self.spans = Spans(tracer_provider)

    def advance(self, duration: str | float) -> None:
        """On `memory://`: move the clock forward, stopping at every deadline. Elsewhere raises
        ConfigError."""
        raise ConfigError("advance: works on memory:// only; over Kafka, time passes by itself")

    def publish_raw(
        self, topic: str, value: bytes, key: bytes | None = None,
        headers: dict[str, bytes] | None = None, timestamp: int | None = None,
    ) -> None:  # fmt: skip
        """On `memory://`: put a plain record on a topic, as any Kafka producer would write it.
        timestamp: epoch ms. Elsewhere raises ConfigError."""
        raise ConfigError(
            "publish_raw: works on memory:// only; over Kafka, use any Kafka producer"
        )

    def close(self) -> None:
        """Close producers and consumers, end the session, close the transport.

        However many there are, it waits up to 30 s for answers to messages, up to 5 s for running
        callbacks, and while Kafka or the engine is away up to 8 s for the rest. Closes everything,
        then raises the first error: Timeout for messages without an answer, Rejected for refused
        messages nobody was told of, NotConnected if Kafka could not be reached.
        """
        if not self.is_open:
            return
        errors: list[LakequeueError] = []

        def attempt(step: Callable[[], None]) -> None:
            try:
                step()
            except LakequeueError as error:  # the others still have to be closed
                errors.append(error)

        try:
            until = deadline_s(FLUSH_S)
            for producer in self._producers():
                attempt(partial(producer.close, max(until - time.monotonic(), 0.0)))
        finally:  # also at Ctrl-C
            consumers, until = list(self._consumers.values()), deadline_s(CLOSE_S)
            for consumer in consumers:  # first all of them: their callbacks end at the same time
                consumer.stop()
            for consumer in consumers:
                attempt(partial(consumer.close_by, until))
            for number in sorted(self._spoken_to):
                attempt(partial(self.command, commands.Bye(session=self.session), number))
            was_open, self.is_open = self.is_open, False
            self.wake()
            self._transport.close()  # which also ends a question to Kafka in the reader's thread
            self.runner.stop()
        if errors and was_open:  # otherwise another thread has closed it, and raises them
            raise errors[0]

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


KEY_VARIABLE, KEY_FILE_VARIABLE = "LAKEQUEUE_CLIENT_KEY", "LAKEQUEUE_CLIENT_KEY_FILE"


def credentials(key: str | None = None) -> Credentials | None:
    """The client's key for signing commands: the given ``NAME:KEY``, else from the environment;
    None if there is none. Raises ConfigError."""
    if key is not None:
        return Credentials.parse(key)
    if text := os.environ.get(KEY_VARIABLE):
        return Credentials.parse(text, KEY_VARIABLE)
    file = os.environ.get(KEY_FILE_VARIABLE)
    if not file:
        return None
    try:
        return Credentials.parse(Path(file).read_text(), KEY_FILE_VARIABLE)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"{KEY_FILE_VARIABLE}: {file} cannot be read: {why}") from error
