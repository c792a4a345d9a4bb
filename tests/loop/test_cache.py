"""The page cache: reads return the last write, memory is bounded, and in the end the state has
every page."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lakequeue.state import DictStore
from lakequeue.streaming.loop import page_cache as module
from lakequeue.streaming.loop.page_cache import PAGE_BYTES, CacheClosed, PageCache


class State(DictStore):
    """A state that allows one call at a time, and counts the calls."""

    def __init__(
        self, pages: dict[str, bytes] | None = None, pause_s: float = 0.0, fails: str = ""
    ) -> None:
        super().__init__(pages)
        self.reads = self.writes = 0
        self.pause_s, self.fails = pause_s, fails
        self._busy = threading.Lock()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        assert self._busy.acquire(blocking=False), "two calls at once"
        try:
            yield
        finally:
            self._busy.release()

    def get(self, key: str) -> bytes | None:
        with self._alone():
            self.reads += 1
            return super().get(key)

    def put(self, key: str, value: bytes) -> None:
        with self._alone():
            self.writes += 1
            time.sleep(self.pause_s)
            if key == self.fails:
                raise RuntimeError(f"no room for {key}")
            super().put(key, value)

    def delete(self, key: str) -> None:
        with self._alone():
            assert key in self.pages, "a page was removed that does not exist"
            super().delete(key)

    def keys(self) -> set[str]:
        return set(self.pages)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() <= before


def save(cache: PageCache) -> None:
    """The end of a batch."""
    cache.hand_over()
    cache.writer.settle()


keys = st.sampled_from("abcdefgh")
pages = st.binary(max_size=20) | st.integers(90, 600).map(bytes)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("put"), keys, pages),
        st.tuples(st.just("get"), keys),
        st.tuples(st.just("delete"), keys),
        st.tuples(st.just("behind")),
        st.tuples(st.just("batch")),
    ),
    max_size=60,
)


def check_sizes(cache: PageCache, bytes_max: int) -> None:
    """The cache's sizes match its pages and stay within the limit."""
    large = {key for key, value in cache._clean.items() if len(value) >= module.LARGE_BYTES}
    assert set(cache._large) == large
    assert cache._large_bytes == sum(len(cache._clean[k]) + PAGE_BYTES for k in large)
    clean_bytes = sum(len(value) + PAGE_BYTES for value in cache._clean.values())
    assert cache.held_bytes == clean_bytes + cache.dirty_bytes
    assert clean_bytes <= bytes_max


@settings(max_examples=300)
@given(
    st.dictionaries(keys, pages), operations, st.integers(0, 4_000),
    st.sampled_from([None, -1.0, 10.0]),
)  # fmt: skip
def test_the_cache_behaves_like_a_store(
    first: dict[str, bytes], walk: list[tuple], bytes_max: int, large_kept_s: float | None
) -> None:
    """Both where large pages (here 100 bytes) are evicted at once, and where they stay for a
    while."""
    below, plain = State(first), DictStore(first)
    cache = PageCache(below, bytes_max)
    changed = {} if large_kept_s is None else {"LARGE_BYTES": 100, "LARGE_KEPT_S": large_kept_s}
    with patch.multiple(module, **changed) if changed else nullcontext():
        for name, *rest in walk:
            if name in ("put", "delete"):
                getattr(cache, name)(*rest)
                getattr(plain, name)(*rest)
            elif name == "get":
                assert cache.get(*rest) == plain.get(*rest)
            elif name == "behind":
                cache.write_behind()
            else:
                save(cache)
                assert below.pages == plain.pages
                cache.writer.detach()
                cache.writer.attach(below)
            check_sizes(cache, bytes_max)
        save(cache)
        assert below.pages == plain.pages
        assert cache.dirty_bytes == 0
        cache.write_behind()
        assert large_kept_s != -1.0 or not cache._large
        assert {key: cache.get(key) for key in plain.pages} == plain.pages
        save(cache)


