"""An engine changes its brokers while the home is paused (M4), without Spark and Kafka: the order
of its actions, and the result where something fails or the engine dies."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import msgspec
import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.mesh.home_change import NotAtRest
from lakequeue.mesh.mesh import Mesh
from lakequeue.mesh.rehome import Resting
from lakequeue.protocol import commands as c
from lakequeue.protocol.errors import LakequeueError, NotConnected
from lakequeue.protocol.journal import JournalSegment
from lakequeue.protocol.state_files import is_newer, restore, step_of
from lakequeue.replica.driver import Snapshot
from lakequeue.state import DictStore, Home, Limits
from lakequeue.state.queue.broker import Broker
from lakequeue.streaming import Engine
from lakequeue.streaming.broker_query import BrokerQuery
from lakequeue.streaming.brokers import engine_rehoming as at_rest
from lakequeue.streaming.brokers.change_requests import ChangeRequests
from lakequeue.streaming.home import home_folder as home_module
from lakequeue.streaming.home.home_folder import HomeFolder

NUMBERS = {"a": 0, "b": 1, "c": 2}
STEP = 7
READ = ("default.publish", 16, 5)
SAID = JournalSegment("spooled", "default", "q", [1], step=STEP)


def known(name: str, number: int, step: int = STEP) -> at_rest._BrokerState:
    """A broker at rest that knows the others; the last one has a journal record still to write."""
    broker = Broker.load(DictStore(), Home(name, number, 1, b"secret"), Limits())
    broker.mesh = Mesh.load(broker)
    broker.begin(1)
    broker.header.step = step
    broker.mesh.commands[c.Peers]("default", c.Peers(brokers=NUMBERS, groups={}))
    broker.end()
    broker.mark()
    own = Snapshot(step, 1, [READ] if name == "c" else [], journal=[SAID] if name == "c" else [])
    offsets = {(topic, at): offset for topic, at, offset in own.offsets}
    return at_rest._BrokerState(own, Resting(name, number, broker.store.pages, offsets))


class Rests:
    """An engine of three brokers. did: its actions, in order; unrest: how often it is not at rest;
    lost: numbers used in vain; heard: the last records of removed brokers; begins: whether started
    loops begin."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = Engine("127.0.0.1:1", home, parse_configuration({"brokers": ["a", "b", "c"]}))
        self.did: list[str] = []
        self.quiet: list[int] = []  # how many actions came before each stop of intake
        self.unrest = self.lost = 0
        self.begins = True
        self.heard: list[tuple[str, str]] = []
        self.folder = self.engine._folder
        self.folder.open(self.engine.trigger)
        self.folder.remember_brokers(NUMBERS)
        for name, broker in self.engine.brokers.items():
            broker.number = NUMBERS[name]
        did, application = self.did, self.engine.application
        rehoming = self.engine.rehoming
        monkeypatch.setattr(at_rest, "HEAR_S", 0.0)
        monkeypatch.setattr(at_rest, "QUIET_S", 0.0)
        monkeypatch.setattr(application, "quiet", lambda b: self.quiet.append(len(did)))
        monkeypatch.setattr(application, "check_slots", lambda count: None)
        monkeypatch.setattr(application, "end", lambda b, s: did.append(f"end {len(list(b))}"))
        monkeypatch.setattr(application, "start_queries", self._start)
        monkeypatch.setattr(self.engine.captured, "share_out", self._share_out)
        self.read = rehoming._read
        monkeypatch.setattr(rehoming, "_read", self._known)
        monkeypatch.setattr(rehoming, "_check_ended", self._check_ended)
        monkeypatch.setattr(rehoming, "_begin", lambda new: did.append(f"begin {new.number}"))
        monkeypatch.setattr(rehoming, "_tell_peers", lambda: did.append("peers"))
        monkeypatch.setattr(rehoming, "_gone", lambda gone: did.append(f"gone {gone}"))
        self.engine._transport = self

    def _known(self, broker: BrokerQuery, _: int) -> at_rest._BrokerState:
        file = self.folder.rebuilt(broker.name) if self.begins else ""
        return known(broker.name, broker.number, step_of(Path(file)) if file else STEP)

    def _start(self, brokers: Iterable[BrokerQuery]) -> None:
        """Starts in a row are one line, unless they are for resting."""
        names = " ".join(b.name + "?" * b.resting for b in brokers)
        if self.did[-1].startswith("start ") and "?" not in names + self.did[-1]:
            self.did[-1] += f" {names}"
        else:
            self.did.append(f"start {names}")

    def _share_out(self, before: int) -> None:
        assert before == len(NUMBERS) + self.lost
        self.did.append("share out")

    def _check_ended(self, known: at_rest._BrokerState) -> None:
        if self.unrest:
            self.unrest -= 1
            raise NotAtRest("something is on its way")

    def publish(self, topic: str, value: bytes, key: bytes, *_: object) -> None:
        self.heard.append((topic, key.decode()))

    def flush(self, timeout: float) -> bool:
        return True


