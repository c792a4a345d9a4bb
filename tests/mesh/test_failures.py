"""A bug at a record between brokers loses nothing, and leaves no client without an answer for good:
the engine's next start, perhaps in a version without the bug, finishes what the record began (M2,
M3, M5, H1, H4, S7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.mesh import credit, directory, handover, mesh, moves, stand_ins
from lakequeue.mesh.bridges import bridge_commands
from lakequeue.mesh.keeper import Keeper
from lakequeue.protocol import LakequeueError, Rejected
from lakequeue.protocol import commands as c
from rules.mesh import BROKERS, Mesh, local, numbers, shared, take
from rules.two_homes import Two, Vpns

NAMES = "one", "two", "three"
BEGIN = c.encode_command(c.Begin(epoch=0))


class Bug:
    """Functions that do their work and then fail, so a step that failed must leave no trace."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.is_mended = False

    def plant(
        self, owner: Any, name: str, at: str, when: Callable[..., bool] = lambda *_, **__: True
    ) -> None:  # fmt: skip
        """at: the broker at which it fails; when: with which arguments."""
        original = getattr(owner, name)

        def failing(own: Any, *rest: Any, **keys: Any) -> Any:
            broker = own._broker if isinstance(own, Keeper | mesh.Mesh) else own
            found = original(own, *rest, **keys)
            if not self.is_mended and at == broker.header.name and when(*rest, **keys):
                raise RuntimeError("a bug")
            return found

        self._monkeypatch.setattr(owner, name, failing)

    def begin(self, home: Any, is_mended: bool = True) -> None:
        """The engine begins again."""
        self.is_mended = is_mended
        for broker in BROKERS if isinstance(home, Mesh) else NAMES:
            home.engine.instruct("default", BEGIN, broker)
        home.advance("3s")


@pytest.fixture
def bug(monkeypatch: pytest.MonkeyPatch) -> Bug:
    return Bug(monkeypatch)


def check_nothing_is_kept(home: Mesh) -> None:
    assert [home.facts(name).failed for name in home.brokers] == [{}] * len(home.brokers)


@pytest.mark.parametrize(
    ("owner", "name", "at"), [(handover, "arrive", "c"), (Keeper, "_answer", "a")],
    ids=["the end at the new host", "the end at the keeper"],
)  # fmt: skip
def test_M5_a_move_whose_end_fails_ends_later(bug: Bug, owner: Any, name: str, at: str) -> None:
    home = Mesh(local("q", "b", "t/q"))
    bug.plant(owner, name, at, lambda *_, **keys: owner is handover or "error" in keys)
    sent = [home.send("b", "q", n) for n in range(3)]
    told = home.move("q", "c")
    sent += [home.send(broker, "t/q", n) for n, broker in enumerate(BROKERS, 3)]
    home.advance("1m")
    assert told == []
    bug.begin(home, is_mended=False)
    assert told == []
    bug.begin(home)
    assert [one["error"] for one in told] == [None]
    assert home.where()["q"] == "c"
    assert sorted(home.ids("q")) == sorted(sent)
    home.check_nothing_moves()
    check_nothing_is_kept(home)


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
