"""Rebuilds a working home from the Delta tables when checkpoint and log of steps are lost (R3).

    tables ─▶ each broker's last known state ─▶ NEW/rebuilt/<broker>.state ─▶ first batch

The new home keeps the old one's epoch, so clients keep their messages. It continues in Kafka after
the last step in the tables: it reads later records again, in new steps. The ids and step numbers of
lost steps are unknown, so the new ones start far beyond them. A message that only lost steps stored
gets the event `lost` in the journal; it is still in Kafka, and is stored again under a new id.

The brokers of a home are rebuilt at steps that agree with each other, and skip each other's records
of lost steps (`mesh/channel.py`).

Leased messages become ready and deliveries count from zero: at its start on the new home, the
engine sends a command for that to each queue.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time as clock
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from ..mesh import channel
from ..mesh.facts import Peer, load_facts, peers_of, put_peers
from ..protocol.errors import ConfigError, LakequeueError
from ..protocol.folders import Folder, remove
from ..protocol.home_places import (
    ABOUT,
    CHECKPOINTS,
    KAFKA,
    OF_TABLES,
    PLACES,
    TABLES,
    checkpoints_place,
    tables_place,
)
from ..protocol.ids import COUNTER_MASK, make_id
from ..protocol.state_files import FOLDER, QUEUES, state_file, write_state, write_whole
from ..protocol.table_format import CRC_MODULUS
from ..state import FORMAT
from .opening import Lake, delta_table, open_lake, tables_of
from .past import Moment, as_of, brokers
from .past_replica import move_ahead, next_counter

NO_BATCH = -1  # the snapshot was not written by a batch of Spark
STEPS_AHEAD = 1_000_000  # far more than can be lost between two batches of the tables
IDS_AHEAD = 4_000_000
DELIVERIES_AHEAD = 4_000_000
# Removed when a home is rebuilt in place: they refer to a log that may have been replaced.
OUTDATED = ("checkpoint", *OF_TABLES)
_JOURNALED = "SELECT coalesce(max(step), 0) FROM journal WHERE broker = $broker"
_GIVEN = """
SELECT coalesce(max(CAST(message_id AS UBIGINT)), 0) FROM journal
WHERE CAST(message_id AS UBIGINT) BETWEEN $first AND $last
"""
# Messages that a broker's journal has in a queue, and that the broker which gave them their ids
# does not know. unknown: the first unknown id of each broker.
_PHANTOMS = """
SELECT c.vpn, c.queue, c.message_id FROM changes AS c
JOIN (SELECT unnest(CAST($unknown AS UBIGINT[])) AS first) AS ids
  ON CAST(c.message_id AS UBIGINT) BETWEEN ids.first AND (ids.first | 281474976710655)
WHERE c.broker = $broker AND c.next_event IS NULL AND c.state <> 'gone'
ORDER BY c.step, c.part, c.line
"""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The outcome for one broker. step, time: of its last step in the tables; queues: without
    stand-ins, whose messages count too; lost: messages of later steps, which are read from Kafka
    again under new ids."""

    broker: str
    step: int
    time: datetime
    queues: int
    messages: int
    lost: int
    notes: list[str]


def rebuild(tables_home: Path, home: Path) -> list[Rebuilt]:
    """Build a home from the tables of another one, or of the same one if its checkpoint is lost.
    Raises LakequeueError if that is impossible."""
    tables_of(tables_home)
    checkpoints = checkpoints_place(home)
    if any((checkpoints / "checkpoint").glob("*/commits/*")):
        raise LakequeueError(
            f"{checkpoints} has a checkpoint: it needs no rebuild. Choose another --home, or move "
            "the checkpoint away"
        )
    about = _home_record(tables_home)
    if home.resolve() == tables_home.resolve():
        return _rebuild(tables_home, home, about)
    about.get(PLACES, {}).pop(CHECKPOINTS, None)  # these belong to the old home
    with _taken_along(tables_home, home):
        return _rebuild(tables_home, home, about)


