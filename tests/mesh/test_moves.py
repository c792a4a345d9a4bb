"""Queues move while their messages arrive and wait (M1, M2, M3, M5, P1)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lakequeue.mesh import directory, handover, stand_ins
from lakequeue.mesh.facts import Entry, load_facts
from lakequeue.protocol import ConfigError, LakequeueError
from lakequeue.protocol import commands as c
from lakequeue.protocol.messages import HEADER
from lakequeue.state import Limits
from mesh.bugs import Bug
from rules.harness import drain
from rules.mesh import BROKERS, LOST, NEAR, Mesh, Network, local, numbers, shared, take


def test_P1_a_message_repeated_after_a_move_is_stored_once() -> None:
    """Its broker has stored it, and the answer was lost."""
    mesh = Mesh(local("q", "a"))
    header = b'{"to":"q","producer":"p","seq":1,"reply":0}'
    for step in range(3):
        mesh.engine.publish("default.publish", b"{}", None, [(HEADER, header)])
        if step == 0:
            mesh.admin.move_queue("q", "b")
    assert mesh.whole("q")["depth"] == 1


def test_M2_publishes_are_answered_at_once_while_the_other_broker_is_away() -> None:
    """The queue has begun to leave: new messages follow it."""
    mesh = Mesh(local("q", "a"))
    for n in range(2):
        mesh.send("a", "q", n)
    mesh.engine.cut("b")
    mesh.move("q", "b", by="c")
    consumer = mesh.consumer("a", 1, "q")
    assert numbers(drain(consumer)) == [0], "until that one answers nothing changes"
    mesh.engine.mend("b")
    mesh.engine.cut("b")
    for n, name in enumerate(BROKERS, 2):
        mesh.send(name, "q", n)
    mesh.engine.mend("b")
    mesh.advance("1s")
    assert mesh.where() == {"q": "b"}
    found = numbers(mesh.admin.browse("q"))
    assert (found[:2], sorted(found)) == ([0, 1], list(range(5)))


def test_M3_messages_waiting_for_a_full_queue_follow_it_in_order() -> None:
    """At a third broker, and at the new host, which then passes them to itself."""
    mesh = Mesh(local("q", "a", "news", max_spool_messages=2))
    for broker, first, to in (("a", 0, "q"), ("b", 10, "news"), ("c", 20, "news")):
        for n in range(2 if to == "q" else 4):
            mesh.send(broker, to, first + n)
    mesh.admin.move_queue("q", "b")
    for n in (14, 15):
        mesh.send("b", "news", n)
    got = numbers(mesh.take("q", rounds=12))
    assert got[:2] == [0, 1]
    assert [n for n in got if 10 <= n < 20] == list(range(10, 16))
    assert [n for n in got if n >= 20] == list(range(20, 24))
    assert mesh.admin.usage()["lanes"] == []


def test_M1_a_queue_with_keys_moves_within_its_group() -> None:
    mesh = Mesh(shared("keyed", partition_key="/k", group=["a", "b"]))
    for n in range(6):
        mesh.send("c", "keyed", {"n": n, "k": n % 2})
    with pytest.raises(ConfigError, match="broker: 'c' – allowed is its group: a, b"):
        mesh.admin.move_queue("keyed", "c")
    mesh.admin.move_queue("keyed", "ab".replace(mesh.where()["keyed"], ""))
    consumer = mesh.consumer("c", 1, "keyed")
    assert numbers(take(consumer)) == list(range(6))


@pytest.mark.parametrize("asked", ["a", "b"])
def test_M5_a_move_to_an_unreachable_broker_can_be_called_back(asked: str) -> None:
    mesh = Mesh(local("q", "b"))
    sent = [mesh.send("b", "q") for _ in range(2)]
    mesh.engine.cut("c")
    told = mesh.move("q", "c")
    mesh.advance("1s")
    mesh.at[asked].admin().move_queue("q", "b")
    mesh.advance("0s")
    assert "called back" in told[0]["error"]
    assert mesh.where() == {"q": "b"}
    sent += [mesh.send("a", "q") for _ in range(2)]
    assert mesh.ids("q") == sent
    mesh.admin.move_queue("q", "a")  # it may go elsewhere
    mesh.engine.mend("c")
    mesh.advance("1s")
    assert (mesh.where(), mesh.ids("q")) == ({"q": "a"}, sent)
    mesh.admin.move_queue("q", "c")
    assert mesh.ids("q") == sent
    mesh.check_nothing_moves()


def test_M5_the_new_host_refuses_to_call_back_a_finished_move() -> None:
    mesh = Mesh(local("q", "b"))
    mesh.move("q", "c")
    assert mesh.where() == {"q": "c"}
    mesh.engine.cut("b")
    mesh.at["c"].admin().move_queue("q", "c")
    assert mesh.where() == {"q": "c"}


@pytest.mark.parametrize("stays", [False, True])
def test_M5_R3_the_keeper_learns_the_end_of_a_move_despite_a_lost_message(
    stays: bool, network: Network
) -> None:
    mesh = Mesh(local("q", "b"))
    sent = [mesh.send("b", "q") for _ in range(2)]
    if stays:
        mesh.engine.cut("c")
    network.lose("has_moved")
    told = mesh.move("q", "c")
    mesh.advance("1s")
    if stays:
        mesh.move("q", "b", by="b")
        mesh.engine.mend("c")
    mesh.advance("1s")
    assert (network.left, told) == ([], [])
    host = "b" if stays else "c"
    mesh.at[host].admin().define(local("other"))  # the keeper notices the gap
    mesh.advance("1s")
    assert ("called back" in str(told)) == stays
    assert mesh.where()["q"] == host
    mesh.admin.move_queue("q", "a")
    assert mesh.ids("q") == sent


def test_M5_a_move_in_progress_cannot_be_called_back(network: Network) -> None:
    mesh = Mesh(local("q", "a"))
    mesh.send("a", "q")
    network.fault = lambda word: LOST if word.kind == "answer" else None
    mesh.move("q", "b")
    assert mesh.where() == {"q": "a"}
    with pytest.raises(LakequeueError, match="is moving already"):
        mesh.admin.move_queue("q", "a")
    network.fault = lambda word: None
    mesh.advance("20s")
    assert mesh.where() == {"q": "b"}


# ---------------------------------------------------------------- unconfirmed messages are kept

FEW = Limits(live_rows=4, segment_rows=4, bulk_rows=4, beside=1)


class Filled(Mesh):
    """Twelve messages in a queue of broker b: one was delivered, two are delayed. At most five are
    in transit at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stand_ins, "WINDOW", 5)
        super().__init__(local("q", "b"), *NEAR, limits=FEW)
        for n in range(12):
            self.send("b", "q", n, **({"delay": "1h"} if n in (3, 7) else {}))
        with self.consumer("b", 1, "q") as consumer:
            (first,) = drain(consumer)
            first.cancel()

    def found(self, host: str) -> list[int]:
        """The queue's messages as they are delivered, also the delayed ones."""
        self.advance("1h")
        got = self.take("q", host)
        assert [m.redelivered for m in got] == [n == 0 for n in numbers(got)]
        return sorted(numbers(got))


