"""The step watch notices from outside that a broker no longer takes steps."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from itertools import pairwise
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from client.threaded import wait_for
from lakequeue.protocol import NotConnected, commands
from lakequeue.sources.live import LiveInputs
from lakequeue.sources.live_reader import InputLimits
from lakequeue.sources.step_batch import PartitionId
from lakequeue.streaming.broker_query import RESTARTING, RUNNING, BrokerQuery
from lakequeue.streaming.watch import step_watch
from lakequeue.streaming.watch.step_watch import (
    LOOK_S,
    NOTHING,
    PROBE,
    PROBE_S,
    STUCK_S,
    Pulse,
    StepWatch,
)
from py4j.protocol import Py4JNetworkError

TOPICS = [f"{name}.{kind}" for name in "ab" for kind in ("steps", "instructions")]
LOG, TOLD = ("a.steps", 0), ("a.instructions", 0)


ACTIVE = SimpleNamespace(isActive=True)


class World:
    """A watch of one broker, with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.ends: dict[PartitionId, int] = {LOG: 10, TOLD: 5}
        self.works = True
        self.stuck: list[float] = []
        self.heard: list[commands.Command] = []
        self.broker = BrokerQuery("a", 0, query=ACTIVE, state=RUNNING)
        self.executors = ["one", "two"]
        self.watch = StepWatch(
            "nowhere", {"a": self.broker}, self._tell, self._stuck, lambda: self.executors
        )

    def _tell(self, broker: BrokerQuery, value: bytes) -> None:
        self.heard.append(commands.decode_command(value))
        self.ends[TOLD] += 1
        if self.works:
            self.ends[LOG] += 1

    def _stuck(self, broker: BrokerQuery, why: str) -> None:
        self.stuck.append(self.now)

    def nearly(self) -> None:
        """Most of the time until it counts as stuck."""
        self.go_on(STUCK_S - 2 * LOOK_S)

    def go_on(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.watch.look(self.now, lambda places: {p: self.ends[p] for p in places})
            self.now += LOOK_S


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def hanging() -> World:
    """A watch whose broker takes no step."""
    world = World()
    world.works = False
    return world


def test_an_idle_broker_is_not_stuck(world: World) -> None:
    world.go_on(3_600)
    assert world.stuck == []
    assert {type(one) for one in world.heard} == {commands.Tick}
    assert len(world.heard) <= 3_600 / PROBE_S, "it costs an idle one little"


def test_a_broker_with_input_and_no_step_is_stuck(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.go_on(60)
    world.works, begun = False, world.now
    world.go_on(2 * STUCK_S)
    assert begun + STUCK_S - PROBE_S - LOOK_S <= world.stuck[0] <= begun + STUCK_S + 2 * LOOK_S
    assert any(isinstance(one, commands.Stuck) for one in world.heard), "for the events"
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "broker 'a' hangs" in record.message
    assert record.fields["event"] == "broker_stuck"


@pytest.mark.parametrize("error", [Py4JNetworkError("refused"), ConnectionRefusedError()])
def test_the_step_watch_survives_java(
    world: World, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java dies and reports no running queries; its successor does."""
    monkeypatch.setattr(step_watch, "LOOK_S", 0.01)
    asked: list[bool] = []

    class Gone:
        @property
        def isActive(self) -> bool:
            asked.append(True)
            if len(asked) > 3:
                world.watch.stop()
            raise error

    world.broker.query = Gone()
    world.watch.run()
    assert len(asked) > 3


def test_a_broker_whose_topic_takes_no_record_is_restarted_like_others() -> None:
    told, stuck = list[str](), list[str]()

    def tell(broker: BrokerQuery, value: bytes) -> None:
        told.append(broker.name)
        if broker.name == "a":
            raise NotConnected("topic 'a.instructions' takes no record")

    brokers = {
        name: BrokerQuery(name, n, query=ACTIVE, state=RUNNING) for n, name in enumerate("ab")
    }
    watch = StepWatch("nowhere", brokers, tell, lambda broker, _: stuck.append(broker.name), list)

    for n in range(40):  # others send to them, and they take no step
        ends = {topic: n if topic.endswith("instructions") else 10 for topic in TOPICS}
        with contextlib.suppress(NotConnected):
            watch.look(1_000.0 + n * LOOK_S, lambda places, e=ends: {p: e[p[0]] for p in places})
    assert set(told) == set(stuck) == {"a", "b"}


def test_a_broker_that_hangs_repeatedly_gets_more_time(hanging: World) -> None:
    hanging.go_on(1_800)
    pauses = [after - before for before, after in pairwise(hanging.stuck)]
    assert 3 <= len(hanging.stuck) <= 7
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 4 * STUCK_S


def test_no_broker_is_stuck_while_kafka_takes_nothing(hanging: World) -> None:
    pulse = Pulse()
    assert {pulse.look(n * LOOK_S, "run", 10, 5) for n in range(100)} == {NOTHING, PROBE}
    for n in range(21):
        hanging.watch.look(hanging.now + n * LOOK_S, lambda places: {})
    assert hanging.heard == []


def test_a_suspended_machine_makes_no_broker_stuck(hanging: World) -> None:
    hanging.nearly()
    hanging.now += 3_600
    hanging.nearly()
    assert hanging.stuck == []


def test_a_broker_restarted_elsewhere_gets_its_whole_time(hanging: World) -> None:
    """Its executor was lost after most of that time, or was told to leave."""
    hanging.nearly()
    hanging.executors = ["one"]
    hanging.nearly()
    hanging.executors = ["one", "three"]
    hanging.nearly()
    assert hanging.stuck == []
    hanging.go_on(STUCK_S)
    assert len(hanging.stuck) == 1


def test_M4_a_broker_restarted_after_a_pause_gets_its_whole_time(hanging: World) -> None:
    """The home paused for a change of brokers, and then all queries started anew."""
    hanging.nearly()
    hanging.broker.resting = True
    hanging.go_on(2 * STUCK_S)
    hanging.broker.resting = False
    hanging.broker.begin()
    hanging.nearly()
    assert hanging.stuck == []
    hanging.go_on(STUCK_S)
    assert len(hanging.stuck) == 1


def test_a_starting_broker_is_left_alone(hanging: World) -> None:
    hanging.broker.state = RESTARTING
    hanging.go_on(10 * STUCK_S)
    assert hanging.stuck == hanging.heard == []


def test_the_step_watch_continues_whatever_java_answers_at_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise no hanging broker would be noticed any more."""
    monkeypatch.setattr(step_watch, "LOOK_S", 0.01)
    monkeypatch.setattr(step_watch, "TopicsNow", lambda kafka: Mock())
    gone = AttributeError("'NoneType' object has no attribute 'isActive'")
    looks = Mock(side_effect=[gone, gone, *[None] * 1_000])
    monkeypatch.setattr(world.watch, "look", looks)
    world.watch.start()
    wait_for(lambda: looks.call_count >= 4)
    world.watch.stop()
    world.watch.join(20)
    assert caplog.messages == ["lakequeue-step-watch"], "once a minute"


def test_a_hanging_reader_ends_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nowhere = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    inputs = LiveInputs(nowhere, InputLimits(), "a.control", "run")
    reader = inputs._messages
    monkeypatch.setattr(reader, "is_alive", lambda: True)
    reader.looked = inputs._awake_since = time.monotonic() - 100
    with pytest.raises(Exception, match="lakequeue-messages has shown no sign of life for 100 s"):
        inputs.take(0.0)
    inputs._asked.close()


HANGS = """
import time
from lakequeue.streaming.loop import worker_process as stack_dump
stack_dump.DUMP_S = 0.2
dump = stack_dump.StackDump()
def step():
    dump.reset()
    time.sleep(1.0)
step()
dump.stop()
"""


def test_a_hanging_step_leaves_its_stack_traces(tmp_path: os.PathLike[str]) -> None:
    """Although another thread has Python's own lock."""
    command = [sys.executable, "-c", HANGS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "in step" in done.stderr