def _rebuild(tables_home: Path, home: Path, about: dict[str, Any]) -> list[Rebuilt]:
    """Like `rebuild`, after the new home has its tables."""
    checkpoints = checkpoints_place(home)
    done: list[Rebuilt] = []
    queues: list[list[str]] = []
    epoch = 0
    there = tables_place(tables_home)
    tables = home / TABLES if there == tables_home / TABLES else there
    with open_lake(tables_home) as lake:
        moments = _moments(lake, tables_home, about.get("removed", {}))
        unknown = [make_id(m.home.number, next_counter(m.store)) for m in moments]
        for moment in moments:
            epoch = moment.home.epoch
            done.append(_one(lake, home, tables, moment, queues, unknown))
    for name in OUTDATED:
        remove(checkpoints / name)
    about.pop(KAFKA, None)  # the new home may start on another cluster
    (home / FOLDER).mkdir(exist_ok=True)
    write_whole(home / FOLDER / QUEUES, json.dumps(queues).encode())
    write_whole(home / ABOUT, json.dumps({**about, "epoch": epoch}).encode())
    return done


def _moments(lake: Lake, tables_home: Path, removed: Collection[str]) -> list[Moment]:
    """Each broker at the latest step at which all of them agree, ready to continue. removed: names
    of removed brokers, whose contents the first broker has. If the home's record is lost, the
    states of the other brokers name them. Raises LakequeueError."""
    names = [name for name in brokers(lake) if name not in removed]
    latest = {name: as_of(lake, tables_home, name) for name in names}
    gone = {number for moment in latest.values() for number in load_facts(moment.store).removed}
    latest = {name: one for name, one in latest.items() if one.home.number not in gone}
    last = {name: moment.step for name, moment in latest.items()}
    met: dict[tuple[str, int], dict[int, Peer] | None] = {}

    def speaker_of(moment: Moment) -> channel.RejoiningBroker:
        at = moment.broker, moment.step
        if at not in met:
            met[at] = peers_of(moment.store)
        return channel.RejoiningBroker(moment.broker, moment.home.number, met[at] or {})

    found = {(name, moment.step): moment for name, moment in latest.items()}

    def speaker_at(name: str, step: int) -> channel.RejoiningBroker | None:
        if (name, step) not in found:
            try:
                found[name, step] = as_of(lake, tables_home, name, step=step)
            except ConfigError:
                return None
        return speaker_of(found[name, step])

    try:
        steps = channel.agree(last, speaker_at)
    except LookupError as error:
        raise LakequeueError(f"the tables do not reach back far enough: {error}") from error
    moments = [found[name, step] for name, step in steps.items()]
    channel.skip_lost_steps(map(speaker_of, moments))
    for moment in moments:
        _note_back(moment, last)
        known = met[moment.broker, moment.step]
        if known is not None:
            put_peers(moment.store, known)
    return moments


def _note_back(moment: Moment, last: dict[str, int]) -> None:
    back = last[moment.broker] - moment.step
    if back:
        moment.notes.append(
            f"{back:,} steps before its last one in the tables: other brokers' rows end earlier"
        )


@contextlib.contextmanager
def _taken_along(source: Path, home: Path) -> Iterator[None]:
    """Give the new home the tables without copying: files in them are never changed in place.
    Tables outside the home stay there. A failed rebuild leaves no tables in the new home, so it can
    be repeated."""
    home.mkdir(parents=True, exist_ok=True)
    for name in ("captured.json", "ports.json"):
        if (source / name).is_file():
            shutil.copy2(source / name, home / name)
    if tables_place(source) != source / TABLES:
        yield
        return
    if (home / TABLES).is_dir() and any((home / TABLES).iterdir()):
        raise LakequeueError(f"{home / TABLES} is not empty: choose another --home")
    try:
        _link_tables(source, home)
        yield
    except BaseException:  # also Ctrl-C: the new home must be empty for the next try
        shutil.rmtree(home / TABLES, ignore_errors=True)
        raise


def _link_tables(source: Path, home: Path) -> None:
    def link(a: str, b: str) -> None:
        try:
            os.link(a, b)
        except OSError:  # another disk
            shutil.copy2(a, b)

    leave = shutil.ignore_patterns(".*")
    try:
        shutil.copytree(
            source / TABLES, home / TABLES, copy_function=link, ignore=leave, dirs_exist_ok=True
        )
    except shutil.Error as error:  # every file that could not be copied
        file, _, why = error.args[0][0]
        raise LakequeueError(f"{file} cannot be copied to {home / TABLES}: {why}") from error


