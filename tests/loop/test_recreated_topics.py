"""S1: receipts that wait for the Delta tables (`durability: delta`) after a topic was recreated:
rows of the old topic confirm nothing. And to which topic an offset belongs."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from lakequeue.protocol import topics
from lakequeue.protocol.steplog import Opened
from lakequeue.replica.driver import Taken
from lakequeue.state import Batch
from loop.memory import PLACES, PUBLISH, Some, World
from replica.test_driver import Walk

PLACE = PUBLISH, 0


class Anew(Some):
    """The step's inputs, some of a recreated topic."""

    opened: tuple[Opened, ...] = ()

    def take(self, timeout_s: float) -> Any:
        taken = super().take(timeout_s)
        if self.opened:
            taken = (taken or Taken(Batch(), ()))._replace(opened=self.opened)
            self.opened = ()
        return taken


def told(world: World) -> list[int]:
    """The confirmed sequences of the producer, one after the other."""
    receipts = topics.topic("default", topics.RECEIPTS)
    said = [r for _, records in world.said for r in records if r.topic == receipts]
    return [json.loads(r.value or b"")["up_to"] for r in said]


def test_S1_rows_of_an_earlier_topic_confirm_nothing() -> None:
    world = World()
    driver = world.open()
    inputs = Anew(world, driver, 100)
    opened = driver.offsets, driver.ids

    def run() -> list[int]:
        before = len(told(world))
        while driver.one(inputs, 0.0) is not None:
            driver.flush()
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
    assert run() == [], "the tables had ten records of the old topic"
    world.instruct(command="tables", up_to={"default.publish/0": 1})
    assert run() == [11]


def test_the_log_records_the_topic_id_of_an_offset() -> None:
    """A worker that replays the steps knows the same topic ids as the one that took them."""
    walk, plain = Walk(), PLACES[3]
    inputs = Anew(walk.world, walk.driver, 9)
    walk.do_plain(1)
    inputs.opened = (Opened(*plain, 0, "first"),)
    walk.driver.one(inputs, 0.0)
    assert (walk.driver.ids[plain], walk.driver.offsets[plain]) == ("first", 1)
    walk.world.save(walk.driver, walk.store)
    assert walk.world.saved[0].ids == [(*plain, "first")]
    walk.world.topics[plain].clear()
    inputs.opened = (Opened(*plain, 0, "second"),)
    walk.driver.one(inputs, 0.0)
    walk.driver.flush()
    again = walk.world.open()
    assert (again.ids[plain], again.offsets[plain]) == ("second", 0)


def test_an_offset_that_goes_back_without_a_note_has_an_unknown_topic() -> None:
    """Steps read from the tables have no topic ids."""
    walk, plain = Walk(), PLACES[3]
    inputs = Anew(walk.world, walk.driver, 9)
    walk.do_plain(1)
    inputs.opened = (Opened(*plain, 0, "first"),)
    walk.driver.one(inputs, 0.0)
    record = msgspec.structs.replace(walk.world.logged()[-1][1], opened=())
    walk.driver._compute(msgspec.structs.replace(record, step=record.step + 1), Batch())
    assert plain not in walk.driver.ids
