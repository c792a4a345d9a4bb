"""What stands for a queue of another broker follows its definition (M2, Q9, S3)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.monitor.queue_details import described
from lakequeue.protocol.errors import Rejected
from lakequeue.sinks.queue_figures import Look, QueueFigures
from rules.mortal import MortalEngine

FAR: dict[str, Any] = {
    "topic": "far", "message_type": "json", "type": "LocalQueue", "broker": "c",
    "subscriptions": ["news"],
}  # fmt: skip


@pytest.mark.parametrize("asked", ["a", "b", "c"])
def test_M2_a_definition_counts_at_every_broker_whoever_was_asked(asked: str) -> None:
    """Also where it names the queue by its synonym, `topic` (Q1): the keeper's own stand-in too."""
    engine = MortalEngine(parse_configuration({"brokers": ["a", "b", "c"], "queues": [FAR]}))
    engine.checking = True
    at = {name: engine.connect(name) for name in ("a", "b", "c")}

    def send(broker: str, body: dict[str, Any]) -> None:
        at[broker].producer().send("news", json.dumps(body).encode())

    for broker in at:
        send(broker, {"n": 1, "long": "x" * 100})
    at[asked].admin().define(FAR | {"filter": "/n = 2", "max_message_size": 50})
    for broker in at:
        with pytest.raises(Rejected, match="no_matching_destination"):
            send(broker, {"n": 1})
        with pytest.raises(Rejected, match="message_too_large"):
            send(broker, {"n": 2, "long": "x" * 100})
        send(broker, {"n": 2})
    assert at["c"].admin().describe("far")["depth"] == 6


def test_H2_M3_what_waits_for_a_queue_elsewhere_is_shown_with_why() -> None:
    """By whoever is asked: the broker where it waits, `describe` of the queue, the metrics."""
    full = FAR | {"max_spool_messages": 2}
    engine = MortalEngine(parse_configuration({"brokers": ["a", "b", "c"], "queues": [full]}))
    at = {name: engine.connect(name) for name in ("a", "b", "c")}
    for _ in range(5):
        at["a"].producer().send("news", b'{"n": 1}')
    engine.advance("3500ms")
    lane = {
        "queue": "far", "to": "c", "waiting": 3, "bytes": 24, "why": "queue_quota", "for_s": 3.5
    }  # fmt: skip
    for name in at:
        usage = at[name].admin().usage()
        assert usage["lanes"] == [{"at": "a", **lane}]
        assert {one: said["lanes"] for one, said in usage["brokers"].items()} == {
            "a": [lane], "b": [], "c": []
        }  # fmt: skip
    queue, _ = described(at["b"], "far")
    assert queue["lanes"] == usage["lanes"]
    assert (queue["why"][0]["code"], queue["why"][0]["side"]) == ("refused", "in")
    assert queue["why"][0]["text"] == (
        "3 messages wait at broker a for this queue, which has refused them for 4 s: queue_quota."
    )
    figures = QueueFigures(10)
    figures.seen(Look(usage=list(usage["brokers"].values())))
    samples = {s.name: s for family in figures.families() for s in family.samples}
    assert samples["lakequeue_lane_waiting"].value == 3
    assert samples["lakequeue_lane_waiting"].labels == {
        "broker": "a", "vpn": "default", "queue": "far", "to": "c"
    }  # fmt: skip
    assert samples["lakequeue_lane_refused_seconds"].value == 3.5
    with at["c"].consumer("far", ack_mode="individual", max_backlog=9) as consumer:
        for _ in range(20):
            while (message := consumer.receive(timeout=0)) is not None:
                message.ack()
            engine.advance("500ms")
    queue, _ = described(at["b"], "far")
    assert (queue["lanes"], queue["why"], queue["depth"]) == ([], [], 0)
    told = [event["event"] for event in at["b"].admin().events() if "lane" in event["event"]]
    assert (told[0], told[-1]) == ("lane_blocked", "lane_flows")


def test_S4_M2_what_a_stand_in_discards_is_told_and_journaled_under_the_name_of_its_queue() -> None:
    """Else the publisher would learn a name that only the engine has, and a replay of the queue
    would not bring it back (R4)."""
    engine = MortalEngine(parse_configuration({"brokers": ["a", "b", "c"], "queues": [FAR]}))
    connection = engine.connect("a")
    producer = connection.producer()
    producer.send("news", b"{}")
    connection.admin().shutdown("#out/far", ingress=True)
    receipt = producer.send("news", b"{}")
    assert (receipt.discarded, receipt.reason, receipt.queue) == (True, "queue_shutdown", "far")
    discarded = [row["queue"] for row in engine.journal() if row["event"] == "discarded"]
    assert discarded == ["far"]
