"""A broker is removed from a running engine.

    ask the keeper       from now on nothing is placed there; local queues move away
    start it closed      its loop hears the engine and other brokers, and reads captured topics; of
                         clients it hears nothing
    wait                 until it has taken its leave (`state/mesh/parting.py`)
    end it               it says up to where it had read its clients' partitions
    ── the home says that it is no more, and where the first that stays reads on ──
    that broker anew     it reads these partitions too; the others are told

What was done before the line binds nobody: whatever fails there, or dies, the broker goes on as it
was, but for queues that have moved, and a start of the engine begins again. All that is behind the
line follows from what the home says. Names and numbers are not given again: topics, checkpoint and
ids are for ever of this broker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from ..client.connection import Connection
from ..client.kafka_library import open_kafka
from ..client.moving_out import Keeper, MovedOut, move_out, with_moved
from ..protocol import LakequeueError, commands
from .application import END_S_MAX, SparkApplication
from .broker_query import FAILED, RUNNING, BrokerQuery, first_of
from .captured import CapturedTopics
from .home import HomeFolder

log = logging.getLogger("lakequeue.engine")

LEAVE_S_MAX = 60.0
READ_S_MAX = 10.0
BEGIN_S_MAX = 60.0  # until brokers that are being started run
LOOK_S = 0.2


def _waiting() -> Callable[[], bool]:
    """Waits a little each time; False: no longer."""
    until = time.monotonic() + LEAVE_S_MAX

    def wait() -> bool:
        time.sleep(LOOK_S)
        return time.monotonic() < until

    return wait


class BrokerRemoval:
    """Removes brokers of one engine. tell: says something to a broker where only the engine may;
    tell_peers: says to all which brokers there are; gone: a broker is no more; lock: held by who
    starts and ends queries."""

    def __init__(
        self,
        bootstrap: str,
        vpn: str,
        application: SparkApplication,
        captured: CapturedTopics,
        folder: HomeFolder,
        lock: threading.RLock,
        tell: Callable[[BrokerQuery, bytes], None],
        tell_peers: Callable[[], None],
        gone: Callable[[BrokerQuery], None],
    ) -> None:
        self._bootstrap, self._vpn = bootstrap, vpn
        self._application, self._captured, self._folder = application, captured, folder
        self._lock = lock
        self._tell, self._tell_peers, self._gone = tell, tell_peers, gone
        self._keeper = Keeper(_waiting())

    def remove(self, name: str, to: str = "") -> list[MovedOut]:
        """Remove a broker; gives which local queues have moved where. to: a broker for all of them.
        Raises LakequeueError with what stands in the way, and then it goes on as before."""
        moved: list[MovedOut] = []
        try:
            self._remove(self._check(name), to, moved)
        except LakequeueError as error:
            raise with_moved(error, moved) from error
        return moved

    def _remove(self, leaving: BrokerQuery, to: str, moved: list[MovedOut]) -> None:
        name, self._keeper = leaving.name, Keeper(_waiting())
        number = self._move_out(name, to, moved)
        try:
            self._take_leave(leaving, number)
        except BaseException:
            self._stay(leaving)
            raise
        self._follow(leaving)
        fields = {"event": "broker_removed", "broker": name, "number": leaving.number}
        log.info("broker %r is removed from this home", name, extra={"fields": fields})

    def _move_out(self, name: str, to: str, moved: list[MovedOut]) -> int:
        """Have its local queues moved; the number of the removal's round."""
        asked = commands.RemoveBroker(broker=name, topics=self._captured.reads, to=to)
        try:
            return move_out(
                self.ask, self._connect, asked,
                lambda: self._folder.remember_leaving(name, to), _waiting(), moved,
            )  # fmt: skip
        except BaseException:
            if self._folder.leaving:
                self._tell_peers()
                self._folder.remember_leaving("")
            raise

    def go_on(self) -> None:
        """Begin again with what an engine that died had not done."""
        name, to = self._folder.leaving, self._folder.leaving_to
        if not name:
            return
        try:
            self.remove(name, to)
        except LakequeueError as error:
            log.warning("the removal of a broker that was begun is given up: %s", error)
            self._folder.remember_leaving("")

    def _check(self, name: str) -> BrokerQuery:
        brokers = self._application.brokers
        leaving = brokers.get(name)
        if leaving is None:
            if name in self._folder.removed():
                raise LakequeueError(f"broker {name!r}: was removed from this home before")
            known = ", ".join(map(repr, brokers))
            raise LakequeueError(f"broker {name!r}: is not of this home, whose brokers are {known}")
        until = time.monotonic() + BEGIN_S_MAX
        while time.monotonic() < until and any(
            broker.state not in (RUNNING, FAILED) for broker in brokers.values()
        ):
            time.sleep(LOOK_S)
        for broker in brokers.values():
            if broker.state != RUNNING:
                why = f" ({broker.failure})" if broker.failure else ""
                raise LakequeueError(
                    f"broker {name!r}: cannot be removed while {broker.name!r} is {broker.state}"
                    f"{why}: all brokers must run then, for each has to hear of it"
                )
        return leaving

    def ask(self, command: commands.RemoveBroker) -> dict[str, Any]:
        """Ask the keeper. Raises what it answers, and Timeout."""
        with self._connect(self._vpn) as connection:
            return self._keeper.ask(connection, command)

    def _connect(self, vpn: str) -> Connection:
        transport = open_kafka(self._bootstrap, "lakequeue-remove")
        return Connection(transport, vpn, "lakequeue-remove", credentials=self._folder.credentials)

    def _take_leave(self, leaving: BrokerQuery, number: int) -> None:
        """Up to the home's word. number: of the round."""
        name, application = leaving.name, self._application
        with self._lock:
            leaving.closed, leaving.read = True, None
            application.end([leaving], END_S_MAX)
            application.start_query(leaving)
        self._tell(leaving, commands.encode_command(commands.CloseBroker(round=number)))
        asked = commands.RemoveBroker(broker=name, round=number)
        until = time.monotonic() + LEAVE_S_MAX
        while not (told := self.ask(asked))["done"]:
            if time.monotonic() > until:
                others = ", ".join(map(repr, told["waits_for"]))
                raise LakequeueError(
                    f"broker {name!r}: cannot be removed now, for {others} did not say the last "
                    f"word within {LEAVE_S_MAX:.0f} s; it goes on (`lakequeue usage` says what "
                    "waits for other brokers)"
                )
            time.sleep(LOOK_S)
        with self._lock:
            application.end([leaving], END_S_MAX)
            until = time.monotonic() + READ_S_MAX
            while leaving.read is None and time.monotonic() < until:
                time.sleep(LOOK_S)
            if leaving.read is None:
                raise LakequeueError(
                    f"broker {name!r}: did not end in good order, and goes on; try again"
                )
            self._folder.remove_broker(name, leaving.read)
            del application.brokers[name]

    def _stay(self, leaving: BrokerQuery) -> None:
        with self._lock:
            leaving.closed = False
            self._application.end([leaving], END_S_MAX)
            self._application.start_query(leaving)
        self._captured.ask_again([leaving.name])
        self._tell_peers()
        self._folder.remember_leaving("")

    def _follow(self, leaving: BrokerQuery) -> None:
        """What the home says by now. What fails here is made good by the next start."""
        application = self._application
        first = first_of(application.brokers)
        self._captured.forget(leaving.name)
        with self._lock:
            application.end([first], END_S_MAX)
            application.start_query(first)
            self._captured.ask_again([first.name])
            application.end_history()
        self._tell_peers()
        self._gone(leaving)
