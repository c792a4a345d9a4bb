"""What one broker is told all hosts do or none, and what waits for one of them (H5, M2, S7, Q9)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lakequeue.mesh import stand_ins
from lakequeue.protocol import LakequeueError
from lakequeue.protocol import commands as c
from lakequeue.state import Limits
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


QUOTA_0 = {"name": "orders", "message_type": "json", "max_spool_usage": 0}


def check_keeps_more_than_one(mesh: Mesh) -> None:
    """Every host has the old quota: it stores two more messages."""
    before = mesh.depths()
    for broker in BROKERS * 2:
        mesh.send(broker)
    assert mesh.depths() == [depth + 2 for depth in before]


@pytest.mark.parametrize("full", BROKERS)
@pytest.mark.parametrize("told", BROKERS)
def test_Q9_S10_if_one_host_refuses_a_definition_all_have_the_old_one(full: str, told: str) -> None:
    mesh = Mesh()
    for _ in range(2):
        mesh.send(full)
    with pytest.raises(LakequeueError, match="the last message, but 2 are"):
        mesh.at[told].admin().define({**QUOTA_0, "max_deliveries": 3})
    check_keeps_more_than_one(mesh)
    with mesh.consumer("a") as consumer:
        drain(consumer)
    assert mesh.whole()["depth"] == 8, "leased"


def test_Q9_what_the_configuration_repeats_and_one_host_refuses_is_taken_back_too() -> None:
    mesh = Mesh()
    for _ in range(2):
        mesh.send("b")
    command = c.encode_command(c.Define(definition=QUOTA_0, replace=False))
    mesh.engine.command("default.commands", b"", command, "a")
    mesh.advance("1s")
    check_keeps_more_than_one(mesh)


@pytest.mark.parametrize(
    ("later", "refused"),
    [({"max_deliveries": 3}, [True, True]), ({"max_spool_usage": "1MB"}, [True, False])],
)
def test_Q9_of_two_definitions_under_way_only_the_refused_are_taken_back(
    later: dict[str, Any], refused: list[bool]
) -> None:
    mesh = Mesh()
    for _ in range(2):
        mesh.send("c")
    mesh.engine.cut("c")
    answers: list[Any] = []
    for change in (QUOTA_0, {"name": "orders", **later}):
        mesh.at["a"].ask(c.Define(definition=change, replace=False), answers.append)
    mesh.engine.mend("c")
    mesh.advance("1s")
    assert [bool(answer["error"]) for answer in answers] == refused
    check_keeps_more_than_one(mesh)


def test_Q9_a_deleted_queue_does_not_come_back_with_its_old_definition() -> None:
    mesh = Mesh()
    for _ in range(2):
        mesh.send("c")
    mesh.engine.cut("c")
    answers: list[Any] = []
    for command in (
        c.Define(definition=QUOTA_0, replace=False),
        c.Delete(queue="orders"),
        c.Define(definition=QUOTA_0, replace=False),
    ):
        mesh.at["a"].ask(command, answers.append)
    mesh.engine.mend("c")
    mesh.advance("1s")
    assert [bool(answer["error"]) for answer in answers] == [True, False, False]
    for broker in BROKERS * 2:
        mesh.send(broker)
    assert mesh.depths() == [1, 1, 1]


def test_Q9_if_one_host_refuses_a_new_queue_no_host_has_it() -> None:
    near: list[dict[str, Any]] = [
        {"name": f"near{n}", "message_type": "json", "type": "LocalQueue", "broker": "b"}
        for n in range(3)
    ]
    mesh = Mesh(limits=Limits(queues=3), queues=near)
    with pytest.raises(LakequeueError, match=r"'b' refuses, so nothing is changed.*3 queues"):
        mesh.at["a"].admin().define({"name": "orders", "message_type": "json"})
    assert sorted(queue["name"] for queue in mesh.at["a"].admin().queues()) == [
        "near0", "near1", "near2",
    ]  # fmt: skip
    with pytest.raises(LakequeueError, match="orders"):
        mesh.send("a")
