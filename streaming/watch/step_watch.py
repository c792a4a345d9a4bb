"""Detects brokers that no longer take steps, and has them restarted.

Every step and every mark writes to the broker's log. If the log does not grow for a while, this
thread sends the broker a command, for which it must take a step. If Kafka has the command and the
log still does not grow, the broker hangs. The thread reports that (a log line, the event
`broker_stuck`, a metric, the broker's state), and `query_watch` restarts the worker. The log fences
the hanging worker, like any earlier one. By then its stacks are in Spark's log (`StackDump`).

The time without a step counts from zero again when the broker's query restarts. It does so for all
brokers when an executor comes or goes, since they may be starting on another machine. While a home
comes to rest (M4), its brokers need not take steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from confluent_kafka import KafkaException
from confluent_kafka.admin import OffsetSpec
from py4j.protocol import Py4JError

from ...protocol import LakequeueError, topics
from ...protocol.commands import Stuck, Tick, encode_command
from ...protocol.duties import do_every
from ...sources.live import kafka_client
from ...sources.same_topic import TopicsNow
from ...sources.step_batch import PartitionId
from ..broker_query import RUNNING, BrokerQuery
from ..watch_thread import WatchThread

log = logging.getLogger("lakequeue.engine")

LOOK_S = 5.0
PROBE_S, STUCK_S = 10.0, 30.0
# A broker that soon hangs again gets more time each time: it may only be slow.
STUCK_S_MAX, FORGET_S = 480.0, 900.0
NOTHING, PROBE, IS_STUCK = "", "probe", "stuck"


@dataclass(slots=True)
class Pulse:
    """A broker's latest activity. since: when its log grew last, or the run of its query began.
    after_probe: where its instructions topic ended when the probe was sent. limit_s: how long its
    log may stay unchanged."""

    run: str = ""
    log_end: int = -1
    since: float = 0.0
    after_probe: int | None = None
    limit_s: float = STUCK_S
    stuck_at: float = float("-inf")

    def look(self, now: float, run: str, log_end: int, instructions_end: int) -> str:
        """Return what to do now. now: seconds; run: of the broker's query."""
        if (run, log_end) != (self.run, self.log_end):
            self.run, self.log_end, self.since, self.after_probe = run, log_end, now, None
            return NOTHING
        silent_s = now - self.since
        if self.after_probe is None:
            if silent_s < PROBE_S:
                return NOTHING
            self.after_probe = instructions_end
            return PROBE
        if instructions_end <= self.after_probe:  # Kafka does not have the probe: begin again
            self.since, self.after_probe = now, None
            return NOTHING
        if silent_s < self.limit_s:
            return NOTHING
        again = now - self.stuck_at < FORGET_S
        self.limit_s = min(2 * self.limit_s, STUCK_S_MAX) if again else STUCK_S
        self.stuck_at, self.since, self.after_probe = now, now, None
        return IS_STUCK


class StepWatch(WatchThread):
    """Watches an engine's brokers. tell: sends a broker a command. stuck: called with a hanging
    broker and a sentence. executors: where brokers may run."""

    def __init__(
        self,
        bootstrap: str,
        brokers: Mapping[str, BrokerQuery],
        tell: Callable[[BrokerQuery, bytes], None],
        stuck: Callable[[BrokerQuery, str], None],
        executors: Callable[[], list[str]],
    ) -> None:
        super().__init__("lakequeue-step-watch")
        self._address = bootstrap
        self._brokers, self._tell, self._stuck = brokers, tell, stuck
        self._executors = executors
        self._where: list[str] = []
        self._pulses: dict[str, Pulse] = {}
        self._looked = 0.0

    def run(self) -> None:
        self._now = TopicsNow(kafka_client(self._address, "lakequeue-step-watch"))
        self.repeat(LOOK_S, self._look)

    def _look(self) -> None:
        try:
            self.look(time.monotonic(), partial(self._now.ends, spec=OffsetSpec.latest()))
        except (KafkaException, LakequeueError, Py4JError, OSError) as error:
            # Kafka is away, or Java ends and cannot list its queries; other watches report that.
            log.debug("steps cannot be watched: %s", error)

    def look(self, now: float, ends: Callable[[list[PartitionId]], dict[PartitionId, int]]) -> None:
        """Look once at all running brokers."""
        where = self._executors()
        # The second case: this process was suspended, and the brokers perhaps too.
        if where != self._where or now - self._looked > 3 * LOOK_S:
            self._pulses.clear()
        self._looked, self._where = now, where
        running = [
            b for b in list(self._brokers.values())
            if b.state == RUNNING and b.is_active and not b.resting
        ]  # fmt: skip
        places = {b: ((topics.topic(b.name, topics.STEPS), 0),
                      (topics.topic(b.name, topics.INSTRUCTIONS), 0)) for b in running}  # fmt: skip
        found = ends([place for both in places.values() for place in both])
        do_every(
            partial(self._look_at, broker, now, found[steps], found[after_probe])
            for broker, (steps, after_probe) in places.items()
            if steps in found and after_probe in found
        )

    def _look_at(
        self, broker: BrokerQuery, now: float, log_end: int, instructions_end: int
    ) -> None:
        pulse = self._pulses.setdefault(broker.name, Pulse())
        what = pulse.look(now, broker.run, log_end, instructions_end)
        if what == PROBE:
            self._tell(broker, encode_command(Tick()))
        elif what == IS_STUCK:
            self._report(broker)

    def _report(self, broker: BrokerQuery) -> None:
        why = (
            "it has taken no step for half a minute or longer, although it was sent a command; "
            "the stacks of its worker are in Spark's log"
        )
        log.error(
            "broker %r hangs: %s; it is restarted", broker.name, why,
            extra={"fields": {"event": "broker_stuck", "broker": broker.name}},
        )  # fmt: skip
        stuck = encode_command(Stuck(why=why))
        do_every((partial(self._stuck, broker, why), partial(self._tell, broker, stuck)))
