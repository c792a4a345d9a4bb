"""Kafka loses what brokers say, or nobody can read it: what it was about is said again, and then
brokers fall silent (M2, M3, M5, H1, H4, R3). Here is what must happen then and there; that nothing
is lost or doubled, whichever words are lost, is proved in the simulated worlds (`sim`)."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from lakequeue.mesh import keeper
from lakequeue.protocol import commands as c
from lakequeue.protocol import mesh_messages
from lakequeue.protocol.mesh_messages import Heard
from rules.harness import drain
from rules.mesh import (
    LOST,
    NEAR,
    UNREADABLE,
    Mesh,
    Network,
    Word,
    local,
    numbers,
    shared,
    take,
)
from rules.two_homes import Vpns

FAR, FULL = local("far", "b", "t/far"), local("full", "b", "t/full", max_spool_messages=3)
ALL = shared("all", "t/all", max_per_subscription_backlog=3)


@pytest.mark.parametrize(("fault", "told"), [(LOST, "mesh_gap"), (UNREADABLE, "mesh_refused")])
@pytest.mark.parametrize("kind", ["hand_over", "answer", "refusal", "room", "entries", "heard"])
def test_R3_what_a_lost_word_was_about_is_said_again(
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
                got[name] += numbers(take(consumer))
    consumers["full"] = mesh.consumer("b", queue="full")
    for _ in range(30):
        for name, consumer in consumers.items():
            got[name] += numbers(take(consumer))
        mesh.advance("1s")
    assert kind in said
    assert (sorted(got["all"]), got["far"], got["full"]) == tuple([list(range(20))] * 3)
    assert not mesh.admin.usage()["lanes"]
    assert mesh.whole("other")["depth"] == 0
    events = [e for at in mesh.at.values() for e in at.admin().events(limit=1_000)]
    assert told in {e["event"] for e in events}


def test_M3_R3_what_cannot_be_read_for_long_is_asked_for_each_minute(network: Network) -> None:
    """It may be the same record each time. Only its lane waits, in order; all comes once it can be
    read."""
    mesh = Mesh(FAR, FULL, brokers="ab")
    broken: list[Word] = []

    def fault(word: Word) -> str | None:
        if word.kind == "hand_over" and any(b"broken" in one[0] for one in word.body.contents):
            broken.append(word)
            return UNREADABLE
        return None

    network.fault = fault
    mesh.send("a", "t/far", "broken")
    for n in range(10):
        for queue in ("far", "full"):
            mesh.send("a", f"t/{queue}", n)
        assert numbers(mesh.take("far", "b")) == []
        assert numbers(mesh.take("full", "b")) == [n]
        mesh.advance("60s")
    assert 10 <= len(broken) <= 12
    events = mesh.at["b"].admin().events(limit=1_000)
    told = [e["why"] for e in events if e["event"] == "mesh_refused"]
    assert len(told) == len(broken)
    assert "not 'hand_over'" in told[0]
    (lane,) = mesh.admin.usage()["lanes"]
    assert (lane["queue"], lane["waiting"]) == ("far", 11)
    network.heal()
    mesh.advance("60s")
    assert numbers(mesh.take("far", "b")) == ["broken", *range(10)]
    assert not mesh.admin.usage()["lanes"]


@pytest.mark.parametrize("options", [{}, {"delay": "1s"}, {"ttl": "60s"}])
def test_P1_R3_a_message_is_stored_once_though_the_answer_is_lost(
    options: dict[str, Any], network: Network
) -> None:
    """It was taken and acknowledged long before it is said again."""
    mesh = Mesh(FAR, brokers="ab")
    network.lose("answer")
    got = []
    for n in range(3):
        mesh.send("a", "t/far", n, **options)
        got += numbers(mesh.take("far", "b", rounds=4))
    assert (network.left, got) == ([], [0, 1, 2])
    assert not mesh.admin.usage()["lanes"]


@pytest.mark.parametrize("to", ["a", "c"])
@pytest.mark.parametrize("dies", [False, True])
def test_M5_P1_R3_an_answer_is_lost_and_the_queue_moves_on(
    to: str, dies: bool, network: Network
) -> None:
    """What was in transit is refused where the queue was, and handed over to where it is. A dead
    message may come again, and then says so."""
    mesh = Mesh(FAR, local("old", "a", dead_message_queue="far"))
    network.lose("answer")
    if dies:
        mesh.send("a", "old")
        drain(mesh.consumer("a", queue="old"))[0].reject()
    else:
        mesh.send("a", "t/far")
    assert [m.delivery_count for m in mesh.take("far", "b")] == [1]
    assert not network.left
    mesh.admin.move_queue("far", to)
    mesh.advance("5s")
    assert "mesh_gap" in [e["event"] for e in mesh.admin.events()]
    assert [m.delivery_count for m in mesh.take("far", to)] == ([2] if dies else [])
    assert not mesh.admin.usage()["lanes"]


@pytest.mark.parametrize("semantics", ["at-least-once", "at-most-once"])
@pytest.mark.parametrize("kind", ["answer", "hand_over", "room"])
def test_H4_L2_R3_a_granted_message_that_may_come_again_says_so(
    kind: str, semantics: str, network: Network
) -> None:
    """It was granted and acknowledged, and nobody knows which word of it Kafka has lost."""
    mesh = Mesh(ALL | {"semantics": semantics}, brokers="ab")
    consumer = mesh.consumer("b", 3, "all")
    network.lose(kind)
    counts: dict[bytes, list[int]] = defaultdict(list)
    for n in range(12):
        mesh.send("a", "t/all", n)
        mesh.advance("1s")
        for message in take(consumer):
            counts[message.payload].append(message.delivery_count)
    assert (network.left, len(counts), mesh.whole("all")["depth"]) == ([], 12, 0)
    repeated = [found for found in counts.values() if found != [1]]
    assert all(found[0] == 1 and min(found[1:]) > 1 for found in repeated)
    assert len(repeated) == (kind == "answer" and semantics == "at-least-once")


def test_H4_R3_room_that_ended_is_counted_anew_though_the_word_of_it_is_lost(
    network: Network,
) -> None:
    """Messages that cross meanwhile are counted by one broker only: both must begin anew."""
    mesh = Mesh(ALL, brokers="ab")

    def send(first: int) -> None:
        for n in range(first, first + 3):
            mesh.send("a", "t/all", n)
        mesh.advance("1s")

    consumer = mesh.consumer("b", 3, "all")
    send(0)
    got = take(consumer)
    network.lose("room")
    consumer.close()
    send(3)
    assert not network.left
    consumer = mesh.consumer("b", 3, "all")
    got += take(consumer)
    send(6)
    assert numbers(got + take(consumer)) == list(range(9))


@pytest.mark.parametrize("far", ["one", "three"])
@pytest.mark.parametrize("kind", ["answer", "hand_over", "bridge_send", "bridge_receipt"])
def test_H1_R3_what_a_bridge_carries_comes_once_though_a_word_is_lost(
    kind: str, far: str, network: Network
) -> None:
    home = Vpns("one", far)
    home.define("q", "a/>")
    network.lose(kind)
    producers = [home.a(broker, f"p{broker}").producer() for broker in ("one", "two")]
    got = []
    for n in range(6):
        producers[n % 2].send("a/b", b"%d" % n)
        home.advance("2s")
        got += home.bodies("q")
    for n in range(3):  # brokers notice as they hear the next word
        home.define(f"other{n}", "x")
        home.advance("30s")
        got += home.bodies("q")
    assert not network.left or (kind.startswith("bridge") and far == "one")
    assert sorted(got) == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("keys", [{}, {"partition_key": "/k"}])
def test_O1_O4_R3_a_lane_keeps_its_order_though_a_word_is_lost(
    keys: dict[str, Any], network: Network
) -> None:
    """Those behind the lost one are not taken before it comes again."""
    mesh = Mesh(FAR | keys, brokers="ab")
    network.lose("hand_over")
    consumer, got = mesh.consumer("b", 9, "far"), []
    for n in range(6):
        mesh.send("a", "t/far", {"n": n, "k": 1})
    for _ in range(10):
        got += numbers(take(consumer))
        mesh.advance("1s")
    assert (network.left, got) == ([], list(range(6)))


def test_M2_what_came_again_is_not_asked_for_once_more(network: Network) -> None:
    """The other broker would not repeat it, and this one would wait for that for ever."""
    mesh = Mesh(FAR, brokers="ab")
    network.lose(sender="b", faults=[UNREADABLE, LOST, None, UNREADABLE])
    for n in range(3):
        mesh.send("a", "t/far", n)
    for _ in range(70):
        mesh.advance("1s")
    assert not network.left
    mesh.admin.define(shared("new"))
    assert "new" in mesh.where()


@pytest.mark.parametrize("kind", ["hand_over", "bridge_send"])
def test_M3_H2_nothing_passes_a_record_that_cannot_be_read(kind: str, network: Network) -> None:
    """A moment ago another one was asked for, so this one is asked for later, and what its sender
    said behind it is heard first."""
    home = Vpns("one", "three")
    home.define("q", "a/>")
    network.lose(kind, "one", faults=[UNREADABLE, None, UNREADABLE])
    producer = (home.b if kind == "hand_over" else home.a)("one").producer()
    for n in range(6):
        producer.send("a/b", b"%d" % n)
    home.advance("80s")
    assert not network.left
    assert home.bodies("q") == ["0", "1", "2", "3", "4", "5"]


def test_M3_P1_R3_a_lane_that_is_refused_knows_what_it_does_not_know(network: Network) -> None:
    """The answer about a stored message cannot be read. Then the queue is full, and the lane takes
    that message back with the others. It was acknowledged long before it is handed over again."""
    mesh = Mesh(FULL, brokers="ab")
    network.lose("answer", "b", faults=[UNREADABLE, None, UNREADABLE])
    for n in range(5):
        mesh.send("a", "t/full", n)
        mesh.advance("10ms")
    assert mesh.whole("full")["depth"] == 3
    consumer, got = mesh.consumer("b", 3, "full"), []
    for pause in (*["100ms"] * 7, *["1s"] * 10):
        got += take(consumer)
        mesh.advance(pause)
    assert (numbers(got), any(m.redelivered for m in got)) == ([0, 1, 2, 3, 4], False)


# ---------------------------------------------------------------- many words are lost at once


def test_R3_what_was_lost_in_one_step_is_repeated_twice_at_most(network: Network) -> None:
    """A repetition for each gap would lose more records than were lost before."""
    mesh = Mesh(FAR, local("near", "a"))
    mesh.engine.cut("b")
    for _ in range(20):
        mesh.send("a", "t/far")
    network.said.clear()
    network.fault = lambda word: LOST if len(network.said) in range(1, 20, 2) else None
    mesh.engine.mend("b")
    for sender, to in ("ab", "ba"):
        assert 1 <= sum(word.again for word in network.of(sender, to, "heard")) <= 2
    assert mesh.whole("far")["depth"] == 20


@pytest.mark.parametrize("lost", ["ca", "ba", "ab"])
def test_M5_R3_a_move_that_has_ended_is_called_back_though_the_keeper_does_not_know(
    lost: str, network: Network
) -> None:
    """The old host and the first broker forwarded the command to each other without end."""
    mesh = Mesh(local("queue", "b", "t/queue"), *NEAR)
    network.lose(sender=lost[0], to=lost[1], times=1_000)
    answers = [mesh.move("queue", "c")]
    network.heal()
    network.said.clear()
    answers.append(mesh.move("queue", "b"))
    assert len(network.said) < 60
    mesh.go_on()
    mesh.admin.move_queue("queue", "c")
    mesh.send("a", "t/queue")
    assert mesh.whole("queue")["depth"] == 1
    assert [len(one) for one in answers] == [1, 1]


def test_M5_Q9_a_queue_is_defined_again_while_what_completes_it_is_lost(network: Network) -> None:
    """The new host took it for complete, and the first broker did not repeat the record."""
    mesh = Mesh(local("queue", "a", "t/queue"), *NEAR)
    for _ in range(3):
        mesh.send("a", "t/queue")
    network.fault = lambda word: LOST if word.kind == "carry" and word.body.whole else None
    mesh.move("queue", "b")
    network.heal()
    mesh.change("queue", max_deliveries=3)
    mesh.go_on()
    found = mesh.whole("queue")
    assert (found["depth"], found["definition"]["max_deliveries"]) == (3, 3)
    mesh.admin.move_queue("queue", "a")


def test_M5_the_first_broker_does_not_write_to_itself_that_a_move_has_ended(
    network: Network,
) -> None:
    """No later record would show that this one was lost."""
    mesh = Mesh(local("queue", "b"))
    for to in ("a", "c", "a"):
        mesh.at["b"].admin().move_queue("queue", to)
    assert not [word for word in network.said if word.sender == word.to]
    assert mesh.whole("queue")["depth"] == 0


def test_S7_the_whole_directory_crosses_in_records_that_kafka_takes(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = mesh_messages.PART_ROWS, 40_000
    monkeypatch.setattr(mesh_messages.slices, "__defaults__", limits)
    topics = [f"{'t' * 200}/{n}" for n in range(100)]
    mesh = Mesh(FAR, *(local(f"q{n}", "b", f"t/q{n}", *topics) for n in range(5)))
    network.lose("entries", to="b", times=1_000)
    mesh.tell(c.Delete(queue="q3"))
    network.heal()
    network.said.clear()
    mesh.send("a", "t/far")
    parts = [word for word in network.of("a", "b", "entries") if word.after is not None]
    assert len(parts) > 2
    for one in parts:
        sizes = [len(entry.entry) for entry in one.entries]
        assert len(sizes) < keeper.ENTRIES_MAX
        assert len(sizes) == 1 or sum(sizes) <= 40_000
    mesh.check_directories()
    assert "q3" not in mesh.entries("b")


def test_Q9_R3_what_an_earlier_version_wrote_of_the_directory_is_read(network: Network) -> None:
    """Its records said only why, for the newest edition."""
    mesh = Mesh(shared())
    for _ in range(2):
        mesh.send("c")

    def earlier(word: Word) -> Heard | None:
        if word.kind != "heard":
            return None
        said = word.body
        why = "".join(why for _, why in said.refused)
        return Heard(said.edition, why, said.waited, said.missed, said.again)

    network.fault = earlier
    (refused,) = mesh.change("orders", max_spool_usage=0)
    (done,) = mesh.change("orders", max_deliveries=3)
    assert (bool(refused["error"]), done["error"]) == (True, None)
