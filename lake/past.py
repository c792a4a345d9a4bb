"""A broker as it was after any step: the nearest snapshot, and a replay of the steps after it (R1).

    snapshots ─▶ pages as of step s ─▶ steps s+1 … n, from `steps`, `messages`, `commands` ─▶ step n

A step is a pure function, so the result is the original state. Everything is checked: the pages
against the snapshot's sum, the inputs of each step against the digest in its record, and its
outputs against the digest in the next record. A damaged snapshot is reported, and the previous one
is used. A step that differs is an error: the tables were altered, or this code decides differently
from the code that wrote them.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from ..protocol.bounds import datetime_of
from ..protocol.errors import ConfigError, LakequeueError
from ..protocol.steplog import StepRecord
from ..protocol.table_format import CRC_MODULUS
from ..protocol.wire import WireRecord
from ..replica.driver import Differs, Snapshot
from ..state import DictStore, Home
from . import past_replica
from .inputs import TOGETHER, FromTables, StoredRecord, opened_behind, steps_between
from .named_payloads import Named, blocks_of
from .opening import WHEN_WRITTEN, Lake, NoLake
from .past_replica import PastDriver, StepCapture

_ENDED = "The tables end before that time, with "
_KNOWN = """
SELECT min(step), max(step), epoch_ms(min(now)), epoch_ms(max(now)),
  max(step) FILTER (WHERE epoch_ms(now) <= $at)
FROM steps WHERE broker = $broker
"""
_BEGUN = "SELECT value FROM commands WHERE command = 'begin' ORDER BY time DESC LIMIT 1"
_ANY_PAGE = """
SELECT value FROM snapshots
WHERE broker = $broker AND page = 'broker' AND value IS NOT NULL LIMIT 1
"""
_CLOSED = """
SELECT step, crc FROM snapshots
WHERE broker = $broker AND page = '' AND step <= $step ORDER BY step DESC
"""
# The newest row of each page of the chain, and of the row that closes it. Values are read
# separately, row by row: a query that sorts or groups payloads copies each several times.
_NEWEST = """
SELECT page, max(step), arg_max(struct_pack(crc := crc), step) FROM snapshots
WHERE broker = $broker AND step <= $step AND step >= (
  SELECT max(step) FROM snapshots WHERE broker = $broker AND page = '' AND whole AND step <= $step)
GROUP BY page
"""
_VALUES = """
SELECT page, step, value, refs FROM snapshots
WHERE broker = $broker AND (value IS NOT NULL OR refs IS NOT NULL)
  AND step BETWEEN $first AND $last
