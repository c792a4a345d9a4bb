"""Commands for all hosts, given to one broker, and the bounds on what waits for an unreachable
broker (H5, M2, M3, Q9, S7); a loaded broker continues like the live one (R1)."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from lakequeue.mesh import stand_ins
from lakequeue.protocol import LakequeueError, Rejected
from lakequeue.protocol import commands as c
from lakequeue.state import Limits
from lakequeue.state.rules.edits import TRANSIT
from rules.harness import drain
from rules.mesh import BROKERS, LATE, Mesh, Network, Word, local, shared, take

FAR = local("far", "c", "news")
KEYED = {"message_type": "json", "partition_key": "/k"}


@pytest.mark.parametrize("told", BROKERS)
def test_H5_a_shutdown_reaches_all_hosts_through_one_broker(told: str) -> None:
    mesh = Mesh(shared())
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
    assert len(mesh.events("shutdown")) == 9, "three times at each of three hosts"


def test_M2_a_full_lane_refuses_and_names_its_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stand_ins, "LANE_MESSAGES", 2)
    mesh = Mesh(FAR)
    mesh.engine.cut("c")
    for n in range(2):
        mesh.send("a", "news", n)
    with pytest.raises(LakequeueError, match="rejected by queue 'far': queue_quota"):
        mesh.send("a", "news", 2)
    (lane,) = mesh.at["a"].request(c.Usage(), broker=0)["lanes"]
    assert (lane["queue"], lane["to"], lane["waiting"]) == ("far", "c", 2)
    mesh.engine.mend("c")
    mesh.send("a", "news", 3)
    assert mesh.bodies("far") == [b"0", b"1", b"3"]


# ---------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    "limits", [Limits(unconfirmed_changes=3), Limits(unconfirmed_bytes=700)], ids=["rows", "bytes"]
)
def test_Q9_a_bounded_number_of_changes_wait_for_an_unreachable_broker(limits: Limits) -> None:
    mesh = Mesh(local("near", "a"), limits=limits)
    mesh.engine.cut("b")
    answers = [mesh.change("near", max_deliveries=n) for n in range(2, 22)]
    refused = [answer for (answer,) in filter(None, answers)]
    assert 15 < len(refused) < 20
    for answer in refused:
        assert "until broker 'b' confirms them" in answer["error"]
        assert "start that broker or remove it" in answer["error"]
    waiting = len(answers) - len(refused)
    assert len(mesh.facts("a").waiting) == waiting
    assert mesh.entries("c")["near"].definition.max_deliveries == 1 + waiting
    mesh.send("c", "near")  # nobody else notices
    mesh.engine.mend("b")
    assert not mesh.facts("a").waiting
    assert [answer["error"] for (answer,) in answers[:waiting]] == [None] * waiting
    assert not mesh.change("near", max_deliveries=30)[0]["error"]
    mesh.check_directories()


def test_M5_a_move_does_not_wait_for_unreachable_third_brokers() -> None:
    """So it is no change that waits for one."""
    mesh = Mesh(local("near", "a"), limits=Limits(unconfirmed_changes=1))
    mesh.engine.cut("b")
    (answer,) = mesh.move("near", "c")
    assert answer["error"] is None
    assert not mesh.facts("a").waiting
    assert mesh.entries("c")["near"].hosts == [mesh.facts("c").brokers["c"]]
    mesh.send("a", "near")
    assert mesh.bodies("near") == [b"{}"]


def test_H4_credit_for_an_unknown_queue_waits_until_it_is_known(network: Network) -> None:
    mesh = Mesh(local("near", "a"))
    network.lose("entries", "a", "c", times=1_000)
    mesh.tell(c.Define(definition=shared()))
    for n in range(20):
        consumer = mesh.consumer("b", 1 + n, filter=f"/n = {n}")
        if n < 18:
            consumer.close()
    network.heal()
    mesh.admin.define(local("later", "a"))
    mesh.send("c", body={"n": 19})
    assert len(drain(consumer)) == 1


def test_M2_a_message_waits_until_the_host_knows_its_queue(network: Network) -> None:
    mesh = Mesh(local("near", "a"))
    network.lose("entries", "a", "c", times=1_000)
    mesh.tell(c.Define(definition=local("new", "c", "news")))
    mesh.send("b", "news")
    network.heal()
    mesh.admin.define(local("later", "a"))
    assert mesh.bodies("new") == [b"{}"]


def test_M5_a_queue_moves_although_its_host_learns_of_it_last(network: Network) -> None:
    mesh = Mesh(local("q", "b"))
    network.lose("entries", "a", "b", times=1_000)
    answers = mesh.move("q", "c")
    assert [word.kind for word in network.said if word[:2] == ("c", "b")] == ["come"]
    network.heal()
    mesh.admin.define(local("later", "a"))
    mesh.advance("1s")
    assert [answer["error"] for answer in answers] == [None]
    assert mesh.where()["q"] == "c"


def test_R6_edits_of_a_message_in_transit_are_combined() -> None:
    mesh = Mesh(shared())
    consumer = mesh.consumer("b")
    mesh.engine.cut("b")
    mesh.send("a")
    (row,) = mesh.state("a").find("default", "orders").live.values()
    for n in range(30):
        mesh.tell(c.Edit(queue="orders", headers={"x": str(n), f"y{n % 3}": "z"}))
    wanted = {"x": "29", "y0": "z", "y1": "z", "y2": "z"}
    (kept,) = row.extras[TRANSIT]["commands"]
    assert c.decode_command(kept).headers == wanted
    mesh.engine.mend("b")
    mesh.advance("5s")
    assert [m.headers for m in take(consumer)] == [wanted]


def test_M5_a_moved_queue_is_searched_once_a_second(network: Network) -> None:
    """A third broker does not know where it is, and receives no message that shows it."""
    mesh = Mesh(local("queue", "b", "news"))
    network.lose("entries", "a", "c", times=1_000)
    mesh.move("queue", "a")
    mesh.send("c", "news")
    mesh.advance("20s")
    asked = [word.to for word in network.said if word.kind == "hand_over" and word.sender == "c"]
    assert 20 <= len(asked) < 25
    assert {*asked} == {"b"}
    network.heal()
    mesh.advance("11s")
    assert mesh.whole("queue")["depth"] == 1


# ---------------------------------------------------------------- a loaded broker


def load(mesh: Mesh, name: str) -> None:
    """Restart a broker from its snapshot."""
    broker: Any = mesh.engine.broker(name)
    broker._replica.mark()
    broker._replica.reload()


@pytest.mark.parametrize("what", ["at once", "hears late", "comes to it"])
def test_M1_a_loaded_keeper_places_queues_like_the_live_one(what: str, network: Network) -> None:
    """hears late: the keeper was the old host, and does not know yet that the queue has arrived;
    comes to it: it gets a definition and the queue's last messages in one step."""
    placed = []
    at, to = ("b", "a") if what == "comes to it" else ("a", "b")

    def late(word: Word) -> str | None:
        if what == "comes to it":
            return LATE if word.to == "a" else None
        is_late = bool(network.late) or word.kind == "has_moved"
        return LATE if is_late and word.sender == "b" else None

    for is_loaded in (False, True):
        mesh = Mesh(local("one", at), local("two", "b"), local("three", "c"))
        mesh.tell(c.Define(definition=KEYED | {"name": "next"}))
        if what != "at once":
            network.fault = late
        mesh.move("one", to)
        new = [c.encode_command(c.Define(definition=KEYED | {"name": f"new{n}"})) for n in range(6)]
        if what == "comes to it":
            mesh.engine.instruct("default", new.pop(), "b")
        if is_loaded:
            load(mesh, "a")
        if what == "comes to it":
            network.heal()
            mesh.advance("1s")
        for command in new:
            mesh.engine.instruct("default", command, "a")
        mesh.advance("1s")
        assert bool(network.late) is (what == "hears late")
        placed.append({name: one.hosts for name, one in mesh.entries("a").items()})
        network.late, network.fault = [], lambda word: None
    assert placed[0] == placed[1]
    assert placed[0]["one"] == [BROKERS.index(to if what != "hears late" else at)]


def test_M2_a_loaded_broker_routes_like_the_live_one_after_a_purge() -> None:
    """The queue has moved here and is full, so messages waiting for it are still here, and are
    purged."""
    seen = []
    for is_loaded in (False, True):
        mesh = Mesh(local("far", "b", "news", max_spool_messages=1))
        mesh.send("b", "news")
        mesh.send("a", "news")
        mesh.move("far", "a")
        assert mesh.whole("#out/far")["depth"] == 1
        with contextlib.suppress(Rejected):
            mesh.send("a", "news")  # behind it
        mesh.admin.purge("#out/far")
        if is_loaded:
            load(mesh, "a")
        try:
            seen.append(mesh.send("a", "news"))
        except Rejected as refused:
            seen.append(refused.reason)
    assert seen[0] == seen[1]


def test_S3_refusals_are_summed_over_all_hosts() -> None:
    mesh = Mesh(shared(max_spool_messages=1))
    for broker in BROKERS:
        mesh.send(broker)
        with pytest.raises(Rejected, match="queue_quota"):
            mesh.send(broker)
    assert mesh.whole()["counters"]["rejected"] == {"queue_quota": 3}
