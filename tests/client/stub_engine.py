"""The engine's step behind real Kafka topics, without Spark: for tests of clients.

A thread reads commands and publishes, runs `state.step`, writes what comes out, and runs a step
when a deadline is due. Clients cannot tell it from the job, but for its speed: a step takes a
millisecond, not a batch's time. Nothing is stored: the state ends with the process.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from lakequeue.client.kafka import open_kafka
from lakequeue.client.session.transport import Record, Transport
from lakequeue.definitions import Configuration
from lakequeue.definitions.configuration import configure_commands
from lakequeue.protocol import NotConnected, topics, wire
from lakequeue.protocol.messages import HEADER, Records
from lakequeue.protocol.outputs import Deadline
from lakequeue.sources.step_batch import goes_first
from lakequeue.state import Batch, Broker, DictStore, Home, Limits, step
from lakequeue.streaming.kafka.topics_admin import ensure_topics

POLL_S = 0.02
VPN = "default"


class StubEngine:
    """A context manager: the engine runs between entry and exit.

    loses: asked for each record that comes in; True loses it. pace_s: how long a step takes at
    least, as a batch of the job would. Only the VPN ``default`` is served.
    """

    def __init__(
        self,
        bootstrap: str,
        configuration: Configuration,
        library: str | None = None,
        pace_s: float = 0.0,
    ) -> None:
        self.bootstrap = bootstrap
        self.broker = Broker.load(DictStore(), Home("broker-0", 0, 0), Limits())
        self.pace_s = pace_s
        self.loses: Callable[[Record], bool] = lambda _: False
        self.steps = 0
        self.failure: BaseException | None = None
        self.troubles: list[str] = []  # what Kafka had to say
        self._outbox: deque[wire.WireRecord] = deque()
        self._deadline = 0
        self._running = threading.Event()
        self._idle = threading.Event()
        self._stop = False
        self._partitions = ensure_topics(bootstrap, [VPN], [])
        self._transport: Transport = open_kafka(bootstrap, "engine", library)
        for kind in (topics.COMMANDS, topics.PUBLISH):
            name = topics.topic(VPN, kind)
            for partition in range(self._partitions[name]):
                self._transport.listen(name, partition)
        first = [
            Record(topics.topic("stub", topics.INSTRUCTIONS), 0, i, 0, vpn.encode(), value, [])
            for i, (vpn, value) in enumerate(configure_commands(configuration))
        ]
        self._step(first)
        self._thread = threading.Thread(target=self._run, daemon=True, name="lakequeue-stub")

    def __enter__(self) -> StubEngine:
        self.resume()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self.resume()
        self._thread.join(10)
        self._transport.close()

    def pause(self) -> None:
        """Do nothing from now on, as an engine that is away; what comes in waits in Kafka."""
        self._running.clear()
        self._idle.wait(5)

    def resume(self) -> None:
        """Go on where it paused."""
        self._idle.clear()
        self._running.set()

    def _run(self) -> None:
        while not self._stop:
            if not self._running.is_set():
                self._idle.set()
                self._running.wait(0.05)
                continue
            try:
                self._turn()
            except NotConnected as error:  # the broker is away: the transport finds it again
                self.troubles.append(str(error))
                time.sleep(0.1)
            except BaseException as error:
                self.failure = error
                raise

    def _turn(self) -> None:
        self._write()
        records = [r for r in self._transport.poll(POLL_S) if not self.loses(r)]
        due = 0 < self._deadline <= _now_ms()
        if records or due:
            started = time.monotonic()
            self._step(records)
            time.sleep(max(0.0, started + self.pace_s - time.monotonic()))

    def _step(self, records: list[Record]) -> None:
        ordered = sorted(records, key=lambda r: (r.topic, r.partition, r.offset))
        batch = Batch(
            commands=_records([r for r in ordered if goes_first(r.topic)]),
            publishes=_records([r for r in ordered if not goes_first(r.topic)]),
        )
        outputs = step(self.broker, batch, _now_ms())
        self.steps += 1
        for output in outputs:
            if isinstance(output, Deadline):
                self._deadline = output.at
        self._outbox += wire.encode(outputs, self._partitions)
        self._write()

    def _write(self) -> None:
        """Write what came out; it is kept until Kafka has taken it."""
        while self._outbox:
            record = self._outbox[0]
            self._transport.publish(
                record.topic, record.value or b"", record.key,
                wire.headers_list(record.headers), record.partition,
            )  # fmt: skip
            self._outbox.popleft()


def _now_ms() -> int:
    return round(time.time() * 1000)


def _records(records: list[Record]) -> Records:
    metas = [next((v for k, v in r.headers if k == HEADER), None) for r in records]
    own: list[Any] = [
        wire.headers_json([(k, v) for k, v in r.headers if k != HEADER]) for r in records
    ]
    return Records(
        [r.topic for r in records], [r.partition for r in records], [r.offset for r in records],
        [r.timestamp for r in records], [r.key for r in records], [r.value for r in records],
        metas, own,
    )  # fmt: skip
