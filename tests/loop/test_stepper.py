"""Steps between two batches: they continue while a batch saves, and stop when no other batch
follows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from client.threaded import wait_for as until
from lakequeue.replica.driver import Refused
from lakequeue.state import DictStore
from lakequeue.streaming.loop.loop_driver import LoopDriver
from lakequeue.streaming.loop.loop_options import Options
from lakequeue.streaming.loop.stepper import Mark
from loop.memory import COMMANDS, HOME, World
from loop.stepping import ALONE_S, Broker

WAIT_S = 10.0
Make = Callable[..., Broker]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Broker] = []

    def one(**options: Any) -> Broker:
        made.append(Broker(**options))
        return made[-1]

    yield one
    for broker in made:
        broker.stepper.close()


def test_steps_continue_while_a_batch_saves(make: Make) -> None:
    broker = make(batch_s=0.1)
    first = broker.batch()
    saved = dict(broker.state.pages)
    broker.define("later")
    until(lambda: broker.driver.step > first.snapshot.step)
    assert broker.state.pages == saved, "the state differs from its snapshot"
    assert (COMMANDS, 0, 1) in first.snapshot.offsets
    second = broker.batch()
    assert second.snapshot.step > first.snapshot.step
    assert (COMMANDS, 0, 2) in second.snapshot.offsets
    assert broker.state.pages != saved
    assert first.figures.steps + second.figures.steps == second.snapshot.step


def test_inputs_know_the_free_room_between_batches(make: Make) -> None:
    """Nobody takes the steps' outputs meanwhile: large records wait before all steps have to."""
    broker = make(batch_s=0.3)
    inputs, whole = broker.inputs, Options.batch_bytes
    broker.batch()
    until(lambda: inputs.room_bytes == whole)
    broker.cache.put("b/1", b"contents")  # as in a step that spills
    until(lambda: inputs.room_bytes == whole - broker.cache.dirty_bytes < whole)
    batch = threading.Thread(target=broker.batch)
    batch.start()
    until(lambda: inputs.room_bytes is None)
    batch.join(WAIT_S)
    assert not batch.is_alive()


def test_a_snapshot_and_its_pages_belong_to_the_same_step(make: Make) -> None:
    """From any batch's snapshot the log leads to the current step: no step is in both."""
    broker = make(batch_s=0.02)
    for n in range(20):
        broker.define(f"q{n}")
        mark = broker.batch()
        store = DictStore(dict(broker.state.pages))
        again = World(log=list(broker.world.log), topics=broker.world.topics)
        driver = LoopDriver(HOME, "v1", store, broker.saved, again, again)
        driver.replay(again.logged(driver.log_at), again)  # the digest refuses another outcome
        assert driver.step >= mark.snapshot.step


def test_steps_stop_when_no_batch_follows(make: Make) -> None:
    broker = make(batch_s=0.1)
    broker.batch()
    time.sleep(ALONE_S + 0.2)
    before = broker.driver.step
    broker.define("unheard")
    time.sleep(0.3)
    assert broker.driver.step == before
    assert len(broker.world.log) == before
    mark = broker.batch()  # a batch comes after all: nothing was lost
    assert mark.snapshot.step > before
    assert mark.figures.gap_ms >= 200, "the pause was not reported"


def test_each_mark_counts_the_records_that_kafka_refused_since_the_last(make: Make) -> None:
    broker = make(batch_s=0.1)
    broker.batch()
    broker.world.refused += 2
    assert [broker.batch().figures.refused for _ in range(2)] == [2, 0]


def test_steps_without_a_batch_stay_within_what_a_replay_can_take(make: Make) -> None:
    broker = make(batch_s=0.1, replay_s=0.0)
    mark = broker.batch()
    broker.define("unheard")
    time.sleep(0.2)
    assert broker.driver.step == mark.snapshot.step


def test_replayed_steps_are_saved_soon(make: Make) -> None:
    """Otherwise another death in the same batch would replay them once more, together with the new
    ones."""
    broker = make(batch_s=60.0, replay_s=1.0, replayed_s=1.5)
    marks: list[Mark] = []
    first = threading.Thread(target=lambda: marks.append(broker.batch()))
    first.start()
    first.join(WAIT_S)
    assert len(marks) == 1
    second = threading.Thread(target=lambda: marks.append(broker.batch()))
    second.start()
    second.join(0.3)
    assert len(marks) == 1, "saved: earlier steps no longer count"
    broker.inputs.stopped = True
    second.join(WAIT_S)
    assert len(marks) == 2


def test_steps_that_cannot_be_replayed_safely_are_saved_at_once(make: Make) -> None:
    """The topic of their records is gone."""
    broker = make(batch_s=60.0)
    broker.inputs.wants_mark = True
    broker.batch()
    assert not broker.inputs.wants_mark


def test_a_recreated_log_forces_a_mark_at_once(make: Make) -> None:
    """The new log lacks the steps before it, so no earlier mark can be continued with it."""
    broker = make(batch_s=60.0)
    broker.driver.log_at, broker.driver._marks = 1_000, [900]
    begun = time.monotonic()
    mark = broker.batch()
    assert time.monotonic() - begun < WAIT_S
    assert mark.snapshot.marks == [mark.snapshot.log_at]
    assert mark.snapshot.log_at < 900


def test_a_kafka_that_went_back_in_time_is_refused(make: Make) -> None:
    with pytest.raises(Refused, match=r"partition 3 of topic 'orders'.*--accept-other-kafka"):
        make(went_back=True)
    make(went_back=True, accepts_other_kafka=True, batch_s=0.1).batch()


def test_a_fenced_worker_has_no_mark(make: Make) -> None:
    broker = make(batch_s=0.1)
    broker.log.fenced = True
    with pytest.raises(RuntimeError, match="fenced"):
        broker.batch()


def test_a_failure_between_batches_is_raised_by_the_next_batch(make: Make) -> None:
    broker = make(batch_s=0.1)
    broker.batch()
    broker.inputs.refuses = RuntimeError("no input")
    until(lambda: not broker.stepper.is_alive())
    with pytest.raises(RuntimeError, match="no input"):
        broker.batch()


def test_a_stop_makes_a_mark_with_no_step_after_it(make: Make) -> None:
    broker = make(batch_s=60.0)
    broker.define("a")
    timer = threading.Timer(0.3, lambda: setattr(broker.inputs, "stopped", True))
    timer.start()
    begun = time.monotonic()
    mark = broker.batch()
    assert time.monotonic() - begun < 5
    assert "stopped:broker-0" in mark.notes
    broker.define("after")
    time.sleep(0.1)
    assert broker.driver.step == mark.snapshot.step == len(broker.world.log)


def test_closing_ends_a_thread_waiting_for_a_page(make: Make) -> None:
    broker = make(batch_s=0.05)
    broker.define("a")
    broker.batch()
    broker.cache._clean.clear()  # as if there had been no room
    broker.define("b")
    time.sleep(0.2)
    broker.stepper.close()
    assert not broker.stepper.is_alive()
