"""A broker is removed from an engine: what the driver does, with nothing real behind it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from lakequeue.definitions import Configuration
from lakequeue.protocol import LakequeueError
from lakequeue.protocol.commands import CloseBroker, MoveQueue, Peers, RemoveBroker, decode_command
from lakequeue.sources.live import closed_places, own_places
from lakequeue.streaming import Engine, fewer_brokers
from lakequeue.streaming.broker_query import RUNNING, BrokerQuery
from lakequeue.streaming.home import HomeFolder

NOBODY = "127.0.0.1:1"
READ = [("default.publish", 17, 5), ("default.commands", 2, 9)]


class Removing:
    """An engine of three brokers; did: what was asked of Spark and of the brokers, in its order."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fewer_brokers, "LEAVE_S_MAX", 0.0)
        monkeypatch.setattr(fewer_brokers, "READ_S_MAX", 0.0)
        self.did: list[str] = []
        self.moves: list[
            list[tuple[str, str, str]]
        ] = []  # what the keeper names, one after another
        self.refusals: list[LakequeueError | None] = []
        self.done = True
        self.read: list[tuple[str, int, int]] | None = READ
        self.engine = Engine(NOBODY, path, Configuration(brokers=("a", "b", "c")))
        engine = self.engine
        engine._folder.open(engine.trigger)
        engine._folder.remember_brokers({"a": 0, "b": 1, "c": 2})
        for broker in engine.brokers.values():
            broker.state = RUNNING
        application = engine.application
        monkeypatch.setattr(application, "end", self._end)
        monkeypatch.setattr(application, "start_query", self._start)
        monkeypatch.setattr(engine.removal, "ask", self._ask)
        monkeypatch.setattr(engine.removal, "_connect", lambda vpn: nullcontext(self))
        engine._transport = self  # type: ignore[assignment]

    def _end(self, brokers: list[BrokerQuery], wait_s: float) -> None:
        for broker in brokers:
            self.did.append(f"end {broker.name}")
            if broker.closed:
                broker.read = self.read

    def _start(self, broker: BrokerQuery) -> None:
        closed = " closed" if broker.closed else ""
        self.did.append(f"start {broker.name}{closed} of {len(self.engine.brokers)}")

    def _ask(self, command: RemoveBroker) -> dict[str, Any]:
        self.did.append(f"ask {command.round}" + (f" to {command.to}" if command.to else ""))
        if self.moves and not command.round:
            return {"round": 0, "done": False, "moves": self.moves.pop(0), "why": "2 definitions"}
        return {"round": 7, "done": self.done, "waits_for": ["b"]}

    def request_all(self, asked: list[MoveQueue], timeout: float) -> list[LakequeueError | None]:
        self.did += [f"move {one.queue} to {one.broker}" for one in asked]
        return [self.refusals.pop(0) if self.refusals else None for _ in asked]

    def command(self, topic: str, key: bytes, value: bytes, partition: int = 0) -> None:
        command = decode_command(value)
        said = {CloseBroker: "close", Peers: "peers"}[type(command)]
        self.did.append(f"{said} {topic.partition('.')[0]}")

    def publish(self, topic: str, value: bytes | None, key: bytes, *rest: Any) -> None:
        self.did.append(f"{key.decode()} {'gone' if value is None else json.loads(value)}")

    def flush(self, timeout: float) -> bool:
        return True


@pytest.fixture
def removing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Removing:
    return Removing(tmp_path, monkeypatch)


BEGINS = ["ask 0", "end c", "start c closed of 3", "close c", "ask 7"]


def test_it_leaves_and_the_first_reads_on(removing: Removing) -> None:
    engine = removing.engine
    engine.remove_broker("c")
    assert removing.did == [
        *BEGINS, "end c", "end a", "start a of 2", "peers a", "peers b", "broker/c gone",
    ]  # fmt: skip
    folder = engine._folder
    assert folder.removed() == {"c": (2, READ)}
    assert (folder.leaving, folder.brokers(())) == ("", {"a": 0, "b": 1})
    assert list(engine.brokers) == ["a", "b"]
    with pytest.raises(LakequeueError, match="'c': was removed from this home before"):
        engine.remove_broker("c")
    with pytest.raises(
        LakequeueError, match="'d': is not of this home, whose brokers are 'a', 'b'"
    ):
        engine.remove_broker("d")


def test_its_local_queues_move_before(removing: Removing) -> None:
    one, two, three = ("v", "q1", "a"), ("w", "q2", "b"), ("v", "q3", "b")
    removing.moves = [[one, two], [three]]
    assert removing.engine.remove_broker("c", "b") == [one, two, three]
    assert removing.did[:-6] == [
        "ask 0 to b", "move q1 to a", "move q2 to b", "ask 0 to b", "move q3 to b", "ask 0 to b",
        *BEGINS[1:],
    ]  # fmt: skip
    folder = removing.engine._folder
    assert (folder.leaving, folder.leaving_to) == ("", "")


def test_a_queue_that_does_not_move_ends_the_removal(removing: Removing) -> None:
    """Nothing was closed: the broker is told that it stays, and the home forgets."""
    removing.moves = [[("v", "q1", "a"), ("v", "q2", "b")]]
    removing.refusals = [LakequeueError("queue 'q1': holds 9 bytes")]
    with pytest.raises(LakequeueError, match=r"holds 9 bytes; moved .*: 'q2' of VPN 'v' to 'b'$"):
        removing.engine.remove_broker("c")
    assert removing.did == [
        "ask 0", "move q1 to a", "move q2 to b", "peers a", "peers b", "peers c",
    ]  # fmt: skip
    assert removing.engine._folder.leaving == ""


