"""The stand-in for a queue of another broker follows its definition (M2, Q9, S3); placement of
queues (M1)."""

from __future__ import annotations

import msgspec
import pytest
from lakequeue.definitions import parse_definition
from lakequeue.definitions.definition import to_wire
from lakequeue.mesh import handover, stand_ins
from lakequeue.mesh.facts import Entry, MeshFacts
from lakequeue.mesh.queue_placement import QueuePlacement
from lakequeue.monitor.queue_details import described
from lakequeue.protocol.errors import Rejected
from lakequeue.protocol.mesh_messages import Answer
from lakequeue.sinks.queue_figures import Look, QueueFigures
from lakequeue.state.storage.row import MOVING, READY
from mesh.bugs import Bug
from rules.mesh import BROKERS, LOST, Mesh, Network, local

FAR = local("far", "c", "news")


@pytest.mark.parametrize("asked", BROKERS)
def test_M2_a_definition_holds_at_every_broker(asked: str) -> None:
    """Also where it names the queue by its synonym, `topic` (Q1): the keeper's own stand-in too."""
    mesh = Mesh(FAR)
    for broker in BROKERS:
        mesh.send(broker, "news", {"n": 1, "long": "x" * 100})
    again = FAR | {"topic": "far", "filter": "/n = 2", "max_message_size": 50}
    del again["name"]
    mesh.at[asked].admin().define(again)
    for broker in BROKERS:
        with pytest.raises(Rejected, match="no_matching_destination"):
            mesh.send(broker, "news", {"n": 1})
        with pytest.raises(Rejected, match="message_too_large"):
            mesh.send(broker, "news", {"n": 2, "long": "x" * 100})
        mesh.send(broker, "news", {"n": 2})
    assert mesh.whole("far")["depth"] == 6


def test_H2_M3_messages_waiting_for_a_remote_queue_are_shown_with_the_reason() -> None:
    """In every view: at the broker where they wait, in `describe` of the queue, in the metrics."""
    mesh = Mesh(FAR | {"max_spool_messages": 2})
    for _ in range(5):
        mesh.send("a", "news", b'{"n": 1}')
    mesh.advance("3500ms")
    lane = {
        "queue": "far", "to": "c", "waiting": 3, "bytes": 24, "why": "queue_quota", "for_s": 3.5
    }  # fmt: skip
    for at in mesh.at.values():
        usage = at.admin().usage()
        assert usage["lanes"] == [{"at": "a", **lane}]
        assert {one: said["lanes"] for one, said in usage["brokers"].items()} == {
            "a": [lane], "b": [], "c": []
        }  # fmt: skip
    queue, _ = described(mesh.at["b"], "far")
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
    mesh.take("far", rounds=20)
    queue, _ = described(mesh.at["b"], "far")
    assert (queue["lanes"], queue["why"], queue["depth"]) == ([], [], 0)
    told = [event["event"] for event in mesh.admin.events() if "lane" in event["event"]]
    assert (told[0], told[-1]) == ("lane_blocked", "lane_flows")


def test_S4_M2_discards_of_a_stand_in_carry_the_name_of_its_queue() -> None:
    """Otherwise the publisher would see an internal name, and a replay of the queue would not bring
    the message back (R4)."""
    mesh = Mesh(FAR)
    mesh.send("a", "news")
    mesh.admin.shutdown("#out/far", ingress=True)
    receipt = mesh.producer("a").send("news", b"{}")
    assert (receipt.discarded, receipt.reason, receipt.queue) == (True, "queue_shutdown", "far")
    assert [row["queue"] for row in mesh.events("discarded")] == ["far"]


def test_M3_S7_a_stale_answer_changes_nothing(network: Network) -> None:
    """It is about an earlier attempt, or about an earlier queue of this name."""
    mesh = Mesh(FAR)
    network.fault = lambda word: LOST if word.kind == "hand_over" else None
    for _ in range(3):
        mesh.send("a", "news")
    state, facts = mesh.state("a"), mesh.facts("a")
    queue = stand_ins.find(state, "default", "far")
    attempt, born = facts.lanes[queue.number].attempt, mesh.entries("a")["far"].born

    def after(attempt: int, born: int) -> list[int]:
        refused = Answer("default", "far", True, attempt, born, [], "queue_quota")
        stand_ins.answered(state, facts, facts.brokers["c"], refused)
        return [row.state for row in queue.live.values()]

    assert after(attempt - 1, born) == [MOVING] * 3
    assert after(attempt, born - 1) == [MOVING] * 3
    assert after(attempt, born) == [READY] * 3


