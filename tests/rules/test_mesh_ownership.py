"""Distributed queues: the owner of a message, and changes of ownership (Q5, H4); commands about
such a queue reach all its brokers (R6, L13)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from lakequeue.protocol import ConfigError, LakequeueError, Timeout

from .harness import drain
from .mesh import BROKERS, Mesh, ids, local, numbers, shared, take

# ---------------------------------------------------------------- requests and grants


def test_H4_a_consumer_anywhere_gets_everything() -> None:
    mesh = Mesh(shared())
    sent = [mesh.send(broker) for _ in range(4) for broker in BROKERS]
    assert mesh.depths() == [4, 4, 4]
    got = drain(mesh.consumer("b"))
    assert sorted(ids(got)) == sorted(sent)
    assert mesh.depths() == [0, 12, 0]
    for message in got:
        message.ack()
    assert mesh.depths() == [0, 0, 0]


def test_H4_a_message_keeps_its_id_and_all_fields() -> None:
    mesh = Mesh(shared())
    sent = mesh.send("a", body=b"x", ttl="1h", priority=7, key=b"k", headers={"h": b"v"})
    (got,) = drain(mesh.consumer("b"))
    assert (got.id, got.payload, got.priority, got.key) == (sent, b"x", 7, b"k")
    assert (got.headers["h"], got.delivery_count, got.redelivered) == ("v", 1, False)
    assert got.expires_at is not None


def test_H4_O2_a_message_keeps_its_priority() -> None:
    mesh = Mesh(shared(priority="/p"))
    consumer = mesh.consumer("b")
    low, high = (mesh.send("a", body={"p": p}) for p in (1, 9))
    assert ids(drain(consumer)) == [low, high]
    consumer.close()
    assert ids(drain(mesh.consumer("b"))) == [high, low]


def test_H4_a_message_leaves_only_if_no_local_consumer_can_take_it() -> None:
    mesh = Mesh(shared())
    near, far = mesh.consumer("a", 2), mesh.consumer("b")
    sent = [mesh.send("a") for _ in range(5)]
    assert (ids(drain(near)), ids(drain(far))) == (sent[:2], sent[2:])


def test_F5_the_requesting_hosts_filters_apply() -> None:
    mesh = Mesh(shared())
    for n in range(6):
        mesh.send("a", body={"n": n})
    assert numbers(drain(mesh.consumer("b", filter="/n > 3"))) == [4, 5]
    assert mesh.depths() == [4, 2, 0]
    assert numbers(drain(mesh.consumer("c", filter="/n = 0"))) == [0]


def test_Q5_a_local_queue_never_leaves() -> None:
    mesh = Mesh(local("orders", "a"))
    mesh.send("c")
    consumer = mesh.consumer("b")
    assert len(drain(consumer)) == 1
    assert (mesh.whole()["broker"], mesh.whole()["depth"], consumer.broker) == ("a", 1, 0)


# ---------------------------------------------------------------- after a change of ownership


def test_L5_L6_counts_go_with_the_message() -> None:
    mesh = Mesh(shared(max_cancels=2))
    sent = mesh.send("a")
    for broker, count in (("b", 1), ("c", 2)):
        with mesh.consumer(broker) as consumer:
            (message,) = drain(consumer)
            assert (message.id, message.delivery_count) == (sent, count)
            message.cancel(delay="1s")
        mesh.advance("2s")
    assert mesh.depths() == [0, 0, 0]
    assert mesh.seen("c")["expired"] == 1


def test_X4_the_ttl_continues() -> None:
    mesh = Mesh(shared())
    mesh.send("a", ttl="8s")
    mesh.advance("2s")
    (message,) = drain(mesh.consumer("b"))
    assert message.expires_at - mesh.at["b"].now() == timedelta(seconds=6)
    mesh.advance("6s")
    assert mesh.depths() == [0, 0, 0]
    assert [mesh.seen(b)["expired"] for b in BROKERS] == [0, 1, 0]


def test_X5_dead_messages_go_to_the_owners_dead_message_queue() -> None:
    mesh = Mesh(shared(dead_message_queue="dead"), shared("dead"))
    sent = mesh.send("a")
    with mesh.consumer("b") as orders:
        orders.receive(timeout=0).reject(reason="no")
    assert mesh.depths("dead") == [0, 1, 0]
    with mesh.consumer("c", queue="dead") as reader:
        (dead,) = drain(reader)
        assert (dead.id, dead.headers["lq-dead-reason"]) == (sent, "rejected")
        dead.cancel()
    assert mesh.at["c"].admin().redrive("dead").moved == 1
    assert mesh.depths() == [0, 0, 1]
    assert ids(drain(mesh.consumer("a"))) == [sent]


def test_the_journal_shows_every_change_of_ownership() -> None:
    mesh = Mesh(shared())
    sent = mesh.send("a")
    take(mesh.consumer("b"))
    rows = [r for r in mesh.engine.journal() if r["message_id"] == sent]
    assert [(r["broker"], r["event"]) for r in rows] == [
        ("a", "spooled"), ("a", "granted"), ("b", "spooled"), ("b", "delivered"),
        ("a", "transferred"), ("b", "acknowledged"),
    ]  # fmt: skip


def test_Q5_describe_shows_the_sum_and_each_hosts_share() -> None:
    mesh = Mesh(shared())
    for broker in "aaab":
        mesh.send(broker)
    drain(mesh.consumer("c", 2))[0].ack()
    whole = mesh.whole()
    held = {name: (part["depth"], part["leased"]) for name, part in whole["brokers"].items()}
    assert (whole["depth"], whole["leased"]) == (3, 2)
    assert sum(depth for depth, _ in held.values()) == 3
    assert held["c"] == (2, 2)
    assert [(c["broker"], c["held"]) for c in whole["consumers"]] == [("c", 2)]
    counted = [whole["counters"][name] for name in ("spooled", "acknowledged", "transferred")]
    assert counted == [4, 1, 3]


def test_Q2_one_host_takes_a_captured_record() -> None:
    radar = {"underlying_topic": "radar"}
    mesh = Mesh(shared("shared", **radar), local("local", "a", **radar))
    for partition in range(7):
        mesh.at["a"].publish_raw("radar", b"{}", partition=partition)
    assert mesh.depths("shared") == [3, 2, 2]
    assert mesh.whole("local")["depth"] == 7


OWNED = shared(type="GroupLocalQueue", initial_owner="b")


def test_H4_L12_scheduled_messages_start_with_the_initial_owner_too() -> None:
    mesh = Mesh(OWNED)
    due = mesh.at["a"].now() + timedelta(seconds=5)
    mesh.send("a", deliver_at=due)
    assert mesh.depths() == [0, 1, 0]
    (spooled,) = [e for e in mesh.events("spooled") if e["queue"] == "orders"]
    assert spooled["until"] == round(due.timestamp() * 1000)
    assert mesh.seen("b")["delayed"] == 1
    consumer = mesh.consumer("a")
    assert drain(consumer) == []
    mesh.advance("5s")
    assert len(drain(consumer)) == 1


# ---------------------------------------------------------------- commands to all hosts


class Filled(Mesh):
    """A queue with three messages at each broker; sent: their ids by broker."""

    def __init__(self, *more: dict[str, Any], **keys: Any) -> None:
        super().__init__(shared(**keys), *more)
        self.sent = {b: [self.send(b, body={"n": n, "at": b}) for n in range(3)] for b in BROKERS}


@pytest.fixture
def filled() -> Filled:
    return Filled()


@pytest.mark.parametrize("asked", BROKERS)
def test_R6_browse_shows_what_all_brokers_own(filled: Filled, asked: str) -> None:
    admin, sent = filled.at[asked].admin(), filled.sent
    shown = admin.browse("orders")
    assert {b: [m.id for m in shown if m.broker == b] for b in BROKERS} == sent
    assert ids(admin.browse("orders", where="/n = 1")) == [sent[b][1] for b in BROKERS]
    assert len(admin.browse("orders", limit=4)) == 4
    drain(filled.consumer("b", 2))
    assert sorted(ids(admin.browse("orders", state="leased"))) == sorted(sent["b"][:2])
    with pytest.raises(ConfigError, match="found the end, expected"):
        admin.browse("orders", where="/n >")


def test_R6_browse_is_ordered_by_time_between_brokers_and_by_queue_order_within() -> None:
    mesh, sent = Mesh(shared(priority="/p")), []
    for n, broker in enumerate("abcab"):
        mesh.advance("1s")
        sent.append(mesh.send(broker, body={"p": n}))
    shown = ids(mesh.at["c"].admin().browse("orders"))
    assert sorted(shown) == sorted(sent)
    assert [m for m in shown if m in (sent[0], sent[3])] == [sent[3], sent[0]]  # of a, by priority


@pytest.mark.parametrize("asked", BROKERS)
def test_R6_purge_covers_all_brokers(filled: Filled, asked: str) -> None:
    admin, sent = filled.at[asked].admin(), filled.sent
    assert admin.purge("orders", where="/n = 0", dry_run=True) == 3
    assert filled.depths() == [3, 3, 3]
    assert admin.purge("orders", where="/n = 0") == 3
    assert admin.purge("orders", ids=[sent["a"][1], sent["c"][2]]) == 2
    assert filled.depths() == [1, 2, 1]
    assert admin.purge("orders") == 4
    assert filled.depths() == [0, 0, 0]


def test_R6_move_edit_and_redrive_cover_all_brokers() -> None:
    mesh = Filled(shared("dead"), shared("other"), dead_message_queue="dead")
    admin = mesh.at["b"].admin()
    changed = admin.edit("orders", {"seen": "yes"}, where="/n < 2", why="a test")
    assert (changed.count, changed.stayed) == (6, 0)
    assert sum(m.headers.get("seen") == "yes" for m in admin.browse("orders")) == 6
    assert admin.move("orders", to="other", where="/n = 2", dry_run=True).count == 3
    assert admin.move("orders", to="other", where="/n = 2").count == 3
    assert sorted(mesh.ids("other")) == sorted(mesh.sent[b][2] for b in BROKERS)
    consumers = [mesh.consumer(b, 2) for b in BROKERS]  # each has room for its own
    for consumer in consumers:
        for message in drain(consumer):
            message.reject("no")
        consumer.close()
    assert mesh.depths("dead") == [2, 2, 2]
    back = admin.redrive("dead")
    assert (back.moved, back.stayed, back.queues) == (6, 0, {"orders": 6})
    assert mesh.depths() == [2, 2, 2]


def test_L13_acks_by_id_and_by_filter_reach_every_owner(filled: Filled) -> None:
    consumer, sent = filled.consumer("b", 1), filled.sent
    consumer.ack(ids=[sent["a"][0], sent["b"][2], sent["c"][1]])
    assert filled.depths() == [2, 2, 2]
    consumer.ack(where="/n = 1")
    assert filled.depths() == [1, 1, 2]
    consumer.ack(ids=f"{sent['c'][0]}-{sent['c'][2]}")
    assert filled.depths() == [1, 1, 0]
    assert filled.whole()["counters"]["ack_ignored"] == 0
    consumer.ack(ids=sent["b"][1])  # L8: it is gone
    assert filled.whole()["counters"]["ack_ignored"] == 1
    assert filled.seen("b")["counters"]["ack_ignored"] == 1
    with pytest.raises(ConfigError, match="found the end, expected"):
        consumer.ack(where="/n >")
    assert filled.whole()["counters"]["acknowledged"] == 7


def test_L13_messages_arriving_during_an_ack_over_brokers_are_included(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ack of one message makes room for another one that it names, too late for the search and
    too early for the report: it is acknowledged all the same, and takes no room."""
    mesh = Mesh(shared())
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
    counters = mesh.whole()["counters"]
    assert (counters["acknowledged"], counters["ack_ignored"]) == (2, 0)


