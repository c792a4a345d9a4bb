"""A broker is removed, or stays after all, at which a queue was made that has moved away: what
plain Kafka producers write for that is taken once, wherever it is by then (Q2, Q5)."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
from lakequeue.client.moving_out import move_out
from lakequeue.memory import broker_removal
from lakequeue.protocol import LakequeueError, commands
from lakequeue.state.broker import Broker

from .mesh import Mesh
from .own_pace import TOPIC
from .test_last_reading import Home

MADE = {
    "name": "made", "message_type": "binary", "type": "LocalQueue", "broker": "c",
    "underlying_topic": "events",
}  # fmt: skip


def away() -> Mesh:
    """A queue that was made at `c` and is at `b`."""
    mesh = Mesh()
    mesh.at["a"].admin().define(MADE)
    mesh.at["a"].admin().move_queue("made", "b")
    return mesh


def write(mesh: Mesh, *numbers: int) -> None:
    for number in numbers:
        mesh.engine.publish("events", b"%d" % number, None, [], partition=number % 6)


def held(mesh: Mesh) -> list[bytes]:
    mesh.engine.check()
    return [m.payload for m in mesh.at["a"].admin().browse("made")]


def remove(mesh: Mesh, goes: bool, *numbers: int) -> None:
    """Remove `c`, while these are written; or begin with that and give it up."""

    def meanwhile(*args: Any) -> Any:
        found = move_out(*args)
        write(mesh, *numbers)
        assert held(mesh) == []
        if not goes:
            mesh.engine.cut("b")
        return found

    with patch.object(broker_removal, "move_out", meanwhile):
        if goes:
            broker_removal.remove_broker(mesh.engine, "c")
            return
        with pytest.raises(LakequeueError, match="it goes on"):
            broker_removal.remove_broker(mesh.engine, "c")
    mesh.engine.mend("b")


@pytest.mark.parametrize("goes", [False, True])
@pytest.mark.parametrize("during", [0, 5])
def test_Q2_plain_records_reach_a_queue_whose_maker_was_to_be_removed(
    goes: bool, during: int
) -> None:
    """Until it is decided they are put aside, at the broker that leaves and at the queue's own."""
    mesh = away()
    remove(mesh, goes, *range(during))
    write(mesh, *range(during, 9))
    assert held(mesh) == [b"%d" % n for n in range(9)]


def test_Q2_what_is_put_aside_is_there_before_the_queue_comes_back() -> None:
    mesh = away()
    remove(mesh, False, 0, 1)
    mesh.at["a"].admin().move_queue("made", "c")
    write(mesh, 2)
    assert held(mesh) == [b"0", b"1", b"2"]


def test_Q2_a_removal_that_is_begun_twice_leaves_out_no_record() -> None:
    """What was put aside in the first is taken up in the second."""
    mesh = away()
    mesh.at["a"].request(commands.RemoveBroker(broker="c"))
    write(mesh, *range(5))
    assert held(mesh) == []
    broker_removal.remove_broker(mesh.engine, "c")
    write(mesh, *range(5, 9))
    assert held(mesh) == [b"%d" % n for n in range(9)]


def test_Q5_a_queue_does_not_move_while_the_broker_where_it_was_made_is_removed() -> None:
    mesh = away()
    mesh.at["a"].request(commands.RemoveBroker(broker="c"))
    with pytest.raises(LakequeueError, match="'made': the broker where it was made is being rem"):
        mesh.at["a"].admin().move_queue("made", "a")
    broker_removal.remove_broker(mesh.engine, "c")
    mesh.at["a"].admin().move_queue("made", "a")
    write(mesh, 0)
    assert held(mesh) == [b"0"]


class Maker(Home):
    """A home whose brokers are removed; one of them made a queue, which moves."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, 4, death=0.1 if seed % 4 == 3 else 0.0)
        admin = self.client.admin()
        admin.define({**MADE, "message_type": "json", "underlying_topic": TOPIC})
        if seed % 2:  # else nobody but its maker reads it for another queue
            for queue in ("shared", "too", "local"):
                admin.delete(queue)

    def move(self, name: str) -> None:
        """Have the queue at a broker."""
        self.engine.haste()
        self.client.admin().move_queue("made", name)
        self.engine.slow()

    def try_to_remove(self, name: str, steps: int) -> bool:
        """Whether a broker is gone after so many steps; the queue is at another one."""
        self.move(self.random.choice([other for other in self.names() if other != name]))
        self.some(self.random.choice((0, 5, 30)))
        return self.remove(steps, name)

    def believes_in_a_removal(self, name: str) -> bool:
        one = self.engine.broker(name)
        state = Broker.load(one.store, one.home, self.engine.now, one._limits, first=False)
        return state.header.parting is not None


def walk(seed: int) -> tuple[list[bool], Counter[bytes], Counter[bytes]]:
    """What became of removals; what is in the queue, and what should be."""
    home = Maker(seed)
    home.engine.haste()
    home.engine.slow()
    home.some(home.random.choice((0, 0, 20, 60)))
    for _ in range(home.random.choice((0, 0, 1, 3))):
        home.write()
    became = []
    for name in ("c", home.random.choice("bc"), home.random.choice("bcd")):
        if name in home.names():
            became.append(home.try_to_remove(name, home.random.choice((40, 300))))
            home.some(home.random.choice((0, 5, 30)))
    for name in home.random.sample(home.names(), len(home.names())):
        home.move(name)
        home.some(20)
    home.engine.fated(None)
    home.end()
    home.engine.slow()
    home.some(40)
    home.end()
    home.engine.check()
    assert [name for name in home.names() if home.believes_in_a_removal(name)] == []
    return became, home.taken("made"), Counter({b"%d" % n: 1 for n in range(home.n)})


@pytest.mark.parametrize("seed", range(24))
def test_Q2_each_record_is_taken_once_as_a_topic_begins_while_its_reader_goes(seed: int) -> None:
    _, taken, once = walk(seed)
    assert taken == once
