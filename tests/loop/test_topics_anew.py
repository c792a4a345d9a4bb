"""S1: a receipt that waits for the Delta tables (`durability: delta`) and a topic that was
made anew: what the tables had of the old one is no answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lakequeue.core import Home as LiveHome
from lakequeue.protocol import topics
from lakequeue.protocol.steplog import Opened
from lakequeue.replica.driver import Driver as ReplicaDriver
from lakequeue.state import DictStore
from lakequeue.streaming.driver import Driver
from lakequeue.streaming.live_core import LiveDriver
from loop.memory import HOME, PUBLISH, SIZES, Some, World

PLACE = PUBLISH, 0


class Anew(Some):
    """What comes in, some of it of a topic that was made anew."""

    opened: tuple[Opened, ...] = ()

    def take(self, timeout_s: float) -> Any:
        taken = super().take(timeout_s)
        if taken is not None and self.opened:
            taken, self.opened = taken._replace(opened=self.opened), ()
        return taken


def paged(world: World) -> Driver:
    return Driver(HOME, "v1", DictStore(), world.saved[0], world, world, lambda: world.now)


def live(world: Any) -> ReplicaDriver:
    home = LiveHome(HOME.name, HOME.number, HOME.epoch)
    return LiveDriver(home, "v1", DictStore(), None, world, world)


def told(world: World) -> list[int]:
    """Up to which sequence the producer was answered, one after the other."""
    receipts = topics.topic("default", topics.RECEIPTS)
    said = [r for _, records in world.said for r in records if r.topic == receipts]
    return [json.loads(r.value or b"")["up_to"] for r in said]


@pytest.mark.parametrize("make", [paged, live])
def test_S1_what_the_tables_had_of_an_earlier_topic_is_no_answer(make: Any) -> None:
    world = World()
    driver = make(world)
    driver.learn(SIZES)
    inputs = Anew(world, driver, 100)
    opened = driver.offsets, driver.ids

    def run() -> list[int]:
        before = len(told(world))
        while driver.one(inputs, 0.0) is not None:
            driver.settle()
        return told(world)[before:]

    def send(seq: int) -> None:
        world.write(PLACE, b"{}", to="q", producer="p", seq=seq, durability="delta")

    world.instruct(command="begin", epoch=7)
    world.instruct(command="tables", written=True)
    world.instruct(command="define", definition={"name": "q", "message_type": "text"})
    for seq in range(1, 11):
        send(seq)
    inputs.opened = (Opened(*PLACE, 0, "old"),)
    assert run() == []
    world.instruct(command="tables", up_to={"default.publish/0": 10})
    assert run()[-1] == 10
    world.topics[PLACE].clear()
    opened[0][PLACE], inputs.opened = 0, (Opened(*PLACE, 0, "new"),)
    send(11)
    assert run() == [], "they had ten records, of the old topic"
    world.instruct(command="tables", up_to={"default.publish/0": 1})
    assert run() == [11]
