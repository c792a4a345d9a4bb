"""The brokers of a home on the live core change while it is at rest (M4).

    end all loops ─▶ their states ─▶ `mesh.rehome` ─▶ files beside the checkpoints
    ── the home says who its brokers are, and names these files ──
    start all loops: whose state is older than its file begins with the file

The line is one file that is written whole or not at all. Whatever fails or dies before it, the home
is as it was; whatever does behind it, the next start goes on there. A loop puts the pages of its
file into Spark's state in its first batch, so they are committed with it, or not.

Where several brokers have something for each other, their loops are started once more and hear one
another and the engine, but no client and no captured topic, until nothing is between them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from ..core import FORMAT, Limits
from ..mesh.rehome import Change, NotAtRest, Rehomed, Resting, rehome
from ..protocol import LakequeueError, topics
from ..protocol.folders import Folder
from ..replica.driver import Snapshot
from ..sources.live import kafka_client
from ..sources.log_reader import read_steps
from .application import END_S_MAX, SparkApplication
from .broker_query import BrokerQuery
from .captured import CapturedTopics
from .home import HomeFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("lakequeue.engine")

REST_S_MAX = 60.0
HEAR_S = 2.0  # that loops step before it is looked again whether all is heard

_snapshot = msgspec.msgpack.Decoder(Snapshot).decode


class _Header(msgspec.Struct):
    format: int = 0
    time: int = 0
    step: int = 0


_header = msgspec.msgpack.Decoder(_Header).decode


class EngineRehoming:
    """Adds and removes brokers of one engine. begin: tells a broker what it is to be, before it
    starts; tell_peers: says to all which brokers there are."""

    def __init__(
        self, bootstrap: str, application: SparkApplication, captured: CapturedTopics,
        folder: HomeFolder, begin: Callable[[BrokerQuery], None], tell_peers: Callable[[], None],
    ) -> None:  # fmt: skip
        self._bootstrap = bootstrap
        self._application, self._captured, self._folder = application, captured, folder
        self._begin, self._tell_peers = begin, tell_peers

    def add(self, name: str, group: str = "") -> None:
        """One broker more. Raises LakequeueError, and the home is as it was."""
        brokers = self._application.brokers
        number = self._folder.brokers([*brokers, name])[name]
        new = BrokerQuery(name, number, group=group)
        all_of_them = list(brokers.values())
        try:
            found = self._rehomed(all_of_them, [*all_of_them, new])
            brokers[name] = new
            try:
                self._captured.share_out()
                there = list(brokers.values())
                self._folder.rehome(found.states, _numbers(there), _groups(there))
            except BaseException:
                del brokers[name]
                raise
            self._begin(new)
            self._tell_peers()
        finally:
            for broker in brokers.values():
                broker.resting = False
            self._application.start_queries(list(brokers.values()))
        self._captured.ask_again(list(brokers))
        self._folder.remember_checkpoints()
        self._application.end_history()

    def _rehomed(self, brokers: list[BrokerQuery], to: list[BrokerQuery]) -> _States:
        """The states that they are to begin with; all queries have ended."""
        until = time.monotonic() + REST_S_MAX
        change = Change(_numbers(to), _groups(to))
        while True:
            self._application.end(brokers, END_S_MAX)
            known = [self._read(broker) for broker in brokers]
            try:
                for one in known:
                    self._check_ended(one)
                return _States.of(known, self._rehome(known, change))
            except NotAtRest as error:
                if time.monotonic() > until:
                    raise LakequeueError(f"the home does not come to rest: {error}") from error
            for broker in brokers:
                broker.resting = True
            self._application.start_queries(brokers)
            time.sleep(HEAR_S)

    def _check_ended(self, known: _Known) -> None:
        """Raise NotAtRest where the log has steps that the state has not."""
        name, own = known.resting.name, known.own
        client = kafka_client(self._bootstrap, "lakequeue-rehome")
        logged = read_steps(client, topics.topic(name, topics.STEPS), own.log_at)
        if any(record.step > own.step for _, record in logged):
            raise NotAtRest(f"broker {name!r} did not end in good order")

    def _rehome(self, known: list[_Known], change: Change) -> Rehomed:
        secret, epoch = self._folder.secret, self._folder.epoch
        return rehome([one.resting for one in known], change, epoch, secret, Limits())

    def _read(self, broker: BrokerQuery) -> _Known:
        assert self._application.spark is not None
        path = self._folder.checkpoint / broker.name
        return _Known.read(self._application.spark, path, broker.name, broker.number)


def _numbers(brokers: Iterable[BrokerQuery]) -> dict[str, int]:
    return {broker.name: broker.number for broker in brokers}


def _groups(brokers: Iterable[BrokerQuery]) -> dict[str, str]:
    return {broker.name: broker.group for broker in brokers if broker.group}


class _Known(msgspec.Struct):
    """A broker's state, as Spark has it."""

    own: Snapshot
    resting: Resting

    @classmethod
    def read(cls, spark: SparkSession, checkpoint: Folder, name: str, number: int) -> _Known:
        """Read it. Raises LakequeueError where it is none of the live core's."""
        rows = _state(spark, checkpoint, name, "snapshot").select("value.*").collect()
        if not rows:
            raise LakequeueError(f"broker {name!r} has no state yet: try again when it runs")
        found = _state(spark, checkpoint, name, "pages")
        pages = {
            row.key: bytes(row.page)
            for row in found.select("user_map_key.key", "user_map_value.page").collect()
        }
        if _header(pages["broker"]).format != FORMAT:
            raise LakequeueError(
                f"broker {name!r} is on the earlier core: start the engine again, so that it is "
                "carried over"
            )
        own = _snapshot(bytes(rows[0][0]))
        return cls(own, Resting(
            name, number, pages, {(topic, at): offset for topic, at, offset in own.offsets},
            {(topic, at): one for topic, at, one in own.ids}, list(own.captured),
        ))  # fmt: skip


def _state(spark: SparkSession, checkpoint: Folder, broker: str, variable: str) -> DataFrame:
    reader: Any = spark.read.format("statestore").option("stateVarName", variable)
    return reader.load(str(checkpoint)).where(f"key.broker = '{broker}'")


class _States(msgspec.Struct):
    """states: by broker, the loop's snapshot and the pages."""

    states: dict[str, tuple[bytes, dict[str, bytes]]]

    @classmethod
    def of(cls, known: list[_Known], found: Rehomed) -> _States:
        """What each loop is to begin with."""
        before = {one.resting.name: one.own for one in known}
        states = {}
        for one in found.brokers:
            header, own = _header(one.pages["broker"]), before.get(one.name, Snapshot())
            told = msgspec.structs.replace(
                own, step=header.step, now=max(own.now, header.time),
                offsets=[(*place, at) for place, at in sorted(one.offsets.items())],
                ids=[(*place, at) for place, at in sorted(one.ids.items())],
                captured=one.captures, journal=[*own.journal, *one.journal],
                since=own.since if own.journal else header.time,
            )  # fmt: skip
            states[one.name] = msgspec.msgpack.encode(told), one.pages
        return cls(states)
