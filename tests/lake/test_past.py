"""R1: any past moment is reconstructed from the tables, page by page as it was.

In memory and on Delta files; `tests/job/test_tables.py` does it with real parts.
"""

from __future__ import annotations

import copy
import functools
import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lake.history import write_history
from lakequeue import LakequeueError
from lakequeue.earlier.carry_over import carry_over
from lakequeue.lake import open_lake, past_replica
from lakequeue.lake.past import Moment, as_of
from lakequeue.lake.queries_at import admin_of
from lakequeue.protocol import ConfigError, commands
from lakequeue.protocol.bounds import YEAR_9999_ENDS_MS
from lakequeue.protocol.messages import encode_run
from lakequeue.replica.driver import Snapshot
from lakequeue.state import DictStore
from loop.memory import HOME, LIMITS, PLACES, POINTS, World
from loop.stepping import State
from loop.test_loop_driver import stopped
from replica.test_driver import Walk

OPERATIONS = (
    "publish", "publish", "plain", "subscribe", "ack", "cancel", "describe", "garbage", "wait",
    "go", "go", "go", "crash", "save", "restart", "run", "headers",
)  # fmt: skip


class Keeps:
    """A walk that keeps its snapshots."""

    def __init__(self) -> None:
        self.saved: list[tuple[Any, Any]] = []
        super().__init__()

    def do_save(self) -> None:
        super().do_save()
        if not self.saved or self.saved[-1][0].step < self.world.saved[0].step:
            self.saved.append(copy.deepcopy(self.world.saved))

    def do_run(self, n: int) -> None:
        payloads = [b'{"n": %d}' % i for i in range(n)]
        self.world.write(
            PLACES[1], encode_run(payloads), to="orders", producer="r", seq=self.sent * 10 + 1,
            count=n,
        )  # fmt: skip
        self.sent += 1

    def do_headers(self, n: int) -> None:
        self.do_plain(n)
        last = self.world.topics[PLACES[3]][-1]
        last.key_, last.headers_ = b"key", [("colour", b"blue"), ("raw", b"\xff")]


class Lived(Keeps, Walk):
    """A life that left tables behind."""


