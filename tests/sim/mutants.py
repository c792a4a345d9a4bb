"""Planted bugs: each is a mistake that somebody could make, and some world must find it.

A mutant is a function that patches the product. `hunt` lives the worlds of seed after seed under it
until one fails, and says which one did.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from lakequeue.mesh import directory
from lakequeue.replica import driver as driving
from lakequeue.replica.driver import Driver, Taken
from lakequeue.replica.journal_buffer import JournalBuffer
from lakequeue.replica.replica import Replica
from lakequeue.state.phases import admission
from lakequeue.state.queue import change
from lakequeue.state.queue.broker import Broker
from lakequeue.state.queue.producers import ProducerHistory
from lakequeue.state.rules.entry_checks import plain_match as plain
from lakequeue.state.storage.runs import Runs
from lakequeue.state.storage.spool import Spool

from . import worker
from .kafka import StepsLog
from .world import Failed, run

stepping = sys.modules["lakequeue.state.step"]  # the package has a function of this name
MUTANTS: dict[str, Callable[[], Any]] = {}


def mutant(make: Callable[[], Any]) -> Callable[[], Any]:
    """One planted bug, by its name."""
    MUTANTS[make.__name__] = make
    return make


def hunt(name: str, seeds: int, first: int = 0) -> int | None:
    """The first seed whose world finds a planted bug; None where none of so many does."""
    with MUTANTS[name]():
        for seed in range(first, first + seeds):
            try:
                run(seed)
            except Failed as failed:
                where = traceback.extract_tb(failed.cause.__traceback__)[-1].filename
                if where.endswith("mutants.py"):  # it is no bug of the product's that was found
                    raise AssertionError(f"mutant {name} is broken") from failed.cause
                return seed
    return None


def around(owner: Any, name: str, made: Callable[..., Any]) -> Any:
    """Patch a function by one that gets the original first."""
    original = getattr(owner, name)
    return patch.object(owner, name, lambda *a, **k: made(original, *a, **k))


def msgspec_replace(said: Any, **changed: Any) -> Any:
    """The same word with something else in it."""
    return driving.msgspec.structs.replace(said, **changed)


# ---------------------------------------------------------------- the driver


class Both:
    """Two patches at once."""

    def __init__(self, *patches: Any) -> None:
        self._patches = patches

    def __enter__(self) -> None:
        for one in self._patches:
            one.__enter__()

    def __exit__(self, *why: Any) -> None:
        for one in self._patches:
            one.__exit__(*why)


@mutant
def says_before_the_log_has_it() -> Any:
    def one(original: Any, self: Driver, *rest: Any) -> Any:
        taken = original(self, *rest)
        while self._unsaid:
            step, records = self._unsaid.popleft()
            self._sent_up_to = step
            self._outbox.send(step, records)
        return taken

    def send_written(original: Any, self: Driver, timeout_s: float) -> None:
        for at in self._log.written(timeout_s):
            self.log_at = at + 1

    return Both(around(Driver, "one", one), around(Driver, "_send_written", send_written))


@mutant
def the_fence_is_skipped() -> Any:
    def append(original: Any, self: StepsLog, attempt: int, value: bytes) -> int:
        return original(self, self.owner, value)

    return around(StepsLog, "append", append)


@mutant
def what_was_written_before_the_fence_is_not_read() -> Any:
    def replay(original: Any, self: worker.Worker) -> None:
        if self.site.log.owner != self.attempt:
            original(self)

    return around(worker.Worker, "replay", replay)


@mutant
def a_replay_says_nothing() -> Any:
    def replay(original: Any, self: Driver, logged: Any, again: Any) -> Any:
        send, self._outbox = self._outbox, Silent()  # type: ignore[assignment]
        try:
            return original(self, logged, again)
        finally:
            self._outbox = send

    return around(Driver, "replay", replay)


class Silent:
    """Where outputs get lost."""

    def send(self, step: int, records: Any) -> None:
        """Say nothing."""


@mutant
def a_snapshot_forgets_the_journal() -> Any:
    def snapshot(original: Any, self: Driver, *rest: Any) -> Any:
        found = original(self, *rest)
        found.journal, found.since = [], 0
        return found

    return around(Driver, "snapshot", snapshot)


@mutant
def time_runs_back() -> Any:
    def start(original: Any, self: Any, lived: int) -> None:
        original(self, 0)

    return around(worker.BrokerClock, "start", start)


@mutant
def the_last_page_of_a_mark_is_left_out() -> Any:
    def pack(original: Any, self: Replica, rows: int) -> bool:
        return original(self, rows) and len(self.broker._to_pack) > 1

    return around(Replica, "pack", pack)


@mutant
def a_snapshot_reads_a_plain_record_again() -> Any:
    def snapshot(original: Any, self: Driver, *rest: Any) -> Any:
        found = original(self, *rest)
        found.offsets = [(t, p, at - (t == "orders" and at > 0)) for t, p, at in found.offsets]
        return found

    return around(Driver, "snapshot", snapshot)


@mutant
def the_last_words_of_a_journal_are_lost() -> Any:
    def take(original: Any, self: JournalBuffer, now: int) -> Any:
        found = original(self, now)
        if found is not None and len(found.segments) > 5:
            found.segments = found.segments[:-1]
        return found

    return around(JournalBuffer, "take", take)


@mutant
def what_failed_is_not_written_down() -> Any:
    def again(original: Any, record: Any, **changed: Any) -> Any:
        changed.pop("skipped", None)
        return original(record, **changed)

    return around(driving.msgspec.structs, "replace", again)


@mutant
def a_step_leaves_a_record_out() -> Any:
    """The first of some commands."""

    def take(original: Any, self: worker.Worker, what: Any) -> Any:
        found = original(self, what)
        if isinstance(found, Taken) and len(found.batch.commands) > 2:
            first = found.ranges[0]
            if first.count > 2 and first.last - first.first + 1 == first.count:
                less = msgspec_replace(first, first=first.first + 1, count=first.count - 1)
                return Taken(self._again((less, *found.ranges[1:])), (less, *found.ranges[1:]))
        return found

    return around(worker.Worker, "take", take)


@mutant
def what_a_failed_step_changed_stays() -> Any:
    """Its driver goes on with the live state that the step spoiled."""

    def one(original: Any, self: Driver, *rest: Any) -> Any:
        try:
            return original(self, *rest)
        except driving.StepPutAside:
            return None

    return around(Driver, "one", one)


@mutant
def one_of_several_fails_among_them_again() -> Any:
    def take_in(
        original: Any, self: Any, vpn: str, queues: Any, messages: Any, together: bool
    ) -> None:
        original(self, vpn, queues, messages, True)

    return around(admission.Admission, "_take_in", take_in)


@mutant
def a_broker_hears_of_no_changes() -> Any:
    """Of the directory."""

    def hear(original: Any, broker: Any, facts: Any, *rest: Any) -> Any:
        return None if facts.edition > 5 else original(broker, facts, *rest)

    return around(directory, "hear_entries", hear)


@mutant
def a_lost_deletion_is_not_noticed() -> Any:
    """Of the directory."""
    return around(directory, "_gone", lambda original, *given: [])


# ---------------------------------------------------------------- the core


@mutant
def a_dirty_flag_is_lost() -> Any:
    def begin_mark(original: Any, self: Broker, put: Any) -> None:
        dirty = [queue for queue in self.queues.values() if queue.dirty]
        if len(dirty) > 1:
            dirty[-1].dirty = False
        original(self, put)

    return around(Broker, "begin_mark", begin_mark)


@mutant
def a_lane_is_forgotten() -> Any:
    def enter(original: Any, broker: Any, queue: Any, rows: Any) -> None:
        for row in rows:
            row.lane = 0 if row.id % 3 else row.lane
        original(broker, queue, rows)

    return around(admission, "enter", enter)


@mutant
def a_lease_never_ends() -> Any:
    return around(stepping, "act_on_deadlines", lambda original, broker: None)


@mutant
def a_filter_is_ignored() -> Any:
    return around(
        admission, "match", lambda original, queue, *rest: original(queue, *rest) or plain(queue)
    )


@mutant
def a_session_is_not_saved() -> Any:
    def changed(original: Any, self: Broker, kind: str, name: Any) -> None:
        if kind != "s":
            original(self, kind, name)

    return around(Broker, "_change", changed)


@mutant
def a_broker_that_is_loaded_serves_nobody() -> Any:
    def load(original: Any, *given: Any) -> Any:
        broker = original(*given)
        for queue in broker.queues.values():
            queue.header.again = queue.wanted = False
            for one in queue.header.subscriptions:
                one.max_backlog = 0
        return broker

    return around(Broker, "load", load)


@mutant
def producers_are_not_saved() -> Any:
    def changed(original: Any, self: Broker, kind: str, name: Any) -> None:
        if kind != "p":
            original(self, kind, name)

    return around(Broker, "_change", changed)


@mutant
def a_sequence_is_stored_twice() -> Any:
    return around(
        ProducerHistory,
        "is_new",
        lambda original, self, seq: original(self, seq) or seq == self.high,
    )


@mutant
def a_gap_counts_as_seen() -> Any:
    def take(original: Any, self: ProducerHistory, seq: int, count: int = 1) -> None:
        original(self, seq, count)
        self.gaps.clear()

    return around(ProducerHistory, "take", take)


@mutant
def a_merge_loses_a_row() -> Any:
    def up_to(original: Any, self: Runs, rows: Any, bound: int) -> int:
        return min(original(self, rows, bound) + 1, len(rows))

    return around(Runs, "_up_to", up_to)


@mutant
def cold_rows_come_late() -> Any:
    return around(Runs, "first", lambda original, self: None)


@mutant
def a_return_is_not_counted() -> Any:
    def leased(original: Any, broker: Any, queue: Any, rows: Any, *rest: Any) -> None:
        original(broker, queue, rows, *rest)
        for row in rows:
            row.deliveries = 1

    return around(change, "_lease", leased)


@mutant
def contents_are_released_too_early() -> Any:
    def release(original: Any, self: Spool, rows: Any, *rest: Any) -> Any:
        original(self, rows, *rest)
        return original(self, rows[:1], *rest) if len(rows) > 2 else None

    return around(Spool, "release", release)


@mutant
def an_ack_takes_the_next_one() -> Any:
    from lakequeue.state.commands import leases

    def remove(original: Any, broker: Any, queue: Any, rows: Any, name: str) -> int:
        more = [r for r in queue.live.values() if r.state == change.LEASED and r not in rows]
        return original(broker, queue, [*rows, *more[:1]] if len(rows) == 2 else rows, name)

    return around(leases, "_remove", remove)


@mutant
def a_dead_message_is_left_where_it_died() -> Any:
    from lakequeue.state.rules import dead

    return around(dead, "over_quota", lambda original, target, *rest: True)
