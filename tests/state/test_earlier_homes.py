"""Homes of state format 7 continue here, whatever state they are in.

The stores in `earlier_homes` were written by the core of that format, which is gone: queues of all
kinds in the middle of their work, bridges with records in flight, clients' keys, receipts that wait
for the tables. Beside each is the expected conversion, byte for byte. After a deliberate change of
this core's pages, `LAKEQUEUE_RECORD=1 pytest tests/state/test_earlier_homes.py` writes it anew.
"""

from __future__ import annotations

import dataclasses
import gzip
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lakequeue.earlier.carry_over import carry_over
from lakequeue.mesh.home_change import HomeChange
from lakequeue.mesh.mesh import Mesh
from lakequeue.mesh.rehome import Resting, rehome
from lakequeue.replica.driver import Refused
from lakequeue.state import Batch, Broker, DictStore, Home, Limits, check, step

FOLDER = Path(__file__).parent / "earlier_homes"
FILES = sorted(FOLDER.glob("*.gz"))


class Recorded(msgspec.Struct):
    """A store. of: the test in which it was written; bits: rows of a page; limits: of this core,
    those that differ from the defaults; old, new: pages."""

    of: str
    home: tuple[str, int, int, bytes]
    bits: int
    limits: dict[str, int]
    old: dict[str, bytes]
    new: dict[str, bytes]


def read(file: Path) -> Recorded:
    return msgspec.msgpack.decode(gzip.decompress(file.read_bytes()), type=Recorded)


def limits_of(one: Recorded) -> Limits:
    return dataclasses.replace(Limits(), **one.limits)


def carried(one: Recorded) -> dict[str, bytes]:
    store = DictStore(one.old)
    return carry_over(store, one.old, Home(*one.home), limits_of(one), one.bits).pages


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.partition(".")[0])
def test_an_earlier_home_is_converted_as_recorded(file: Path) -> None:
    one = read(file)
    found = carried(one)
    if os.environ.get("LAKEQUEUE_RECORD"):
        whole = msgspec.msgpack.encode(msgspec.structs.replace(one, new=found))
        file.write_bytes(gzip.compress(whole, 9, mtime=0))
        return
    assert found.keys() == one.new.keys()
    assert {key for key in found if found[key] != one.new[key]} == set()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.partition(".")[0])
def test_an_earlier_home_continues(file: Path) -> None:
    """Its pages are consistent, steps are taken, and the next mark has all of its queues."""
    one = read(file)
    store = DictStore(one.new)
    broker = Broker.load(store, Home(*one.home), limits_of(one))
    broker.mesh = Mesh.load(broker)
    check(broker)
    for n in range(20):
        step(broker, Batch(), broker.now + n)
        check(broker)
    broker.mark()
    again = Broker.load(store, Home(*one.home), limits_of(one))
    again.mesh = Mesh.load(again)
    check(again)
    assert depths(again) == depths(broker) != {}


def depths(broker: Broker) -> dict[int, int]:
    return {number: queue.header.depth for number, queue in broker.queues.items()}


@pytest.mark.parametrize("broker", ["a", "b", "c"])
def test_an_earlier_home_with_several_brokers_is_refused_with_the_remedy(broker: str) -> None:
    """Each of three that were stopped cleanly. The remedy leads to
    `M4_two_of_three_brokers_were_removed`, with all messages."""
    with pytest.raises(Refused, match=r"has other brokers.*remove brokers until one is left"):
        carried(read(FOLDER / "refused" / f"{broker}_of_three.gz"))


def test_an_earlier_broker_in_the_middle_of_a_move_is_refused() -> None:
    one = read(FILES[0])
    facts: dict[str, Any] = msgspec.msgpack.decode(one.old["broker"])
    one.old["broker"] = msgspec.msgpack.encode({**facts, "trails": {1: "b"}})
    with pytest.raises(Refused, match="has messages in transit"):
        carried(one)


def test_M4_an_earlier_home_has_all_messages_of_its_removed_brokers() -> None:
    """Nothing is lost, and brokers can be added again."""
    one = read(FOLDER / "M4_two_of_three_brokers_were_removed.gz")
    broker = Broker.load(DictStore(one.new), Home(*one.home), limits_of(one))
    found = {
        queue.definition.name: (queue.header.depth, queue.header.leased, queue.header.delayed)
        for queue in broker.queues.values()
    }
    assert found == {
        "orders": (16, 2, 1), "claims": (3, 0, 0), "dead": (3, 0, 0), "keyed": (3, 0, 0),
    }  # fmt: skip
    name, number, epoch, secret = one.home
    resting = Resting(name, number, one.new)
    change = HomeChange({name: number, "d": 3})
    home = rehome([resting], change, epoch, secret, limits_of(one))
    assert [new.name for new in home.brokers] == [name, "d"]