@pytest.fixture(autouse=True)
def _as_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay with the limits of the walks, and without pauses."""
    monkeypatch.setattr(past_replica, "LIMITS", LIMITS)
    monkeypatch.setattr("lakequeue.replica.driver.RECENT_S", 0.0)


def lived(seed: int, length: int = 150) -> Any:
    rng = random.Random(seed)
    walk = Lived()
    for name in rng.choices(OPERATIONS, k=length):
        numbers: dict[str, list[Any]] = {
            "publish": [rng.randint(1, 2), rng.randint(0, 9)], "plain": [rng.randint(0, 9)],
            "subscribe": [rng.randint(0, 2)], "ack": [rng.randint(0, 2), rng.randint(0, 40)],
            "cancel": [rng.randint(0, 2), rng.randint(0, 40)], "garbage": [rng.randint(0, 3)],
            "wait": [rng.choice([1, 999, 4_000])], "go": [rng.randint(1, 4), rng.choice([1, 700])],
            "crash": [rng.choice(POINTS)], "run": [rng.randint(2, 8)], "headers": [3],
        }  # fmt: skip
        walk.go([(name, *numbers.get(name, ()))])
    walk.world.point = None
    walk.restart()
    walk.step(1000)
    walk.world.land(0)
    return walk


def state_behind(walk: Any, step: int) -> tuple[dict[str, bytes], int]:
    """The pages and the time after a step, from nothing."""
    world, store = walk.world, DictStore()
    quiet = World(topics=world.topics, log=world.log)
    steps = past_replica.PastDriver(HOME, store, Snapshot(), past_replica.StepCapture(), 0)
    steps.again([record for _, record in world.logged() if record.step <= step], quiet)
    return store.pages, steps.snapshot(1).now


def test_R1_the_past_of_a_converted_home_begins_with_its_first_snapshot(
    tmp_path: Path,
) -> None:
    """Moments after a snapshot of the earlier format can be read by that version only."""
    state, walk = State(), Lived()
    saved, walk.world = stopped(state)
    own, old = past_replica.own_of(saved), DictStore(state.pages)
    carried = carry_over(old, old.pages, HOME, LIMITS)
    walk.world.saved = own, DictStore(carried.pages)
    walk.restart()
    for n in range(4, 9):
        walk.world.write(("default.publish", 0), b"m%d" % n, to="q", producer="p", seq=n)
        walk.step(2)
    walk.do_save()
    saved = [(own, old), copy.deepcopy(walk.world.saved)]
    home = write_history(walk.world, tmp_path, saved, refer=False)
    found = moment(home)
    assert (found.snapshot, found.step) == (walk.driver.step, walk.driver.step)
    assert [queue["depth"] for queue in admin_of(found).queues()] == [8]
    with pytest.raises(LakequeueError, match="a state of format 7, and this version reads 8"):
        moment(home, step=own.step + 1)


TIMES_MS = [-(1 << 63), -1, 0, YEAR_9999_ENDS_MS, YEAR_9999_ENDS_MS + 1, (1 << 63) - 1]


@pytest.mark.parametrize(
    "odd",
    [
        {"headers_": [("lq", b'{"to": "orders\xff"}')]},  # the tables have it as text
        # A run of one message has the same bytes with and without a count.
        *({"value_": value, "headers_": [("lq", b'{"to": "orders", "count": %s}' % count)]}
          for value in (b"no run", None, encode_run([b"1"])) for count in (b"1", b"2")),
        *({"time": ms} for ms in TIMES_MS),  # tables have the nearest readable time
    ],
    ids=str,
)  # fmt: skip
def test_R1_an_unusual_record_is_replayed(odd: dict[str, Any], tmp_path: Path) -> None:
    walk = Lived()
    walk.go([("subscribe", 1), ("plain", 1)])
    record = walk.world.topics[PLACES[3]][-1]
    for name, value in odd.items():
        setattr(record, name, value)
    walk.go([("go", 9, 1), ("plain", 1), ("go", 9, 1)])
    home = write_history(walk.world, tmp_path)
    with open_lake(home) as lake:
        for step in range(1, walk.driver.step + 1):
            found = as_of(lake, home, HOME.name, step=step)
            assert found.last_outputs == dict(walk.world.said)[step]
    assert (found.store.pages, found.now) == state_behind(walk, walk.driver.step)
    assert (found.snapshot, found.home) == (0, HOME)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A life and its tables, for reading only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lakequeue.replica.driver.RECENT_S", 0.0)
        walk = lived(3)
    return walk, write_history(walk.world, tmp_path_factory.mktemp("home"), walk.saved)


@pytest.fixture
def home(history: tuple[Any, Path], tmp_path: Path) -> Path:
    """The same tables, for alteration."""
    return Path(shutil.copytree(history[1], tmp_path / "home"))


def moment(home: Path, **when: Any) -> Moment:
    with open_lake(home) as lake:
        return as_of(lake, home, HOME.name, **when)


def test_R1_a_moment_is_found_by_its_time(history: tuple[Any, Path]) -> None:
    home = history[1]
    with open_lake(home) as lake:
        moment = functools.partial(as_of, lake, home, HOME.name)
        whole = moment()
        between = datetime.fromtimestamp(whole.now / 1000 - 2, UTC)
        found = moment(at=between)
        assert found.now <= between.timestamp() * 1000 < moment(step=found.step + 1).now
        late = moment(at=datetime(2040, 1, 1, tzinfo=UTC))
        assert late.step == whole.step
        assert "The tables end before that time" in late.notes[0]
        with pytest.raises(ConfigError, match="the tables begin later: steps 1 to "):
            moment(at=datetime(2001, 1, 1, tzinfo=UTC))
        with pytest.raises(ConfigError, match="step: 100000 – the tables have steps 1 to "):
            moment(step=100_000)
        with pytest.raises(ConfigError, match="'other' – the tables have brokers: broker-0"):
            as_of(lake, home, "other")


def test_R6_the_past_is_inspected_like_the_present(history: tuple[Any, Path]) -> None:
    home = history[1]
    found = moment(home)
    before = dict(found.store.pages)
    admin = admin_of(found)
    (queue,) = admin.queues()
    assert queue == admin.describe("orders")
    assert len(admin.browse("orders", limit=1000)) == queue["depth"] > 0
    assert all(m.state == "leased" for m in admin.browse("orders", state="leased"))
    assert admin.usage()["broker"]["name"] == HOME.name
    assert found.store.pages == before
    with pytest.raises(ConfigError, match="there was no such queue in VPN 'default'"):
        admin.describe("nobody")
    with pytest.raises(ConfigError, match="the past is read-only"):
        admin._session.request(commands.Purge(queue="orders"))


def altered(home: Path, table: str, change: Callable[[pa.Table], pa.Table]) -> None:
    place = home / "tables" / table
    rows = change(deltalake.DeltaTable(place).to_pyarrow_table())
    deltalake.write_deltalake(place, rows, mode="overwrite")


def where(condition: pc.Expression) -> Callable[[pa.Table], pa.Table]:
    """These rows only."""
    return lambda rows: rows.filter(condition)


NONE = where(pc.field("step") < 0)


def replaced(rows: pa.Table, **columns: Any) -> pa.Table:
    """Replace values: one for all rows, or one for each."""
    for name, values in columns.items():
        at = rows.schema.get_field_index(name)
        if not isinstance(values, list | pa.ChunkedArray):
            values = [values] * len(rows)
        if isinstance(values, list):
            values = pa.array(values, rows.schema.field(at).type)
        rows = rows.set_column(at, rows.schema.field(at), values)
    return rows


def test_R1_altered_tables_are_an_error_with_a_remedy(
    history: tuple[Any, Path], home: Path
) -> None:
    """Each log record has digests of its step's inputs, and of the previous step's outputs."""
    marks = {own.step for own, _ in history[0].saved}
    step = next(n for n in range(1, 30) if n not in marks)
    what_to_do = "ran it. If that is another version than this one"

    def other_outputs(rows: pa.Table, by: int = 1) -> pa.Table:
        chosen = pc.equal(rows["step"], step + 1)
        return replaced(
            rows, outputs=pc.if_else(chosen, pc.add(rows["outputs"], by), rows["outputs"])
        )

    altered(home, "steps", other_outputs)
    with pytest.raises(LakequeueError, match=f"step {step} .* had other outputs.* {what_to_do}"):
        moment(home, step=step)
    altered(home, "snapshots", NONE)
    with pytest.raises(LakequeueError, match=f"step {step} .* had other outputs.* {what_to_do}"):
        moment(home)
    altered(home, "steps", lambda rows: other_outputs(rows, -1))
    altered(home, "messages", lambda rows: replaced(rows, payload=b"altered"))
    with pytest.raises(LakequeueError, match=f"had other inputs in the replay.* {what_to_do}"):
        moment(home)


def skipped(step: int) -> str:
    return f"The snapshot of step {step:,} does not match its digest and is skipped"


def test_a_damaged_snapshot_is_skipped_and_reported(home: Path) -> None:
    good = moment(home)
    damaged = (pc.field("step") == good.snapshot) & (pc.field("page") == "q/1")
    altered(home, "snapshots", where(~damaged))
    found = moment(home)
    assert found.store.pages == good.store.pages
    assert found.snapshot < good.snapshot
    assert found.notes == [skipped(good.snapshot)]


def test_a_payload_block_is_stored_once_and_its_loss_is_reported(tmp_path: Path) -> None:
    walk = lived(1)
    home = write_history(walk.world, tmp_path, walk.saved, refer=False)
    rows = deltalake.DeltaTable(home / "tables" / "snapshots").to_pyarrow_table().to_pylist()
    blocks = [row for row in rows if row["page"].startswith("b/")]
    written = [(row["page"], row["crc"]) for row in blocks if row["value"] is not None]
    named = [row for row in blocks if row["value"] is None and row["crc"] is not None]
    assert len(written) == len(set(written))
    assert named
    step = max(row["step"] for row in named)
    assert moment(home, step=step).notes == []
    lost = next(row["page"] for row in named if row["step"] == step)
    altered(home, "snapshots", where(~((pc.field("page") == lost) & pc.field("value").is_valid())))
    assert moment(home, step=step).notes[0] == skipped(step)


def test_a_dangling_reference_makes_its_snapshot_unusable(home: Path) -> None:
    """The snapshot before it is used, which is reported; with the later steps the state is the
    same."""
    good = moment(home)
    rows = deltalake.DeltaTable(home / "tables" / "snapshots").to_pyarrow_table().to_pylist()
    last = max(row["step"] for row in rows if row["refs"])

    def change(rows: pa.Table) -> pa.Table:
        refs = [
            [{**one, "first": one["first"] + 1} for one in refs] if refs and step == last else refs
            for step, refs in zip(rows["step"].to_pylist(), rows["refs"].to_pylist(), strict=True)
        ]
        return replaced(rows, refs=refs)

    altered(home, "snapshots", change)
    found = moment(home, step=last)
    assert found.snapshot < last
    assert found.notes[0] == skipped(last)
    assert moment(home).store.pages == good.store.pages


def test_missing_referenced_messages_are_an_error(home: Path) -> None:
    """Neither a snapshot nor the steps can be used without the messages, and no state is
    invented."""

    def ends_only(rows: pa.Table) -> pa.Table:
        ends = {(row["topic"], row["partition"]): row for row in rows.to_pylist()}
        return pa.Table.from_pylist(list(ends.values()), rows.schema)

    altered(home, "messages", ends_only)
    with pytest.raises(LakequeueError, match="but the table 'messages' has"):
        moment(home)


def made_anew(days: int, **columns: Any) -> Callable[[pa.Table], pa.Table]:
    """The topics' records a second time, at the same offsets, younger or older by days."""

    def change(rows: pa.Table) -> pa.Table:
        edge = max(rows["time"].to_pylist()) if days > 0 else min(rows["time"].to_pylist())
        others = replaced(rows, time=edge + timedelta(days=days), **columns)
        return pa.concat_tables([others, rows])

    return change


