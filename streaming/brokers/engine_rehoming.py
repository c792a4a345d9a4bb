"""Changes the brokers of a home while it is at rest (M4).

    read no more messages ─▶ stop all loops ─▶ their states ─▶ `mesh.rehome` ─▶ a file per broker
    ── lakequeue.json names the new brokers and their files ──
    start all loops: each begins with its file if its state is older

The line in the middle is one file that is written whole or not at all. If anything fails before it,
the home is unchanged. If the engine dies after it, its next start continues there. A loop puts the
pages of its file into Spark's state in its first batch, which commits them.

If brokers still have messages for each other, the engine starts their loops once more. They then
read only each other's and the engine's records, until no message is in transit. Their clocks stand
still meanwhile; otherwise new work would always become due.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
from pyspark.sql import DataFrame, SparkSession

from ...definitions.broker_changes import check_added, check_removed
from ...mesh.home_change import HomeChange, NotAtRest
from ...mesh.reading_positions import of_clients
from ...mesh.rehome import Rehomed, Resting, rehome
from ...protocol import LakequeueError, NotConnected, topics
from ...protocol.duties import do_every
from ...protocol.folders import Folder
from ...protocol.journal import Journal
from ...protocol.state_files import step_of
from ...replica.driver import Snapshot
from ...sinks.spark_state import read_variable
from ...sources.live import kafka_client
from ...sources.replay_inputs import read_steps
from ...state import FORMAT, Limits
from ..application import END_S_MAX, SparkApplication
from ..broker_query import BrokerQuery
from ..captured import CapturedTopics
from ..engine_settings import MICRO_BATCH
from ..home.home_folder import HomeFolder, Moves, Removed
from ..spark.error_causes import cause_of

log = logging.getLogger("lakequeue.engine")

REST_S_MAX = 60.0
# Spark delivers a broker's pages in this many parts. Each must fit into
# `spark.driver.maxResultSize`, 1 GB by default, and costs a job.
PARTS = 8
# The memory for a change, as a multiple of all pages: the old ones, the new ones, and messages as
# objects while they move.
MEMORY_SHARE = 3
QUIET_S = 0.5  # time without input in which brokers usually read each other's last records
HEAR_S = 2.0  # how long loops step before the engine checks again whether the home is at rest

_snapshot = msgspec.msgpack.Decoder(Snapshot).decode


class _Header(msgspec.Struct):
    format: int = 0
    time: int = 0
    step: int = 0


_header = msgspec.msgpack.Decoder(_Header).decode


class EngineRehoming:
    """Adds and removes an engine's brokers, and moves queues, one change at a time. lock: the
    engine's, held until all loops run again. begin: prepares a broker before its query starts.
    tell_peers: sends all brokers the list of brokers. gone: called with a removed broker.
    send_last: sends the records that removed brokers still have to send."""

    def __init__(
        self, bootstrap: str, application: SparkApplication, captured: CapturedTopics,
        folder: HomeFolder, vpns: list[str], lock: threading.RLock,
        begin: Callable[[BrokerQuery], None], tell_peers: Callable[[], None],
        gone: Callable[[str], None], send_last: Callable[[], None],
    ) -> None:  # fmt: skip
        self._bootstrap, self._vpns, self._lock = bootstrap, vpns, lock
        self._application, self._captured, self._folder = application, captured, folder
        self._begin, self._tell_peers, self._gone = begin, tell_peers, gone
        self._send_last = send_last
        self._changing = threading.Lock()  # taken before the engine's
        self._has_changed = False

    def add(self, name: str, group: str = "") -> None:
        """Add a broker. If it raises LakequeueError, the home is as it was."""
        if not self._application.real_time:
            raise LakequeueError(f"broker {name!r}: the trigger {MICRO_BATCH!r} runs one broker")
        brokers = self._application.brokers
        with self._one_at_a_time():
            groups = {broker.name: broker.group for broker in brokers.values()}
            check_added(name, group, groups, self._folder.removed(), self._vpns)
            self._application.check_slots(len(brokers) + 1)
            new = BrokerQuery(name, self._folder.brokers([*brokers, name])[name], group=group)
            self._change([*brokers.values(), new])

    def remove(self, name: str, to: str = "") -> Moves:
        """Remove a broker. Returns where its queues with one host are now. to: a broker that takes
        all of them. If it raises LakequeueError, the home is as it was."""
        brokers = self._application.brokers
        with self._one_at_a_time():
            check_removed(name, to, brokers, self._folder.removed())
            return self._change([b for b in brokers.values() if b.name != name], to)

    def move(self, vpn: str, queue: str, to: str) -> Moves:
        """Move a queue to another broker, even one that captures plain Kafka topics (M5). If it
        raises LakequeueError, the queue is where it was."""
        brokers = self._application.brokers
        with self._one_at_a_time():
            if to not in brokers:
                known = ", ".join(map(repr, brokers))
                raise LakequeueError(f"broker: {to!r} – allowed are the home's brokers: {known}")
            if len(brokers) == 1:  # it is there
                return []
            return self._change(list(brokers.values()), moves={(vpn, queue): to})

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Hold both locks for one change. The follow-up runs without the engine's lock, and only if
        something has changed."""
        with self._changing:
            self._has_changed = False
            with self._lock:
                yield
            if self._has_changed:
                self._follow_up()

    def _follow_up(self) -> None:
        """Write the new states into the tables, and send the last records. On a busy machine this
        takes minutes, so it does not hold the engine's lock: ended queries can be restarted. The
        home has changed already, so a failure here does not undo the change."""
        try:
            do_every((self._application.begin_history_anew, self._send_last))
        except Exception as error:  # Kafka or Java is down: the next start does it
            log.warning("the change of brokers is done, but not all that follows: %s",
                        cause_of(error))  # fmt: skip

    def _change(
        self, there: list[BrokerQuery], to: str = "",
        moves: dict[tuple[str, str], str] | None = None,
    ) -> Moves:  # fmt: skip
        brokers = self._application.brokers
        for broker in brokers.values():
            if broker.failure:  # its log has steps that its state does not have
                raise LakequeueError(
                    f"brokers: broker {broker.name!r} has failed ({broker.failure}), and brokers "
                    "can change only while all of them run"
                )
        before = dict(brokers)
        numbers = {broker.name: broker.number for broker in there}
        groups = {broker.name: broker.group for broker in there if broker.group}
        change = HomeChange(numbers, groups, to, moves or {})
        try:
            known, found = self._rehomed(list(before.values()), change)
            _set(brokers, there)
            try:
                self._make_partitions()
                self._folder.rehome(
                    _states(known, found), numbers, groups, *_removed(known, found), found.moved
                )
            except BaseException:  # whatever fails, the home has its old brokers
                _set(brokers, before.values())
                raise
            try:
                self._announce(before)
            except LakequeueError as error:  # Kafka is away: the home has changed all the same
                log.warning("the change of brokers is announced at the next start: %s", error)
        finally:
            self._start_all(list(brokers.values()))
        self._captured.ask_again(list(brokers))
        self._folder.remember_checkpoints()
        self._has_changed = True
        return found.moved

    def _start_all(self, brokers: list[BrokerQuery]) -> None:
        """Start all loops. If one does not start, the watch tries again; the change is done."""
        for broker in brokers:
            broker.resting = False
        for broker in brokers:
            try:
                self._application.start_queries([broker])
            except Exception as error:  # Spark's or Java's
                log.warning("broker %r has not started yet: %s", broker.name, cause_of(error))

    def _make_partitions(self) -> None:
        """Give all brokers their partitions. The home stores the new number first, so that after a
        crash here the next start of the old home expects the partitions that it finds."""
        before = self._folder.numbers
        numbers = [broker.number for broker in self._application.brokers.values()]
        self._folder.give_numbers(max(before, 1 + max(numbers)))
        try:
            self._captured.share_out(before)
        except NotConnected:
            raise
        except LakequeueError:  # they cannot be shared, and none was made
            self._folder.give_numbers(before)
            raise

    def _announce(self, before: dict[str, BrokerQuery]) -> None:
        """Announce the change to clients and brokers. If that fails, the next start does it."""
        brokers = self._application.brokers
        for broker in brokers.values():
            if broker.name not in before:
                self._begin(broker)
                _log_change("broker_added", broker, "is number %d of this home", broker.number)
        self._tell_peers()
        for broker in before.values():
            if broker.name not in brokers:
                self._captured.forget(broker.name)
                self._gone(broker.name)
                _log_change("broker_removed", broker, "is removed from this home")

    def _rehomed(
        self, brokers: list[BrokerQuery], change: HomeChange
    ) -> tuple[list[_BrokerState], Rehomed]:
        """The brokers' states at rest, and the changed home. All queries have ended."""
        until = time.monotonic() + REST_S_MAX
        self._application.quiet(brokers)
        time.sleep(QUIET_S)
        while True:
            self._application.end(brokers, END_S_MAX)
            room = psutil.virtual_memory().available // MEMORY_SHARE
            known: list[_BrokerState] = []
            for broker in brokers:
                known.append(self._read(broker, room))
                room -= _size(known[-1].resting.pages)
            try:
                for one in known:
                    self._check_begun(one)
                    self._check_ended(one)
                resting = [one.resting for one in known]
                secret, epoch = self._folder.secret, self._folder.epoch
                return known, rehome(resting, change, epoch, secret, Limits())
            except NotAtRest as error:
                if time.monotonic() > until:
                    raise LakequeueError(f"the home does not come to rest: {error}") from error
                log.info("the home is not at rest yet: %s", error)
            for broker in brokers:
                broker.resting = True
            self._application.start_queries(brokers)
            time.sleep(HEAR_S)

    def _check_begun(self, known: _BrokerState) -> None:
        """Raise NotAtRest if the broker has not loaded the state of the previous change, for
        example because its query failed: another change would lose that state."""
        name = known.resting.name
        file = self._folder.rebuilt(name)
        if file and step_of(Path(file)) > known.own.step:
            raise NotAtRest(f"broker {name!r} has not begun since the last change")

    def _check_ended(self, known: _BrokerState) -> None:
        """Raise NotAtRest if the log has steps that the state does not have."""
        name, own = known.resting.name, known.own
        client = kafka_client(self._bootstrap, "lakequeue-rehome")
        logged = read_steps(client, topics.topic(name, topics.STEPS), own.log_at)
        if any(record.step > own.step for _, record in logged):
            raise NotAtRest(f"broker {name!r} did not end cleanly")

    def _read(self, broker: BrokerQuery, room: int) -> _BrokerState:
        """A broker's state. room: bytes that its pages may have. Raises LakequeueError if they have
        more, or if it is not a state of this core."""
        spark, name = self._application.spark, broker.name
        assert spark is not None
        checkpoint = self._folder.checkpoint / name
        rows = _state(spark, checkpoint, name, "snapshot").select("value.*").collect()
        if not rows:
            raise LakequeueError(f"broker {name!r} has no state yet: try again when it runs")
        found = _state(spark, checkpoint, name, "pages")
        found = found.select("user_map_key.key", "user_map_value.page").repartition(PARTS, "key")
        pages = {}
        for key, page in found.toLocalIterator():
            pages[key] = bytes(page)
            room -= len(page)
            if room < 0:
                raise LakequeueError(
                    f"broker {name!r}: its state does not fit into the engine's memory, which was "
                    f"full after {_size(pages) // 1_000_000} MB of it. Nothing has changed: give "
                    "the machine more memory, or wait until the queues hold less"
                )
        if _header(pages["broker"]).format != FORMAT:
            raise LakequeueError(
                f"broker {name!r} has the state of an earlier version: start the engine "
                "again, which converts it"
            )
        own = _snapshot(bytes(rows[0][0]))
        return _BrokerState(own, Resting(
            name, broker.number, pages,
            {(topic, at): offset for topic, at, offset in own.offsets},
            {(topic, at): one for topic, at, one in own.ids}, list(own.captured),
        ))  # fmt: skip