def test_what_is_not_done_yet_is_waited_for(removing: Removing) -> None:
    removing.moves = [[]]
    with pytest.raises(LakequeueError, match=r"'c': 2 definitions$"):
        removing.engine.remove_broker("c")
    assert removing.did[-1] == "peers c"


def test_a_start_goes_on_with_where_queues_are_to_go(
    removing: Removing, monkeypatch: pytest.MonkeyPatch
) -> None:
    removing.moves = [[("v", "q1", "b")]]
    with monkeypatch.context() as patch:

        def dies(*given: Any) -> list[Any]:
            raise KeyboardInterrupt

        patch.setattr(removing.engine.removal, "_tell_peers", lambda: None)
        patch.setattr(removing.engine._folder, "remember_leaving", lambda *_: None)
        removing.engine._folder.__class__.remember_leaving(removing.engine._folder, "c", "b")
        patch.setattr(removing, "request_all", dies)
        with pytest.raises(KeyboardInterrupt):
            removing.engine.remove_broker("c", "b")
    removing.moves = [[("v", "q1", "b")]]
    removing.did.clear()
    removing.engine.removal.go_on()
    assert removing.did[:3] == ["ask 0 to b", "move q1 to b", "ask 0 to b"]
    assert removing.engine._folder.removed() == {"c": (2, READ)}


def test_names_and_numbers_are_not_given_again(removing: Removing) -> None:
    folder = removing.engine._folder
    removing.engine.remove_broker("c")
    assert folder.brokers(["a", "b", "c", "d"]) == {"a": 0, "b": 1, "d": 3}
    with pytest.raises(LakequeueError, match="'c': was removed from this home, and its name is no"):
        removing.engine.add_broker("c")


@pytest.mark.parametrize("what", ["done", "read"])
def test_one_that_cannot_leave_goes_on_as_before(removing: Removing, what: str) -> None:
    setattr(removing, what, False if what == "done" else None)
    sentence = (
        "for 'b' did not say the last word" if what == "done" else "did not end in good order"
    )
    with pytest.raises(LakequeueError, match=sentence):
        removing.engine.remove_broker("c")
    again = ["end c", "start c of 3", "peers a", "peers b", "peers c"]
    assert removing.did[-5:] == again
    folder = removing.engine._folder
    assert (folder.removed(), folder.leaving) == ({}, "")
    assert folder.brokers(()) == {"a": 0, "b": 1, "c": 2}


def test_all_must_run(removing: Removing) -> None:
    removing.engine.brokers["b"].state = "failed"
    removing.engine.brokers["b"].failure = "its log was cut"
    with pytest.raises(LakequeueError, match=r"while 'b' is failed \(its log was cut\): all brok"):
        removing.engine.remove_broker("c")
    assert removing.did == []


def test_a_start_goes_on_with_what_was_begun(
    removing: Removing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine died in the middle: its word in the home is not written, or it is."""
    engine = removing.engine
    engine.removal.go_on()
    assert removing.did == []  # nothing was begun
    begun: list[str] = []

    def dies(what: str) -> Callable[..., None]:
        def die(*given: Any) -> None:
            begun.append(engine._folder.leaving)
            raise KeyboardInterrupt(what)

        return die

    with monkeypatch.context() as patch:
        patch.setattr(engine.application, "start_query", dies("query"))
        with pytest.raises(KeyboardInterrupt):
            engine.remove_broker("c")
    assert begun == ["c", "c"]
    assert engine._folder.leaving == "c"
    removing.did.clear()
    engine.removal.go_on()
    assert removing.did[:5] == BEGINS
    assert engine._folder.removed() == {"c": (2, READ)}


def test_what_was_begun_and_is_refused_by_now_is_given_up(
    removing: Removing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(command: RemoveBroker) -> dict[str, Any]:
        raise LakequeueError("broker 'c': has queue 'x'")

    removing.engine._folder.remember_leaving("c")
    monkeypatch.setattr(removing.engine.removal, "ask", refuse)
    removing.engine.removal.go_on()
    assert "begun is given up: broker 'c': has queue 'x'" in caplog.text
    assert removing.engine._folder.leaving == ""


def test_a_configuration_that_names_it_still_does_not_bring_it_back(
    removing: Removing, caplog: pytest.LogCaptureFixture
) -> None:
    removing.engine.remove_broker("c")
    again = Engine(NOBODY, removing.engine.home, Configuration(brokers=("a", "b", "c")))
    again._folder.open(again.trigger)
    again._number_brokers()
    assert {b.name: b.number for b in again.brokers.values()} == {"a": 0, "b": 1}
    assert "'c' of the configuration was removed from this home, and is not started" in caplog.text


def test_a_group_that_it_was_in_goes_with_it(tmp_path: Path) -> None:
    home = HomeFolder(tmp_path)
    home.open()
    home.remember_brokers({"a": 0, "b": 1}, {"b": "far"})
    home.remove_broker("b", [])
    assert home.groups({}, ["a"]) == {}
    assert home.numbers == 2


def test_the_first_reads_the_partitions_of_those_that_are_gone() -> None:
    sizes = {"v.commands": 3, "v.publish": 24, "a.mesh": 1, "b.mesh": 1, "b.instructions": 1}
    assert own_places(sizes, ["v"], "a", 0, alone=False, removed=[2]) == [
        ("a.mesh", 0), ("v.commands", 0), ("v.commands", 2),
        *(("v.publish", p) for p in (*range(8), *range(16, 24))),
    ]  # fmt: skip
    assert closed_places(sizes, "b") == [("b.instructions", 0), ("b.mesh", 0)]
