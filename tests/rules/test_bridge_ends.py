"""The ends of bridges, as their brokers write them into the directory (H1). A replaced worker may
write late; late records are ignored."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.memory.joined_homes import JoinedHomes
from lakequeue.protocol import commands as c
from lakequeue.protocol.home_bridges import WRITTEN, BridgeEnds, encode_written, end_key
from lakequeue.protocol.outputs import BridgeEntry
from lakequeue.protocol.wire import WireRecord, encode, headers_list

from .two_homes import BRIDGE, Two

HERE = {"name": "out"}


def read(
    ends: BridgeEnds, at: tuple[int, int], definition: Any, broker: str = "a", epoch: int = 7
) -> Any:
    """Read the records of a broker."""
    (record,) = encode([BridgeEntry("v", "out", broker, 3, epoch, at, definition)])
    headers = headers_list(record.headers)
    return ends.read(7, record.topic, record.key, record.value, headers)


def test_H1_a_late_record_of_an_end_is_ignored() -> None:
    ends, a = BridgeEnds(), ("v", "a", "out")
    assert read(ends, (10, 1), HERE) == a
    assert (ends.ends[a].broker, ends.ends[a].definition) == (3, HERE)
    assert read(ends, (10, 2), None) == a
    assert ends.ends == {}
    assert read(ends, (10, 1), HERE) is None
    assert ends.ends == {}
    assert read(ends, (11, 0), HERE) == a
    assert read(ends, (10, 2), None) is None
    assert list(ends.ends) == [a]
    assert read(ends, (11, 0), HERE) == a  # the engine begins, and nothing has changed


def test_H1_an_end_belongs_to_one_broker_and_one_home() -> None:
    ends = BridgeEnds()
    read(ends, (10, 1), HERE, "a")
    assert read(ends, (5, 1), HERE, "b") == ("v", "b", "out")
    assert read(ends, (99, 1), None, "a", epoch=6) is None
    assert read(ends, (9, 1), None, "b") == ("v", "b", "out")
    assert list(ends.ends) == [("v", "a", "out")]


@pytest.mark.parametrize(
    ("key", "value", "headers", "why"),
    [
        (b"bridge-end/a/out", b"{}", [(WRITTEN, b"7.1.1")], "not a bridge's record"),
        (b"bridge-end/a/out", b"[" * 100_000, [(WRITTEN, b"7.1.1")], "not a bridge's record"),
        (b"bridge-end/\xff", None, [(WRITTEN, b"7.1.1")], "not a bridge's record"),
        (end_key("a", "out"), None, [], "has no valid header"),
        (end_key("a", "out"), None, [(WRITTEN, b"7.x.1")], "has no valid header"),
        (end_key("a", "out"), None, [(WRITTEN, b"9" * 5_000 + b".1.1")], "has no valid header"),
    ],
)
def test_H1_a_malformed_record_of_an_end_is_reported(
    key: bytes, value: bytes | None, headers: list[tuple[str, bytes]], why: str
) -> None:
    ends = BridgeEnds()
    with pytest.raises(ValueError, match=why):
        ends.read(7, "v.directory", key, value, headers)
    assert ends.ends == {}


def test_H1_other_directory_records_are_no_ends() -> None:
    ends = BridgeEnds()
    for key in (None, b"queue/x", b"broker/a", b"bridge/out"):  # the last: of an earlier version
        assert ends.read(7, "v.directory", key, b"{}", [(WRITTEN, encode_written(7, 1, 1))]) is None
    assert ends.ends == {}


class Watched(Two):
    """Remembers the records about ends of bridges."""

    def __init__(self) -> None:
        super().__init__(leaves=None)
        self.define("q", "a/>")
        self.written: list[WireRecord] = []
        self.make, self.delete = self.west.admin().bridge, self.west.admin().delete_bridge
        homes = self.engines["west"].homes
        told = homes.take

        def take(record: WireRecord) -> None:
            if (record.key or b"").startswith(b"bridge-end/"):
                self.written.append(record)
            told(record)

        homes.take = take  # type: ignore[method-assign]

    def begin(self, *known: WireRecord) -> None:
        """Replace the follower of the ends. known: the records that the new one has read."""
        west = self.engines["west"]
        west.homes = JoinedHomes(west, self.engines.get)  # type: ignore[arg-type]
        for record in known:
            west.homes.take(record)

    def check_goes_on(self) -> None:
        self.send("a/1", "x")
        self.advance("1s")
        assert self.bodies("q") == ["x"]
        assert self.seen()["on_its_way"] == 0


def test_H1_late_records_of_earlier_brokers_do_not_disturb_a_bridge() -> None:
    homes = Watched()
    west = homes.engines["west"]
    west.configure(parse_configuration({"brokers": ["near", "beside"]}))
    for broker in ("beside", "near", "beside"):
        homes.make(BRIDGE | {"from": broker})
        homes.delete("out")
    late = list(homes.written)
    assert [record.value is None for record in late] == [False, True] * 3
    homes.make(BRIDGE)
    for record in late:
        west.homes.take(record)
        homes.check_goes_on()


def test_H1_a_new_follower_learns_all_ends_when_the_engine_starts() -> None:
    """Compaction may have kept only a late record."""
    homes = Watched()
    homes.make(BRIDGE)
    homes.delete("out")
    homes.make(BRIDGE)
    homes.begin(homes.written[1])  # the record of the deletion
    assert homes.engines["west"].homes.copiers("out") == []
    homes.engines["west"].instruct("default", c.encode_command(c.Begin(epoch=0)))
    homes.check_goes_on()


def test_H1_a_copier_learns_that_its_bridge_is_gone() -> None:
    homes = Watched()
    homes.make(BRIDGE)
    homes.delete("out")
    homes.begin(homes.written[0])  # the record of the first definition
    assert len(homes.engines["west"].homes.copiers("out")) == 1
    homes.advance("1s")
    assert homes.engines["west"].homes.copiers("out") == []