"""


@dataclass
class Moment:
    """A broker after a step. now: the step's time, epoch ms. snapshot: the step of the snapshot
    that it was built from, 0 for none. own: the loop's own state. notes: for users. last_inputs,
    last_outputs: of the last step, if it was replayed."""

    broker: str
    home: Home
    store: DictStore
    step: int
    now: int
    snapshot: int
    own: Snapshot
    notes: list[str] = field(default_factory=list)
    last_inputs: list[StoredRecord] = field(default_factory=list)
    last_outputs: list[WireRecord] = field(default_factory=list)


def brokers(lake: Lake) -> list[str]:
    """The brokers in the tables."""
    _require_history(lake)
    return [name for (name,) in lake.execute(
        "SELECT DISTINCT broker FROM steps ORDER BY broker").fetchall()]  # fmt: skip


def as_of(
    lake: Lake,
    home: Path,
    broker: str,
    *,
    step: int | None = None,
    at: datetime | None = None,
) -> Moment:
    """The broker after a step, or at a time, or else after the last step in the tables. Raises
    ConfigError for a moment that the tables do not contain, LakequeueError if they are damaged."""
    _require_history(lake)
    target, notes = _target(lake, broker, step, at)
    late = len(notes)
    moment = _start(lake, home, broker, target, notes)
    # after a damaged snapshot, missing records are an error, too
    exactly = step is not None or len(notes) > late
    _replay(lake, moment, target, exactly)
    if at is not None and moment.step < target and not late:
        notes.append(f"{_ENDED}{_time_text(moment.now)}")
    _check_last(lake, moment)
    return moment


def all_as_of(lake: Lake, home: Path, names: list[str], at: datetime | None) -> list[Moment]:
    """Like `as_of`, for several brokers: those that existed then, at least one."""
    found, refusals = [], []
    for name in names:
        try:
            found.append(as_of(lake, home, name, at=at))
        except ConfigError as error:
            refusals.append(error)
    if not found:
        raise refusals[0] if refusals else ConfigError("broker: the tables have no step yet")
    return found


def _require_history(lake: Lake) -> None:
    if lake.execute("SELECT step FROM steps LIMIT 1").fetchone() is None:
        raise NoLake(f"The home has no rows in the table 'steps' yet: {WHEN_WRITTEN}")


def _target(
    lake: Lake, broker: str, step: int | None, at: datetime | None
) -> tuple[int, list[str]]:
    """The requested step, and notes about it."""
    ms = 1 << 62 if at is None else round(at.timestamp() * 1000)
    found = lake.execute(_KNOWN, {"broker": broker, "at": ms}).fetchone()
    first, last, begun, ended, meant = found or (None,) * 5
    if first is None:
        known = ", ".join(brokers(lake)) or "none"
        raise ConfigError(f"broker: {broker!r} – the tables have brokers: {known}")
    reach = f"steps {first:,} to {last:,}, {_time_text(begun)} to {_time_text(ended)}"
    if step is not None:
        if not first <= step <= last:
            raise ConfigError(f"step: {step} – the tables have {reach}")
        return step, []
    if meant is None:
        raise ConfigError(f"time: {at} – the tables begin later: {reach}")
    late = at is not None and ms > ended
    return meant, [f"{_ENDED}{_time_text(ended)}"] if late else []


def _time_text(ms: int) -> str:
    return datetime_of(ms).isoformat(" ", "milliseconds")


# ---------------------------------------------------------------- where it begins


def _start(lake: Lake, home: Path, broker: str, target: int, notes: list[str]) -> Moment:
    """The newest undamaged snapshot up to the step; else an empty state, before step 1."""
    given = {"broker": broker, "step": target}
    for step, total in lake.execute(_CLOSED, given).fetchall():
        there = _pages(lake, broker, step)
        value = there.pop("", b"")
        found = sum(zlib.crc32(page.encode() + v) for page, v in there.items()) % CRC_MODULUS
        if found == total and value and "broker" in there:
            own = past_replica.own_of(value)
            whose = past_replica.home_of(broker, there["broker"], _secret(home))
            return Moment(broker, whose, DictStore(there), own.step, own.now, step, own, notes)
        notes.append(f"The snapshot of step {step:,} does not match its digest and is skipped")
    whose = Home(broker, *_who(lake, home, broker), _secret(home))
    return Moment(broker, whose, DictStore(), 0, 0, 0, Snapshot(), notes)


def _secret(home: Path) -> bytes:
    """The secret that seals clients' keys. Without it, signatures cannot be checked."""
    with contextlib.suppress(OSError):
        return (home / "secret").read_bytes()
    return b""


def _pages(lake: Lake, broker: str, step: int) -> dict[str, bytes]:
    """The pages of a snapshot, and the row without a name that closes it. If the table lacks a
    page, the digest does not match."""
    rows = lake.execute(_NEWEST, {"broker": broker, "step": step}).fetchall()
    wanted = {page: at for page, at, one in rows if one["crc"] is not None}
    first = min(wanted.values(), default=step)
    found: dict[str, tuple[int, bytes | None]] = {}
    named: Named = {}
    _read(lake, broker, (first, step), wanted, found, named)
    # The other pages did not change, so their newest value is the right one.
    older = {page: at for page, at in wanted.items() if found.get(page, (-1,))[0] != at}
    if older:
        _read(lake, broker, (0, first - 1), older, found, named)
    pages = {page: value for page, (_, value) in found.items() if value is not None}
    return pages | dict(blocks_of(lake, named))


