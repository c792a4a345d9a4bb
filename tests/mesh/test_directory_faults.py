"""The directory is the same at all brokers, whoever refuses a change (Q9, S10, M5)."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.protocol import LakequeueError
from lakequeue.protocol import commands as c
from lakequeue.state import Limits
from rules.mesh import BROKERS, Mesh, local, shared

FEW = Limits(queues=3)
AT_B = [local(f"near{n}", "b") for n in range(3)]


def define(mesh: Mesh, definition: dict[str, Any]) -> list[Any]:
    return mesh.tell(c.Define(definition=definition))


def errors(*answers: list[Any]) -> list[str]:
    """What commands were answered with, each once; empty where it was done."""
    return [one["error"] or "" for (one,) in answers]


def test_Q9_a_new_queue_that_a_broker_refuses_late_goes_though_it_is_defined_again() -> None:
    mesh = Mesh(*AT_B, limits=FEW)
    mesh.engine.cut("b")
    asked = [define(mesh, shared())]
    asked += [mesh.change("orders", max_deliveries=n) for n in (3, 4)]
    mesh.engine.mend("b")
    assert all("nothing is changed" in why for why in errors(*asked))
    mesh.check_directories()
    assert "orders" not in mesh.entries("a")


def test_M5_a_new_queue_does_not_move_before_all_brokers_have_it() -> None:
    """Its broker refuses it, so it would never arrive."""
    mesh = Mesh(*AT_B, limits=FEW)
    mesh.engine.cut("b")
    defined, moved = define(mesh, local("new", "b")), mesh.move("new", "c")
    assert "try again later" in errors(moved)[0]
    mesh.engine.mend("b")
    assert "nothing is changed" in errors(defined)[0]
    mesh.check_directories()
    assert "new" not in mesh.entries("a")
    mesh.admin.define(local("new", "c"))
    mesh.move("new", "a")
    assert mesh.whole("new")["depth"] == 0


def test_Q9_X5_a_definition_that_is_taken_back_makes_no_ring_of_dead_message_queues() -> None:
    """Giving it back failed, and nobody was answered any more."""
    mesh = Mesh(shared(dead_message_queue="dead"), shared("dead"))
    for _ in range(2):
        mesh.send("c")
    mesh.engine.cut("c")
    first = mesh.change("orders", max_spool_usage=0, dead_message_queue=None)
    ring = mesh.change("dead", dead_message_queue="orders")
    mesh.engine.mend("c")
    why = errors(first, ring)
    assert "nothing is changed" in why[0]
    assert "dead → orders → dead" in why[1]
    mesh.admin.define({"name": "dead", "max_deliveries": 3})
    mesh.check_directories()
    assert mesh.entries("a")["dead"].definition.max_deliveries == 3


@pytest.mark.parametrize("cut", BROKERS)
@pytest.mark.parametrize("first", ["moves", "is defined"])
def test_Q9_S10_M5_a_queue_with_several_messages_keeps_them_though_it_is_moving(
    cut: str, first: str
) -> None:
    """Its old broker had given them away, and its new one had not got them yet."""
    mesh = Mesh(local("queue", "b"))
    for _ in range(2):
        mesh.send("b", "queue")
    mesh.engine.cut(cut)
    if first == "moves":
        mesh.move("queue", "c")
    mesh.change("queue", max_spool_usage=0)
    if first == "is defined":
        mesh.move("queue", "c")
    mesh.engine.mend(cut)
    for _ in range(3):
        mesh.send("c", "queue")
    assert mesh.whole("queue")["depth"] == 5
    mesh.check_directories()
    assert mesh.entries("a")["queue"].hosts == [2]


# ---------------------------------------------------------------- one host refuses


def check_keeps_more_than_one(mesh: Mesh) -> None:
    """Every host has the old quota: it stores two more messages."""
    before = mesh.depths()
    for broker in BROKERS * 2:
        mesh.send(broker)
    assert mesh.depths() == [depth + 2 for depth in before]


@pytest.mark.parametrize("full", BROKERS)
@pytest.mark.parametrize("told", BROKERS)
def test_Q9_S10_if_one_host_refuses_a_definition_all_have_the_old_one(full: str, told: str) -> None:
    mesh = Mesh(shared())
    for _ in range(2):
        mesh.send(full)
    with pytest.raises(LakequeueError, match="the last message, but 2 are"):
        mesh.at[told].admin().define(shared(max_spool_usage=0, max_deliveries=3))
    check_keeps_more_than_one(mesh)
    assert len(mesh.take("orders")) == 8


def test_Q9_what_the_configuration_repeats_and_one_host_refuses_is_taken_back_too() -> None:
    mesh = Mesh(shared())
    for _ in range(2):
        mesh.send("b")
    command = c.encode_command(c.Define(definition=shared(max_spool_usage=0), replace=False))
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
    mesh = Mesh(shared())
    for _ in range(2):
        mesh.send("c")
    mesh.engine.cut("c")
    answers = mesh.change("orders", max_spool_usage=0), mesh.change("orders", **later)
    mesh.engine.mend("c")
    mesh.advance("1s")
    assert [bool(why) for why in errors(*answers)] == refused
    check_keeps_more_than_one(mesh)


def test_Q9_a_deleted_queue_does_not_come_back_with_its_old_definition() -> None:
    mesh = Mesh(shared())
    for _ in range(2):
        mesh.send("c")
    mesh.engine.cut("c")
    last = c.Define(definition=shared(max_spool_usage=0), replace=False)
    answers = [mesh.tell(command) for command in (last, c.Delete(queue="orders"), last)]
    mesh.engine.mend("c")
    mesh.advance("1s")
    assert [bool(why) for why in errors(*answers)] == [True, False, False]
    for broker in BROKERS * 2:
        mesh.send(broker)
    assert mesh.depths() == [1, 1, 1]


def test_Q9_if_one_host_refuses_a_new_queue_no_host_has_it() -> None:
    mesh = Mesh(*AT_B, limits=FEW)
    with pytest.raises(LakequeueError, match=r"'b' refuses, so nothing is changed.*3 queues"):
        mesh.admin.define(shared())
    assert sorted(mesh.where()) == ["near0", "near1", "near2"]
    with pytest.raises(LakequeueError, match="orders"):
        mesh.send("a")
