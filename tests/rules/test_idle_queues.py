"""Queues are redefined at every start (Q9), captured topics are reported in parts, and a queue
whose topic is missing is reported (Q2)."""

from __future__ import annotations

from datetime import UTC, datetime

from lakequeue.monitor.reasons import reasons
from lakequeue.protocol import commands as c
from lakequeue.protocol.descriptions import add_up
from lakequeue.protocol.outputs import Capture
from lakequeue.state import Batch, Limits
from rules.steps import REPLY, Steps, define, described, of, replies

PATTERN = {"underlying_topic": "sensor-.*", "default_publish_target": "sensor-1"}


def test_Q2_captured_topics_are_reported_in_parts() -> None:
    steps = Steps(limits=Limits(captures_listed=7))
    said = steps.run([define(f"q{n}") for n in range(40)] + [define("all", **PATTERN)])
    captured = {o.topic for o in of(Capture, said)}
    texts: list[str] = []
    start, parts = 0, 0
    while start is not None:
        (answer,) = replies(steps.run([c.Captures(start=start, reply=REPLY)]))
        texts += answer.result
        start, parts = answer.more, parts + 1
    assert parts > 3
    assert sorted(texts) == sorted(captured)
    steps.run([c.Delete(queue="q7")])
    assert "q7" not in steps.ask(c.Captures())


def test_Q2_a_missing_captured_topic_is_reported() -> None:
    """Unless clients publish to a topic of this name: then nothing is missing."""
    steps = Steps()
    lacking = [define("gone", underlying_topic="t/gone"), define("sent", underlying_topic="t/sent")]
    steps.run([define(), define("all", **PATTERN), define("there", underlying_topic="t"), *lacking])

    def alarmed(*topics: str) -> list[str]:
        steps.run([c.ExistingTopics(topics=sorted(topics))])
        steps.restart()
        queues = steps.ask(c.Queues())
        return [queue["name"] for queue in queues if queue["alerts"] == ["topic_missing"]]

    assert alarmed("t") == [], "the engine may not have checked yet"
    steps.now += 61_000
    assert alarmed("t") == ["gone", "sent"]
    gone, own = described(steps, "gone"), described(steps)
    (why,) = reasons(gone, [], datetime.now(UTC))
    assert (why.code, "'t/gone'" in why.text) == ("topic_missing", True)
    steps.run(publishes=[("t/sent", b"{}")])
    assert alarmed("t") == ["gone"]
    records = steps.publish_records([("", b"{}")])
    records.topics[:], records.metas[:] = ["t/gone"], [None]
    steps.step(Batch(publishes=records))
    assert alarmed("t", "t/gone") == []
    assert alarmed("t") == ["gone"]
    assert add_up({"a": gone, "b": {**gone, "alerts": []}})["alerts"] == []
    assert add_up({"a": gone, "b": gone})["alerts"] == ["topic_missing"]
    assert own["alerts"] == []