def _read(
    lake: Lake, broker: str, steps: tuple[int, int], wanted: dict[str, int],
    found: dict[str, tuple[int, bytes | None]], named: Named,
) -> None:  # fmt: skip
    """Read the newest value of each wanted page into ``found``. steps: the first and last snapshot;
    wanted: page → its newest allowed step. A page that is a reference has no value."""
    rows = lake.execute(_VALUES, {"broker": broker, "first": steps[0], "last": steps[1]})
    while some := rows.fetchmany(TOGETHER):
        for page, step, value, refs in some:
            if found.get(page, (-1,))[0] < step <= wanted.get(page, -1):
                found[page] = step, value
                named.pop(page, None)
                if value is None:
                    named[page] = refs


def _who(lake: Lake, home: Path, broker: str) -> tuple[int, int]:
    """A broker's number and the home's epoch: from its folder, else from the tables, where any
    snapshot of the broker and the engine's last start contain them."""
    about: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        about = json.loads((home / "lakequeue.json").read_text())
    numbers, epoch = about.get("brokers", {}), about.get("epoch", 0)
    if isinstance(numbers, dict):
        numbers |= {name: one["number"] for name, one in about.get("removed", {}).items()}
    if not epoch:
        begun = lake.execute(_BEGUN).fetchone()
        epoch = msgspec.json.decode(begun[0]).get("epoch", 0) if begun else 0
    if isinstance(numbers, dict) and broker in numbers:
        return numbers[broker], epoch
    page = lake.execute(_ANY_PAGE, {"broker": broker}).fetchone()
    return (past_replica.home_of(broker, page[0], b"").number if page else 0), epoch


# ---------------------------------------------------------------- the steps after it


def _replay(lake: Lake, moment: Moment, target: int, exactly: bool) -> None:
    """Replay the steps after the snapshot up to the target, and capture the last one. exactly:
    require the target itself, not the last step before it whose records the tables have."""
    capture = StepCapture()
    driver = PastDriver(moment.home, moment.store, moment.own, capture, moment.now)
    ids = {(topic, partition): topic_id for topic, partition, topic_id in moment.own.ids}
    known = {(t, p): (at, ids.get((t, p), "")) for t, p, at in moment.own.offsets}
    opened = opened_behind(lake, moment.broker, moment.step)
    for after in range(moment.step, target, TOGETHER):
        last = min(after + TOGETHER, target)
        records = list(steps_between(lake, moment.broker, after, last))
        if [r.step for r in records] != list(range(after + 1, last + 1)):
            raise LakequeueError(
                f"The table 'steps' has {len(records):,} of the steps {after + 1:,} to {last:,} "
                f"of broker {moment.broker!r}: the state after the snapshot of step "
                f"{moment.snapshot:,} cannot be rebuilt"
            )
        later = [one for step, one in opened if step > last]
        inputs = FromTables(lake, records, known, later)
        there = records if exactly else inputs.until_the_end(records)
        _checked(driver, there, inputs)
        # the last step's outputs were not in Kafka when it was logged, so the replay has them
        if there:
            moment.last_inputs = [m for r in there[-1].ranges for m in inputs.records(r)]
            moment.last_outputs = capture.records
        if len(there) < len(records):
            break
    if driver.step > moment.step:
        moment.own = driver.snapshot(1)
        moment.step, moment.now = moment.own.step, moment.own.now


def _checked(driver: PastDriver, records: list[StepRecord], inputs: FromTables) -> None:
    try:
        driver.again(records, inputs)
    except Differs as error:
        code = next((r.code for r in records if r.step > driver.step), "")
        raise _differs(error.problem, code) from error


def _check_last(lake: Lake, moment: Moment) -> None:
    """Check the last step against the digest in the next record, if the tables have it."""
    for record in steps_between(lake, moment.broker, moment.step, moment.step + 1):
        if record.outputs != moment.own.outputs:
            raise _differs(
                f"step {moment.step} of broker {moment.broker!r} had other outputs when it was "
                "replayed", record.code,
            )  # fmt: skip


def _differs(problem: str, code: str) -> LakequeueError:
    return LakequeueError(
        f"{problem}; version {code} ran it. If that is another version than this one, use that "
        "version, or a moment after the first snapshot that this version wrote; if it is this one, "
        "the tables were altered"
    )
