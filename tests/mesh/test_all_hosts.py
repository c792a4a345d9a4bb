"""What one broker is told all hosts do, and what waits for a broker that is away, is bounded (H5,
M2, M3, Q9, S7); a broker that is loaded goes on as the live one (R1)."""

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
def test_H5_one_broker_is_told_and_all_hosts_shut_down(told: str) -> None:
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


def test_M2_a_full_lane_refuses_with_the_queue_that_it_leads_to(
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


def test_S7_what_is_made_just_now_is_found_by_who_has_not_heard_of_it() -> None:
    """A message may come before the word that its queue was made; it waits for that."""
    mesh = Mesh()
    mesh.engine.cut("c")
    mesh.tell(c.Define(definition=FAR))
    sent = mesh.send("b", "news")
    mesh.engine.mend("c")
    mesh.advance("1s")
    assert mesh.ids("far") == [sent]


# ---------------------------------------------------------------- what waits is bounded


@pytest.mark.parametrize(
    "limits", [Limits(unconfirmed_changes=3), Limits(unconfirmed_bytes=700)], ids=["rows", "bytes"]
)
def test_Q9_changes_wait_for_a_broker_that_is_away_up_to_a_limit(limits: Limits) -> None:
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


def test_M5_a_move_waits_for_no_broker_that_is_away() -> None:
    """So it takes no room of the changes that wait for one."""
    mesh = Mesh(local("near", "a"), limits=Limits(unconfirmed_changes=1))
    mesh.engine.cut("b")
    (answer,) = mesh.move("near", "c")
    assert answer["error"] is None
    assert not mesh.facts("a").waiting
    assert mesh.entries("c")["near"].hosts == [mesh.facts("c").brokers["c"]]
    mesh.send("a", "near")
    assert mesh.bodies("near") == [b"{}"]


def test_H4_rooms_for_a_queue_that_is_not_known_yet_wait_until_it_is(network: Network) -> None:
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


def test_M2_a_message_waits_for_its_queue_that_the_host_does_not_know_yet(network: Network) -> None:
    mesh = Mesh(local("near", "a"))
    network.lose("entries", "a", "c", times=1_000)
    mesh.tell(c.Define(definition=local("new", "c", "news")))
    mesh.send("b", "news")
    network.heal()
    mesh.admin.define(local("later", "a"))
    assert mesh.bodies("new") == [b"{}"]


def test_M5_a_queue_moves_though_its_host_hears_last_that_it_is_to(network: Network) -> None:
    mesh = Mesh(local("q", "b"))
    network.lose("entries", "a", "b", times=1_000)
    answers = mesh.move("q", "c")
    assert [word.kind for word in network.said if word[:2] == ("c", "b")] == ["come"]
    network.heal()
    mesh.admin.define(local("later", "a"))
    mesh.advance("1s")
    assert [answer["error"] for answer in answers] == [None]
    assert mesh.where()["q"] == "c"


def test_R6_edits_of_messages_on_their_way_are_kept_as_one() -> None:
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


def test_M5_a_queue_that_is_not_where_it_was_is_looked_for_once_a_second(network: Network) -> None:
    """A third broker does not hear where it is, and nobody says anything that shows it."""
    mesh = Mesh(local("queue", "b", "news"))
    network.lose("entries", "a", "c", times=1_000)
    mesh.move("queue", "a")
    mesh.send("c", "news")
    mesh.advance("20s")
    asked = [word.to for word in network.said if word.kind == "hand_over"]
    assert 20 <= len(asked) < 25
    assert {*asked} == {"b"}
    network.heal()
    mesh.advance("11s")
    assert mesh.whole("queue")["depth"] == 1


# ---------------------------------------------------------------- a loaded broker


def load(mesh: Mesh, name: str) -> None:
    """A broker begins again from its snapshot."""
    broker: Any = mesh.engine.broker(name)
    broker._replica.mark()
    broker._replica.reload()


@pytest.mark.parametrize("what", ["at once", "hears late", "comes to it"])
def test_M1_a_loaded_keeper_places_queues_as_the_live_one(what: str, network: Network) -> None:
    """hears late: the keeper was the old host, and does not hear yet that the queue has arrived;
    comes to it: it hears of a definition and of the queue's last messages in one step."""
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


def test_M2_a_loaded_broker_routes_as_the_live_one_once_a_stand_in_is_emptied() -> None:
    """The queue has come here and is full, so what waited for it was still here, and is purged."""
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


def test_S3_refusals_are_added_up_over_all_hosts() -> None:
    mesh = Mesh(shared(max_spool_messages=1))
    for broker in BROKERS:
        mesh.send(broker)
        with pytest.raises(Rejected, match="queue_quota"):
            mesh.send(broker)
    assert mesh.whole()["counters"]["rejected"] == {"queue_quota": 3}