def test_M1_placing_a_queue_costs_no_scan_of_the_others() -> None:
    """A start with ten thousand queues scanned all of them for each."""
    placed = QueuePlacement(MeshFacts(brokers={"a": 0, "b": 1}, entries={"v": {}}))
    own = parse_definition(local("q", vpn="v"))
    for number, name in ((0, "x"), (1, "y"), (1, "z")):
        placed.change("v", name, None, Entry(own, [number]))
    placed.change("v", "z", Entry(own, [1]), Entry(own, [0]))
    placed.change("v", "y", Entry(own, [1]), None)
    assert dict(placed.loads) == {0: 2, 1: 0}
    with_dead = parse_definition(to_wire(own) | {"dead_message_queue": "d"})
    placed.change("v", "w", None, Entry(with_dead, [1]))
    assert placed.dying["v", "d"] == {"w"}
    placed.change("v", "w", Entry(with_dead, [1]), None)
    assert not placed.dying["v", "d"]


@pytest.mark.parametrize("together", [False, True], ids=["alone", "with others"])
def test_M3_a_message_that_cannot_be_stored_is_dropped_and_blocks_no_lane(
    together: bool, bug: Bug
) -> None:
    """Of several messages, each is tried by itself."""
    mesh = Mesh(FAR)
    bug.plant(handover, "take_in", "c", lambda queue, row, content, _: content[0] == b"poison")
    if together:
        mesh.engine.cut("c")
    for body in (b"1", b"poison", b"2"):
        mesh.send("a", "news", body)
    mesh.engine.mend("c")
    mesh.advance("5s")
    assert mesh.bodies("far") == [b"1", b"2"]
    assert mesh.admin.usage()["lanes"] == []
    assert len([e for e in mesh.at["c"].admin().events() if e["event"] == "mesh_refused"]) > 0


@pytest.mark.parametrize("policy", ["when-queue-enabled", "never"])
def test_S8_M3_a_broker_without_spool_files_refuses_messages_of_others(policy: str) -> None:
    """It discards none, whatever the queue's policy is (S4)."""
    mesh = Mesh(FAR | {"reject_msg_to_sender_on_discard": policy})
    header = mesh.state("c").header
    header.system = msgspec.structs.replace(header.system, max_spool_files=0)
    mesh.send("a", "news")
    assert [one["why"] for one in mesh.admin.usage()["lanes"]] == ["spool_files"]
    header.system = msgspec.structs.replace(header.system, max_spool_files=1)
    mesh.advance("1s")
    assert mesh.bodies("far") == [b"{}"]


def test_M3_an_unblocked_lane_has_its_whole_window() -> None:
    mesh = Mesh(FAR | {"max_spool_messages": 1})
    for n in range(2):
        mesh.send("a", "news", n)
    mesh.change("far", max_spool_messages=50)
    mesh.advance("2s")
    mesh.engine.cut("c")
    for n in range(2, 12):
        mesh.send("a", "news", n)
    queue = stand_ins.find(mesh.state("a"), "default", "far")
    assert queue is not None
    assert queue.header.subscriptions[0].held == 10


def test_M3_messages_sent_before_a_refusal_wait_behind_the_refused_one() -> None:
    """Although they would fit. Both are in transit when the first one is refused."""
    mesh = Mesh(FAR | {"max_spool_usage": 100})
    mesh.send("a", "news", b"1" * 60)
    mesh.engine.cut("c")
    mesh.send("a", "news", b"2" * 60)
    mesh.send("a", "news", b"3")
    mesh.engine.mend("c")
    assert [body[:1] for body in mesh.bodies("far")] == [b"1"]
    found = mesh.take("far", rounds=4)
    assert [message.payload[:1] for message in found] == [b"1", b"2", b"3"]
