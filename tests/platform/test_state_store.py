"""The adapter to Spark's state: what is written by its thread is written, and in one order."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from lakequeue.streaming.state_store import LARGE, HandleStore


class Handle:
    """Spark's handle of one map state: takes one call at a time, some of them slow."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.threads: set[str] = set()
        self.pause_s = 0.0
        self.fails: str | None = None
        self._busy = threading.Lock()

    def getMapState(self, *_: Any) -> "Handle":
        return self

    def getValue(self, key: tuple[str]) -> tuple[bytes] | None:
        with self._call(key[0]):
            return (self.kept[key[0]],) if key[0] in self.kept else None

    def updateValue(self, key: tuple[str], value: tuple[bytes]) -> None:
        with self._call(key[0]):
            self.kept[key[0]] = value[0]

    def removeKey(self, key: tuple[str]) -> None:
        with self._call(key[0]):
            self.kept.pop(key[0], None)

    def _call(self, key: str) -> "Handle":
        assert self._busy.acquire(blocking=False), "two calls at once on one socket"
        self.threads.add(threading.current_thread().name)
        time.sleep(self.pause_s)
        if key == self.fails:
            self._busy.release()
            raise RuntimeError(f"no room for {key}")
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._busy.release()


BLOCK = bytes(LARGE)


@pytest.fixture
def handle() -> Iterator[Handle]:
    before = threading.active_count()
    yield Handle()
    assert threading.active_count() == before, "a thread is left behind"


def test_small_pages_need_no_thread(handle: Handle) -> None:
    store = HandleStore(handle)  # type: ignore[arg-type]
    store.put("a", b"1")
    store.delete("b")
    assert store.get("a") == b"1"
    assert handle.threads == {"MainThread"}
    store.finish()


def test_all_is_written_in_order_when_it_is_finished(handle: Handle) -> None:
    handle.pause_s = 0.002
    store = HandleStore(handle)  # type: ignore[arg-type]
    for n in range(20):
        store.put(f"b/{n}", BLOCK + b"%d" % n)
    store.put("note", b"old")
    store.put("note", b"new")
    store.put("gone", b"here")
    store.delete("gone")
    store.delete("b/3")
    assert len(handle.kept) < 20, "nothing was left to the thread"
    store.finish()
    assert set(handle.kept) == {"note", *(f"b/{n}" for n in range(20) if n != 3)}
    assert handle.kept["note"] == b"new"
    assert handle.kept["b/7"] == BLOCK + b"7"


def test_what_was_put_is_read(handle: Handle) -> None:
    handle.pause_s = 0.005
    handle.kept["old"] = b"before"
    store = HandleStore(handle)  # type: ignore[arg-type]
    for n in range(5):
        store.put(f"b/{n}", BLOCK)
    store.put("note", b"new")
    assert store.get("old") == b"before"
    assert store.get("note") == b"new"
    store.delete("old")
    assert store.get("old") is None
    store.finish()


def test_what_could_not_be_written_fails_the_step(handle: Handle) -> None:
    """Spark runs the batch again from the state that it began with."""
    handle.fails = "b/1"
    store = HandleStore(handle)  # type: ignore[arg-type]
    for n in range(3):
        store.put(f"b/{n}", BLOCK)
    with pytest.raises(RuntimeError, match="no room for b/1"):
        store.finish()
