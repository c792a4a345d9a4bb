"""Steps between two batches: they go on while a batch saves, and end when no other one comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from client.threaded import wait_for as until
from lakequeue.protocol import commands
from lakequeue.replica.driver import Refused, Taken
from lakequeue.sources.input_pace import SlowLanes
from lakequeue.state import DictStore
from lakequeue.streaming.loop.figures import Figures
from lakequeue.streaming.loop.loop import _encode
from lakequeue.streaming.loop.loop_driver import LoopDriver
from lakequeue.streaming.loop.loop_options import Options
from lakequeue.streaming.loop.page_cache import PageCache
from lakequeue.streaming.loop.stepper import Mark, Stepper
from loop.memory import COMMANDS, HOME, SIZES, Some, World

ALONE_S = 0.6
WAIT_S = 10.0


class State(DictStore):
    """The operator's state."""

    def keys(self) -> set[str]:
        return set(self.pages)


class Inputs(Some):
    """As `LiveInputs`: waits, counts, and is told to stop."""

    def __init__(self, world: World, driver: LoopDriver) -> None:
        super().__init__(world, driver, 5)
        self.arrived = threading.Event()
        self.stopped = self.wants_mark = False
        self.records = self.bytes = self.behind = 0
        self.waited_s = 0.0
        self.room_bytes: int | None = None
        self.ages_ms: list[int] = []
        self.slow = SlowLanes()
        self.notes: list[str] = []
        self.went_back: list[Any] = []
        self.costs: list[float] = []
        self.refuses: BaseException | None = None

    def also(self, places: dict[Any, int], ids: dict[Any, str]) -> None:
        assert (COMMANDS, 0) in places

    def took(self, ranges: Any, in_vain: Any, seconds: float) -> None:
        self.costs.append(seconds)

    def take(self, timeout_s: float) -> Taken | None:
        if self.refuses is not None:
            raise self.refuses
        taken = super().take(timeout_s)
        if taken is None:
            begun = time.monotonic()
            self.arrived.wait(min(timeout_s, 0.01))
            self.waited_s += time.monotonic() - begun
        else:
            self.records += sum(r.count for r in taken.ranges)
        return taken


class Transactions:
    """The log's fence: whether somebody else has opened it."""

    fenced = False
    count = 0

    def begin(self) -> None:
        self.count += 1

    def mark(self) -> None:
        if self.fenced:
            raise RuntimeError("fenced")


class Broker:
    """A world, and a worker in it. A batch is what Spark does: save, commit, some time later."""

    def __init__(self, replayed_s: float = 0.0, went_back: bool = False, **options: Any) -> None:
        self.world = World()
        self.state = State()
        self.cache = PageCache(self.state, 1_000_000)
        self.log = Transactions()
        outbox: Any = self.world
        outbox.records, outbox.refused, outbox.notes = 0, 0, []
        self.driver = LoopDriver(HOME, "v1", self.cache, None, self.world, outbox)
        self.inputs = Inputs(self.world, self.driver)
        o = Options({}, "broker-0", 0, 7, ["default"], "v1", "run", alone_s=ALONE_S, **options)
        parts: Any = (self.driver, self.cache, self.inputs, self.log, outbox, o)
        self.stepper = Stepper(*parts)
        self.stepper.found(SIZES)
        self.world.write((COMMANDS, 0), commands.encode_command(commands.Begin(epoch=7)))
        self.driver.cost_s = replayed_s
        self.inputs.went_back += [("orders", 3)] * went_back
        self.stepper.begin(Figures(), lambda: None)

    def batch(self, attach: bool = True) -> Mark:
        """A visit, and what a batch saves of it."""
        if attach:
            self.cache.attach(self.state)
        mark = self.stepper.visit()
        self.cache.settle()
        self.cache.detach()
        return mark

    def command(self, name: str) -> None:
        """A client defines a queue: a step has something to do, and to write."""
        self.world.command(command="define", definition={"name": name, "message_type": "text"})
        self.inputs.arrived.set()


@pytest.fixture
def make() -> Iterator[Callable[..., Broker]]:
    made: list[Broker] = []

    def one(**options: Any) -> Broker:
        made.append(Broker(**options))
        return made[-1]

    yield one
    for broker in made:
        broker.stepper.close()


def test_steps_go_on_while_a_batch_saves(make: Callable[..., Broker]) -> None:
    broker = make(batch_s=0.1)
    first = broker.batch(attach=False)
    saved = dict(broker.state.pages)
    broker.command("later")
    until(lambda: broker.driver.step > first.snapshot.step)
    assert broker.state.pages == saved, "the state has only what its snapshot says"
    assert (COMMANDS, 0, 1) in first.snapshot.offsets
    second = broker.batch()
    assert second.snapshot.step > first.snapshot.step
    assert (COMMANDS, 0, 2) in second.snapshot.offsets
    assert broker.state.pages != saved
    assert first.figures.steps + second.figures.steps == second.snapshot.step


def test_between_two_batches_inputs_know_what_room_there_is(make: Callable[..., Broker]) -> None:
    """Nobody takes then what steps write: what is large waits before all steps have to."""
    broker = make(batch_s=0.3)
    inputs, whole = broker.inputs, Options.batch_bytes
    broker.batch(attach=False)
    until(lambda: inputs.room_bytes == whole)
    broker.cache.put("b/1", b"contents")  # as a step does that spills
    until(lambda: inputs.room_bytes == whole - broker.cache.dirty_bytes < whole)
    batch = threading.Thread(target=broker.batch)
    batch.start()
    until(lambda: inputs.room_bytes is None)
    batch.join(WAIT_S)
    assert not batch.is_alive()


