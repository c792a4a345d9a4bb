"""The spool against a plain dict of messages, in random walks at tiny limits."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from lakequeue.protocol.ids import make_id
from lakequeue.state.limits import Limits
from lakequeue.state.storage.blocks import Content
from lakequeue.state.storage.row import Row
from lakequeue.state.storage.spool import Spool, SpoolState
from lakequeue.state.storage.store import DictStore
from model.batches import TIMES

TINY = replace(Limits(), block_bytes=100, file_bytes=300, store_slack_bytes=50, blocks_cached=2)
encode = msgspec.msgpack.encode
decode = msgspec.msgpack.Decoder(SpoolState).decode


def copied(row: Row) -> Row:
    return msgspec.structs.replace(row)


def _row(seq: int, number: int, size: int) -> Row:
    return Row(seq, number, size, 0, 0, stored=number)


def _live_bytes(spool: Spool) -> int:
    return spool._unwritten_bytes + spool._table.live_bytes


class Walk:
    """Random calls on a spool, beside its messages and their rows."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = DictStore()
        self.spool = Spool(self.store, 3, SpoolState(), TINY)
        self.contents: dict[int, Content] = {}
        self.vpns: dict[int, int] = {}
        self.rows: list[Row] = []  # of all queues

    def text(self) -> bytes:
        return self.random.randbytes(self.random.choice([0, 1, 5, 20, 60, 150]))

    def publish(self) -> None:
        rnd = self.random
        vpn, matches = rnd.randrange(2), rnd.choice([1, 1, 1, 2, 5])
        if rnd.random() < 0.2:
            payloads = [self.text() for _ in range(5)]
            contents: list[Content] = [(payload, None, None) for payload in payloads]
            first = self.spool.store(vpn, contents, 7 * 5, matches)
            for at, payload in enumerate(payloads):
                self.arrived(first + at, vpn, (payload, None, None), 7, matches)
            return
        key = rnd.choice([None, None, b"", b"key"])
        content = self.text(), key, rnd.choice([None, None, b"headers"])
        expected = self.spool.next_id()
        number = self.spool.store(vpn, [content], 9, matches)
        assert number == expected
        self.arrived(number, vpn, content, 9, matches)

    def arrived(self, number: int, vpn: int, content: Content, size: int, matches: int) -> None:
        self.contents[number] = content
        self.vpns[number] = vpn
        self.rows += [_row(seq, number, size) for seq in range(matches)]

    def skip(self) -> None:
        assert self.spool.skip_id() not in self.contents

    def some(self, n: int) -> list[Row]:
        return self.random.sample(self.rows, min(n, len(self.rows)))

    def settle(self) -> None:
        rows = self.some(self.random.randrange(20))
        self.spool.write_to_blocks(rows, live=self.random.random() < 0.5)
        assert all(row.block for row in rows)

    def match(self) -> None:
        for row in self.some(1):
            self.spool.add_match(row)
            self.rows.append(copied(row))

    def release(self, n: int = 12) -> None:
        rows = self.some(self.random.randrange(n + 1))
        if self.random.random() < 0.5:  # neighbours leave together
            rows.sort(key=lambda row: (row.block, row.index))
        for vpn in {self.vpns[row.id] for row in rows}:
            self.spool.release([row for row in rows if self.vpns[row.id] == vpn], vpn)
        for row in rows:
            self.rows.remove(row)
        held = {row.id for row in self.rows}
        self.contents = {number: c for number, c in self.contents.items() if number in held}

    def compact(self) -> None:
        self.spool.compact(self.random.random() < 0.5)

    def mark(self) -> bytes:
        self.spool.write_to_blocks(self.rows, live=self.random.random() < 0.7)
        self.spool.mark()
        assert not self.spool.memory_used()
        return encode(self.spool.state())

    def reload(self) -> None:
        self.load(self.mark())

    def load(self, state: bytes) -> None:
        self.store = DictStore(self.store.pages)
        self.spool = Spool(self.store, 3, decode(state), TINY)

    def check(self) -> None:
        spool, sizes = self.spool, {row.id: row.size for row in self.rows}
        assert spool.messages == len(sizes)
        assert spool.bytes == sum(sizes.values())
        vpns: Counter[int] = Counter()
        for number, size in sizes.items():
            vpns[self.vpns[number]] += size
        assert {vpn: size for vpn, size in spool.vpn_bytes.items() if size} == dict(vpns)
        for number, n in Counter(row.id for row in self.rows).items():
            assert spool.matches(number) == n
        assert spool.contents(self.rows) == [self.contents[row.id] for row in self.rows]
        live = sum(len(part or b"") for content in self.contents.values() for part in content)
        assert _live_bytes(spool) == live
        assert spool.stored() >= live
        assert spool.file_room(2) == 600 - spool.stored()

    def run(
        self, steps: int, calls: str = "publish publish settle match release compact skip"
    ) -> None:
        for _ in range(steps):
            getattr(self, self.random.choice(calls.split()))()
            self.check()