def _home_record(source: Path) -> dict[str, Any]:
    """The home's own record; if it is lost, too, the part that the tables contain."""
    file = source / ABOUT
    about: dict[str, Any] = {"format": FORMAT, "trigger": "real-time"}
    if file.is_file():
        about = json.loads(file.read_text())
    if about.get("format") != FORMAT:
        raise LakequeueError(
            f"{source} was written by a version with state format {about.get('format')}; this "
            f"version reads {FORMAT}: use that version"
        )
    # The tables are newer than the states from the last change of brokers.
    return {k: v for k, v in about.items() if k not in ("checkpoints", "rehomed")}


def _one(
    lake: Lake, home: Path, tables: Folder, moment: Moment, queues: list[list[str]],
    unknown: list[int],
) -> Rebuilt:  # fmt: skip
    store, name, number = moment.store, moment.broker, moment.home.number
    (journaled,) = lake.execute(_JOURNALED, {"broker": name}).fetchone() or (0,)
    ids = {"first": make_id(number, 0), "last": make_id(number, COUNTER_MASK)}
    # also ids of messages that only other brokers store
    (given,) = lake.execute(_GIVEN, ids).fetchone() or (0,)
    step = max(moment.step, journaled) + STEPS_AHEAD
    counter = max(next_counter(store), (given & COUNTER_MASK) + 1) + IDS_AHEAD
    lost = _close_phantoms(lake, tables, name, unknown, step, moment.now)
    # Deliveries get new numbers, so that no client confuses one with a delivery of a lost step.
    now = round(clock.time() * 1000)
    depths = move_ahead(store, step, counter, DELIVERIES_AHEAD, now)
    queues += [[one.vpn, one.queue] for one in depths]
    own = msgspec.structs.replace(
        moment.own, step=step, log_at=0, marks=[],
        # The table may already have the journal of lost steps.
        journal=[s for s in moment.own.journal if (s.step or moment.step) > journaled],
    )  # fmt: skip
    kept = msgspec.msgpack.encode(own)
    write_state(state_file(home, name), kept, sorted(store.pages.items()))
    _keep_snapshot(tables, moment, step, kept)
    time = datetime.fromtimestamp(moment.now / 1000, UTC)
    messages, n = sum(one.messages for one in depths), sum(not one.is_stand_in for one in depths)
    return Rebuilt(name, moment.step, time, n, messages, lost, moment.notes)


def _keep_snapshot(tables: Folder, moment: Moment, step: int, own: bytes) -> None:
    """Write the new home's initial state as a snapshot. The tables have no step directly before its
    first one, so without this snapshot its first steps could not be replayed before the engine
    writes another one."""
    now = datetime.fromtimestamp(moment.now / 1000, UTC)
    same = {
        "broker": moment.broker, "step": step, "now": now, "date": now.date(), "batch": NO_BATCH,
        "whole": True,
    }  # fmt: skip
    crcs = {page: zlib.crc32(page.encode() + value) for page, value in moment.store.pages.items()}
    rows = [
        {**same, "page": page, "value": value, "crc": crcs[page]}
        for page, value in moment.store.pages.items()
    ]
    rows.append({**same, "page": "", "value": own, "crc": sum(crcs.values()) % CRC_MODULUS})
    _append(tables / "snapshots", rows)


def _append(place: Folder, rows: list[dict[str, Any]]) -> None:
    import deltalake

    table = delta_table(place)
    schema = pa.schema(table.schema().to_arrow())
    deltalake.write_deltalake(table, pa.Table.from_pylist(rows, schema), mode="append")


def _close_phantoms(
    lake: Lake, tables: Folder, broker: str, unknown: list[int], step: int, now: int
) -> int:
    """Record in the broker's journal that messages which only lost steps stored are lost; returns
    how many. unknown: see `_PHANTOMS`."""
    phantoms = lake.execute(_PHANTOMS, {"broker": broker, "unknown": unknown}).fetchall()
    time = datetime.fromtimestamp(now / 1000, UTC)
    rows = [
        {
            "broker": broker, "step": step, "part": 0, "vpn": vpn, "queue": queue, "event": "lost",
            "message_id": number, "subscription": "", "deliveries": 0, "topic": "",
            "reason": "its step is lost; the message is stored again, with a new id", "line": line,
            "time": time, "date": time.date(),
        }
        for line, (vpn, queue, number) in enumerate(phantoms)
    ]  # fmt: skip
    if rows:
        _append(tables / "journal", rows)
    return len(rows)