def test_L9_an_early_ack_waits_at_the_messages_future_broker(
    filled: Filled,
) -> None:
    filled.consumer("a", 1).ack(ids=str(int(filled.sent["c"][-1]) + 1))
    filled.send("c")
    assert filled.depths() == [3, 3, 3]
    assert filled.seen("c")["counters"]["acknowledged"] == 1


def test_S9_usage_shows_the_sum_and_each_brokers_share(filled: Filled) -> None:
    used = filled.at["b"].admin().usage()
    each = used["brokers"]
    assert list(each) == list(BROKERS)
    for scope in ("vpn", "broker"):
        total = sum(one[scope]["spool_bytes"] for one in each.values())
        assert used[scope]["spool_bytes"] == total > 0
    assert used["broker"]["max_spool_usage"] == 3 * each["a"]["broker"]["max_spool_usage"]
    assert (used["vpn"]["max_spool_usage"], used["vpn"]["name"]) == (None, "default")
    for broker in "ac":
        filled.producer(broker).send_async("nobody", b"{}")
    assert filled.admin.usage()["vpn"]["refused"] == {"no_matching_destination": 2}


# ---------------------------------------------------------------- brokers that are away


def test_R6_with_a_broker_away_nothing_is_changed(filled: Filled) -> None:
    admin, held = filled.admin, filled.consumer("a", 2)
    mine = ids(drain(held))
    before = filled.depths()
    filled.engine.brokers[2].is_stopped = True
    for change in (
        lambda: admin.purge("orders"),
        lambda: admin.edit("orders", {"x": "y"}),
        lambda: admin.shutdown("orders", ingress=True),
    ):
        with pytest.raises(LakequeueError, match="'c', one of its hosts, is failed; nothing"):
            change()
    filled.engine.brokers[2].is_stopped = False
    assert filled.depths() == before
    filled.engine.brokers[2].is_stopped = True
    held.ack(ids=mine)  # L13: a consumer's messages are acknowledged whichever other broker is away
    filled.engine.brokers[2].is_stopped = False
    assert filled.seen("a")["counters"]["acknowledged"] == 2
    assert admin.purge("orders", ids=filled.sent["c"]) == 3


