"""The core in the loop's surroundings: pages in the cache, time, and which states it refuses."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from client.threaded import wait_for as until
from lakequeue.protocol import home_bridges
from lakequeue.protocol.mesh_messages import BridgeSend
from lakequeue.protocol.steplog import Opened
from lakequeue.replica.driver import Refused, Snapshot, StepPutAside
from lakequeue.replica.pace import Pace
from lakequeue.sources.live import own_places
from lakequeue.sources.step_batch import to_batch
from lakequeue.state import Broker as CoreBroker
from lakequeue.state import DictStore
from lakequeue.state.phases import admission
from lakequeue.streaming.loop import loop_driver
from lakequeue.streaming.loop.loop import _encode
from lakequeue.streaming.loop.loop_driver import BATCH_LIMITS, LoopDriver, change_over, micro_batch
from loop.memory import COMMANDS, HOME, LIMITS, SIZES, Some, World
from loop.stepping import MESH, Broker, Inputs, State

PUBLISH = ("default.publish", 0)
COMMANDS_0 = (COMMANDS, 0)
# Pages, snapshot and log written by a version with the earlier core: see `stopped`.
EARLIER = json.loads((Path(__file__).parent / "earlier_home.json").read_text())


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker(limits=LIMITS, batch_s=0.1)
    made.define("q")
    yield made
    made.stepper.close()


def test_a_worker_needs_only_the_snapshot_and_its_pages(broker: Broker) -> None:
    for n in range(1, 21):
        broker.publish(n)
    until(lambda: bool(broker.batch()) and broker.depth() == 20)
    begun = broker.batch().snapshot.step  # an earlier mark may lack some messages
    broker.world.log.clear()  # only the state is left
    broker.again()
    assert broker.driver.step == begun
    assert broker.depth() == 20


def test_steps_after_the_snapshot_come_from_the_log(broker: Broker) -> None:
    broker.publish(1)
    until(lambda: bool(broker.batch()) and broker.depth() == 1)
    broker.publish(2)
    until(lambda: broker.depth() == 2)
    broker.again()
    assert broker.depth() == 2
    assert broker.batch().snapshot.step >= 2


def test_a_mark_is_written_in_parts_while_steps_go_on(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state gets a mark once it is complete. A worker that dies before restarts from the
    previous mark."""
    names = [f"q{n}" for n in range(5)]
    for name in names:
        broker.define(name)
    until(lambda: bool(broker.batch()) and len(broker.driver._replica.broker.names) == 6)
    for n, name in enumerate(names, 1):
        broker.publish(n, name)
    until(lambda: bool(broker.batch()) and broker.depths(names) == [1] * 5)
    before = dict(broker.state.pages), broker.saved
    go_on = threading.Event()
    pack = LoopDriver.pack

    def slowly(driver: LoopDriver, rows: int) -> bool:
        return pack(driver, 1) if go_on.is_set() else True

    monkeypatch.setattr(LoopDriver, "pack", slowly)
    for n, name in enumerate(names, 6):
        broker.publish(n, name)
    until(lambda: broker.depths(names) == [2] * 5)
    batch = threading.Thread(target=broker.batch)
    batch.start()
    until(lambda: broker.stepper._coming is not None)
    broker.publish(11, "q3")  # it is not packed yet
    until(lambda: broker.depths(names) == [2, 2, 2, 3, 2])
    assert batch.is_alive(), "the mark is not complete"
    dead = broker.died(*before)
    assert dead.depths(names) == [2, 2, 2, 3, 2]
    dead.stepper.close()
    go_on.set()
    batch.join()
    assert broker.saved != before[1]
    saved = CoreBroker.load(DictStore(broker.state.pages), HOME, LIMITS)
    assert [saved.names["default", name].header.depth for name in names] == [2] * 5
    assert len(saved.names["default", "q3"].live) == 2
    broker.again()
    assert broker.depths(names) == [2, 2, 2, 3, 2]


def test_bridged_messages_are_read_and_replayed_alike(broker: Broker) -> None:
    places = own_places(SIZES | MESH, ["default"], "broker-0", 0, True)
    assert set(places) == broker.inputs.told
    door = ("default.bridge-in", 0)
    assert door in places
    bridge = {"name": "in", "from": "kafka://far:1", "to": "broker-0", "subscriptions": ["q"]}
    broker.world.command(command="bridge", definition=bridge)
    broker.world.topics[door] = []
    find = broker.driver._replica.broker.find
    until(lambda: bool(broker.batch()) and find("default", "q") is not None)
    for number in (1, 1, 2):  # the first one is repeated
        broker.world.write(door, sent(number))
    broker.inputs.arrived.set()
    until(lambda: broker.depth() == 2)  # after the snapshot
    broker.again()
    assert broker.depth() == 2
    until(lambda: bool(broker.batch()) and broker.depth() == 2)
    broker.again()
    broker.world.write(door, sent(2))
    broker.world.write(door, sent(3))
    until(lambda: bool(broker.batch()) and broker.depth() == 3)


