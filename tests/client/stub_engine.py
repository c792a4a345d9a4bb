"""The engine's step behind real Kafka topics, without Spark: for tests of clients.

A thread reads commands and publishes, runs `state.step`, writes the outputs, and takes a step when
a deadline is due. Clients see no difference from the job, except speed: a step takes a millisecond
instead of a batch's time. Nothing is stored: the state ends with the process.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from lakequeue.client.kafka import open_kafka
from lakequeue.client.session.transport import Record, Transport
from lakequeue.definitions import parse_configuration
from lakequeue.definitions.configuration import configure_commands
from lakequeue.protocol import topics, wire
from lakequeue.protocol.messages import HEADER, Records
from lakequeue.protocol.outputs import Deadline
from lakequeue.sources.step_batch import goes_first
from lakequeue.state import Batch, Broker, DictStore, Home, Limits, step
from lakequeue.streaming.kafka.topics_admin import ensure_topics

POLL_S = 0.02
VPN = "default"


class StubEngine:
    """A context manager: the engine runs between entry and exit. Only `default` is served."""

    def __init__(self, bootstrap: str, configuration: dict[str, Any]) -> None:
        self.bootstrap = bootstrap
        self.broker = Broker.load(DictStore(), Home("broker-0", 0, 0), Limits())
        self.failure: BaseException | None = None
        self._deadline = 0
        self._stop = False
        self._partitions = ensure_topics(bootstrap, [VPN], [])
        self._transport: Transport = open_kafka(bootstrap, "engine")
        for kind in (topics.COMMANDS, topics.PUBLISH):
            name = topics.topic(VPN, kind)
            for partition in range(self._partitions[name]):
                self._transport.listen(name, partition)
        said = configure_commands(parse_configuration(configuration))
        topic = topics.topic("stub", topics.INSTRUCTIONS)
        self._step(
            [Record(topic, 0, i, 0, vpn.encode(), text, []) for i, (vpn, text) in enumerate(said)]
        )
        self._thread = threading.Thread(target=self._run, daemon=True, name="lakequeue-stub")

    def __enter__(self) -> StubEngine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._thread.join(10)
        self._transport.close()
        assert self.failure is None

    def _run(self) -> None:
        try:
            while not self._stop:
                records = self._transport.poll(POLL_S)
                if records or 0 < self._deadline <= _now_ms():
                    self._step(records)
        except BaseException as error:
            self.failure = error
            raise

    def _step(self, records: list[Record]) -> None:
        ordered = sorted(records, key=lambda r: (r.topic, r.partition, r.offset))
        batch = Batch(
            commands=_records([r for r in ordered if goes_first(r.topic)]),
            publishes=_records([r for r in ordered if not goes_first(r.topic)]),
        )
        outputs = step(self.broker, batch, _now_ms())
        for output in outputs:
            if isinstance(output, Deadline):
                self._deadline = output.at
        for record in wire.encode(outputs, self._partitions):
            self._transport.publish(
                record.topic, record.value or b"", record.key,
                wire.headers_list(record.headers), record.partition,
            )  # fmt: skip


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
