"""The keeper of the directory checks a definition for all brokers, so all have the same directory
(Q2, Q9, S10)."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.mesh import directory
from lakequeue.mesh.facts import MeshFacts
from lakequeue.protocol import LakequeueError
from lakequeue.protocol import commands as c
from lakequeue.state import Limits
from lakequeue.state.commands import topic_subscriptions
from mesh.bugs import Bug
from rules.mesh import BROKERS, Mesh, local, numbers, shared

FEW = Limits(queues=3)
AT_B = [local(f"near{n}", "b") for n in range(3)]
LAST_VALUE = "max_spool_usage: 0 – cannot become 0 in a home of several brokers"


def check_keeps_more_than_one(mesh: Mesh) -> None:
    """Every host has the old quota: it stores two more messages."""
    before = mesh.depths()
    for broker in BROKERS * 2:
        mesh.send(broker)
    assert mesh.depths() == [depth + 2 for depth in before]


@pytest.mark.parametrize("full", BROKERS)
@pytest.mark.parametrize("told", BROKERS)
def test_Q9_S10_no_host_loses_messages_to_a_new_quota_0(full: str, told: str) -> None:
    """The keeper does not know which host stores several."""
    mesh = Mesh(shared())
    for _ in range(2):
        mesh.send(full)
    with pytest.raises(LakequeueError, match=LAST_VALUE):
        mesh.at[told].admin().define(shared(max_spool_usage=0, max_deliveries=3))
    check_keeps_more_than_one(mesh)
    assert len(mesh.take("orders")) == 8


def test_Q9_S10_no_host_loses_messages_to_a_configured_quota_0() -> None:
    mesh = Mesh(shared())
    command = c.encode_command(c.Define(definition=shared(max_spool_usage=0), replace=False))
    mesh.engine.command("default.commands", b"", command, "a")
    mesh.advance("1s")
    check_keeps_more_than_one(mesh)


def test_Q9_S10_a_queue_with_quota_0_may_get_another_one() -> None:
    mesh = Mesh(shared(max_spool_usage=0))
    mesh.admin.define({"name": "orders", "max_spool_usage": "1MB"})
    check_keeps_more_than_one(mesh)


@pytest.mark.parametrize("told", BROKERS)
def test_Q9_the_limit_of_queues_holds_for_the_home(told: str) -> None:
    mesh = Mesh(*AT_B, limits=FEW)
    with pytest.raises(LakequeueError, match=r"has 3 queues, at most 3 are allowed"):
        mesh.at[told].admin().define(shared())
    assert sorted(mesh.where()) == ["near0", "near1", "near2"]
    with pytest.raises(LakequeueError, match="orders"):
        mesh.send("a")
    mesh.check_directories()


def test_Q2_Q9_the_limit_of_topics_holds_for_remote_queues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_subscriptions, "TOPICS_MAX", 3)
    mesh = Mesh(local("q", "c", "t/1", "t/2"))
    assert mesh.admin.subscribe_topic("q", "t/3")
    with pytest.raises(LakequeueError, match=r"topic: 't/4' – .* at most 3"):
        mesh.admin.define({"name": "q", "subscriptions": ["t/1", "t/2", "t/4"]})
    mesh.admin.define({"name": "q", "subscriptions": ["t/1"]})
    mesh.admin.define({"name": "q", "subscriptions": ["t/1", "t/4"]})
    assert mesh.whole("q")["subscriptions"] == ["t/1", "t/3", "t/4"]
    mesh.check_directories()


def test_Q9_a_returning_broker_gets_all_changes() -> None:
    mesh = Mesh(shared())
    mesh.engine.cut("c")
    asked = [mesh.change("orders", max_deliveries=n) for n in (3, 4)]
    asked.append(mesh.tell(c.Delete(queue="orders")))
    asked.append(mesh.tell(c.Define(definition=shared(max_spool_usage=0))))
    assert asked == [[], [], [], []], "not all brokers know it"
    mesh.engine.mend("c")
    assert [one["error"] for (one,) in asked] == [None] * 4
    mesh.check_directories()
    for broker in BROKERS * 2:
        mesh.send(broker)
    assert mesh.depths() == [1, 1, 1]


# ------------------------------------------------------------ a change that fails at one broker

BAD = {"max_message_size": 7_777}


@pytest.fixture
def _fails(bug: Bug) -> None:
    """Only the keeper can apply this definition, and this topic."""

    def is_bad(facts: MeshFacts, bridges: Any, vpn: str, name: str) -> bool:
        return facts.entries[vpn][name].definition.max_message_size == 7_777

    bug.plant(directory, "carry_out", "bc", is_bad)
    bug.plant(directory, "change_topic", "bc", lambda message: message.topic == "t/bad")


@pytest.mark.usefixtures("_fails")
def test_M2_Q9_a_queue_that_its_host_fails_to_make_holds_nothing_back() -> None:
    """Its messages wait until it is defined again."""
    mesh = Mesh(shared(), local("old", "b", "t/old"))
    mesh.admin.define(local("new", "b", "t/new", **BAD))
    mesh.check_directories()
    mesh.admin.define(local("third", "b", "t/third"))
    for n in range(3):
        mesh.send("a", "t/new", n)
        mesh.send("c", "t/new", 10 + n)
        mesh.send("a", "t/old", n)
        mesh.send("c", "t/third", n)
    assert numbers(mesh.take("old", "b")) == numbers(mesh.take("third", "b")) == [0, 1, 2]
    assert len(mesh.events("mesh_refused")) == 2
    mesh.admin.define({"name": "new", "max_message_size": None})
    mesh.advance("2s")
    assert sorted(numbers(mesh.take("new", "b"))) == [0, 1, 2, 10, 11, 12]


@pytest.mark.usefixtures("_fails")
def test_M2_Q9_a_queue_that_its_host_fails_to_change_is_as_before() -> None:
    mesh = Mesh(local("new", "b"))
    mesh.admin.define({"name": "new", "max_spool_messages": 1, **BAD})
    assert mesh.admin.subscribe_topic("new", "t/bad")
    mesh.check_directories()
    for n in range(3):
        mesh.send("a", "new", n)
    assert numbers(mesh.take("new", "b")) == [0, 1, 2]
    mesh.admin.define({"name": "new", "max_message_size": None, "max_spool_messages": 2})
    mesh.send("a", "t/bad", 7)
    assert numbers(mesh.take("new", "b")) == [7]
