"""Kafka loses messages between brokers, or they cannot be read: they are repeated, in order, and
nothing else notices (M2, M3, M5, H1, H4, R3). The simulated worlds (`sim`) prove that nothing is
lost or doubled, whichever messages are lost."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.mesh import channel
from lakequeue.protocol import commands as c
from lakequeue.state import Limits
from rules.mesh import LOST, UNREADABLE, Mesh, Network, Word, local, numbers, shared, take
from rules.two_homes import Vpns

FAR, FULL = local("far", "b", "t/far"), local("full", "b", "t/full", max_spool_messages=3)
ALL = shared("all", "t/all", max_per_subscription_backlog=3)
SYNC = f"{channel.SYNC_MS}ms"


def check_all_is_confirmed(mesh: Any) -> None:
    for broker in mesh.brokers:
        for peer in mesh.facts(broker).peers.values():
            assert not peer.unconfirmed


@pytest.mark.parametrize(("fault", "told"), [(LOST, "mesh_gap"), (UNREADABLE, "mesh_refused")])
@pytest.mark.parametrize("kind", ["hand_over", "answer", "refusal", "room", "entries", "sync"])
def test_R3_a_lost_message_between_brokers_is_repeated(
    kind: str, fault: str, told: str, network: Network
) -> None:
    mesh = Mesh(FAR, FULL, ALL, brokers="ab")
    said: list[str] = []

    def first(word: Word) -> str | None:
        is_refusal = word.kind == "answer" and word.body.why
        said.append("refusal" if is_refusal else word.kind)
        return fault if said[-1] == kind and said.count(kind) == 1 else None

    network.fault = first
    consumers = {name: mesh.consumer("b", queue=name) for name in ("all", "far")}
    got: dict[str, list[Any]] = {"all": [], "far": [], "full": []}
    for n in range(20):
        for name in got:
            mesh.send("a", f"t/{name}", n)
        if n == 5:
            mesh.tell(c.Define(definition=local("other", "b")))
        if n % 4 == 0:
            for name, consumer in consumers.items():
                got[name] += take(consumer)
    consumers["full"] = mesh.consumer("b", queue="full")
    for _ in range(30):
        for name, consumer in consumers.items():
            got[name] += take(consumer)
        mesh.advance("1s")
    assert kind in said
    bodies = {name: numbers(found) for name, found in got.items()}
    assert (sorted(bodies["all"]), bodies["far"], bodies["full"]) == tuple([list(range(20))] * 3)
    assert not any(m.redelivered for found in got.values() for m in found)
    assert not mesh.admin.usage()["lanes"]
    assert mesh.whole("other")["depth"] == 0
    events = [e for at in mesh.at.values() for e in at.admin().events(limit=1_000)]
    assert told in {e["event"] for e in events} or kind == "sync"
    check_all_is_confirmed(mesh)


@pytest.mark.parametrize("kind", ["come", "hand_over", "answer", "has_moved", "entries"])
@pytest.mark.parametrize("host", ["a", "b"])
def test_M5_R3_a_move_completes_despite_a_lost_message(
    kind: str, host: str, network: Network
) -> None:
    mesh = Mesh(local("queue", host, "t/queue"))
    mesh.send(host, "queue", 0)
    network.lose(kind)
    moved = mesh.move("queue", "c")
    for _ in range(2):
        mesh.advance(SYNC)
    assert (network.left, [one["error"] for one in moved]) == ([], [None])
    mesh.check_directories()
    mesh.send("a", "queue", 1)
    mesh.advance(SYNC)
    assert (mesh.where()["queue"], numbers(mesh.take("queue"))) == ("c", [0, 1])
    mesh.check_nothing_moves()
    check_all_is_confirmed(mesh)


@pytest.mark.parametrize("far", ["one", "three"])
@pytest.mark.parametrize("kind", ["answer", "hand_over", "bridge_send", "bridge_receipt"])
def test_H1_R3_bridged_messages_arrive_once_despite_a_lost_message(
    kind: str, far: str, network: Network
) -> None:
    home = Vpns("one", far)
    home.define("q", "a/>")
    network.lose(kind)
    producers = [home.a(broker, f"p{broker}").producer() for broker in ("one", "two")]
    for n in range(6):
        producers[n % 2].send("a/b", b"%d" % n)
        home.advance("2s")
    home.advance("30s")
    is_local = kind.startswith("bridge") and far == "one"  # nothing is written
    assert bool(network.left) == is_local
    assert sorted(home.bodies("q")) == ["0", "1", "2", "3", "4", "5"]


def test_R3_the_loss_of_the_last_message_is_noticed(network: Network) -> None:
    """No later message would show the gap: the sender asks what has arrived."""
    mesh = Mesh(FAR, brokers="ab")
    network.lose("hand_over")
    mesh.send("a", "t/far")
    assert (network.left, mesh.whole("far")["depth"]) == ([], 0)
    mesh.advance(SYNC)
    assert mesh.whole("far")["depth"] == 1


def test_M3_R3_an_unreadable_message_is_requested_again(network: Network) -> None:
    """That broker's later messages wait too, in order; those of others are processed."""
    mesh = Mesh(FAR, FULL)
    broken: list[Word] = []

    def fault(word: Word) -> str | None:
        if word.kind == "hand_over" and any(b"broken" in one[0] for one in word.body.contents):
            broken.append(word)
            return UNREADABLE
        return None

    network.fault = fault
    mesh.send("a", "t/far", "broken")
    for n in range(10):
        mesh.send("a", "t/far", n)
        mesh.send("c", "t/full", n)
        assert numbers(mesh.take("full", "b")) == [n]
        mesh.advance(SYNC)
    assert numbers(mesh.take("far", "b")) == []
    assert 10 <= len(broken) <= 12
    told = [e["why"] for e in mesh.at["b"].admin().events(limit=1_000) if "why" in e]
    assert len([why for why in told if "not 'hand_over'" in why]) == len(broken)
    network.heal()
    mesh.advance(SYNC)
    assert numbers(mesh.take("far", "b")) == ["broken", *range(10)]
    mesh.advance("2s")
    check_all_is_confirmed(mesh)


