"""R3: a home whose checkpoint and log are lost is rebuilt from the tables, and continues.

In memory and on Delta files. Lost are the driver's state and its log; the clients' records are
still in Kafka.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import msgspec
import pyarrow as pa
import pytest
from lake.history import write_history
from lake.on_files import Recorded
from lake.test_past import _as_the_world, lived
from lakequeue import LakequeueError
from lakequeue.lake import open_lake, past, rebuilding
from lakequeue.lake.past import Moment
from lakequeue.lake.past_replica import move_ahead, own_of
from lakequeue.lake.queries_at import admin_of
from lakequeue.lake.rebuilding import rebuild
from lakequeue.mesh.facts import MeshFacts, Peer, Sent, peers_of
from lakequeue.protocol import folders
from lakequeue.protocol.folders import folder
from lakequeue.protocol.ids import make_id
from lakequeue.protocol.state_files import read_state, restore, state_file, step_of, write_state
from lakequeue.replica.driver import Snapshot
from lakequeue.sinks.snapshots import slices
from lakequeue.state import FORMAT, DictStore, Home, check
from lakequeue.streaming.home.home_folder import HomeFolder
from loop.memory import HOME, Some
from pyarrow.fs import copy_files
from rules.mesh import Mesh, local
from s3_store import BUCKET, bucket

__all__ = ["_as_the_world", "bucket"]


class Restored(DictStore):
    """The operator's state, for `restore`."""

    own = b""

    def save(self, snapshot: bytes) -> None:
        self.own = snapshot


class New:
    """A driver on a rebuilt home: another log, the same Kafka."""

    def __init__(self, home: Path, walk: Any) -> None:
        self.state = Restored()
        restore(state_file(home, HOME.name), self.state)
        self.world = type(walk.world)(topics=walk.world.topics)
        self.world.now = walk.world.now
        self.world.saved = own_of(self.state.own), DictStore(self.state.pages)
        self.driver = self.world.open()

    @property
    def saved(self) -> list[Any]:
        return []

    def settle(self) -> None:
        """Read everything in Kafka, until nothing is due at once."""
        for _ in range(50):
            self.driver.one(Some(self.world, self.driver, 1_000), 0.0)
        check(self.driver._replica.broker)

    def begin_again(self) -> None:
        """The engine's instructions at its start."""
        self.world.instruct(command="begin", epoch=HOME.epoch)
        self.world.instruct(command="begin_again", queue="orders")
        self.settle()

    def seen(self) -> dict[str, tuple[bytes, str, int]]:
        return looked_at(self)


def pages_of(walk: Any) -> DictStore:
    """The state of a walk's driver."""
    walk.driver.flush()
    walk.driver.snapshot(1)
    return DictStore(walk.driver._replica.store.pages)


def looked_at(walk: Any) -> dict[str, tuple[bytes, str, int]]:
    driver = walk.driver
    pages = pages_of(walk)
    moment = Moment(HOME.name, HOME, pages, driver.step, driver.now, 0, Snapshot())
    found = admin_of(moment).browse("orders", limit=10_000)
    return {m.id: (m.payload, m.state, m.delivery_count) for m in found}


def rebuilt(walk: Any, path: Path) -> Path:
    old, new = path / "old", path / "new"
    write_history(walk.world, old, walk.saved)
    about = {"epoch": HOME.epoch, "format": FORMAT, "checkpoints": {"x": 1}}
    (old / "lakequeue.json").write_text(json.dumps(about))
    (done,) = rebuild(old, new)
    assert (done.broker, done.lost, done.notes) == (HOME.name, 0, [])
    assert done.messages == len(looked_at(walk))
    return new


def test_R3_a_rebuilt_home_is_rebuilt_again_before_its_first_snapshot(
    tmp_path: Path,
) -> None:
    """Its first steps are in the tables, and continue from the rebuilt state."""
    walk = lived(1)
    path = rebuilt(walk, tmp_path)
    new = New(path, walk)
    new.begin_again()
    walk.sent += 1
    new.world.write(("default.publish", 1), b'{"n": 9}', to="orders", producer="p", seq=walk.sent)
    new.settle()
    again = write_history(new.world, tmp_path / "again")
    shutil.rmtree(again / "tables" / "snapshots")
    shutil.copytree(path / "tables" / "snapshots", again / "tables" / "snapshots")
    (done,) = rebuild(again, tmp_path / "twice")
    assert (done.step, done.notes) == (new.driver.step, [])
    assert New(tmp_path / "twice", new).seen() == new.seen()


