"""What one broker is told all hosts do, and what waits for one of them (H5, M2, S7)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lakequeue.mesh import stand_ins
from lakequeue.protocol import LakequeueError
from lakequeue.protocol import commands as c
from rules.harness import drain
from rules.mesh import BROKERS, Mesh

FAR: dict[str, Any] = {
    "name": "far", "message_type": "json", "type": "LocalQueue", "broker": "c",
    "subscriptions": ["news"],
}  # fmt: skip


@pytest.mark.parametrize("told", BROKERS)
def test_H5_one_broker_is_told_and_all_hosts_shut_down(told: str) -> None:
    mesh = Mesh()
    command = c.encode_command(c.Shutdown(queue="orders", ingress=True, egress=True))
    mesh.engine.command("default.commands", b"", command, told)
    parts = mesh.whole()["brokers"]
    assert [(one["ingress"], one["egress"]) for one in parts.values()] == [(False, False)] * 3
    mesh.at["b"].admin().shutdown("orders", egress=True)
    consumer = mesh.consumer("a")
    mesh.send("a")
    assert drain(consumer) == []
    mesh.at["c"].admin().shutdown("orders")
    assert len(drain(consumer)) == 1
    closed = [row for row in mesh.engine.journal() if row["event"] == "shutdown"]
    assert len(closed) == 9, "three times at each of three hosts"


def test_M2_a_full_lane_refuses_with_the_queue_that_it_leads_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stand_ins, "LANE_MESSAGES", 2)
    mesh = Mesh(queues=[FAR])
    mesh.engine.cut("c")
    for n in range(2):
        mesh.send("a", {"n": n}, queue="news")
    with pytest.raises(LakequeueError, match="rejected by queue 'far': queue_quota"):
        mesh.send("a", {"n": 2}, queue="news")
    (lane,) = mesh.at["a"].request(c.Usage(), broker=0)["lanes"]
    assert (lane["queue"], lane["to"], lane["waiting"]) == ("far", "c", 2)
    mesh.engine.mend("c")
    mesh.send("a", {"n": 3}, queue="news")
    assert [json.loads(m.payload)["n"] for m in mesh.at["a"].admin().browse("far")] == [0, 1, 3]


def test_S7_what_is_made_just_now_is_found_by_who_has_not_heard_of_it() -> None:
    """A message may come before the word that its queue was made; it waits for that."""
    mesh = Mesh(queues=[])
    mesh.engine.cut("c")
    mesh.at["a"].ask(c.Define(definition=FAR), lambda answer: None)
    sent = mesh.send("b", {"n": 1}, queue="news")
    mesh.engine.mend("c")
    mesh.engine.advance("1s")
    assert [m.id for m in mesh.at["a"].admin().browse("far")] == [sent]
