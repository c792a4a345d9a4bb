"""The engine's outputs against the log of steps: byte for byte, all of them, in order.

The judge replays every logged step in this process, from nothing and in one go, with the inputs in
Kafka. The steps' digests must be those of the log. Then all records ever written for clients are
compared with the steps' outputs: there are no others, none is missing, repeated ones are equal, and
new ones are in the order of the steps. The log must be whole for this: an engine that retains
enough batches of Spark never trims it.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, TopicPartition
from lakequeue.lake.past_replica import PastDriver
from lakequeue.protocol import topics
from lakequeue.protocol.steplog import StepRecord
from lakequeue.protocol.wire import WireRecord, headers_list
from lakequeue.replica.driver import Snapshot
from lakequeue.sources.live import kafka_client
from lakequeue.sources.replay_inputs import ReplayInputs, read_steps
from lakequeue.state import DictStore, Home
from lakequeue.streaming.kafka.topics_admin import PARTITIONS

UNTRIMMED = ("--set", "spark.sql.streaming.minBatchesToRetain=100000")
SAID = (topics.DELIVERIES, topics.RECEIPTS, topics.JOURNAL, topics.REJECTED)
READ_S_MAX = 180.0
QUIET_S, QUIET_S_MAX = 2.5, 180.0

Said = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]  # key, value, headers


class _Ear:
    """`driver.Outbox` and `driver.Log` of a replay: collects the steps' outputs, in order."""

    def __init__(self) -> None:
        self.records: list[WireRecord] = []

    def send(self, step: int, records: Iterable[WireRecord]) -> None:
        self.records += records

    def acked(self) -> int | None:
        return None

    def append(self, value: bytes) -> None:
        raise AssertionError("a replay appends nothing")

    def written(self, timeout_s: float) -> list[int]:
        raise AssertionError("a replay appends nothing")


def on_the_wire(bootstrap: str, topic: str, partitions: int) -> list[Any]:
    """Every record of a topic, each partition's in order."""
    consumer = Consumer({**kafka_client(bootstrap, "wire"), "group.id": "wire"})
    places = [TopicPartition(topic, p, 0) for p in range(partitions)]
    ends = {p.partition: consumer.get_watermark_offsets(p)[1] for p in places}
    consumer.assign(places)
    found: list[Any] = []
    seen = dict.fromkeys(ends, 0)
    deadline = time.monotonic() + READ_S_MAX
    while any(seen[p] < end for p, end in ends.items()):
        assert time.monotonic() < deadline, f"{topic} is not read in {READ_S_MAX} s"
        for message in consumer.consume(500, 0.2):
            if message.error() is None:
                found.append(message)
                seen[message.partition()] = message.offset() + 1
    consumer.close()
    return found


def _whole_log(kafka: dict[str, Any], topic: str) -> list[tuple[int, StepRecord]]:
    """The log, once no further step comes: the journal comes a second after everything else."""
    logged = read_steps(kafka, topic, 0)
    deadline = time.monotonic() + QUIET_S_MAX
    while True:
        time.sleep(QUIET_S)
        more = read_steps(kafka, topic, logged[-1][0] + 1)
        if not more:
            return logged
        logged += more
        assert time.monotonic() < deadline, "it takes steps without any input"


def _log_and_wire(
    bootstrap: str, vpn: str
) -> tuple[list[tuple[int, StepRecord]], dict[str, list[Any]]]:
    """The whole log, and the outputs of the same time. Both are read again if the log has grown
    meanwhile: the end of a connection may arrive late."""
    kafka, log = kafka_client(bootstrap, "judge"), topics.topic("broker-0", topics.STEPS)
    deadline = time.monotonic() + QUIET_S_MAX
    while True:
        logged = _whole_log(kafka, log)
        wire = {
            kind: on_the_wire(bootstrap, topics.topic(vpn, kind), PARTITIONS[kind]) for kind in SAID
        }
        if not read_steps(kafka, log, logged[-1][0] + 1):
            return logged, wire
        assert time.monotonic() < deadline, "it takes steps without any input"