@pytest.mark.parametrize("ends", ["running", "failed"])
def test_R6_a_command_waits_for_a_restarting_broker(
    filled: Filled, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a change of brokers; a move to a restarting broker waits in the engine."""
    session = filled.at["a"]
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
        assert session.admin().purge("orders") == 9
    assert len(looks) >= 3


def test_R6_a_broker_lost_during_a_command_is_named(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, session = filled.admin, filled.at["a"]
    consumer, ask = filled.consumer("a", 1), session.request

    def silent(command: Any, *args: Any, broker: int | None = None, **more: Any) -> Any:
        if broker == 1:
            raise Timeout("the engine did not answer")
        return ask(command, *args, broker=broker, **more)

    monkeypatch.setattr(session, "request", silent)
    why = "broker 'b': the engine did not answer; it was done at 'a'"
    for call, said in (
        (lambda: admin.purge("orders"), f"queue 'orders': {why}, and not at 'c'"),
        (lambda: consumer.ack(where="/n = 1"), why),
        (lambda: admin.describe("orders"), "broker 'b', a host of queue 'orders': the engine did"),
    ):
        with pytest.raises(Timeout, match=said):
            call()
    monkeypatch.undo()
    assert sum(filled.depths()) == 6


def test_R6_commands_follow_a_moved_queue() -> None:
    mesh = Mesh(local("q", "a"), local("r", "b"))
    sent = [mesh.send("c", "q", {"n": n}) for n in range(4)]
    admin = mesh.at["c"].admin()
    assert ids(admin.browse("q")) == sent
    mesh.admin.move_queue("q", "b")
    assert ids(admin.browse("q", where="/n > 1")) == sent[2:]
    assert admin.edit("q", {"k": "v"}).count == 4
    assert admin.move("q", to="r", ids=[sent[0]]).count == 1
    mesh.consumer("c", 1, "q").ack(ids=[sent[1]])
    assert admin.purge("q", where="/n = 2") == 1
    assert numbers(admin.browse("q")) == [3]
    admin.shutdown("q", ingress=True)
    assert admin.describe("q")["ingress"] is False