def _set(brokers: dict[str, BrokerQuery], there: Iterable[BrokerQuery]) -> None:
    """Replace the brokers in the mapping, which other threads read: it is never empty."""
    now = {broker.name: broker for broker in there}
    brokers.update(now)
    for name in brokers.keys() - now.keys():
        del brokers[name]


def _log_change(event: str, broker: BrokerQuery, what: str, *values: Any) -> None:
    fields = {"event": event, "broker": broker.name, "number": broker.number}
    log.info("broker %r " + what, broker.name, *values, extra={"fields": fields})


class _BrokerState(msgspec.Struct):
    own: Snapshot
    resting: Resting


def _size(pages: dict[str, bytes]) -> int:
    return sum(map(len, pages.values()))


def _state(spark: SparkSession, checkpoint: Folder, broker: str, variable: str) -> DataFrame:
    return read_variable(spark, checkpoint, variable, {}).where(f"key.broker = '{broker}'")


def _states(known: list[_BrokerState], found: Rehomed) -> dict[str, tuple[bytes, dict[str, bytes]]]:
    """The snapshot and the pages with which each broker's loop will begin."""
    before = {one.resting.name: one.own for one in known}
    states = {}
    for one in found.brokers:
        header, own = _header(one.pages["broker"]), before.get(one.name, Snapshot())
        told = own.rehomed(
            header.step, header.time, one.offsets, one.ids, one.captures, one.journal
        )
        states[one.name] = msgspec.msgpack.encode(told), one.pages
    return states


def _removed(known: list[_BrokerState], found: Rehomed) -> tuple[Removed, list[Journal]]:
    """The removed brokers, with how far they had read their clients' topics, and the records that
    they still have to send. Their last step is the change."""
    removed: Removed = {}
    last = []
    for one in known:
        name, own = one.resting.name, one.own
        if name in found.last:
            read = [(*place, at) for place, at in of_clients([one.resting.offsets]).items()]
            removed[name] = one.resting.number, read
            last.append(Journal(name, own.step + 1, own.now, [*own.journal, *found.last[name]]))
    return removed, last