def test_R3_clients_continue_after_a_rebuild(tmp_path: Path) -> None:
    """Subscribed clients get messages, acks and new publishes count, and no id is used twice."""
    walk = lived(1)
    before = looked_at(walk)
    new = New(rebuilt(walk, tmp_path), walk)
    new.begin_again()
    held = [number for number, (_, state, count) in new.seen().items() if state == "leased"]
    assert held
    assert all(count == 1 for _, state, count in new.seen().values() if state == "leased")
    walk.sent += 1
    new.world.write(
        ("default.publish", 1), b'{"n": 99}', to="orders", producer="p", seq=walk.sent, reply=1
    )
    new.settle()
    (entered,) = new.seen().keys() - before.keys()
    assert int(entered) > 4_000_000
    new.world.command(command="ack", queue="orders", ids=entered, subscription="s0")
    new.world.command(command="ack", queue="orders", ids=held[0], subscription="s0")
    new.settle()
    assert not {entered, held[0]} & new.seen().keys()


@pytest.mark.parametrize("about", [True, False])
def test_R3_a_rebuild_needs_no_snapshot_and_no_home_record(about: bool, tmp_path: Path) -> None:
    walk = lived(4)
    old = write_history(walk.world, tmp_path / "old")
    if not about:
        (old / "lakequeue.json").unlink()
    rebuild(old, tmp_path / "new")
    assert New(tmp_path / "new", walk).seen() == looked_at(walk)
    assert json.loads((tmp_path / "new" / "lakequeue.json").read_text())["epoch"] == HOME.epoch
    assert HomeFolder(tmp_path / "new").problem("real-time") == ""


def test_R3_inputs_after_the_last_table_row_are_read_again(tmp_path: Path) -> None:
    """Steps that the tables lack are lost; their inputs are still in Kafka."""
    walk = lived(2)
    depth = len(looked_at(walk))
    for n in range(5):
        walk.do_publish(1, n)
    path = tmp_path / "new"
    old = write_history(walk.world, tmp_path / "old", walk.saved)
    walk.step(1_000)  # this one is in no table
    rebuild(old, path)
    new = New(path, walk)
    assert len(new.seen()) == depth
    new.settle()
    ours = [payload for payload, _, _ in new.seen().values()]
    assert len(new.seen()) == depth + 5
    assert ours[-5:] == [b'{"n": %d}' % n for n in range(5)]


def test_R3_the_journal_lists_messages_known_only_to_lost_steps(tmp_path: Path) -> None:
    """It lists them as stored; they are lost, and come in again under other ids."""
    walk = lived(2)
    old = write_history(walk.world, tmp_path / "old", walk.saved)
    place = old / "tables" / "journal"
    schema = deltalake.DeltaTable(place).to_pyarrow_table().schema
    last = walk.driver.step
    rows = [
        {"broker": HOME.name, "step": last + 1, "part": 0, "line": line, "vpn": "default",
         "queue": "orders", "event": "spooled", "message_id": str(1_000 + line), "reason": "",
         "subscription": "", "deliveries": 0, "topic": "default.publish",
         "time": datetime(2026, 1, 1, tzinfo=UTC)}
        for line in range(2)
    ]  # fmt: skip
    deltalake.write_deltalake(place, pa.Table.from_pylist(rows, schema), mode="append")
    (done,) = rebuild(old, tmp_path / "new")
    assert done.lost == 2
    with open_lake(tmp_path / "new") as lake:
        assert lake.execute("SELECT count(*) FROM queued").fetchall() == [(0,)]
        said = lake.execute("SELECT message_id, step FROM journal WHERE event = 'lost'").fetchall()
    assert sorted(said) == [("1000", last + 1_000_001), ("1001", last + 1_000_001)]
    with open_lake(old) as lake:
        assert lake.execute("SELECT count(*) FROM queued").fetchall() == [(2,)]


def test_R3_the_journal_lists_lost_messages_at_the_broker_that_stored_them(
    tmp_path: Path,
) -> None:
    """The step of a that stored a message is lost; c had the message for its queue already."""
    mesh = Mesh(local("far", "c", "t"))
    recorded = Recorded(mesh.engine)
    known, lost = (int(mesh.send("a", "t")) for _ in range(2))
    home = recorded.write(tmp_path)
    unknown = [lost, make_id(2, 1)]
    with open_lake(home) as lake:
        closed = {
            name: rebuilding._close_phantoms(lake, home / "tables", name, unknown, 1_000_000, 0)
            for name in "ac"
        }
    assert closed == {"a": 0, "c": 1}
    with open_lake(home) as lake:
        queued = lake.execute("SELECT queue, message_id FROM queued").fetchall()
    assert queued == [("far", str(known))]