def test_a_recreated_topic_does_not_affect_snapshots(history: tuple[Any, Path], home: Path) -> None:
    """Its offsets begin with 0 again; its records are younger."""
    own, store = history[0].saved[-1]
    altered(home, "steps", where(pc.field("step") <= own.step))
    altered(home, "messages", made_anew(1))
    found = moment(home)
    assert (found.notes, found.store.pages) == ([], store.pages)


@pytest.mark.parametrize("days", [12, -12])
def test_of_two_records_at_one_offset_a_step_gets_its_own(tmp_path: Path, days: int) -> None:
    """The topic was recreated, after the step or before."""
    walk = lived(7)
    home = write_history(walk.world, tmp_path)
    altered(home, "messages", made_anew(days, payload=b"other"))
    found = moment(home)
    walk.driver.snapshot(1)
    assert (found.notes, found.store.pages) == ([], walk.store.pages)


@pytest.mark.parametrize("table", ["messages", "commands"])
def test_R1_the_past_ends_where_the_tables_agree(table: str, tmp_path: Path) -> None:
    """Each table is written by itself: steps may be there before their records."""
    walk = lived(4)
    home = write_history(walk.world, tmp_path, walk.saved[:1])
    whole = moment(home)
    altered(home, table, lambda rows: rows.sort_by("time").slice(0, len(rows) * 2 // 3))
    found = moment(home)
    assert walk.saved[0][0].step < found.step < whole.step
    assert (found.store.pages, found.now) == state_behind(walk, found.step)
    assert found.last_outputs == dict(walk.world.said).get(found.step, [])
    assert found.notes == []
    with pytest.raises(LakequeueError, match=f"but the table '{table}' has"):
        moment(home, step=found.step + 1)
    then = moment(home, at=datetime.fromtimestamp(whole.now / 1000, UTC))
    assert then.step == found.step
    assert "The tables end before that time" in then.notes[0]


def test_a_step_is_missing(home: Path) -> None:
    altered(home, "snapshots", NONE)
    altered(home, "steps", where(pc.field("step") != 5))
    with pytest.raises(LakequeueError, match=r"The table .steps. has .* of the steps 1 to "):
        moment(home)
