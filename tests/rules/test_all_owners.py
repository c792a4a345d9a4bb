"""R6, L13, Q5: what means a distributed queue's messages means those of all its brokers."""

import json
from typing import Any

import pytest
from lakequeue.protocol import ConfigError, LakequeueError, Timeout

from .harness import drain
from .mesh import BROKERS, Mesh, ids

DEAD = {"name": "dead", "message_type": "json"}


def filled(*more: dict[str, Any], **keys: Any) -> tuple[Mesh, dict[str, list[str]]]:
    """A queue with three messages at each broker, and their ids by broker."""
    one = {"name": "orders", "message_type": "json", "max_per_subscription_backlog": 100} | keys
    mesh = Mesh(queues=[one, *more])
    return mesh, {b: [mesh.send(b, {"n": n, "at": b}) for n in range(3)] for b in BROKERS}


@pytest.mark.parametrize("asked", BROKERS)
def test_R6_browse_shows_what_all_brokers_own(asked: str) -> None:
    mesh, sent = filled()
    admin = mesh.at[asked].admin()
    shown = admin.browse("orders")
    assert {b: [m.id for m in shown if m.broker == b] for b in BROKERS} == sent
    assert ids(admin.browse("orders", where="/n = 1")) == [sent[b][1] for b in BROKERS]
    assert len(admin.browse("orders", limit=4)) == 4
    drain(mesh.consumer("b", 2))
    assert sorted(ids(admin.browse("orders", state="leased"))) == sorted(sent["b"][:2])
    with pytest.raises(ConfigError, match="found the end, expected"):
        admin.browse("orders", where="/n >")


def test_R6_browse_goes_by_time_between_brokers_and_by_order_within() -> None:
    mesh = Mesh(priority="/p")
    sent = []
    for n, broker in enumerate("abcab"):
        mesh.advance("1s")
        sent.append(mesh.send(broker, {"p": n}))
    shown = ids(mesh.at["c"].admin().browse("orders"))
    assert sorted(shown) == sorted(sent)
    assert [m for m in shown if m in (sent[0], sent[3])] == [sent[3], sent[0]]  # of a, by priority


@pytest.mark.parametrize("asked", BROKERS)
def test_R6_purge_means_all(asked: str) -> None:
    mesh, sent = filled()
    admin = mesh.at[asked].admin()
    assert admin.purge("orders", where="/n = 0", dry_run=True) == 3
    assert mesh.depths() == [3, 3, 3]
    assert admin.purge("orders", where="/n = 0") == 3
    assert admin.purge("orders", ids=[sent["a"][1], sent["c"][2]]) == 2
    assert mesh.depths() == [1, 2, 1]
    assert admin.purge("orders") == 4
    assert mesh.depths() == [0, 0, 0]


def test_R6_move_edit_and_redrive_mean_all() -> None:
    mesh, sent = filled(DEAD, {"name": "other", "message_type": "json"}, dead_message_queue="dead")
    admin = mesh.at["b"].admin()
    changed = admin.edit("orders", {"seen": "yes"}, where="/n < 2", why="a test")
    assert (changed.count, changed.stayed) == (6, 0)
    assert sum(m.headers.get("seen") == "yes" for m in admin.browse("orders")) == 6
    assert admin.move("orders", to="other", where="/n = 2", dry_run=True).count == 3
    assert admin.move("orders", to="other", where="/n = 2").count == 3
    assert sorted(ids(admin.browse("other"))) == sorted(sent[b][2] for b in BROKERS)
    consumers = [mesh.consumer(b, 2) for b in BROKERS]  # each has room for its own
    for consumer in consumers:
        for message in drain(consumer):
            message.reject("no")
        consumer.close()
    assert mesh.depths("dead") == [2, 2, 2]
    back = admin.redrive("dead")
    assert (back.moved, back.stayed, back.queues) == (6, 0, {"orders": 6})
    assert mesh.depths() == [2, 2, 2]


