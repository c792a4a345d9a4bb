"""A connection: a session as applications see it. Gives producers, consumers, the administrator.

A replay that a consumer asks for: `connection.consumer("orders", replay_from=…)` (R4).

It is the administrator's replay, begun behind the consumer's subscription: those messages are
published once more, to this queue alone, and come to whoever consumes it. What is asked for is
looked at before the consumer subscribes, so what is wrong with it is raised there; then it goes on
beside the consumer, who may receive at once. A consumer that subscribes again after a failure asks
for nothing again.

A client's credentials, for engines that ask for signed commands: ``NAME:KEY``, given to
`connect`, or in the environment, or in a file that the environment names.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from ..protocol import ConfigError, LakequeueError, commands
from ..protocol.signing import Credentials
from .admin import Admin
from .consumer.consumer import Consumer
from .producer.producer import Producer
from .session.runner import Runner, Threads
from .session.session import Session
from .session.transport import Transport
from .spans import Spans
from .values import time_ms

FLUSH_S = 10.0


class Connection(Session):
    """Made by `lakequeue.connect`. Gives producers, consumers and the administrator's face."""

    def __init__(
        self,
        transport: Transport,
        vpn: str,
        client_name: str,
        runner: Runner | None = None,
        number: int = 0,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__(transport, runner or Threads(), vpn, client_name, number, credentials)

    def producer(self, **options: Any) -> Producer:
        """A producer; see `Producer` for the options."""
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
        """A consumer of a queue; see `Consumer` for the options.

        replay_from: what came for the queue since then and is not in it any more comes once more
        (R4): a time, a message id, or `epoch`; replay_home: as `home` of `Admin.replay`, which says
        what is raised. See `consumer_replay`.
        """
        self.check_open()
        asked = (
            ConsumerReplay(self, queue, replay_from, replay_home)
            if replay_from is not None
            else None
        )
        consumer = Consumer(self, queue, **options)
        if asked is not None:
            consumer.replay = asked.done
            asked.begin()
        return consumer

    def admin(self) -> Admin:
        """The administrator's face."""
        self.check_open()
        return Admin(self)

    def now(self) -> datetime:
        """The engine's time; over Kafka this machine's."""
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def trace(self, tracer_provider: Any = None) -> None:
        """From now on OpenTelemetry hears of each publish and each delivery here: a span for each,
        linked by the message's header `traceparent`. tracer_provider: the process's by default.
        Raises ConfigError where the packages of the extra `otel` are not installed."""
        self.spans = Spans(tracer_provider)

    def advance(self, duration: str | float) -> None:
        """On ``memory://``: move the clock, stopping at every deadline on the way."""
        raise ConfigError("advance: only on memory://")

    def publish_raw(
        self, topic: str, value: bytes, key: bytes | None = None,
        headers: dict[str, bytes] | None = None, timestamp: int | None = None,
    ) -> None:  # fmt: skip
        """On ``memory://``: a plain record on a topic, as any Kafka producer would write it."""
        raise ConfigError("publish_raw: only on memory://")

    def close(self) -> None:
        """Close producers and consumers, say goodbye, close the transport. Then raises the first
        error: Timeout, Rejected for what nobody was told of, or what could not be said to Kafka."""
        if not self.is_open:
            return
        errors: list[LakequeueError] = []

        def attempt(step: Callable[[], None]) -> None:
            try:
                step()
            except LakequeueError as error:  # the others have something to say as well
                errors.append(error)

        try:
            for producer in self._producers():
                attempt(producer.close)
        finally:  # also at Ctrl-C
            for consumer in list(self._consumers.values()):
                attempt(consumer.close)
            for number in sorted(self._spoken_to):
                attempt(partial(self.command, commands.Bye(session=self.session), number))
            self.is_open = False
            self.wake()
            self.runner.stop()
            self._transport.flush(FLUSH_S)
            self._transport.close()
        if errors:
            raise errors[0]

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ConsumerReplay:
    """Of one consumer. done: what became of it. Raises as `Admin.replay`."""

    def __init__(
        self, session: Session, queue: str, since: datetime | str, home: Path | str | None
    ) -> None:
        if since != "epoch" and not (isinstance(since, str) and since.isdecimal()):
            time_ms(since, "replay_from")
        self.done: Future[Any] = Future()
        self._admin = Admin(session)
        self._queue, self._since, self._home = queue, since, home
        self._waits = session.runner.waits
        found = self._run(dry_run=True)
        if found.left:
            session.report(f"replay_from {since} of queue {queue!r}: {found.left}")

    def begin(self) -> None:
        """Publish it, beside whoever calls."""
        if self._waits:
            threading.Thread(target=self._go, name="lakequeue-replay", daemon=True).start()
        else:  # in memory nobody works beside the caller
            self._go()

    def _run(self, dry_run: bool = False) -> Any:
        return self._admin.replay(self._queue, since=self._since, home=self._home, dry_run=dry_run)

    def _go(self) -> None:
        try:
            self.done.set_result(self._run())
        except Exception as error:  # the tables are altered, the connection was closed
            self.done.set_exception(error)


KEY, KEY_FILE = "LAKEQUEUE_CLIENT_KEY", "LAKEQUEUE_CLIENT_KEY_FILE"


def credentials(key: str | None = None) -> Credentials | None:
    """What is given, or what the environment says; None: commands are not signed. Raises
    ConfigError."""
    if key is not None:
        return Credentials.parse(key)
    if text := os.environ.get(KEY):
        return Credentials.parse(text, KEY)
    file = os.environ.get(KEY_FILE)
    if not file:
        return None
    try:
        return Credentials.parse(Path(file).read_text(), KEY_FILE)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"{KEY_FILE}: {file} cannot be read: {why}") from error