def test_R3_many_lost_messages_are_repeated_a_few_a_step(network: Network) -> None:
    """Each once, if nothing more is lost."""
    mesh = Mesh(FAR, local("near", "a"), limits=Limits(again_rows=3))
    mesh.engine.cut("b")
    for n in range(20):
        mesh.send("a", "t/far", n)
    network.said.clear()
    network.fault = lambda word: LOST if len(network.said) in range(1, 20, 2) else None
    mesh.engine.mend("b")
    network.heal()
    mesh.advance(SYNC)
    assert numbers(mesh.take("far", "b")) == list(range(20))
    assert len(network.of("a", "b", "hand_over")) <= 2 * 20 + 3
    assert sum(word.again for word in network.of("b", "a", "sync")) == 1


def test_R3_a_lost_confirmation_is_requested(network: Network) -> None:
    mesh = Mesh(local("near", "a"), brokers="ab")
    network.lose("sync", "b", "a")
    answers = mesh.tell(c.Define(definition=local("other", "a")))
    mesh.advance("2s")
    assert [one.kind for one in mesh.facts("a").peers[1].unconfirmed] == ["entries"]
    assert not answers, "the definition is not confirmed"
    for _ in range(3):
        mesh.advance(SYNC)
    assert [one["error"] for one in answers] == [None]
    check_all_is_confirmed(mesh)
    network.said.clear()
    mesh.advance("1h")
    assert not network.said, "brokers with nothing to send are silent"


def test_S1_R3_a_message_with_lost_content_is_not_repeated(network: Network) -> None:
    """It is reported as lost where it still is, and later messages arrive."""
    mesh = Mesh(FAR, brokers="ab")
    network.lose("hand_over", times=3)
    for n in range(3):
        mesh.send("a", "t/far", n)
    spool = mesh.state("a").spool
    contents = spool.contents

    def without_the_second(rows: Any) -> Any:
        return [None if one is not None and one[0] == b"1" else one for one in contents(rows)]

    spool.contents = without_the_second
    mesh.advance(SYNC)
    mesh.advance("2s")
    assert numbers(mesh.take("far", "b")) == [0, 2]
    lost = [e for e in mesh.events("lost") if e["queue"].endswith("far")]
    assert len(lost) == 1
    check_all_is_confirmed(mesh)


def test_M2_a_bounded_number_of_commands_wait_for_an_unreachable_broker() -> None:
    """Further commands are refused with the reason; messages for it wait as before."""
    mesh = Mesh(local("far", "c"), shared("all"), limits=Limits(unconfirmed_records=5))
    mesh.engine.cut("a")
    for n in range(9):
        new = c.encode_command(c.Define(definition=local(f"new{n}", "b")))
        mesh.engine.command("default.commands", b"app", new, "b")
    events = mesh.at["b"].admin().events()
    refused = [e["why"] for e in events if e["event"] == "command_refused"]
    assert 4 <= len(refused) <= 5
    assert all("'a' has not confirmed" in why for why in refused)
    mesh.engine.mend("a")
    mesh.advance(SYNC)
    assert len(refused) + len(mesh.where()) == 9 + 2
    mesh.engine.cut("c")
    for n in range(20):
        consumer = mesh.consumer("b", 1, "all", filter=f"/n = {n}")
        consumer.close()
    assert len(mesh.facts("b").peers[2].unconfirmed) <= 6
    for n in range(20):
        mesh.send("b", "far", n)
    consumer = mesh.consumer("b", 9, "all", filter="/n = 99")
    mesh.engine.mend("c")
    mesh.send("c", "all", {"n": 99})
    mesh.advance(SYNC)
    assert len(take(consumer)) == 1, "credit that was not sent before is sent now"
    assert numbers(mesh.take("far")) == list(range(20))
