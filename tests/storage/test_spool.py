"""The spool against a dict of messages; compaction against its promise."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lakequeue.protocol.ids import make_id
from lakequeue.state.limits import Limits
from lakequeue.state.storage import (
    PAST,
    Content,
    CountingStore,
    DictStore,
    MessagePage,
    Spool,
    SpoolHeader,
)
from lakequeue.state.storage.files import Files
from storage.tiny import TINY

BROKER = 3


@dataclass
class Held:
    content: Content
    size: int
    queues: dict[int, int]  # queue → place

    @property
    def span(self) -> int:
        return sum(len(part) for part in self.content if part)


@dataclass
class Walk:
    """A spool and the model of it."""

    limits: Limits = TINY
    store: DictStore = field(default_factory=DictStore)
    header: SpoolHeader = field(default_factory=SpoolHeader)
    model: dict[int, Held] = field(default_factory=dict)
    places: int = 0

    def __post_init__(self) -> None:
        self.load(self.store)

    def load(self, store: Any) -> None:
        self.header = msgspec.msgpack.decode(
            msgspec.msgpack.encode(self.header), type=SpoolHeader, strict=False
        )
        self.spool = Spool(store, self.header, BROKER, self.limits)

    def reload(self) -> bool:
        left = self.spool.flush()
        self.load(self.store)
        return left

    def stage(self, payloads: list[bytes], key: Any, headers: Any, queues: list[int]) -> None:
        matches = [(queue, self.places) for queue in queues]
        sizes = [len(p) for p in payloads]
        times = [5] * len(payloads)
        first = self.spool.stage(payloads, key, headers, sizes, times, 9, 4, True, 1, matches)
        assert first == make_id(BROKER, self.header.next_counter - len(payloads))
        for i, payload in enumerate(payloads):
            held = dict.fromkeys(queues, self.places + i)
            self.model[first + i] = Held((payload, key, headers), len(payload), held)
        self.places += len(payloads)

    def release(self, queue: int, every: int) -> None:
        self.spool.settle_staged()
        ids = [i for i in self.model if queue in self.model[i].queues][::every]
        self.spool.release(queue, np.array(ids, np.uint64))
        for number in ids:
            del self.model[number].queues[queue]
            if not self.model[number].queues:
                del self.model[number]

    def move(self, source: int, target: int) -> None:
        self.spool.settle_staged()
        for number, held in self.model.items():
            if source in held.queues and target not in held.queues:
                self.spool.move(number, source, (target, self.places))
                del held.queues[source]
                held.queues[target] = self.places
                self.places += 1
                return

    def add(self, target: int) -> None:
        self.spool.settle_staged()
        for number, held in self.model.items():
            if target not in held.queues:
                self.spool.add(number, (target, self.places))
                held.queues[target] = self.places
                self.places += 1
                return

    def compact_all(self) -> None:
        calls = 0
        while self.spool.compact() | self.reload():
            calls += 1
            assert calls < 500, "compaction does not end"

    def check(self) -> None:
        spool, model, header = self.spool, self.model, self.spool.header
        spool.settle_staged()
        ids = np.array(list(model), np.uint64)
        assert spool.contents(ids) == [held.content for held in model.values()]
        for queue in (1, 2):
            mine = {i: h.queues[queue] for i, h in model.items() if queue in h.queues}
            found, seqs = spool.held_by([(0, 2**64 - 1)], queue)
            assert dict(zip(found.tolist(), seqs.tolist(), strict=True)) == mine
            for number in list(model)[:3]:
                assert spool.holds(number, queue) == (number in mine)
        assert header.messages == len(model)
        assert header.bytes == header.vpn_bytes.get(1, 0) == sum(h.size for h in model.values())
        self.check_files()

    def check_files(self) -> None:
        header, files = self.spool.header, self.spool.overview()["by_file"]
        live: dict[int, list[int]] = {}
        ids = np.array(list(self.model), np.uint64)
        for number, held in zip(self.spool.gather(ids, "file"), self.model.values(), strict=True):
            entry = live.setdefault(int(number), [0, 0])
            entry[0] += 1
            entry[1] += held.span
        assert live == {
            n: [f["messages"], f["live_bytes"]] for n, f in files.items() if f["messages"]
        }
        assert header.live_bytes == sum(h.span for h in self.model.values())
        assert header.stored_bytes == sum(f["stored_bytes"] for f in files.values())
        assert self.spool.files_in_use() == len(live)
        for number, f in files.items():
            assert (f["fill"] == 0) == (number != header.file and not f["messages"])

    def check_pages(self) -> None:
        """After `flush`: what is in the store is what is known, and nothing besides."""
        files = self.spool.overview()["by_file"]
        keys = self.store.pages
        blocks = [b for f in files.values() for b in _blocks(f)]
        assert len(blocks) == len(set(blocks))
        assert {int(k[2:]) for k in keys if k[0] == "b"} <= set(blocks)
        moved = {f"f/moved/{n}/{i}" for n, f in files.items() for i in range(f["moved"])}
        assert {k for k in keys if k.startswith("f/moved/")} == moved
        if not self.spool.files.has_empty():
            stored = sum(len(v) for k, v in keys.items() if k[0] == "b")
            assert stored == self.spool.header.stored_bytes


def _blocks(f: dict[str, int]) -> range:
    return range(f["first_block"], f["first_block"] + f["blocks"])


payloads = st.lists(st.binary(max_size=18), min_size=1, max_size=6)
small = st.one_of(st.none(), st.binary(max_size=3))
ops = st.lists(
    st.one_of(
        st.tuples(st.just("stage"), payloads, small, small.map(lambda h: h or None),
                  st.sampled_from([[1], [2], [1, 2]])),
        st.tuples(st.just("release"), st.sampled_from([1, 2]), st.integers(1, 3)),
        st.tuples(st.just("move"), st.sampled_from([(1, 2), (2, 1)])),
        st.tuples(st.just("add"), st.sampled_from([1, 2])),
        st.tuples(st.just("compact"), st.booleans()),
        st.tuples(st.just("reload")),
    ),
    max_size=30,
)  # fmt: skip


def run(given_ops: list[Any], always_reload: bool = False) -> Walk:
    walk = Walk()
    for op, *what in given_ops:
        if op == "stage":
            walk.stage(*what)
        elif op == "release":
            walk.release(*what)
        elif op == "move":
            walk.move(*what[0])
        elif op == "add":
            walk.add(*what)
        elif op == "compact":
            walk.spool.compact(pressed=what[0])
        if op == "reload" or always_reload:
            walk.reload()
            walk.check_pages()
        walk.check()
    walk.reload()
    return walk


@given(ops)
def test_it_is_a_dict_of_messages(given_ops: list[Any]) -> None:
    walk = run(given_ops)
    walk.check()
    walk.check_pages()


@given(ops)
def test_saved_and_loaded_anywhere_it_holds_the_same(given_ops: list[Any]) -> None:
    walk = run(given_ops, always_reload=True)
    again = run(given_ops, always_reload=True)
    assert walk.store.dump() == again.store.dump()
    assert walk.model == run(given_ops).model


@given(ops)
def test_what_is_stored_is_at_most_twice_what_lives_and_a_slack(given_ops: list[Any]) -> None:
    walk = run(given_ops)
    walk.compact_all()
    walk.check()
    walk.check_pages()
    header = walk.spool.header
    assert header.stored_bytes <= 2 * header.live_bytes + TINY.store_slack_bytes


@given(ops)
def test_emptied_it_keeps_no_page_but_the_last(given_ops: list[Any]) -> None:
    walk = run(given_ops)
    walk.release(1, 1)
    walk.release(2, 1)
    while walk.reload():
        walk.check_pages()
    assert {key[0] for key in walk.store.pages} <= {"m"}
    assert len(walk.store.pages) <= 1
    assert (walk.spool.files_in_use(), walk.spool.header.stored_bytes) == (0, 0)


def sparse(limits: Limits, n: int, every: int, size: int) -> Walk:
    """``n`` messages, 50 in a step, of which one in ``every`` lives."""
    walk = Walk(limits)
    for start in range(0, n, 50):
        several = min(50, n - start)
        walk.stage([b"x" * size] * several, None, None, [1])
        walk.spool.settle_staged()
        dead = [i for i in range(start, start + several) if i % every]
        walk.spool.release(1, np.array([make_id(BROKER, i + 1) for i in dead], np.uint64))
        for i in dead:
            del walk.model[make_id(BROKER, i + 1)]
        while walk.reload():
            pass
    return walk


def test_one_live_message_does_not_keep_a_file() -> None:
    limits = Limits(file_bytes=10_000, block_bytes=2_000, store_slack_bytes=20_000)
    walk = sparse(limits, 5_000, 100, 100)
    assert walk.spool.header.stored_bytes > 400_000
    assert walk.spool.files_in_use() == 50
    walk.compact_all()
    walk.check()
    walk.check_pages()
    header = walk.spool.header
    assert header.live_bytes == 5_000
    assert header.stored_bytes <= 2 * header.live_bytes + 20_000


def test_pressed_it_frees_files_that_hold_little() -> None:
    """A dead message queue with few, old messages must not end in `spool_files` (S8)."""
    limits = Limits(file_bytes=10_000, block_bytes=2_000)
    walk = sparse(limits, 5_000, 100, 100)
    assert walk.spool.compact() is False, "the slack is not used up"
    while walk.spool.compact(pressed=True) | walk.reload():
        assert walk.spool.files_in_use() <= 51
    assert walk.spool.files_in_use() == 1
    walk.check()
    walk.check_pages()


def test_moved_messages_are_moved_again() -> None:
    limits = Limits(page_bits=3, file_bytes=5_000, block_bytes=1_000, store_slack_bytes=6_000,
                    compact_bytes_per_step=700)  # fmt: skip
    walk = sparse(limits, 4_000, 10, 100)
    walk.compact_all()
    files = walk.spool.overview()["by_file"]
    assert sum(f["moved"] for f in files.values()) > 20
    walk.release(1, 2)
    walk.compact_all()
    walk.release(1, 3)
    walk.compact_all()
    walk.check()
    walk.check_pages()
    header = walk.spool.header
    assert header.stored_bytes <= 2 * header.live_bytes + 6_000


@pytest.mark.parametrize("size", [0, 1, 90])
def test_a_call_moves_and_reads_a_bounded_amount(size: int) -> None:
    limits = Limits(
        page_bits=3,
        file_bytes=2_000,
        block_bytes=500,
        store_slack_bytes=0,
        compact_bytes_per_step=300,
        compact_looks_per_step=5,
        deletes_per_step=4,
    )
    walk = sparse(limits, 2_000, 4, size)
    calls = 0
    while True:
        counting = CountingStore(walk.store)
        walk.load(counting)
        before = walk.spool.header.next_block
        more = walk.spool.compact(pressed=True)
        # Pages of messages and of moved ids, blocks, and the way to two files.
        assert len(counting.reads) <= 5 + 4
        written = range(before, walk.spool.header.next_block)
        assert sum(len(walk.store.get(f"b/{b}") or b"") for b in written) <= 300
        more |= walk.spool.flush()
        deleted = {k for k in counting.writes if k not in walk.store.pages}
        assert len([k for k in deleted if k[0] == "b" or k.startswith("f/moved/")]) <= 4
        calls += 1
        if not more:
            break
        assert calls < 3_000
    walk.load(walk.store)
    walk.check()


def test_a_block_that_is_missing_is_not_an_empty_payload() -> None:
    walk = Walk()
    walk.stage([b"", b"x" * 10, b"y" * 10, b"z"], None, None, [1])
    walk.reload()
    ids = np.array(list(walk.model), np.uint64)
    (first, *_) = sorted(k for k in walk.store.pages if k[0] == "b")
    walk.store.delete(first)
    walk.load(walk.store)
    assert walk.spool.contents(ids) == [(b"", None, None), None, None, (b"z", None, None)]
    walk.store.put(first, b"short")
    walk.load(walk.store)
    assert walk.spool.contents(ids)[1] is None


def test_compaction_goes_past_what_is_lost() -> None:
    limits = Limits(file_bytes=1_000, block_bytes=200, store_slack_bytes=0)
    walk = sparse(limits, 99, 3, 100)
    walk.store.delete("b/1")
    walk.load(walk.store)
    while walk.spool.compact(pressed=True) | walk.reload():
        pass
    contents = walk.spool.contents(np.array(list(walk.model), np.uint64))
    assert contents[0] is None
    assert [c and c[0] for c in contents[1:]] == [b"x" * 100] * 32
    assert 1 not in walk.spool.overview()["by_file"], "the file is freed"


def test_what_arrived_in_this_step_is_not_read_back() -> None:
    """S12."""
    walk = Walk()
    counting = CountingStore(walk.store)
    walk.load(counting)
    walk.stage([b"abc"] * 5, b"k", b"h", [1])
    walk.spool.settle_staged()
    assert walk.spool.contents(np.array(list(walk.model), np.uint64)) == [(b"abc", b"k", b"h")] * 5
    assert [key for key in counting.reads if key[0] == "b"] == []


def test_a_queue_that_held_a_message_is_remembered_while_others_hold_it() -> None:
    walk = Walk()
    walk.stage([b"a"], None, None, [1, 2])
    (number,) = walk.model
    walk.release(1, 1)
    walk.reload()
    ids = np.array([number], np.uint64)
    assert walk.spool.were_held(ids, 1).tolist() == [True]
    assert walk.spool.were_held(ids, 5).tolist() == [False]
    page = MessagePage.unpack(0, walk.store.pages["m/0"], TINY.page_bits)
    assert [1, PAST] in page.extras[1]


def test_blocks_count_as_looks() -> None:
    """Messages that came one by one have a block each."""
    limits = Limits(file_bytes=400, store_slack_bytes=0, compact_looks_per_step=4)
    walk = Walk(limits)
    for n in range(40):
        walk.stage([b"x" * 10], None, None, [1] if n % 4 == 0 else [2])
        walk.reload()
    walk.release(2, 1)
    walk.reload()
    calls = 0
    while True:
        counting = CountingStore(walk.store)
        walk.load(counting)
        if not walk.spool.compact(pressed=True) | walk.spool.flush():
            break
        assert len([key for key in counting.reads if key[0] == "b"]) <= 3
        calls += 1
    walk.load(walk.store)
    walk.check()
    assert calls >= 4
    assert walk.spool.header.stored_bytes == walk.spool.header.live_bytes == 100


def test_S8_the_room_of_files() -> None:
    walk = Walk()
    assert walk.spool.file_room(2) == 120
    walk.stage([b"x" * 18] * 3, None, None, [1])
    walk.reload()
    assert (walk.spool.files_in_use(), walk.spool.file_room(2)) == (1, 120 - 54)
    walk.stage([b"x" * 18], None, None, [1])
    walk.reload()
    assert (walk.spool.files_in_use(), walk.spool.file_room(2)) == (1, 60), "closed behind 60"
    walk.stage([b"x" * 5], None, None, [1])
    walk.reload()
    assert (walk.spool.files_in_use(), walk.spool.file_room(2)) == (2, 55)
    walk.release(1, 1)
    assert (walk.spool.files_in_use(), walk.spool.file_room(2)) == (0, 115)
    walk.reload()
    assert walk.spool.file_room(2) == 120


def test_what_did_not_change_is_not_written() -> None:
    walk = Walk()
    walk.stage([b"a", b"b"], None, None, [1])
    walk.reload()
    counting = CountingStore(walk.store)
    walk.load(counting)
    walk.check()
    walk.spool.flush()
    assert counting.writes == []
    walk.release(1, 2)
    walk.spool.flush()
    counting.reset()
    walk.spool.flush()
    assert counting.writes == []


@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.lists(st.integers(0, 11)))
def test_rows_of_files_written_late_are_as_rows_written_at_once(sizes, gone) -> None:
    def dump(at_once: bool) -> bytes:
        store, header = DictStore(), SpoolHeader()
        files = Files(store, header, TINY)
        held: list[tuple[int, int]] = []
        for at, size in enumerate(sizes):
            held.append((files.put(b"x" * 9 * size, size, 9 * size, (at, at))[1], size))
            if at_once:
                files.settle()
        for at in dict.fromkeys(one for one in gone if one < len(held)):
            files.remove(held[at][0], held[at][1], 9 * held[at][1])
            if at_once:
                files.settle()
        files.free()
        files.flush()
        return store.dump() + msgspec.msgpack.encode(header)

    assert dump(at_once=False) == dump(at_once=True)
