"""Queues are defined again and again, as at every start (Q9), and what they capture is told in
parts (Q2)."""

from __future__ import annotations

from lakequeue.protocol import commands as c
from lakequeue.protocol.outputs import Capture
from lakequeue.state import Limits
from rules.steps import REPLY, Steps, define, described, replies

PATTERN = {"underlying_topic": "sensor-.*", "default_publish_target": "sensor-1"}


def test_Q9_another_definition_counts_and_so_does_the_first_after_it() -> None:
    steps = Steps()
    once, other = define(max_backlog=5), define(max_backlog=7)
    for given, most in ((once, 5), (other, 7), (once, 5), (once, 5)):
        steps.run([given])
        assert described(steps)["definition"]["max_backlog"] == most
    refused = c.Define(definition={"name": "orders", "message_type": "xml"}, reply=REPLY)
    for _ in range(2):
        (answer,) = replies(steps.run([refused]))
        assert answer.error is not None


def test_Q9_a_deleted_queue_is_defined_anew() -> None:
    steps = Steps()
    steps.run([define()])
    steps.run([c.Delete(queue="orders"), define()])
    assert described(steps)["depth"] == 0


def test_Q2_what_queues_capture_is_told_in_parts() -> None:
    steps = Steps(limits=Limits(captures_listed=7))
    said = steps.run([define(f"q{n}") for n in range(40)] + [define("all", **PATTERN)])
    captured = {o.topic for o in said if isinstance(o, Capture)}
    texts: list[str] = []
    start: int | None = 0
    parts = 0
    while start is not None:
        (answer,) = replies(steps.run([c.Captures(start=start, reply=REPLY)]))
        texts += answer.result
        start = answer.more  # type: ignore[assignment]
        parts += 1
    assert parts > 3
    assert sorted(texts) == sorted(captured)
    steps.run([c.Delete(queue="q7")])
    (answer,) = replies(steps.run([c.Captures(reply=REPLY)]))
    assert "q7" not in answer.result
