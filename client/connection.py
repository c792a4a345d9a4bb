"""A connection: a session as applications see it. Gives producers, consumers, the administrator."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from ..protocol import ConfigError, LakequeueError, commands
from ..protocol.signing import Credentials
from .admin import Admin
from .consumer import Consumer
from .consumer_replay import ConsumerReplay
from .producer import Producer
from .runner import Runner
from .session import Session
from .spans import Spans
from .threads import Threads
from .transport import Transport

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
