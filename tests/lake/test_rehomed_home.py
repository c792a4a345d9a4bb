"""The brokers of a home at rest change: their states are files until Spark has them (M4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from lakequeue.lake.rebuilding import _home_record
from lakequeue.mesh.home_change import HomeChange
from lakequeue.mesh.mesh import Mesh
from lakequeue.mesh.rehome import Resting, rehome
from lakequeue.protocol.state_files import is_newer, restore, state_file, write_state
from lakequeue.replica.driver import Driver
from lakequeue.state import Broker, DictStore, Home, Limits
from lakequeue.streaming.brokers.engine_rehoming import _BrokerState, _snapshot, _states
from lakequeue.streaming.home.home_folder import HomeFolder
from loop.memory import HOME, LIMITS, SIZES, Some, World, clocks

QUEUE = {"name": "orders", "message_type": "json", "type": "LocalQueue"}
SPREAD = {"name": "spread", "message_type": "json"}


class State(DictStore):
    """The operator's state."""

    own = b""

    def keys(self) -> set[str]:
        return set(self.pages)

    def save(self, snapshot: bytes) -> None:
        self.own = snapshot


def lived() -> World:
    """A world whose only broker was stopped cleanly."""
    world = World()
    driver = world.open()
    world.command(command="begin", epoch=HOME.epoch)
    for definition in (QUEUE, SPREAD):
        world.command(command="define", definition=definition)
    for n in range(12):
        world.write(("default.publish", 0), b'{"n":%d}' % n, to="orders", producer="p", seq=n + 1)
    for _ in range(9):
        driver.one(Some(world, driver, 5), 0.0)
    store: Any = driver._replica.store
    world.save(driver, store)
    return world


def rehomed(world: World) -> tuple[_BrokerState, dict[str, tuple[bytes, dict[str, bytes]]]]:
    own, store = world.saved
    offsets = {(topic, at): offset for topic, at, offset in own.offsets}
    known = _BrokerState(own, Resting(HOME.name, 0, dict(store.pages), offsets))
    change = HomeChange({HOME.name: 0, "west": 1})
    return known, _states([known], rehome([known.resting], change, HOME.epoch, b"", LIMITS))


def test_M4_a_driver_continues_from_the_new_state(tmp_path: Path) -> None:
    """Its log continues after the change, which is a step of its own, and it knows the other
    broker."""
    world = lived()
    known, found = rehomed(world)
    own, pages = found[HOME.name]
    snapshot = _snapshot(own)
    assert snapshot.step == known.own.step + 1
    assert snapshot.offsets == known.own.offsets
    store = DictStore(pages)
    driver = Driver(
        HOME, world.code, store, snapshot, world, world, clocks(world), LIMITS, Mesh.load
    )
    assert driver.replay(world.logged(driver.log_at), world) == []
    driver.learn(SIZES)
    world.write(("default.publish", 0), b"{}", to="orders", producer="p", seq=13)
    world.write(("default.publish", 0), b"{}", to="orders", producer="p", seq=12)  # P1
    for _ in range(5):
        driver.one(Some(world, driver, 5), 0.0)
    driver.flush()
    broker: Broker = driver._replica.broker
    queue = broker.find("default", "orders")
    assert queue.header.depth == 13
    assert broker.mesh.brokers == (HOME.name, "west")


def test_M4_the_other_broker_begins_with_what_it_hosts() -> None:
    _, found = rehomed(lived())
    own, pages = found["west"]
    assert _snapshot(own).log_at == 0
    broker = Broker.load(DictStore(pages), Home("west", 1, HOME.epoch), Limits())
    assert [name for _, name in broker.names] == ["spread"]


def test_M4_a_file_replaces_an_older_state_once(tmp_path: Path) -> None:
    known, found = rehomed(lived())
    home = HomeFolder(tmp_path)
    home.rehome(found, {HOME.name: 0, "west": 1}, {}, {}, [], [])
    file = Path(home.rebuilt(HOME.name))
    state: Any = State({**known.resting.pages, "q/99": b"an old page"})
    before = msgspec.msgpack.encode(known.own)
    assert is_newer(file, before)
    own = restore(file, state, replaces=True)
    assert (own, state.pages) == found[HOME.name]
    assert not is_newer(file, own)


def test_R3_a_rebuilt_home_begins_with_the_tables(tmp_path: Path) -> None:
    """Not with the states that the change of brokers left in files."""
    _, found = rehomed(lived())
    home = HomeFolder(tmp_path)
    home.open()
    home.rehome(found, {HOME.name: 0, "west": 1}, {}, {}, [], [])
    (tmp_path / "lakequeue.json").write_text(json.dumps(_home_record(tmp_path)))
    rebuilt = state_file(tmp_path, "west")
    write_state(rebuilt, b"", [])
    assert HomeFolder(tmp_path).rebuilt("west") == str(rebuilt)