def steps_say(
    bootstrap: str, home: Path, broker: str = "broker-0", number: int = 0,
    log: list[tuple[int, StepRecord]] | None = None,
) -> tuple[int, list[WireRecord]]:  # fmt: skip
    """Replay all steps of the log: their number, and their outputs. Raises Refused where a step's
    outcome differs from the log. home: the engine's folder; log: by default it is read whole."""
    epoch = json.loads((home / "lakequeue.json").read_text())["epoch"]
    kafka = kafka_client(bootstrap, "judge")
    logged = log or _whole_log(kafka, topics.topic(broker, topics.STEPS))
    numbers = [record.step for _, record in logged]
    assert numbers == list(range(1, len(numbers) + 1)), "a step is missing, or twice in the log"
    taken: dict[tuple[str, int], int] = {}
    for _, record in logged:
        for r in record.ranges:  # transaction markers may be between them
            assert r.first > taken.get((r.topic, r.partition), -1), f"step {record.step}: {r} again"
            taken[r.topic, r.partition] = r.last
    loud = [msgspec.structs.replace(record, acked=0) for _, record in logged]
    ear = _Ear()
    whose = Home(broker, number, epoch, (home / "secret").read_bytes())
    driver = PastDriver(whose, DictStore(), Snapshot(), ear, 0)  # type: ignore[arg-type]
    again = ReplayInputs(kafka, [record for _, record in logged])
    try:
        driver.again(loud, again)
    finally:
        again.close()
    return len(numbers), ear.records


def judge_what_was_said(bootstrap: str, home: Path, vpn: str = "default") -> dict[str, int]:
    """Check all promises of this module's docstring. Returns the numbers of steps, records, and
    repeated records."""
    log, wire = _log_and_wire(bootstrap, vpn)
    steps, wanted = steps_say(bootstrap, home, log=log)
    due: dict[tuple[str, int | None], list[Said]] = defaultdict(list)
    for r in wanted:
        due[r.topic, r.partition].append((r.key, r.value, tuple(headers_list(r.headers))))
    records = 0
    for kind, written in wire.items():
        topic = topics.topic(vpn, kind)
        heard: dict[int, list[Said]] = {p: [] for p in range(PARTITIONS[kind])}
        for m in written:
            heard[m.partition()].append((m.key(), m.value(), tuple(m.headers() or ())))
            records += 1
        for partition, said in heard.items():
            # Records that name no partition are of a topic with only one.
            free = due.pop((topic, None), []) if len(heard) == 1 else []
            _compare(f"{topic} [{partition}]", said, due.pop((topic, partition), free))
    _compare_newest(bootstrap, topics.topic(vpn, topics.DIRECTORY), due)
    assert not due, f"never written: {list(due)}"
    return {"steps": steps, "records": records, "again": records - len(wanted)}


def _compare_newest(
    bootstrap: str, topic: str, due: dict[tuple[str, int | None], list[Said]]
) -> None:
    """Compare the newest record of each key that the steps wrote. The topic is compacted, and the
    engine writes records of brokers there, too, which are not outputs of steps."""
    wanted = {key: value for key, value, _ in due.pop((topic, 0), [])}
    heard = {m.key(): m.value() for m in on_the_wire(bootstrap, topic, 1) if m.key() in wanted}
    assert heard == wanted, f"{topic}: the newest of each key"


def _compare(where: str, heard: list[Said], wanted: list[Said]) -> None:
    counts, due = Counter(heard), Counter(wanted)
    strange = [said for said in counts if said not in due]
    assert not strange, f"{where}: {len(strange)} records that no step says, as {strange[0]}"
    missing = due - counts
    assert not missing, f"{where}: {missing.total()} records were never said"
    assert list(counts) == list(due), f"{where}: what was new came in another order"