def test_R3_a_rebuilt_home_counts_no_stand_in_as_a_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = Mesh(local("far", "c", "t"))
    mesh.engine.cut("c")
    mesh.send("a", "t")
    (waiting,) = move_ahead(mesh.engine.broker("a").store, 1_000, 1_000, 1, 0)
    assert (waiting.queue, waiting.messages) == ("#out/far", 1)
    monkeypatch.setattr(rebuilding, "move_ahead", lambda *given: [*move_ahead(*given), waiting])
    walk = lived(0, 60)
    (done,) = rebuild(write_history(walk.world, tmp_path / "old"), tmp_path / "new")
    assert (done.queues, done.messages) == (1, len(looked_at(walk)) + 1)


def test_the_new_home_may_be_started(tmp_path: Path) -> None:
    home = rebuilt(lived(0, 60), tmp_path)
    folder = HomeFolder(home)
    assert folder.problem("real-time") == ""
    assert "use --trigger real-time" in folder.problem("micro-batch"), "they would begin empty"
    folder.open("real-time")
    assert folder.epoch == HOME.epoch
    assert folder.rebuilt_queues() == [("default", "orders")]
    assert folder.rebuilt(HOME.name)
    commits = home / "checkpoint" / HOME.name / "commits"
    commits.mkdir(parents=True)
    (commits / "0").write_text("v1")
    HomeFolder(home).open("real-time")
    assert HomeFolder(home).rebuilt(HOME.name) == ""
    with pytest.raises(LakequeueError, match="has a checkpoint: it needs no rebuild"):
        rebuild(tmp_path / "old", home)


def test_R3_a_home_is_rebuilt_in_place(tmp_path: Path) -> None:
    """As for `lakequeue up`, whose Kafka is in the home."""
    walk = lived(5, 80)
    home = write_history(walk.world, tmp_path / "home", walk.saved)
    for name in ("checkpoint", "history-checkpoint", "tables-checkpoint", "kafka"):
        (home / name).mkdir()
    before = (home / "lakequeue.json").stat().st_ino
    rebuild(home, home)
    assert (home / "lakequeue.json").stat().st_ino != before, "it is replaced as a whole"
    assert sorted(p.name for p in home.iterdir()) == [
        "kafka", "lakequeue.json", "rebuilt", "tables"
    ]  # fmt: skip
    assert HomeFolder(home).problem("real-time") == ""
    assert New(home, walk).seen() == looked_at(walk)


def test_R3_a_rebuild_uses_tables_and_checkpoints_on_an_object_store(
    bucket: str, tmp_path: Path
) -> None:
    """The home has the store's address: tables are read there, and lost checkpoints deleted
    there."""
    walk, store = lived(5, 80), folder(bucket)
    home = write_history(walk.world, tmp_path / "home", walk.saved)
    copy_files(str(home / "tables"), f"{BUCKET}/tables", destination_filesystem=folders._s3())
    shutil.rmtree(home / "tables")
    places = {name: f"{bucket}/{name}" for name in ("tables", "checkpoints")}
    about = json.loads((home / "lakequeue.json").read_text()) | {"places": places}
    (home / "lakequeue.json").write_text(json.dumps(about))
    checkpoint = store / "checkpoints" / "checkpoint"
    (checkpoint / HOME.name / "commits" / "0").write_bytes(b"v1")
    with pytest.raises(LakequeueError, match=f"{bucket}/checkpoints has a checkpoint"):
        rebuild(home, home)
    checkpoint.remove()
    (made,) = rebuild(home, home)
    assert made.messages == len(looked_at(walk))
    assert not any((store / "checkpoints").glob("*/metadata"))
    assert not any((home / "tables").glob("*/_delta_log"))
    assert HomeFolder(home).problem("real-time") == ""
    assert New(home, walk).seen() == looked_at(walk)


def test_tables_of_another_home_are_refused(tmp_path: Path) -> None:
    home = rebuilt(lived(0, 60), tmp_path)
    with pytest.raises(LakequeueError, match=r"tables is not empty: choose another --home"):
        rebuild(tmp_path / "old", home)