def test_a_snapshot_with_its_pages_is_one_moment(make: Callable[..., Broker]) -> None:
    """From any batch's snapshot, the log leads to where the steps are: nothing is in both."""
    broker = make(batch_s=0.02)
    for n in range(20):
        broker.command(f"q{n}")
        mark = broker.batch(attach=n > 0)
        store = DictStore(dict(broker.state.pages))
        again = World(log=list(broker.world.log), topics=broker.world.topics)
        driver = LoopDriver(HOME, "v1", store, _encode(mark.snapshot), again, again)
        driver.replay(again.logged(driver.log_at), again)  # refuses another outcome, by digest
        assert driver.step >= mark.snapshot.step


def test_steps_end_when_no_batch_follows(make: Callable[..., Broker]) -> None:
    broker = make(batch_s=0.1)
    broker.batch(attach=False)
    time.sleep(ALONE_S + 0.2)
    before = broker.driver.step
    broker.command("unheard")
    time.sleep(0.3)
    assert broker.driver.step == before
    assert len(broker.world.log) == before
    mark = broker.batch()  # a batch comes after all: nothing was lost
    assert mark.snapshot.step > before
    assert mark.figures.gap_ms >= 200, "the pause is told"


def test_each_mark_counts_the_records_that_kafka_refused_since_the_last(
    make: Callable[..., Broker],
) -> None:
    broker = make(batch_s=0.1)
    broker.batch()
    outbox: Any = broker.world
    outbox.refused += 2
    assert [broker.batch().figures.refused for _ in range(2)] == [2, 0]


def test_steps_alone_are_never_more_than_a_replay_can_take(make: Callable[..., Broker]) -> None:
    broker = make(batch_s=0.1, replay_s=0.0)
    mark = broker.batch(attach=False)
    broker.command("unheard")
    time.sleep(0.2)
    assert broker.driver.step == mark.snapshot.step


def test_what_was_replayed_is_saved_soon(make: Callable[..., Broker]) -> None:
    """Else the next death in the same batch would take as long again, and its own steps more."""
    broker = make(batch_s=60.0, replay_s=1.0, replayed_s=1.5)
    marks: list[Mark] = []
    first = threading.Thread(target=lambda: marks.append(broker.batch(attach=False)))
    first.start()
    first.join(WAIT_S)
    assert len(marks) == 1
    second = threading.Thread(target=lambda: marks.append(broker.batch()))
    second.start()
    second.join(0.3)
    assert len(marks) == 1, "it is saved: what came before does not count any more"
    broker.inputs.stopped = True
    second.join(WAIT_S)
    assert len(marks) == 2


def test_steps_that_can_hardly_be_taken_again_are_saved_at_once(
    make: Callable[..., Broker],
) -> None:
    """What they took of a topic is gone with it."""
    broker = make(batch_s=60.0)
    broker.inputs.wants_mark = True
    broker.batch(attach=False)
    assert not broker.inputs.wants_mark


def test_a_log_that_was_made_again_is_followed_by_a_mark_at_once(
    make: Callable[..., Broker],
) -> None:
    """It does not have the steps before, and no earlier mark leads anywhere in it."""
    broker = make(batch_s=60.0)
    broker.driver.log_at, broker.driver._marks = 1_000, [900]
    begun = time.monotonic()
    mark = broker.batch(attach=False)
    assert time.monotonic() - begun < WAIT_S
    assert mark.snapshot.marks == [mark.snapshot.log_at]
    assert mark.snapshot.log_at < 900


def test_a_kafka_that_went_back_in_time_is_refused(make: Callable[..., Broker]) -> None:
    with pytest.raises(Refused, match=r"partition 3 of topic 'orders'.*--accept-other-kafka"):
        make(went_back=True)
    make(went_back=True, accepts_other_kafka=True, batch_s=0.1).batch(attach=False)


def test_a_fenced_worker_has_no_mark(make: Callable[..., Broker]) -> None:
    broker = make(batch_s=0.1)
    broker.log.fenced = True
    with pytest.raises(RuntimeError, match="fenced"):
        broker.batch(attach=False)


def test_what_fails_between_two_batches_is_said_by_the_next(make: Callable[..., Broker]) -> None:
    broker = make(batch_s=0.1)
    broker.batch(attach=False)
    broker.inputs.refuses = RuntimeError("no input")
    until(lambda: not broker.stepper.is_alive())
    with pytest.raises(RuntimeError, match="no input"):
        broker.batch()


def test_a_stop_is_a_mark_with_no_step_behind(make: Callable[..., Broker]) -> None:
    broker = make(batch_s=60.0)
    broker.world.command(command="define", definition={"name": "a", "message_type": "text"})
    timer = threading.Timer(0.3, lambda: setattr(broker.inputs, "stopped", True))
    timer.start()
    begun = time.monotonic()
    mark = broker.batch(attach=False)
    assert time.monotonic() - begun < 5
    assert "stopped:broker-0" in mark.notes
    broker.command("after")
    time.sleep(0.1)
    assert broker.driver.step == mark.snapshot.step == len(broker.world.log)


def test_closing_ends_a_thread_that_waits_for_a_page(make: Callable[..., Broker]) -> None:
    broker = make(batch_s=0.05)
    broker.command("a")
    broker.batch(attach=False)
    broker.cache._clean.clear()  # as if there had been no room
    broker.command("b")
    time.sleep(0.2)
    broker.stepper.close()
    assert not broker.stepper.is_alive()