def test_L13_acks_by_id_and_by_filter_reach_every_owner() -> None:
    mesh, sent = filled()
    consumer = mesh.consumer("b", 1)
    consumer.ack(ids=[sent["a"][0], sent["b"][2], sent["c"][1]])
    assert mesh.depths() == [2, 2, 2]
    consumer.ack(where="/n = 1")
    assert mesh.depths() == [1, 1, 2]
    low, high = sorted(map(int, sent["c"]))[0::2]
    consumer.ack(ids=f"{low}-{high}")
    assert mesh.depths() == [1, 1, 0]
    assert mesh.whole()["counters"]["ack_ignored"] == 0
    consumer.ack(ids=sent["b"][1])  # L8: it is gone
    assert mesh.whole()["counters"]["ack_ignored"] == 1
    assert mesh.seen("b")["counters"]["ack_ignored"] == 1
    with pytest.raises(ConfigError, match="found the end, expected"):
        consumer.ack(where="/n >")
    assert mesh.whole()["counters"]["acknowledged"] == 7


def test_L13_what_comes_while_an_ack_goes_round_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ack of one message makes room for another that it names, which comes too late to be
    found and too early to be shown: it is acknowledged all the same, and holds no room."""
    mesh = Mesh()
    there = [mesh.send("c"), mesh.send("c")]
    here = mesh.send("a")
    consumer = mesh.consumer("a", 1)
    assert ids(drain(consumer)) == [here]
    mesh.engine.cut("a")
    command, asked = mesh.engine.command, []

    def heard_by_a(*given: Any) -> None:
        asked.append(given[-1])
        if asked.count(1) == 2:
            mesh.engine.mend("a")
        command(*given)

    monkeypatch.setattr(mesh.engine, "command", heard_by_a)
    consumer.ack(ids=[here, there[0]])
    monkeypatch.undo()
    assert asked.count(1) == 2
    assert ids(drain(consumer)) == [there[1]]
    assert mesh.whole()["counters"]["acknowledged"] == 2
    assert mesh.whole()["counters"]["ack_ignored"] == 0


def test_L9_an_ack_before_its_message_waits_at_the_broker_that_will_have_it() -> None:
    mesh, sent = filled()
    mesh.consumer("a", 1).ack(ids=str(int(sent["c"][-1]) + 1))
    mesh.send("c")
    assert mesh.depths() == [3, 3, 3]
    assert mesh.seen("c")["counters"]["acknowledged"] == 1


def test_H5_Q2_a_shutdown_and_a_topic_are_of_the_whole_queue() -> None:
    mesh, _ = filled()
    admin = mesh.at["c"].admin()
    admin.shutdown("orders", ingress=True)
    assert [mesh.seen(b)["ingress"] for b in BROKERS] == [False] * 3
    admin.shutdown("orders")
    assert admin.subscribe_topic("orders", "news/*") is True
    assert admin.subscribe_topic("orders", "news/*") is False
    for broker in BROKERS:
        mesh.send(broker, queue="news/today")
    assert mesh.depths() == [4, 4, 4]
    admin.unsubscribe_topic("orders", "news/*")
    assert mesh.whole()["subscriptions"] == []


def test_S9_usage_adds_up_and_says_what_each_uses() -> None:
    mesh, _ = filled()
    used = mesh.at["b"].admin().usage()
    each = used["brokers"]
    assert list(each) == list(BROKERS)
    for scope in ("vpn", "broker"):
        total = sum(one[scope]["spool_bytes"] for one in each.values())
        assert used[scope]["spool_bytes"] == total > 0
    assert used["broker"]["max_spool_usage"] == 3 * each["a"]["broker"]["max_spool_usage"]
    assert (used["vpn"]["max_spool_usage"], used["vpn"]["name"]) == (None, "default")
    mesh.at["a"].producer().send_async("nobody", b"{}")
    mesh.at["c"].producer().send_async("nobody", b"{}")
    assert mesh.at["b"].admin().usage()["vpn"]["refused"] == {"no_matching_destination": 2}


# ---------------------------------------------------------------- who is away


def test_R6_where_a_broker_is_away_nothing_is_changed() -> None:
    mesh, sent = filled()
    admin = mesh.at["a"].admin()
    before = mesh.depths()
    mesh.engine.brokers[2].is_stopped = True
    for change in (
        lambda: admin.purge("orders"),
        lambda: admin.edit("orders", {"x": "y"}),
        lambda: admin.shutdown("orders", ingress=True),
    ):
        with pytest.raises(LakequeueError, match="'c', one of its hosts, is failed; nothing"):
            change()
    mesh.engine.brokers[2].is_stopped = False
    assert mesh.depths() == before
    assert admin.purge("orders", ids=sent["c"]) == 3


@pytest.mark.parametrize("ends", ["running", "failed"])
def test_R6_a_broker_that_restarts_is_waited_for(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a change of brokers; a move to one that restarts waits in the engine."""
    mesh, sent = filled()
    session = mesh.at["a"]
    monkeypatch.setattr(session.runner, "waits", True)
    known, looks = session.brokers(), []

    def brokers() -> list[dict[str, Any]]:
        looks.append("restarting" if len(looks) < 2 else ends)
        return [one | {"state": looks[-1] if one["name"] == "c" else "running"} for one in known]

    monkeypatch.setattr(session, "brokers", brokers)
    if ends == "failed":
        with pytest.raises(LakequeueError, match="'c', one of its hosts, is failed; nothing"):
            session.admin().purge("orders")
    else:
        assert session.admin().purge("orders") == sum(map(len, sent.values()))
    assert len(looks) >= 3