def sent(number: int) -> bytes:
    """A message over the bridge of another home."""
    send = BridgeSend(
        link=1, bridge="in", vpn="default", number=number, destinations=["q"], lanes=[1], to=[0],
        payloads=[b"m%d" % number], keys=[None], headers=[None], times=[1_700_000_000_000],
        ttl_ends=[0], priorities=[4], dmq=[True], due=[0],
    )  # fmt: skip
    return home_bridges.encode(home_bridges.HomeSend(8, "far", 1, send))


def test_a_failing_step_ends_the_batch_and_the_next_worker_skips_its_record(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch)
    broker.publish(1)
    until(lambda: bool(broker.batch()) and broker.depth() == 1)
    broker.publish(666)
    broker.publish(2)
    with pytest.raises(StepPutAside, match="planted"):
        broker.batch()
    broker.again()
    until(lambda: bool(broker.batch()) and broker.depth() == 2)
    assert [r.skipped for _, r in broker.world.logged() if r.skipped] == [
        (("default.publish", 0, 1, "RuntimeError: planted"),)
    ]


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the step fail for the message 666, as a bug of ours would."""
    real: Callable[..., Any] = admission.match

    def match(queue: Any, payload: bytes, *more: Any) -> Any:
        if payload == b"m666":
            raise RuntimeError("planted")
        return real(queue, payload, *more)

    monkeypatch.setattr(admission, "match", match)


def test_the_id_of_a_topic_outlives_the_worker() -> None:
    """An offset means nothing without the topic's id."""
    world: Any = World()
    world.command(command="begin", epoch=7)
    driver = LoopDriver(HOME, "v1", DictStore(), None, world, world)

    class MadeAnew(Inputs):
        def take(self, timeout_s: float) -> Any:
            taken = super().take(timeout_s)
            return taken._replace(opened=(Opened(*COMMANDS_0, 0, "an id"),))

    driver.one(MadeAnew(world, driver), 0.0)
    driver.flush()
    assert [r.opened[0].topic_id for _, r in world.logged()] == ["an id"]
    assert driver.snapshot(5).ids == [(*COMMANDS_0, "an id")]
    again = LoopDriver(HOME, "v1", DictStore(), _encode(Snapshot()), world, world)
    again.replay(world.logged(), world)
    assert again.ids == {COMMANDS_0: "an id"}


def test_pages_of_another_core_are_refused() -> None:
    store = DictStore()
    store.put("broker", b"\x82\xa6format\x07\xa4name\xa8broker-0")
    world: Any = World()
    with pytest.raises(Refused, match=r"has format 7, and this version reads 8: use the version"):
        LoopDriver(HOME, "v1", store, None, world, world)


def test_time_continues_from_the_brokers_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when the wall clock was set back, or a command's time is ahead of it."""
    world: Any = World()
    monkeypatch.setattr(loop_driver, "wall", lambda: 1_000.0)
    driver = LoopDriver(HOME, "v1", DictStore(), None, world, world)
    driver.now = 90_000
    driver.replay([], world)
    assert 90_000 <= driver._clock() < 100_000
    ahead = Inputs(world, driver)
    ahead.until = 10**15
    inputs = loop_driver._Inputs(ahead, driver._clock, Pace())
    assert (inputs.up_to() or 0) < 100_000


@pytest.mark.parametrize("resting", [False, True])
def test_M4_nothing_becomes_due_while_a_home_pauses(resting: bool) -> None:
    """The broker's time stands still, although it reads records, and it takes no empty steps."""
    world: Any = World()
    world.records, world.refused, world.notes = 0, 0, []
    store = DictStore()

    def steps(driver: LoopDriver, seconds: float) -> None:
        inputs, end = Inputs(world, driver), time.monotonic() + seconds
        while time.monotonic() < end:
            driver.one(inputs, 0.01)
        driver.flush()

    driver = LoopDriver(HOME, "v1", store, None, world, world)
    driver.learn(SIZES)
    world.command(command="begin", epoch=7)
    world.command(command="define", definition={"name": "q", "message_type": "text"})
    steps(driver, 0.05)
    world.write(PUBLISH, b"m", to="q", producer="p", seq=1, ttl_ms=driver.now - world.now + 1_000)
    steps(driver, 0.05)
    mark = driver.snapshot(1)
    driver = LoopDriver(
        HOME, "v1", store, msgspec.msgpack.encode(mark), world, world, resting=resting
    )
    driver.learn(SIZES)
    driver.replay([], world)
    before, step = driver.now, driver.step
    world.command(command="heartbeat", session="s")
    steps(driver, 1.5 if resting else 0.9)
    queue, end = driver._replica.broker.find("default", "q"), time.monotonic() + 10.0
    while not resting and queue.header.depth and time.monotonic() < end:
        steps(driver, 0.05)
    assert queue.header.depth == (1 if resting else 0)
    assert (driver.now == before) == resting
    assert 0 < driver.step - step < 10


