"""The contents of a batch: limits in records and bytes, captured topics, order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError
from lakequeue.protocol.errors import NotConnected
from lakequeue.protocol.messages import Records
from lakequeue.protocol.steplog import Range, StepRecord
from lakequeue.sources import replay_inputs
from lakequeue.sources.discovery import captured_topics
from lakequeue.sources.kafka_source import in_parts
from lakequeue.sources.step_batch import to_batch
from lakequeue.state import Batch
from loop.memory import Message

KNOWN = ["orders", "ord.new", "a.publish", "broker-0.steps", "x.control", "__consumer", "other"]


def records(sizes: list[int]) -> Records:
    n = len(sizes)
    return Records(
        ["default.publish"] * n, [0] * n, list(range(n)), [0] * n, [None] * n,
        [bytes(size) for size in sizes], [None] * n, [None] * n,
    )  # fmt: skip


def test_a_batch_has_a_limit_in_bytes_and_commands_come_first() -> None:
    whole = Batch(commands=records([1, 1]), publishes=records([600, 600, 600, 5_000, 1, 1]))
    parts = list(in_parts(whole, 1_500, 100))
    assert [p.publishes.offsets for p in parts] == [[0, 1], [2], [3], [4, 5]]
    assert [len(p.commands) for p in parts] == [2, 0, 0, 0]
    assert next(iter(in_parts(Batch(commands=records([1])), 10, 9))).commands.offsets == [0]


@pytest.mark.parametrize(
    ("commands", "publishes"), [(0, 0), (3, 0), (0, 7), (3, 3), (10, 2), (7, 9)]
)
def test_no_step_has_more_records_than_its_limit(commands: int, publishes: int) -> None:
    """After a long downtime Spark's source may plan a million commands for one batch."""
    whole = Batch(commands=records([1] * commands), publishes=records([1] * publishes))
    parts = list(in_parts(whole, 1_000, 3))
    assert max(max(len(p.commands), len(p.publishes)) for p in parts) <= 3
    assert [at for p in parts for at in p.commands.offsets] == whole.commands.offsets
    assert [at for p in parts for at in p.publishes.offsets] == whole.publishes.offsets
    first = next((n for n, p in enumerate(parts) if len(p.publishes)), len(parts))
    assert not any(len(p.commands) for p in parts[first + 1 :]), "a message came before a command"
    assert max(len(p.commands) for p in in_parts(whole, 2, 99)) <= 2


def test_Q2_captured_topics_are_whole_matches_and_never_the_engines_own() -> None:
    assert captured_topics(KNOWN, ["orders", "gone"]) == ["orders"]
    assert captured_topics(KNOWN, ["ord.*"]) == ["ord.new", "orders"]
    assert captured_topics(KNOWN, [".*"]) == ["ord.new", "orders", "other"]
    assert captured_topics(KNOWN, ["(?P<a>or)ders"]) == ["orders"]
    assert captured_topics(KNOWN, ["(", "a.publish", "broker-0.steps"]) == []


def test_the_order_of_records_does_not_depend_on_their_arrival() -> None:
    def message(topic: str, partition: int, offset: int) -> Message:
        return Message(topic, partition, offset, 0, None, b"", [("lq", b"{}"), ("a", b"\xff")])

    found = {
        ("default.publish", 1): [message("default.publish", 1, 7)],
        ("orders", 0): [message("orders", 0, 1)],
        ("default.commands", 0): [message("default.commands", 0, 3)],
        ("default.publish", 0): [message("default.publish", 0, n) for n in (4, 9)],
    }
    taken = to_batch(found)
    assert taken.batch.commands.offsets == [3]
    assert taken.batch.publishes.offsets == [4, 9, 7, 1]
    assert taken.batch.publishes.metas == [b"{}"] * 4
    assert taken.batch.publishes.headers[0] == '[{"key":"a","value":"/w=="}]'
    assert [(r.first, r.last, r.count) for r in taken.ranges] == [
        (3, 3, 1), (4, 9, 2), (7, 7, 1), (1, 1, 1),
    ]  # fmt: skip


def test_a_missing_log_is_named_with_kafkas_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def __init__(self, settings: object) -> None:
            self.said = [KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)]

        def assign(self, places: object) -> None: ...

        def close(self) -> None: ...

        def consume(self, count: int, timeout: float) -> list[Any]:
            said, self.said = self.said, []
            return [type("Message", (), {"error": lambda _, e=error: e})() for error in said]

    monkeypatch.setattr(replay_inputs, "Consumer", Missing)
    monkeypatch.setattr(replay_inputs, "WAIT_S_MAX", 0.0)
    with pytest.raises(NotConnected, match=r"topic 'b.steps' did not answer .*Unknown topic"):
        replay_inputs.read_steps({}, "b.steps", 7)


def logged(*steps: Range) -> list[StepRecord]:
    return [StepRecord(1, n, 0, 0, 0, 0, "", (step,)) for n, step in enumerate(steps)]


def test_a_replay_reads_the_same_records_or_names_the_missing_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def read_ranges(kafka: object, ranges: Any) -> Iterator[list[Message]]:
        asked.append(ranges)
        yield [Message("orders", 0, n, 0, None, b"", None) for n in (3, 4, 5)]
        yield [Message("orders", 0, 8, 0, None, b"", None)]
        raise NotConnected("the records 9 to 9 did not arrive")

    monkeypatch.setattr(replay_inputs, "read_ranges", read_ranges)
    first, second, third = (Range("orders", 0, *of) for of in ((3, 4, 2), (5, 8, 2), (9, 9, 1)))
    again = replay_inputs.ReplayInputs({}, logged(first, second, third))
    assert again.take((first,)).publishes.offsets == [3, 4]
    assert again.take((second,)).publishes.offsets == [5, 8]
    with pytest.raises(replay_inputs.Gone, match=r"9 to 9, .* Kafka does not deliver them"):
        again.take((third,))
    again.close()
    assert asked == [{("orders", 0): (3, 10)}]
    lost = replay_inputs.ReplayInputs({}, logged(Range("orders", 0, 3, 6, 4)))
    with pytest.raises(replay_inputs.Gone, match=r"4 records, 3 to 6, .* Kafka has 3 of them"):
        lost.take((Range("orders", 0, 3, 6, 4),))