def test_L13_what_a_consumer_holds_is_acknowledged_whoever_else_is_away() -> None:
    mesh, _ = filled()
    consumer = mesh.consumer("a", 2)
    held = ids(drain(consumer))
    mesh.engine.brokers[2].is_stopped = True
    consumer.ack(ids=held)
    mesh.engine.brokers[2].is_stopped = False
    assert mesh.seen("a")["counters"]["acknowledged"] == 2


def test_R6_one_that_goes_away_meanwhile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh, _ = filled()
    admin, session = mesh.at["a"].admin(), mesh.at["a"]
    consumer = mesh.consumer("a", 1)
    ask = session.request

    def silent(command: Any, *args: Any, broker: int | None = None, **more: Any) -> Any:
        if broker == 1:
            raise Timeout("the engine did not answer")
        return ask(command, *args, broker=broker, **more)

    monkeypatch.setattr(session, "request", silent)
    with pytest.raises(
        Timeout,
        match="queue 'orders': broker 'b': the engine did not answer; "
        "it was done at 'a', and not at 'c'",
    ):
        admin.purge("orders")
    with pytest.raises(Timeout, match="broker 'b': the engine did not answer; it was done at 'a'"):
        consumer.ack(where="/n = 1")
    with pytest.raises(Timeout, match="broker 'b', a host of queue 'orders': the engine did not"):
        admin.describe("orders")
    monkeypatch.undo()
    assert sum(mesh.depths()) == 6


# ---------------------------------------------------------------- queues of one broker


def local(name: str, broker: str) -> dict[str, Any]:
    return {"name": name, "message_type": "json", "type": "LocalQueue", "broker": broker}


def test_R6_what_is_said_of_a_queue_follows_it() -> None:
    mesh = Mesh(queues=[local("q", "a"), local("r", "b")])
    sent = [mesh.send("c", {"n": n}, queue="q") for n in range(4)]
    admin = mesh.at["c"].admin()
    assert ids(admin.browse("q")) == sent
    mesh.at["a"].admin().move_queue("q", "b")
    assert ids(admin.browse("q", where="/n > 1")) == sent[2:]
    assert admin.edit("q", {"k": "v"}).count == 4
    assert admin.move("q", to="r", ids=[sent[0]]).count == 1
    mesh.consumer("c", queue="q").ack(ids=[sent[1]])
    assert admin.purge("q", where="/n = 2") == 1
    assert [json.loads(m.payload)["n"] for m in admin.browse("q")] == [3]
    admin.shutdown("q", ingress=True)
    assert admin.describe("q")["ingress"] is False