def stopped(state: State) -> tuple[bytes, World]:
    """A home of the earlier core that was stopped cleanly, with three messages."""
    world = World()
    world.command(command="begin", epoch=7)
    world.command(command="define", definition={"name": "q", "message_type": "text"})
    for n in range(1, 4):
        world.write(PUBLISH, b"m%d" % n, to="q", producer="p", seq=n)
    world.log += map(base64.b64decode, EARLIER["log"])
    state.pages |= {key: base64.b64decode(page) for key, page in EARLIER["pages"].items()}
    return base64.b64decode(EARLIER["snapshot"]), world


class Saves(State):
    saved = b""

    def save(self, snapshot: bytes) -> None:
        self.saved = snapshot


def test_a_home_of_the_earlier_core_is_converted_once() -> None:
    """Its pages become the new core's, and its log continues."""
    state: Any = Saves()
    saved, world = stopped(state)
    found = change_over(HOME, state, saved, world.logged)
    assert found == state.saved
    assert change_over(HOME, state, found, world.logged) is found, "nothing is left to do"
    driver = LoopDriver(HOME, "v1", state, found, world, world, LIMITS)
    assert driver.replay(world.logged(driver.log_at), world) == []
    world.write(PUBLISH, b"m3", to="q", producer="p", seq=3)
    world.write(PUBLISH, b"m4", to="q", producer="p", seq=4)
    world.heard = len(world.log)
    driver.one(Some(world, driver, 9), 0.0)
    queue = driver._replica.broker.find("default", "q")
    assert (queue.header.depth, sorted(queue.live)) == (4, [1, 2, 3, 4]), "m3 was known"
    assert [(r.step, r.core, r.marked) for _, r in world.logged()] == [(1, 0, False), (2, 8, True)]


def test_an_unclean_home_of_the_earlier_core_is_refused() -> None:
    state: Any = Saves()
    _, world = stopped(state)
    before = dict(state.pages)
    with pytest.raises(Refused, match="did not stop cleanly"):
        change_over(HOME, state, _encode(Snapshot()), world.logged)
    assert state.pages == before
    driver = LoopDriver(HOME, "v0", DictStore(), None, world, world, LIMITS)
    with pytest.raises(Refused, match="step 1 of broker 'broker-0' was run by a version"):
        driver.replay(world.logged(), world)


def test_a_micro_batch_converts_a_home_of_the_earlier_core() -> None:
    state = State()
    stopped(state)
    batch = micro_batch(HOME, state)
    batch.take(to_batch({}).batch, 5)
    batch.end()
    broker = CoreBroker.load(DictStore(state.pages), HOME, BATCH_LIMITS)
    queue = broker.find("default", "q")
    assert queue.header.depth == 3
    assert not any(key.startswith("m/") for key in state.pages)


def test_a_home_of_the_earlier_core_with_other_brokers_is_refused() -> None:
    """In real time and in micro-batches; the refused home stays unchanged."""
    state: Any = Saves()
    saved, world = stopped(state)
    header = msgspec.msgpack.decode(state.pages["broker"], strict=False)
    state.pages["broker"] = msgspec.msgpack.encode(header | {"peers": {1: ["b"]}})
    before = dict(state.pages)
    with pytest.raises(Refused, match="has other brokers"):
        change_over(HOME, state, saved, world.logged)
    with pytest.raises(Refused, match="has other brokers"):
        micro_batch(HOME, state)
    assert state.pages == before


def test_P1_a_remaining_broker_answers_for_removed_ones() -> None:
    """Messages that producers repeat after the removal are stored once."""
    state: Any = Saves()
    saved, world = stopped(state)
    header = msgspec.msgpack.decode(state.pages["broker"], strict=False)
    had = {"removed": [1], "heirs": {1: "b"}}
    state.pages["broker"] = msgspec.msgpack.encode(header | had)
    state.pages["P/default@1/p"] = state.pages["P/default/p"]
    change_over(HOME, state, saved, world.logged)
    broker = CoreBroker.load(state, HOME, LIMITS)
    assert broker.header.speaks_for == [1]
    own, of_b = (broker.producers[where, "p"] for where in ("default", "default@1"))
    assert (own.high, of_b.high) == (3, 3)


def test_micro_batches_continue_from_the_state_alone() -> None:
    world, state = World(), State()
    world.command(command="begin", epoch=7)
    world.command(command="define", definition={"name": "q", "message_type": "text"})
    world.write(PUBLISH, b"m1", to="q", producer="p", seq=1)
    depths = []
    for place in (COMMANDS_0, PUBLISH):
        work = micro_batch(HOME, state)
        decided = work.take(to_batch({place: world.topics[place]}).batch, world.now)
        work.end()
        found = CoreBroker.load(state, HOME, BATCH_LIMITS).find("default", "q")
        depths.append(found.header.depth)
    assert depths == [0, 1]
    assert decided.said
    assert decided.deadline == 0 or decided.deadline > world.now
