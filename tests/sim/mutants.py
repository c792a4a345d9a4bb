"""Planted bugs: each is a mistake that somebody could make, and some world must find it.

A mutant replaces one of the product's functions, which it gets as its first argument. `hunt` runs
the worlds of seed after seed under it until one fails, and returns that seed.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from lakequeue.mesh import directory
from lakequeue.replica import driver as driving
from lakequeue.replica.driver import Driver, Taken
from lakequeue.replica.journal_buffer import JournalBuffer
from lakequeue.replica.replica import Replica
from lakequeue.state.commands import leases
from lakequeue.state.phases import admission
from lakequeue.state.queue import change
from lakequeue.state.queue.broker import Broker
from lakequeue.state.queue.producers import ProducerHistory
from lakequeue.state.rules import dead
from lakequeue.state.rules.entry_checks import plain_match as plain
from lakequeue.state.storage.runs import Runs
from lakequeue.state.storage.spool import Spool

from . import worker
from .kafka import StepsLog
from .world import Failed, run

stepping = sys.modules["lakequeue.state.step"]  # the package has a function of this name
MUTANTS: dict[str, list[Callable[[], Any]]] = {}  # by name: makes the mutant's patches


def planted(owner: Any, name: str, bug: str = "") -> Callable[[Callable[..., Any]], Any]:
    """Register the decorated function as a mutant of `owner.name`. bug: the mutant's name, by
    default the function's."""

    def plant(made: Callable[..., Any]) -> Any:
        def around() -> Any:
            original = getattr(owner, name)
            return patch.object(owner, name, lambda *a, **k: made(original, *a, **k))

        MUTANTS.setdefault(bug or made.__name__, []).append(around)
        return made

    return plant


def never_done(bug: str, owner: Any, name: str, answer: Any = None) -> None:
    """A mutant whose function does nothing, and returns this."""
    planted(owner, name, bug)(lambda *_, **__: answer)


def with_value(bug: str, owner: Any, name: str, value: Any) -> None:
    """A mutant with another value."""
    MUTANTS[bug] = [lambda: patch.object(owner, name, value)]


def hunt(name: str, seeds: int, first: int = 0) -> int | None:
    """The first seed whose world finds a planted bug; None where none of these seeds does."""
    with ExitStack() as stack:
        for make in MUTANTS[name]:
            stack.enter_context(make())
        for seed in range(first, first + seeds):
            try:
                run(seed)
            except Failed as failed:
                where = traceback.extract_tb(failed.cause.__traceback__)[-1].filename
                if where.endswith("mutants.py"):  # the mutant's own code failed
                    raise AssertionError(f"mutant {name} is broken") from failed.cause
                return seed
    return None


def msgspec_replace(said: Any, **changed: Any) -> Any:
    """The same message with another value of a field."""
    return driving.msgspec.structs.replace(said, **changed)


# ---------------------------------------------------------------- the driver


@planted(Driver, "one", "outputs_are_sent_before_the_log_has_their_step")
def _sends_all(original: Any, self: Driver, *rest: Any) -> Any:
    taken = original(self, *rest)
    while self._unsaid:
        step, records = self._unsaid.popleft()
        self._sent_up_to = step
        self._outbox.send(step, records)
    return taken


@planted(Driver, "_send_written", "outputs_are_sent_before_the_log_has_their_step")
def _counts_written_steps(original: Any, self: Driver, timeout_s: float) -> None:
    for at in self._log.written(timeout_s):
        self.log_at = at + 1


@planted(StepsLog, "append")
def the_fence_is_skipped(original: Any, self: StepsLog, attempt: int, value: bytes) -> int:
    return original(self, self.owner, value)


@planted(worker.Worker, "replay")
def steps_written_before_the_fence_are_not_read(original: Any, self: worker.Worker) -> None:
    if self.site.log.owner != self.attempt:
        original(self)


@planted(Driver, "replay")
def a_replay_sends_nothing(original: Any, self: Driver, logged: Any, again: Any) -> Any:
    send, self._outbox = self._outbox, Silent()  # type: ignore[assignment]
    try:
        return original(self, logged, again)
    finally:
        self._outbox = send


class Silent:
    """Outputs get lost."""

    def send(self, step: int, records: Any) -> None:
        """Write nothing."""


@planted(Driver, "snapshot")
def a_snapshot_forgets_the_journal(original: Any, self: Driver, *rest: Any) -> Any:
    found = original(self, *rest)
    found.journal, found.since = [], 0
    return found


@planted(worker.BrokerClock, "start")
def the_clock_runs_backwards(original: Any, self: Any, lived: int) -> None:
    original(self, 0)


@planted(Replica, "pack")
def the_last_page_of_a_mark_is_left_out(original: Any, self: Replica, rows: int) -> bool:
    return original(self, rows) and len(self.broker._to_pack) > 1