@pytest.mark.parametrize("fails", ["copying", "building"])
def test_a_failed_rebuild_can_be_repeated(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new home's disk is full, or a step of the tables cannot be replayed."""
    walk, old, new = lived(0, 60), tmp_path / "old", tmp_path / "new"
    write_history(walk.world, old, walk.saved)

    def full(*paths: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(paths[-1]))

    with monkeypatch.context() as broken:
        if fails == "copying":
            broken.setattr(os, "link", full)
            broken.setattr(shutil, "copy2", full)
        else:
            broken.setattr(rebuilding, "move_ahead", full)
        kind = LakequeueError if fails == "copying" else OSError
        with pytest.raises(kind, match="No space left on device") as told:
            rebuild(old, new)
    assert fails == "building" or f"cannot be copied to {new / 'tables'}" in str(told.value)
    assert not (new / "tables").exists()
    (done,) = rebuild(old, new)
    assert done.messages == len(looked_at(walk))


def test_a_truncated_state_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "b.state"
    write_state(file, b"own", [("a", b"1"), ("b", b"22")])
    state: Any = Restored()
    assert restore(file, state) == state.own == b"own"
    assert state.pages == {"a": b"1", "b": b"22"}
    whole = file.read_bytes()
    for cut in (len(whole) - 4, len(whole) - 1, 20, 5):
        file.write_bytes(whole[:cut])
        with pytest.raises(LakequeueError, match="is cut off"):
            restore(file, Restored())
        with pytest.raises(LakequeueError, match="is cut off"):
            list(read_state(file))


@pytest.mark.parametrize(("most", "parts"), [(1, 3), (2, 2), (3, 2), (4, 1), (5, 1)])
def test_a_state_is_written_to_the_tables_in_parts(most: int, parts: int, tmp_path: Path) -> None:
    file = tmp_path / "b.state"
    pages = [("a", b"1"), ("b", b"22"), ("c", b"3")]
    write_state(file, msgspec.msgpack.encode(Snapshot(step=7)), pages)
    assert step_of(file) == 7
    state = read_state(file)
    assert own_of(next(state)[1]).step == 7
    found = list(slices(state, most))
    assert len(found) == parts
    assert [page for part in found for page in part] == pages


def test_R3_brokers_are_rebuilt_at_steps_that_match(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tables have a up to step 4, and b up to 9. In each step a sends a message, which b
    receives in its next one."""
    latest = {"a": 4, "b": 9}
    own = Snapshot()

    def as_of(lake: Any, home: Path, name: str, *, step: int | None = None) -> Moment:
        at = latest[name] if step is None else step
        sent = [Sent(number, "note", b"") for number in range(1, at + 1)]
        peers = {1: Peer("b", said=at, unconfirmed=sent)}
        if name == "b":
            peers = {0: Peer("a", heard=at - 1)}
        store = DictStore({"mesh": msgspec.msgpack.encode(MeshFacts(peers=peers, edition=at))})
        return Moment(name, Home(name, "ab".index(name)), store, at, 0, 0, own)

    monkeypatch.setattr(rebuilding, "as_of", as_of)
    monkeypatch.setattr(rebuilding, "brokers", lambda lake: list(latest))
    a, b = rebuilding._moments(None, Path(), ())
    assert ((a.step, a.notes), b.step) == ((4, []), 5)
    assert b.notes == ["4 steps before its last one in the tables: other brokers' rows end earlier"]
    spoken, heard = peers_of(a.store), peers_of(b.store)
    assert spoken[1].unconfirmed == []
    assert heard[0].heard == spoken[1].said > 4


def test_R3_M4_a_removed_broker_is_not_rebuilt_even_without_the_homes_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other brokers have its messages since then: with it they would exist twice."""

    def as_of(lake: Any, home: Path, name: str, *, step: int | None = None) -> Moment:
        facts = {"a": MeshFacts(removed=[1]), "b": MeshFacts(peers={0: Peer("a", heard=7)})}
        store = DictStore({"mesh": msgspec.msgpack.encode(facts[name])})
        return Moment(name, Home(name, "ab".index(name)), store, 9, 0, 0, Snapshot())

    monkeypatch.setattr(rebuilding, "as_of", as_of)
    monkeypatch.setattr(rebuilding, "brokers", lambda lake: ["a", "b"])
    (a,) = rebuilding._moments(None, Path(), ())
    assert (a.broker, a.step, a.notes) == ("a", 9, [])


def test_R1_a_brokers_number_is_read_from_snapshots_without_the_homes_record(
    tmp_path: Path,
) -> None:
    """The ids of a broker's messages begin with this number; the home's record comes first."""
    lake = duckdb.connect()
    lake.execute("CREATE TABLE snapshots (broker TEXT, page TEXT, value BLOB)")
    lake.execute("CREATE TABLE commands (command TEXT, value BLOB, time TIMESTAMP)")
    page = msgspec.msgpack.encode({"format": FORMAT, "number": 3, "epoch": 5})
    lake.execute("INSERT INTO snapshots VALUES ('x', 'broker', $1), ('x', '', '')", [page])
    assert past._who(lake, tmp_path, "x") == (3, 0)
    (tmp_path / "lakequeue.json").write_text(json.dumps({"brokers": {"x": 2}, "epoch": 4}))
    assert past._who(lake, tmp_path, "x") == (2, 4)
