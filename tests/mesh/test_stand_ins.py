"""What stands for a queue of another broker follows its definition (M2, Q9, S3)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.protocol.errors import Rejected
from mortal_mesh import MortalMeshEngine

FAR: dict[str, Any] = {
    "topic": "far", "message_type": "json", "type": "LocalQueue", "broker": "c",
    "subscriptions": ["news"],
}  # fmt: skip


@pytest.mark.parametrize("asked", ["a", "b", "c"])
def test_M2_a_definition_counts_at_every_broker_whoever_was_asked(asked: str) -> None:
    """Also where it names the queue by its synonym, `topic` (Q1): the keeper's own stand-in too."""
    engine = MortalMeshEngine(parse_configuration({"brokers": ["a", "b", "c"], "queues": [FAR]}))
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