def test_large_pages_that_are_not_read_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads of a deep queue go; small pages and pages in use stay."""
    below = State()
    cache = PageCache(below, 10_000_000)
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    for name in ("old", "read", "small"):
        cache.put(name, bytes(1_000 if name == "small" else 1_000_000))
    save(cache)
    for _ in range(3):
        now += 6.0
        assert cache.get("read") is not None
        cache.write_behind()
    assert cache.held_bytes == 1_001_000 + 2 * PAGE_BYTES
    assert below.reads == 0
    assert cache.get("old") == bytes(1_000_000)
    assert below.reads == 1
    cache.writer.close()


def test_large_pages_do_not_evict_small_ones() -> None:
    """A step needs the small ones to find messages, while payloads come in. Both fit where small
    ones are few."""
    below = State({f"small {n}": bytes(10_000) for n in range(50)})
    cache = PageCache(below, 1_000_000)
    for n in range(50):
        cache.get(f"small {n}")
    for n in range(20):
        cache.put(f"large {n}", bytes(200_000))
        save(cache)
    reads = below.reads
    assert all(cache.get(f"small {n}") for n in range(50))
    assert cache.get("large 19") is not None
    assert below.reads == reads
    for n in range(50):
        cache.delete(f"small {n}")
    for n in range(20, 24):
        cache.put(f"large {n}", bytes(200_000))
        save(cache)
    assert len(cache._large) == 4


def test_a_read_does_not_wait_for_writes_of_other_pages() -> None:
    """Only a read of the page that is being written waits."""
    below = State({"asked": b"1"}, pause_s=0.02)
    cache = PageCache(below, 0)
    for n in range(40):
        cache.put(f"{n}", b"x")
    cache.hand_over()
    for _ in range(3):
        time.sleep(0.03)
        before = below.writes
        assert cache.get("asked") == b"1"
        assert below.writes <= before + 2
    cache.writer.close()


def test_a_page_is_read_once_and_written_once() -> None:
    below = State({"a": b"1"})
    cache = PageCache(below, 10_000)
    for n in range(100):
        assert cache.get("a") is not None
        cache.put("a", b"%d" % n)
        cache.write_behind()
    save(cache)
    assert (below.reads, below.writes) == (1, 1)


def test_idle_pages_are_written_early(monkeypatch: pytest.MonkeyPatch) -> None:
    below = State()
    cache = PageCache(below, 1_000_000)
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    for n in range(100):
        now += module.REST_S / 10
        cache.put(f"spool {n}", b"x")
        cache.put("header", b"%d" % n)
        cache.write_behind()
    assert cache.written_pages > 80
    assert cache.dirty_bytes < 20 * (PAGE_BYTES + 1)
    monkeypatch.undo()
    save(cache)
    assert below.writes == 101, "the header was written more than once"


def test_pages_beyond_the_limit_are_written_early() -> None:
    below = State()
    cache = PageCache(below, 100_000)
    for n in range(100):
        cache.put(f"{n}", bytes(10_000))
        cache.write_behind()
    assert cache.dirty_bytes <= 60_000
    assert cache.held_bytes <= 110_000
    save(cache)
    assert len(below.pages) == 100


def test_clean_pages_are_evicted_first_least_recently_used_before_others() -> None:
    below = State({str(n): bytes(1_000) for n in range(10)})
    cache = PageCache(below, 5 * (1_000 + PAGE_BYTES))
    for n in range(10):
        cache.get(str(n))
    reads = below.reads
    cache.get("9")
    assert below.reads == reads, "evicted too early"
    cache.get("0")
    assert below.reads == reads + 1, "not evicted"
    cache.writer.close()


def test_a_failed_write_is_reported() -> None:
    below = State(fails="b")
    cache = PageCache(below, 0)
    cache.put("a", b"1")
    cache.put("b", b"2")
    with pytest.raises(RuntimeError, match="no room for b"):
        save(cache)


def test_an_abandoned_cache_writes_nothing_more() -> None:
    below = State(pause_s=0.05)
    cache = PageCache(below, 0)
    for n in range(50):
        cache.put(str(n), b"x")
    cache.write_behind()
    cache.writer.close()
    assert len(below.pages) <= 2


def test_between_batches_a_read_waits_for_a_page_outside_the_cache() -> None:
    below = State({"a": b"1", "b": b"2"})
    cache = PageCache(below, 10_000)
    cache.get("a")
    cache.writer.detach()
    assert cache.get("a") == b"1"
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(cache.get, "b")
        time.sleep(0.05)
        assert not reader.done()
        assert below.reads == 1, "the earlier batch's handle was used"
        cache.writer.attach(State({"b": b"3"}))
        assert reader.result(60) == b"3"
    assert cache.writer.waited_s > 0.04
    cache.writer.close()


def test_a_waiting_read_fails_when_the_cache_is_closed() -> None:
    cache = PageCache(State({"a": b"1"}), 10_000)
    cache.writer.detach()
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(cache.get, "a")
        time.sleep(0.05)
        cache.writer.close()
        with pytest.raises(CacheClosed):
            reader.result(60)


def test_a_batch_saves_the_pages_handed_over_and_none_written_later() -> None:
    below = State(pause_s=0.01)
    cache = PageCache(below, 10_000)
    for key in "abcdef":
        cache.put(key, b"1")
    cache.hand_over()
    cache.put("a", b"2")  # a step, while the batch saves
    cache.delete("b")
    cache.writer.settle()
    cache.writer.detach()
    assert below.pages == dict.fromkeys("abcdef", b"1")
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (b"2", None, b"1")
    cache.writer.attach(below)
    save(cache)
    assert below.pages == {**dict.fromkeys("cdef", b"1"), "a": b"2"}