def test_M5_the_old_host_keeps_unconfirmed_messages(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends no more than a window, and takes no further steps meanwhile."""
    mesh = Filled(monkeypatch)
    network.lose("hand_over", times=100)
    mesh.move("q", "c")
    mesh.advance("1s")
    header = mesh.state("b").find("default", "q").header
    assert header.depth == 12
    assert 5 <= header.leased < 12
    assert not mesh.state("b").header.pending
    mesh.send("a", "q", 12)  # waits behind the queue
    mesh.engine.restart()
    network.heal()
    mesh.go_on()
    assert mesh.found("c") == list(range(13))
    assert [mesh.entries(name)["q"].hosts for name in BROKERS] == [[2], [2], [2]]
    mesh.check_nothing_moves()


@pytest.mark.parametrize("command", [c.Ack, c.Subscribe])
def test_M5_L8_a_command_for_a_queue_about_to_leave_is_not_sent_repeatedly(
    network: Network, monkeypatch: pytest.MonkeyPatch, command: type
) -> None:
    """An ack waits and moves with the queue. Commands that cannot wait are refused."""
    mesh = Filled(monkeypatch)
    network.lose("hand_over", times=100)
    mesh.move("q", "c")
    kept = mesh.ids("q")[:1]
    said = len(network.said)
    given = {"ids": kept[0]} if command is c.Ack else {"inbox": c.Inbox("default.deliveries")}
    said_to_q = c.encode_command(command(queue="q", subscription="s", **given))
    mesh.engine.command("default.commands", b"app", said_to_q, "b")
    assert not [word for word in network.said[said:] if word.sender == word.to]
    network.heal()
    mesh.go_on()
    mesh.check_nothing_moves()
    refused = [e["command"] for e in mesh.admin.events() if e["event"] == "command_refused"]
    assert refused == ([] if command is c.Ack else ["Subscribe"])
    assert mesh.found("c") == list(range(1 if command is c.Ack else 0, 12))


def test_P1_X5_a_message_that_expires_during_a_move_dies_once(network: Network) -> None:
    """The answer for it is lost, so the old host repeats it."""
    mesh = Mesh(*NEAR, local("q", "b", expiration="3s", dead_message_queue="at-c"))
    for _ in range(4):
        mesh.send("b", "q")
    network.lose("answer", times=100)
    mesh.move("q", "c")
    mesh.advance("4s")
    network.heal()
    mesh.go_on()
    seen = mesh.whole("q")
    assert (seen["broker"], seen["depth"], seen["counters"]["expired"]) == ("c", 0, 4)
    assert mesh.whole("at-c")["counters"]["spooled"] == 4 + len(BROKERS)


def test_S9_Q9_alerts_follow_a_queue_redefined_during_a_move(
    network: Network,
) -> None:
    full = local("q", "b", max_spool_messages=4)
    mesh = Mesh(*NEAR, full)
    for _ in range(4):
        mesh.send("b", "q")
    network.lose("answer", times=100)
    mesh.move("q", "c")
    mesh.advance("1s")
    mesh.tell(c.Define(definition=full | {"max_spool_messages": 400}))
    mesh.advance("1s")
    (queue,) = [q for q in mesh.state("c").queues.values() if q.header.arriving]
    assert (queue.header.depth, queue.header.usage_high) == (4, False)
    network.heal()
    mesh.go_on()
    assert mesh.where()["q"] == "c"


def test_M5_a_message_that_fails_at_the_new_host_dies_and_the_queue_moves(
    monkeypatch: pytest.MonkeyPatch, bug: Bug
) -> None:
    mesh = Filled(monkeypatch)
    bug.plant(handover, "take_in", "c", lambda queue, row, content, _: int(content[0]) in (5, 7))
    mesh.admin.move_queue("q", "c")
    counters = mesh.whole("q")["counters"]
    assert counters["expired"] == counters["discarded"] == 2
    assert mesh.found("c") == [n for n in range(12) if n not in (5, 7)]


def fail_to_carry_out(bug: Bug, broker: str, fails: Callable[[Entry], bool]) -> None:
    """This broker cannot carry out such entries."""
    bug.plant(
        directory, "carry_out", broker,
        lambda facts, bridges, vpn, name: fails(facts.entries[vpn][name]),
    )  # fmt: skip


def test_M5_a_queue_stays_if_its_new_host_cannot_prepare_for_it(
    monkeypatch: pytest.MonkeyPatch, bug: Bug
) -> None:
    """The caller gets an answer, and the queue can move elsewhere, and there later."""
    mesh = Filled(monkeypatch)
    fail_to_carry_out(bug, "c", lambda entry: entry.moves_to == 2)
    with pytest.raises(LakequeueError, match=r"^queue 'q': stays, its move failed at broker"):
        mesh.admin.move_queue("q", "c")
    assert mesh.where()["q"] == "b"
    mesh.admin.move_queue("q", "a")
    assert mesh.where()["q"] == "a"
    bug.is_mended = True
    mesh.admin.move_queue("q", "c")
    assert mesh.where()["q"] == "c"
    assert mesh.found("c") == list(range(12))


def test_M5_a_called_back_queue_is_dropped_where_the_call_back_fails(
    monkeypatch: pytest.MonkeyPatch, network: Network, bug: Bug
) -> None:
    mesh = Filled(monkeypatch)
    fail_to_carry_out(bug, "c", lambda entry: entry.definition.max_cancels == 77)
    network.lose("come", times=100)
    moved = mesh.move("q", "c")
    mesh.change("q", max_cancels=77)
    mesh.tell(c.MoveQueue(queue="q", broker="b"))
    assert "called back" in moved[0]["error"]
    network.heal()
    mesh.go_on()
    assert not mesh.facts("c").arriving
    assert mesh.found("b") == list(range(12))


def test_M5_a_queue_that_its_host_failed_to_make_does_not_move(bug: Bug) -> None:
    mesh = Mesh()
    fail_to_carry_out(bug, "b", lambda entry: entry.definition.max_message_size == 77)
    mesh.admin.define(local("q", "b", max_message_size=77))
    with pytest.raises(LakequeueError, match="could not be made where it is"):
        mesh.admin.move_queue("q", "c")
    mesh.admin.define(local("q", "b", max_message_size=78))
    mesh.send("a", "q", 5)
    mesh.admin.move_queue("q", "c")
    assert (mesh.where()["q"], numbers(mesh.admin.browse("q"))) == ("c", [5])


def test_M5_a_failed_queue_stays_until_it_is_redefined() -> None:
    mesh = Mesh(local("q", "b"))
    mesh.engine.cut("c")
    answers = mesh.move("q", "c")
    mesh.state("b").find("default", "q").header.faulted = "RuntimeError: planted"
    mesh.engine.mend("c")
    assert answers[0]["error"] == "queue 'q': failed (RuntimeError: planted); define it again"
    assert mesh.where() == {"q": "b"}
    mesh.admin.define(local("q", "b"))
    mesh.admin.move_queue("q", "c")
    assert mesh.where() == {"q": "c"}


def test_M5_a_called_back_queue_stays_even_before_the_keeper_knows() -> None:
    """The keeper redefines the queue meanwhile. Also on a broker that restarts from its last
    mark."""
    mesh = Mesh(local("q", "b"))
    mesh.engine.cut("c")
    moved = mesh.move("q", "c")
    mesh.state("b").mark()
    mesh.engine.cut("a")
    called_back = mesh.move("q", "b", by="b")
    mesh.state("b").mark()
    assert load_facts(mesh.state("b").store).entries["default"]["q"].moves_to is None
    mesh.change("q", max_deliveries=3)
    mesh.engine.mend("c")
    mesh.advance("1s")
    mesh.engine.mend("a")
    mesh.advance("1s")
    assert "called back" in moved[0]["error"]
    assert called_back[0]["error"] is None
    assert (mesh.where(), mesh.whole("q")["definition"]["max_deliveries"]) == ({"q": "b"}, 3)
    mesh.check_directories()
    mesh.check_nothing_moves()


def test_M5_L9_an_early_ack_moves_with_its_queue() -> None:
    mesh = Mesh(local("q", "a"), local("other", "a"))
    sent = mesh.send("a", "other")
    mesh.tell(c.Ack(queue="q", ids=sent))
    mesh.admin.move_queue("q", "b")
    mesh.admin.move("other", "q")
    mesh.advance("1s")
    assert mesh.whole("q")["depth"] == 0
    assert mesh.whole("q")["counters"]["acknowledged"] == 1


def test_M5_a_queue_that_cannot_leave_may_be_called_back() -> None:
    """Before the keeper knows that it stays."""
    mesh = Mesh(local("q", "b"))
    mesh.engine.cut("c")
    moved = mesh.move("q", "c")
    mesh.state("b").find("default", "q").header.faulted = "RuntimeError: planted"
    mesh.engine.cut("a")
    mesh.engine.mend("c")
    called_back = mesh.move("q", "b", by="b")
    mesh.engine.mend("a")
    mesh.advance("1s")
    assert "failed (RuntimeError: planted)" in moved[0]["error"]
    assert [answer["error"] for answer in called_back] == [None]
    assert mesh.where() == {"q": "b"}
    assert mesh.events("mesh_refused") == []
    mesh.check_nothing_moves()