@pytest.fixture
def rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rests:
    return Rests(tmp_path / "home", monkeypatch)


def begins(folder: HomeFolder, name: str) -> Snapshot:
    """The state with which this broker's loop begins, whatever is in its checkpoint."""
    file = Path(folder.rebuilt(name))
    assert is_newer(file, msgspec.msgpack.encode(Snapshot(STEP)))
    return msgspec.msgpack.decode(restore(file, MagicMock()), type=Snapshot)


def refused(change: Callable[..., object], *arguments: str, why: str) -> None:
    with pytest.raises(LakequeueError, match=why):
        change(*arguments)


def test_M4_a_broker_is_added_between_two_runs_of_the_loops(rests: Rests) -> None:
    rests.engine.rehoming.add("d", "west")
    assert rests.did == ["end 3", "share out", "begin 3", "peers", "start a b c d"]
    assert rests.quiet == [0]
    again = HomeFolder(rests.folder.path)
    assert (again.brokers(()), again.groups({}, ["d"])) == ({**NUMBERS, "d": 3}, {"d": "west"})
    assert begins(again, "a").step == STEP + 1


def test_M4_a_broker_is_removed_and_the_first_reads_its_partitions(rests: Rests) -> None:
    """The first broker reads on where `c` stopped. The last records of `c` are sent, and its name
    and number are not used again."""
    assert rests.engine.rehoming.remove("c") == []
    assert rests.did == ["end 3", "share out", "peers", "gone c", "start a b"]
    again = HomeFolder(rests.folder.path)
    assert again.brokers(()) == {"a": 0, "b": 1}
    assert again.brokers(["c", "d"]) == {"a": 0, "b": 1, "d": 3}
    assert again.removed() == {"c": (2, [READ])}
    assert begins(again, "a").offsets == [READ]
    assert (rests.heard, again.last_records()) == ([("default.journal", "c")], [])
    refused(rests.engine.rehoming.remove, "c", why="was removed from this home before")
    refused(rests.engine.rehoming.remove, "d", why="it has 'a', 'b'")
    refused(rests.engine.rehoming.add, "c", why="its name cannot be used again")


def test_M4_the_first_broker_can_be_removed_and_the_last_stays(rests: Rests) -> None:
    remove = rests.engine.rehoming.remove
    remove("a")
    rests.engine.brokers["c"].failure = "its log was cut"
    refused(remove, "b", why=r"'c' has failed \(its log was cut\)")
    rests.engine.brokers["c"].failure = ""
    refused(remove, "b", "x", why=r"to: 'x' – allowed are .* that stay: 'c'")
    remove("b")
    refused(remove, "c", why="is the home's only one")
    assert rests.folder.brokers(()) == {"c": 2}


def test_M5_the_home_is_not_paused_for_a_queue_that_cannot_move(rests: Rests) -> None:
    move = rests.engine.rehoming.move
    refused(move, "default", "q", "x", why="allowed are the home's brokers: 'a', 'b', 'c'")
    assert rests.did == []
    refused(move, "default", "q", "b", why=r"no such queue in VPN 'default'")
    assert rests.did == ["end 3", "start a b c"]