@planted(Driver, "snapshot")
def a_snapshot_reads_a_plain_record_again(original: Any, self: Driver, *rest: Any) -> Any:
    found = original(self, *rest)
    found.offsets = [(t, p, at - (t == "orders" and at > 0)) for t, p, at in found.offsets]
    return found


@planted(JournalBuffer, "take")
def the_last_segment_of_a_journal_is_lost(original: Any, self: JournalBuffer, now: int) -> Any:
    found = original(self, now)
    if found is not None and len(found.segments) > 5:
        found.segments = found.segments[:-1]
    return found


@planted(driving.msgspec.structs, "replace")
def skipped_records_are_not_logged(original: Any, record: Any, **changed: Any) -> Any:
    changed.pop("skipped", None)
    return original(record, **changed)


@planted(worker.Worker, "take")
def a_step_leaves_a_record_out(original: Any, self: worker.Worker, what: Any) -> Any:
    """The first of several commands."""
    found = original(self, what)
    if isinstance(found, Taken) and len(found.batch.commands) > 2:
        first = found.ranges[0]
        if first.count > 2 and first.last - first.first + 1 == first.count:
            less = msgspec_replace(first, first=first.first + 1, count=first.count - 1)
            return Taken(self._again((less, *found.ranges[1:])), (less, *found.ranges[1:]))
    return found


@planted(Driver, "one")
def changes_of_a_failed_step_stay(original: Any, self: Driver, *rest: Any) -> Any:
    """Its driver continues with the live state that the failed step has changed."""
    try:
        return original(self, *rest)
    except driving.StepPutAside:
        return None


@planted(admission.Admission, "_take_in")
def a_record_that_failed_among_others_is_joined_again(
    original: Any, self: Any, queues: Any, messages: Any, together: bool
) -> None:
    original(self, queues, messages, True)


@planted(directory, "hear_entries")
def a_broker_ignores_changes_of_the_directory(
    original: Any, broker: Any, facts: Any, *rest: Any
) -> Any:
    return None if facts.edition > 5 else original(broker, facts, *rest)


# ---------------------------------------------------------------- the core

never_done("a_lease_never_ends", stepping, "act_on_deadlines")
never_done("cold_rows_come_late", Runs, "first")
never_done("dead_messages_never_fit_their_queue", dead, "over_quota", True)


@planted(Broker, "begin_mark")
def a_dirty_flag_is_lost(original: Any, self: Broker, put: Any) -> None:
    dirty = [queue for queue in self.queues.values() if queue.dirty]
    if len(dirty) > 1:
        dirty[-1].dirty = False
    original(self, put)


@planted(admission, "enter")
def a_lane_is_forgotten(original: Any, broker: Any, queue: Any, rows: Any) -> None:
    for row in rows:
        row.lane = 0 if row.id % 3 else row.lane
    original(broker, queue, rows)


@planted(admission, "match")
def a_filter_is_ignored(original: Any, queue: Any, *rest: Any) -> Any:
    return original(queue, *rest) or plain(queue)


@planted(Broker, "changed")
def a_session_is_not_saved(original: Any, self: Broker, kind: str, name: Any) -> None:
    if kind != "s":
        original(self, kind, name)


@planted(Broker, "load")
def a_loaded_broker_serves_nobody(original: Any, *given: Any) -> Any:
    broker = original(*given)
    for queue in broker.queues.values():
        queue.header.again = queue.wanted = False
        for one in queue.header.subscriptions:
            one.max_backlog = 0
    return broker


@planted(Broker, "changed")
def producers_are_not_saved(original: Any, self: Broker, kind: str, name: Any) -> None:
    if kind != "p":
        original(self, kind, name)


@planted(ProducerHistory, "is_new")
def a_sequence_is_stored_twice(original: Any, self: ProducerHistory, seq: int) -> bool:
    return original(self, seq) or seq == self.high


@planted(ProducerHistory, "take")
def a_gap_counts_as_seen(original: Any, self: ProducerHistory, seq: int, count: int = 1) -> None:
    original(self, seq, count)
    self.gaps.clear()


@planted(Runs, "_up_to")
def a_merge_loses_a_row(original: Any, self: Runs, rows: Any, bound: int) -> int:
    return min(original(self, rows, bound) + 1, len(rows))


@planted(change, "_lease")
def a_return_is_not_counted(original: Any, broker: Any, queue: Any, rows: Any, *rest: Any) -> None:
    original(broker, queue, rows, *rest)
    for row in rows:
        row.deliveries = 1


@planted(Spool, "release")
def contents_are_released_too_early(original: Any, self: Spool, rows: Any, *rest: Any) -> Any:
    original(self, rows, *rest)
    return original(self, rows[:1], *rest) if len(rows) > 2 else None


@planted(leases, "_remove")
def an_ack_takes_the_next_one(original: Any, broker: Any, queue: Any, rows: Any, name: str) -> int:
    more = [r for r in queue.live.values() if r.state == change.LEASED and r not in rows]
    return original(broker, queue, [*rows, *more[:1]] if len(rows) == 2 else rows, name)
