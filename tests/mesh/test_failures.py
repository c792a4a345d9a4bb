"""A bug at a record between brokers loses nothing, and leaves no client without an answer for good:
the engine's next start, perhaps in a version without the bug, finishes what the record began (M2,
M3, M5, H1, H4, S7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.mesh import channel, credit, directory, handover, mesh, moves, stand_ins
from lakequeue.mesh.bridges import bridge_commands
from lakequeue.mesh.keeper import Keeper
from lakequeue.protocol import LakequeueError, Rejected, topics
from lakequeue.protocol import commands as c
from lakequeue.protocol.home_bridges import bridge_key, decode_send, encode
from lakequeue.protocol.wire import WireRecord
from lakequeue.state.queue.queue import Queue
from mesh.bugs import Bug
from rules.mesh import BROKERS, Mesh, Network, local, numbers, shared, take
from rules.two_homes import Two, Vpns

NAMES = "one", "two", "three"


def check_nothing_is_kept(home: Mesh) -> None:
    for facts in map(home.facts, home.brokers):
        assert (facts.failed, facts.left_out) == ({}, {})


@pytest.mark.parametrize(
    ("owner", "name", "at"),
    [(handover, "arrive", "c"), (stand_ins, "_stored", "b"), (Keeper, "_emit_entry", "a")],
    ids=["the end at the new host", "an answer at the old one", "the end at the keeper"],
)
def test_M5_a_move_whose_end_fails_ends_later_and_its_caller_is_told(
    bug: Bug, owner: Any, name: str, at: str
) -> None:
    home = Mesh(local("q", "b", "t/q"))
    bug.plant(owner, name, at, lambda *given: owner is not Keeper or given[-1].hosts == [2])
    sent = [home.send("b", "q", n) for n in range(3)]
    told = home.move("q", "c")
    sent += [home.send(broker, "t/q", n) for n, broker in enumerate(BROKERS, 3)]
    home.advance("1m")
    bug.begin(home, is_mended=False)
    assert [one["error"] for one in told] == [
        f"queue 'q': its move ends after the engine's next start; broker {at!r}: it failed: "
        "RuntimeError: a bug"
    ]
    bug.begin(home)
    assert len(told) == 1
    assert home.where()["q"] == "c"
    assert sorted(home.ids("q")) == sorted(sent)
    home.check_nothing_moves()
    check_nothing_is_kept(home)


def test_M5_the_caller_of_a_move_is_told_that_the_queue_failed_on_the_way(bug: Bug) -> None:
    home = Mesh(local("q", "b"))
    sent = [home.send("a", "q", n) for n in range(3)]
    bug.plant(moves, "_hand_over_queue", "b")
    told = home.move("q", "c")
    home.advance("1m")
    assert [one["error"] for one in told] == [
        "queue 'q': its move ends after the queue's next definition; broker 'b': failed: "
        "RuntimeError: a bug"
    ]
    bug.is_mended = True
    home.admin.define({"name": "q", "max_deliveries": 9})
    assert (len(told), home.where()["q"], home.ids("q")) == (1, "c", sent)
    home.check_nothing_moves()


def test_M5_a_move_whose_beginning_fails_at_the_old_host_is_refused(bug: Bug) -> None:
    home = Mesh(local("q", "b"))
    bug.plant(moves, "_obstacle", "b")
    sent = home.send("a", "q")
    with pytest.raises(LakequeueError, match="'q': stays, its move failed at broker 'b'"):
        home.admin.move_queue("q", "c")
    bug.is_mended = True
    home.admin.move_queue("q", "a")
    assert (home.where()["q"], home.ids("q")) == ("a", [sent])
    home.check_nothing_moves()


def test_M2_M3_messages_whose_answer_fails_are_neither_lost_nor_doubled(bug: Bug) -> None:
    """The far queue refuses later ones, and has delivered the first ones meanwhile."""
    home = Mesh(local("far", "c", "news", max_spool_messages=2))
    bug.plant(stand_ins, "_stored", "a")
    for n in range(5):
        home.send("a", "news", n)
    home.advance("1s")
    got = home.take("far", rounds=3)
    assert numbers(got) == [0, 1]
    bug.begin(home, is_mended=False)
    bug.begin(home)
    got += home.take("far", rounds=4)
    assert numbers(got) == list(range(5))
    assert not any(m.redelivered for m in got)
    assert home.admin.usage()["lanes"] == []
    check_nothing_is_kept(home)


@pytest.mark.parametrize(
    ("owner", "name"), [(stand_ins, "_stored"), (credit, "subscription_to")], ids=["answer", "room"]
)
def test_H4_messages_granted_while_an_answer_or_a_room_fails_come_once(
    bug: Bug, owner: Any, name: str
) -> None:
    home = Mesh(shared())
    bug.plant(owner, name, "a")
    consumer = home.consumer("b", 2)
    for n in range(6):
        home.send("a", "orders", n)
    got = take(consumer)
    bug.begin(home)
    for _ in range(4):
        got += take(consumer)
        home.advance("1s")
    assert sorted(numbers(got)) == list(range(6))
    check_nothing_is_kept(home)


def test_M2_a_forwarded_command_that_fails_is_answered(
    bug: Bug, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Mesh(local("q", "b"))
    carry_out = mesh.carry_out

    def failing(broker: Any, vpn: str, command: Any, speaker: Any) -> None:
        carry_out(broker, vpn, command, speaker)
        if isinstance(command, c.Delete):
            raise RuntimeError("a bug")

    monkeypatch.setattr(mesh, "carry_out", failing)
    told: list[Any] = []
    home.at["b"].ask(c.Delete(queue="q"), told.append, broker=1)
    assert [one["error"] for one in told] == ["it failed: RuntimeError: a bug"]
    assert home.where() == {"q": "b"}
    check_nothing_is_kept(home)


@pytest.mark.parametrize("at", ["b", "c"], ids=["at its host", "where a message waits for it"])
def test_S7_a_deletion_that_fails_leaves_nothing(bug: Bug, at: str) -> None:
    home = Mesh(local("q", "b", "t/q"))
    bug.plant(directory, "_delete", at)
    home.send("a", "q")
    home.engine.cut("b")
    home.send("c", "q")
    home.tell(c.Delete(queue="q"))
    home.engine.mend("b")
    home.check_directories()
    for broker in BROKERS:
        with pytest.raises(Rejected, match="no_matching_destination"):
            home.send(broker, "t/q")
    home.admin.define(local("q", "a"))
    sent = [home.send(broker, "q") for broker in "bc"]
    home.admin.move_queue("q", "b")
    bug.begin(home)
    assert (home.where()["q"], sorted(home.ids("q"))) == ("b", sorted(sent))
    queues = [queue for name in BROKERS for queue in home.state(name).queues.values()]
    assert not any(queue.header.deleted for queue in queues)
    check_nothing_is_kept(home)


@pytest.mark.parametrize("at", ["three", "two"], ids=["another broker", "its carrier"])
def test_H1_a_bridge_that_a_broker_fails_to_make_or_delete_is_there_or_gone_later(
    bug: Bug, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Vpns("three", "two")
    home.define("q", "a/>")
    home.define("r", "x/>")
    bug.plant(
        bridge_commands, "begin", at, lambda bridges, new, *_: (new.vpn, new.name) == ("a", "x")
    )
    admin = home.a("one").admin()
    admin.bridge({"name": "x", "from": "two", "to": "vpn://b?broker=two", "subscriptions": ["x/>"]})
    home.b("one").admin().bridge(
        {"name": "x", "from": "vpn://a", "to": "two", "subscriptions": ["x/>"]}
    )
    home.a("one").producer().send("x/1", b"1")
    bug.begin(home)
    assert home.bodies("r") == ["1"]
    for broker in NAMES:
        assert home.a(broker).admin().describe_bridge("x")["from"] == "two"
    bug = Bug(monkeypatch)
    bug.plant(bridge_commands, "end", at)
    admin.delete_bridge("x")
    admin.bridge({"name": "x", "from": "one", "to": "vpn://c", "subscriptions": ["y/>"]})
    bug.begin(home)
    for broker in NAMES:
        assert home.a(broker).admin().describe_bridge("x")["from"] == "one"
    two: Any = home.engine.broker("two")
    assert two._replica.broker.find("a", "#bridge/x") is None
    admin.delete_bridge("x")
    for broker in NAMES:
        assert [one["name"] for one in home.a(broker).admin().bridges()] == ["ab"]


def test_H1_a_receipt_that_fails_is_read_again(bug: Bug) -> None:
    home = Vpns("two", "one")
    home.define("q", "a/>")
    bug.plant(mesh, "receipt", "two")
    for n in range(3):
        home.a("two").producer().send("a/b", b"%d" % n)
    bug.begin(home, is_mended=False)
    bug.begin(home)
    assert home.bodies("q") == ["0", "1", "2"]
    seen = home.a("one").admin().describe_bridge("ab")
    assert (seen["waiting"], seen["on_its_way"], seen["taken"]) == (0, 0, 3)


@pytest.mark.parametrize("to", ["two", "three"], ids=["the same", "another one"])
def test_H1_S7_a_bridge_redefined_where_its_deletion_failed_is_a_new_one(bug: Bug, to: str) -> None:
    home = Vpns("one", "two")
    home.define("q", "a/>")
    x = {"name": "x", "from": "two", "to": "vpn://b?broker=two", "subscriptions": ["x/>"]}
    admin = home.a("one").admin()
    admin.bridge(x)
    home.a("one").producer().send("x/1", b"of the old one")
    assert admin.describe_bridge("x")["waiting"] == 1
    bug.plant(bridge_commands, "end", "two")
    admin.delete_bridge("x")
    bug.is_mended = True
    admin.bridge(x | {"to": f"vpn://b?broker={to}"})
    for begins in (False, True):
        seen = admin.describe_bridge("x")
        assert (seen["to"], seen["waiting"], seen["on_its_way"]) == (f"vpn://b?broker={to}", 0, 0)
        if not begins:
            bug.begin(home)


def test_H1_a_far_end_redefined_where_its_deletion_failed_admits_another_home(bug: Bug) -> None:
    homes = Two(expects=None, to="memory://east?broker=beside")
    homes.engines["east"].configure(parse_configuration({"brokers": ["far", "beside"]}))
    homes.expect(to="beside")
    homes.define("q", "a/>", broker="beside")
    homes.send("a/b", "x")
    assert homes.seen_far()["home"] == {"epoch": 0, "broker": "near"}
    bug.plant(bridge_commands, "end", "beside")
    homes.east.admin().delete_bridge("out")
    bug.is_mended = True
    homes.expect(to="beside")
    assert homes.seen_far()["home"] is None


# ---------------------------------------------------------------- failures while it writes


def of_far(name: str) -> Callable[..., bool]:
    """Whether a function gets the queue, or its stand-in."""
    return lambda *given, **_: any(
        isinstance(one, Queue) and name in (one.header.stands_for, one.definition.name)
        for one in given
    )


@pytest.mark.parametrize("is_defined", [True, False], ids=["defined again", "begun again"])
@pytest.mark.parametrize("name", ["_try_first", "with_messages", "send"])
def test_M3_H3_a_stand_in_that_fails_holds_back_only_its_messages(
    bug: Bug, network: Network, name: str, is_defined: bool
) -> None:
    home = Mesh(local("far", "c", "t/far", max_spool_messages=1), local("free", "c", "t/free"))
    if name != "_try_first":
        home.change("far", max_spool_messages=None)
    if name == "with_messages":
        network.lose("hand_over", "a", "c", times=2)
    bug.plant(stand_ins, name, "a", of_far("far"))
    for n in range(3):
        home.send("a", "t/far", n)
        home.send("a", "t/free", n)
    home.advance("30s")
    home.send("a", "t/far", 3)
    home.send("a", "t/free", 3)
    home.advance("30s")
    assert numbers(home.take("free")) == [0, 1, 2, 3]
    (lane,) = home.admin.usage()["lanes"]
    assert (lane["queue"], lane["why"]) == ("far", "RuntimeError: a bug")
    bug.is_mended = True
    if is_defined:
        home.change("far", max_spool_messages=None, max_deliveries=9)
    else:
        bug.begin(home)
        home.change("far", max_spool_messages=None)
    home.advance("30s")
    got = home.take("far")
    assert (numbers(got), any(m.redelivered for m in got)) == ([0, 1, 2, 3], False)
    assert home.admin.usage()["lanes"] == []
    check_nothing_is_kept(home)


def test_H1_a_link_that_fails_holds_back_only_its_messages(bug: Bug, network: Network) -> None:
    home = Vpns("two", "three")
    home.b("one").admin().bridge(
        {"name": "x", "from": "vpn://a", "to": "three", "subscriptions": ["x/>"]}
    )
    x = {"name": "x", "from": "two", "to": "vpn://b?broker=three", "subscriptions": ["x/>"]}
    home.a("one").admin().bridge(x)
    home.define("q", "a/>", "x/>")
    network.lose("bridge_send", "two", "three", times=2)
    bug.plant(mesh, "with_messages", "two", lambda link, *_: link.bridge == "x")
    producer = home.a("two").producer()
    for to in ("x/1", "a/1", "x/2", "a/2"):
        producer.send(to, to.encode())
    home.advance("30s")
    assert home.bodies("q") == ["a/1", "a/2"]
    bug.is_mended = True
    home.a("one").admin().bridge(x)
    home.advance("30s")
    assert home.bodies("q") == ["x/1", "x/2"]
    assert home.a("one").admin().describe_bridge("x")["taken"] == 2


@pytest.mark.parametrize(
    ("owner", "name", "when"),
    [
        (channel, "_repeat", lambda to, *_: to == 2),
        (channel, "_emit_sync", lambda peer, *_, **__: peer.name == "c"),
        (Keeper, "_known_edition", lambda peer: peer.name == "c"),
    ],
    ids=["repeats", "confirms", "is waited for"],
)
def test_M2_M3_a_channel_that_fails_holds_back_only_its_messages(
    bug: Bug, network: Network, owner: Any, name: str, when: Callable[..., bool]
) -> None:
    home = Mesh(local("far", "c", "t/far"), local("near", "b", "t/near"))
    network.lose("hand_over", "a", "c")
    bug.plant_from_now(home, owner, name, "a", when)
    if owner is Keeper:
        defined = home.tell(c.Define(definition=local("new", "b")))
    sent = {to: [home.send("a", f"t/{to}", n) for n in range(3)] for to in ("far", "near")}
    home.advance("30s")
    assert home.ids("near") == sent["near"]
    assert [e["event"] for e in home.events("mesh_refused")] == ["mesh_refused"]
    bug.begin(home)
    home.advance("30s")
    assert home.ids("far") == sent["far"]
    if owner is Keeper:
        assert [one["error"] for one in defined] == [None]
    check_nothing_is_kept(home)


def test_H4_a_queue_that_cannot_tell_its_room_fails_alone(bug: Bug) -> None:
    home = Mesh(shared(), shared("other"))
    bug.plant_from_now(home, credit, "other_hosts", "b", of_far("orders"))
    consumers = [home.consumer("b", queue=name) for name in ("orders", "other")]
    for name in ("orders", "other"):
        home.send("a", name)
    assert [len(take(one)) for one in consumers] == [0, 1]
    bug.is_mended = True
    home.change("orders", max_deliveries=9)
    assert len(take(consumers[0])) == 1


def test_M2_a_failure_whose_handling_fails_costs_its_channel(bug: Bug) -> None:
    home = Mesh(local("far", "c", "t/far"), local("near", "c", "t/near"))
    for name in ("_queue_of", "failed"):
        bug.plant(handover, name, "c", lambda *given: given[-1].queue == "far")
    home.send("a", "t/far", 1)
    home.send("b", "t/near", 2)
    home.send("a", "t/near", 3)
    home.advance("30s")
    assert home.bodies("near") == [b"2"]
    bug.begin(home)
    home.advance("30s")
    assert (home.bodies("far"), home.bodies("near")) == ([b"1"], [b"2", b"3"])
    check_nothing_is_kept(home)


def test_H1_an_answer_of_another_home_that_fails_is_reported_once_and_read_again(bug: Bug) -> None:
    homes = Two()
    homes.define("q", "a/>")
    bug.plant(mesh, "receipt", "near")
    copied, copier = list[Any](), homes.copier
    bring = copier.bring
    copier.bring = lambda *given: copied.append(given) or bring(*given)  # type: ignore
    homes.send("a/b", "x")
    for _ in range(3):  # the answer comes again with its record
        bring(*copied[0])
        homes.advance("30s")
    assert (homes.seen()["on_its_way"], len(homes.events("west", "bridge_refused"))) == (1, 1)
    bug.begin(homes)
    assert (homes.seen()["on_its_way"], homes.seen()["taken"], homes.bodies("q")) == (0, 1, ["x"])


def test_H1_a_record_of_another_home_without_a_destination_is_refused() -> None:
    homes = Two()
    homes.define("q", "a/>")
    bring, spoiled = homes.copier.bring, list[Any]()

    def spoil(far: Any, vpn: str, broker: int, value: bytes) -> None:
        message = decode_send(value)
        send = msgspec.structs.replace(message.send, destinations=[])
        spoiled.append(bring(far, vpn, broker, encode(msgspec.structs.replace(message, send=send))))

    homes.copier.bring = spoil  # type: ignore[method-assign]
    homes.send("a/b", "x")
    del homes.copier.bring
    homes.advance("10s")
    assert spoiled
    (told,) = homes.events("east", "bridge_refused")
    assert told["why"] == "bridge 'out': a destination that is not named"
    assert homes.bodies("q") == ["x"]


def test_H1_an_answer_in_the_topic_of_other_homes_is_not_believed() -> None:
    homes, answers = Two(), list[bytes]()
    homes.define("q", "a/>")
    homes.copier.answered = answers.append  # type: ignore[method-assign]
    homes.send("a/b", "x")
    del homes.copier.answered
    forged = topics.topic("default", topics.BRIDGE_IN), 0, bridge_key("default", "out")
    homes.engines["west"].hear(0, WireRecord(*forged, answers[-1]))
    assert homes.seen()["on_its_way"] == 1
    assert len(homes.events("west", "bridge_refused")) == 1
    homes.copier.answered(answers[-1])
    assert homes.seen()["on_its_way"] == 0