def test_M4_messages_between_brokers_are_read_before_a_change(rests: Rests) -> None:
    """By loops that read nothing else."""
    rests.unrest = 2
    rests.engine.rehoming.remove("b")
    heard = ["end 3", "start a? b? c?"]
    assert rests.did == [*heard, *heard, "end 3", "share out", "peers", "gone b", "start a c"]


def test_M4_a_change_waits_until_all_run_with_the_previous_one(
    rests: Rests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that fails before its first batch has put nothing into Spark's state."""
    rests.engine.rehoming.remove("b")
    before = [begins(rests.folder, name) for name in "ac"]
    monkeypatch.setattr(at_rest, "REST_S_MAX", 0.0)
    rests.begins = False
    refused(rests.engine.rehoming.remove, "c", why="'a' has not begun since the last change")
    assert [begins(rests.folder, name) for name in "ac"] == before
    rests.begins = True
    first = Path(rests.folder.rebuilt("a"))
    rests.engine.rehoming.remove("c")
    assert begins(rests.folder, "a").step == STEP + 2
    assert not first.exists()


def test_M4_topics_with_too_many_partitions_are_refused_without_using_a_number(
    rests: Rests, monkeypatch: pytest.MonkeyPatch
) -> None:
    too_many = Mock(side_effect=LakequeueError("topic 'default.publish' has 40 partitions"))
    monkeypatch.setattr(rests.engine.captured, "share_out", too_many)
    refused(rests.engine.rehoming.add, "d", why="has 40 partitions")
    assert (rests.folder.numbers, rests.did[-1]) == (3, "start a b c")


@pytest.mark.parametrize("change", ["add", "remove"])
@pytest.mark.parametrize("at", ["rest", "share out", "a state", "the home's commit"])
def test_M4_a_failed_change_leaves_the_home_unchanged(
    rests: Rests, monkeypatch: pytest.MonkeyPatch, at: str, change: str
) -> None:
    """Also if the engine dies there: before the home's commit it only writes files that nobody
    reads. The home continues at once, and the change can be tried again."""
    fail, write = Mock(side_effect=NotConnected("Kafka is away")), home_module.write_json
    do = rests.engine.rehoming.add if change == "add" else rests.engine.rehoming.remove
    name = "d" if change == "add" else "c"

    def write_all_but_the_word(file: Any, value: Any) -> None:
        (fail if "rehomed" in value else write)(file, value)

    def about() -> Any:
        return json.loads((rests.folder.path / "lakequeue.json").read_text())

    before = about()
    with monkeypatch.context() as patch:
        match at:
            case "rest":
                patch.setattr(at_rest, "REST_S_MAX", -1.0)
                rests.unrest = 1
            case "share out":
                patch.setattr(rests.engine.captured, "share_out", fail)
            case "a state":
                patch.setattr(home_module, "write_state", fail)
            case _:
                patch.setattr(home_module, "write_json", write_all_but_the_word)
        refused(do, name, why=r"Kafka is away|does not come to rest")
    assert rests.did[-1] == "start a b c"
    after = about()
    rests.lost = after["numbers"] - before["numbers"]
    assert after | {"numbers": 3} == before
    assert rests.lost == (change == "add" and at != "rest"), "its partitions may exist already"
    again = HomeFolder(rests.folder.path)
    again.open(rests.engine.trigger)
    assert again.brokers(()) == NUMBERS
    assert [again.rebuilt(one) for one in "abcd"] == [""] * 4
    assert not list((again.path / "rehomed").glob("*"))
    do(name)
    assert (name in rests.folder.brokers(())) == (change == "add")


class Rows:
    """The rows of a state in Spark."""

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self.collect = self.toLocalIterator = lambda: rows

    def select(self, *_: str) -> Rows:
        return self

    def repartition(self, parts: int, by: str) -> Rows:
        assert parts > 1, "Spark limits the size of a part"
        return self


def test_M4_a_home_too_large_for_memory_continues_unchanged(
    rests: Rests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second state does not fit besides the first."""
    found = {name: known(name, number) for name, number in NUMBERS.items()}
    sizes = [sum(map(len, one.resting.pages.values())) for one in found.values()]

    def state(spark: object, checkpoint: object, name: str, variable: str) -> Rows:
        if variable == "snapshot":
            return Rows([(msgspec.msgpack.encode(found[name].own),)])
        return Rows(list(found[name].resting.pages.items()))

    room = sizes[0] + sizes[1] - 1
    memory = SimpleNamespace(available=room * at_rest.MEMORY_SHARE)
    monkeypatch.setattr(at_rest, "_state", state)
    monkeypatch.setattr(at_rest.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(rests.engine.application, "spark", object())
    monkeypatch.setattr(rests.engine.rehoming, "_read", rests.read)
    refused(rests.engine.rehoming.remove, "c", why=r"'b': its state does not fit .* has changed")
    assert rests.did[-1] == "start a b c"
    assert rests.folder.brokers(()) == NUMBERS
    memory.available = sum(sizes) * at_rest.MEMORY_SHARE
    rests.engine.rehoming.remove("c")
    assert rests.folder.brokers(()) == {"a": 0, "b": 1}


def test_M4_a_worker_without_access_to_the_home_is_reported(rests: Rests, tmp_path: Path) -> None:
    """For example on a cluster without a shared file system."""
    rests.engine.rehoming.remove("c")
    file = Path(rests.folder.rebuilt("a"))
    file.unlink()
    for begin in (lambda: is_newer(file, b""), lambda: restore(file, MagicMock())):
        with pytest.raises(LakequeueError, match=r"a\.state cannot be read on .*Share it"):
            begin()


@pytest.fixture
def died(rests: Rests, monkeypatch: pytest.MonkeyPatch) -> HomeFolder:
    """The home of an engine that died after the home's commit: `c` is removed."""
    with monkeypatch.context() as patch:
        patch.setattr(rests.engine.rehoming, "_tell_peers", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            rests.engine.rehoming.remove("c")
    assert rests.heard == []
    return HomeFolder(rests.folder.path)


def test_M4_a_request_to_an_engine_that_died_is_answered_by_the_next(died: HomeFolder) -> None:
    """The home has the outcome. A request that was not begun must be repeated."""
    said: dict[bytes, Any] = {}
    never = Mock(side_effect=AssertionError)
    wishes = ChangeRequests(
        "127.0.0.1:1", ["v"], Mock(add=never, remove=never, move=never),
        lambda key, value: said.update({key: json.loads(value)}),
    )  # fmt: skip
    done, refused = {"done": True}, {"refused": "the engine ended before it did this: try again"}
    asked = {
        b"wish/c": ({"wish": "remove", "id": "1", "to": ""}, done | {"moved": []}),
        b"wish/b": ({"wish": "add", "id": "2", "group": ""}, done),
        b"wish/d": ({"wish": "add", "id": "3", "group": ""}, refused),
        b"wish/a": ({"wish": "remove", "id": "4"}, refused),
        b"wish/q": ({"wish": "move", "id": "5", "to": "b"}, refused),
        b"wish/e": ({"id": "6", "done": True}, None),
        b"broker/b": ({"number": 1}, None),
    }
    records = {key: json.dumps(wish).encode() for key, (wish, _) in asked.items()}
    wishes.answer_old(records, "v.directory", died)
    assert said == {
        k: {"id": wish["id"], **answer} for k, (wish, answer) in asked.items() if answer
    }
    for key, value in records.items():  # read again by the engine itself
        wishes.read(key, value, "v")


def test_M4_a_change_that_died_after_its_commit_is_completed(
    rests: Rests, died: HomeFolder
) -> None:
    """The next start begins with the new states, and sends the removed broker's last messages."""
    died.open(rests.engine.trigger)
    assert died.brokers(()) == {"a": 0, "b": 1}
    assert begins(died, "b").step == STEP + 1
    (word,) = died.last_records()
    assert (word.broker, word.step, word.segments[0]) == ("c", STEP + 1, SAID)
    rests.engine._send_last_records()
    assert (len(rests.heard), died.last_records()) == (1, [])


@pytest.mark.parametrize(("change", "name"), [("add", "d"), ("remove", "c")])
def test_M4_ended_queries_are_restarted_while_the_tables_get_the_new_states(
    rests: Rests, monkeypatch: pytest.MonkeyPatch, change: str, name: str
) -> None:
    """On a busy machine that takes minutes. Only the next change waits for it."""
    lock, free = rests.engine._lock, list[bool]()

    def try_to_restart() -> None:
        free.append(lock.acquire(timeout=0.0))
        lock.release()

    def write_states() -> None:
        watch = threading.Thread(target=try_to_restart)
        watch.start()
        watch.join()
        assert rests.engine.rehoming._changing.locked()

    monkeypatch.setattr(rests.engine.application, "begin_history_anew", write_states)
    getattr(rests.engine.rehoming, change)(name)
    assert free == [True]


def test_M5_a_move_to_the_only_broker_changes_nothing(
    rests: Rests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home is not paused, and the tables do not start anew."""
    follows = Mock()
    monkeypatch.setattr(rests.engine.application, "begin_history_anew", follows)
    for name in "bc":
        rests.engine.rehoming.remove(name)
    rests.did.clear()
    assert rests.engine.rehoming.move("default", "q", "a") == []
    refused(rests.engine.rehoming.move, "default", "q", "b", why="the home's brokers: 'a'")
    assert (rests.did, follows.call_count) == ([], 2)


@pytest.mark.parametrize("fails", ["peers", "history", "last records"])
def test_M4_a_committed_change_is_answered_as_done(
    rests: Rests, monkeypatch: pytest.MonkeyPatch, fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure after the home's commit changes nothing: the brokers run, and the next start
    completes the change."""
    fail = Mock(side_effect=NotConnected("Kafka is away"))
    match fails:
        case "peers":
            monkeypatch.setattr(rests.engine.rehoming, "_tell_peers", fail)
        case "history":
            monkeypatch.setattr(rests.engine.application, "begin_history_anew", fail)
        case _:
            monkeypatch.setattr(rests, "publish", fail)
    answers: list[Any] = []
    requests = ChangeRequests(
        "127.0.0.1:1", ["v"], rests.engine.rehoming, lambda key, value: answers.append(value)
    )
    for _ in range(2):  # Kafka may hold a request twice
        requests.read(b"wish/c", json.dumps({"wish": "remove", "id": "1", "to": ""}).encode())
    assert [json.loads(one) for one in answers] == [{"id": "1", "done": True, "moved": []}]
    assert rests.folder.brokers(()) == {"a": 0, "b": 1}
    assert rests.did[-1] == "start a b"
    assert "Kafka is away" in caplog.text


def test_M4_all_files_of_a_change_are_synced_before_its_commit(
    rests: Rests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the home would have empty files after a power loss, and could not start."""
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda file: synced.append(Path(os.readlink(f"/proc/self/fd/{file}")).stem)
    )
    rests.engine.rehoming.remove("c")
    word = len(synced) - synced[::-1].index("lakequeue") - 1
    assert set(synced[:word]) >= {"a", "b", home_module.LAST_RECORDS}


def test_M4_a_loop_that_does_not_start_is_started_by_the_watch(
    rests: Rests, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The change is done, and the other loops run."""
    application, started = rests.engine.application, list[str]()

    def start(brokers: Iterable[BrokerQuery]) -> None:
        for broker in brokers:
            if broker.name == "d" and not started:
                started.append("in vain")
                raise RuntimeError("no port is free")
            broker.query = Mock(isActive=True)

    monkeypatch.setattr(application, "start_queries", start)
    rests.engine.rehoming.add("d")
    assert "broker 'd' has not started yet: no port is free" in caplog.text
    monkeypatch.setattr(application, "spark", object())
    monkeypatch.setattr(application, "start_query", lambda broker: start([broker]))
    monkeypatch.setattr(rests.engine.watch, "_ask", lambda: None)
    rests.engine.watch.look_after()
    assert all(broker.is_active for broker in rests.engine.brokers.values())