@pytest.mark.parametrize("seed", range(8 * TIMES))
def test_a_spool_agrees_with_a_dict(seed: int) -> None:
    walk = Walk(seed)
    walk.run(200, "publish publish settle match release compact skip reload")
    while walk.rows:
        walk.release()
        walk.check()
    assert walk.spool.stored() == walk.spool.files_in_use() == 0
    walk.mark()
    assert not walk.store.pages, "an empty spool keeps no page"


@pytest.mark.parametrize("seed", range(4 * TIMES))
def test_a_replay_from_a_mark_writes_the_same_pages(seed: int) -> None:
    first = Walk(seed)
    for mark in range(6):
        first.run(30)
        state = first.mark()
        second = Walk(seed)
        second.store = DictStore(first.store.pages)
        second.load(state)
        second.contents, second.vpns = dict(first.contents), dict(first.vpns)
        second.rows = [copied(row) for row in first.rows]
        for walk in (first, second):
            walk.random.seed(mark)
            walk.run(30)
            assert walk.spool.memory_used() == first.spool.memory_used()
            assert walk.spool.stored() == first.spool.stored()
        assert first.mark() == second.mark()
        assert first.store.dump() == second.store.dump()


@pytest.mark.parametrize("seed", range(2 * TIMES))
def test_compaction_keeps_stored_bytes_near_live_bytes(seed: int) -> None:
    """S8: one message of many does not keep its block, however often that happens."""
    walk = Walk(seed)
    for _ in range(60):
        walk.run(5, "publish")
        walk.settle()
        walk.spool.write_to_blocks(walk.rows)
        walk.release(len(walk.rows))
        while walk.spool.compact():
            pass
        walk.check()
        live = _live_bytes(walk.spool)
        assert walk.spool.stored() <= 2 * live + TINY.store_slack_bytes


def test_ids_contain_the_brokers_number() -> None:
    spool = Spool(DictStore(), 3, SpoolState(), TINY)
    assert spool.next_id() == make_id(3, 1)
    assert spool.store(0, [(b"", None, None)], 0, 1) == make_id(3, 1)
    assert spool.skip_id() == make_id(3, 2)
    assert spool.next_counter == 3


def test_a_block_without_living_messages_is_deleted() -> None:
    """S2, S8: the last ack frees the room at once."""
    store = DictStore()
    spool = Spool(store, 1, SpoolState(), TINY)
    rows = [_row(n, spool.store(0, [(b"x" * 50, None, None)], 50, 1), 50) for n in range(6)]
    spool.write_to_blocks(rows)
    assert [key for key in store.pages if key.startswith("b/")] == ["b/1", "b/2", "b/3"]
    assert spool.files_in_use() == 1
    for row in rows:
        spool.release([row], 0)
    assert not store.pages
    assert spool.files_in_use() == 0


def test_a_missing_or_short_block_loses_only_its_contents() -> None:
    for spoil in (lambda page: None, lambda page: page[:7], lambda page: page[:30]):
        store = DictStore()
        spool = Spool(store, 1, SpoolState(), TINY)
        rows = [_row(n, spool.store(0, [(b"x" * 40, None, None)], 40, 1), 40) for n in range(9)]
        spool.write_to_blocks(rows)
        spool.mark()
        spoiled = spoil(store.pages.pop("b/1"))
        if spoiled is not None:
            store.pages["b/1"] = spoiled
        spool = Spool(store, 1, spool.state(), TINY)
        assert [spool.content(row) for row in rows[:3]] == [None] * 3
        assert all(spool.content(row) for row in rows[3:])
        for row in (rows[0], rows[1], rows[3], rows[4], rows[6]):
            spool.release([row], 0)
        while spool.compact(pressed=True):
            pass
        assert spool.content(rows[5]) == (b"x" * 40, None, None)
        for row in (rows[2], rows[5], rows[7], rows[8]):
            spool.release([row], 0)
        assert spool.stored() == spool.messages == 0
