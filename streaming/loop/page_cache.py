"""A cache of pages in the worker's memory, in front of the operator's state.

A batch is long, and most pages change many times in it; the cache writes each to the state once. A
page is *dirty* if the state does not have it, *leaving* while a thread writes it, and *clean* if it
equals the state. A dirty page that has not changed for a while is written early, so that the end of
the batch has little to write. When room is short, the cache drops clean pages. Large pages have
payloads or segments of cold rows, and steps read most of them at most once. They are dropped if no
step reads them for a while, and before other pages if they use more than an eighth of the cache.
Otherwise a million new messages would push out the small pages that steps need.

Between two batches there is no state to read. Steps continue with the pages in memory, and a step
that needs another one waits for the next batch. The stepping thread uses the cache; the batch
attaches, settles and detaches its `writer`.

The cache is valid only while the state is the one that it wrote, see `loop.Loop`.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from ...protocol.errors import LakequeueError
from ...state import Store

# a page that has not changed for this long is stable: most of its messages are gone by then
REST_S = 5.0
LEAVING_BYTES_MAX = 8_000_000
LARGE_BYTES = 16_000
LARGE_SHARE = 8  # the share of the cache for large pages
LARGE_KEPT_S = 10.0  # a clean large page is dropped after this time without a read
PAGE_BYTES = 200  # memory of a page besides its content


class CacheClosed(LakequeueError):
    """The cache was closed while a step waited for a page."""


class Pages(Store, Protocol):
    """The store below the cache, which can also list its pages. It allows one call at a time."""

    def keys(self) -> set[str]:
        """Every page's key."""


class PageCache:
    """A store in front of ``below``. bytes_max: of all pages; dirty ones may exceed it until they
    are written.

    written_bytes, written_pages: written to the state since `count_anew`.
    """

    def __init__(self, below: Pages, bytes_max: int) -> None:
        self._max = bytes_max
        self._there = below.keys()
        self._clean: OrderedDict[str, bytes] = OrderedDict()
        self._clean_bytes = 0
        # clean pages, and when each was last used
        self._large: OrderedDict[str, float] = OrderedDict()
        self._large_bytes = 0
        self._dirty: dict[str, tuple[bytes | None, float]] = {}  # the oldest unwritten page first
        self.dirty_bytes = 0
        self.misses = 0
        self.writer = Writer()
        self.count_anew()
        self.writer.attach(below)

    def count_anew(self) -> None:
        """Reset the counts of written pages."""
        self.written_bytes = self.written_pages = 0

    @property
    def held_bytes(self) -> int:
        """The bytes that the cache holds."""
        return self._clean_bytes + self.dirty_bytes

    # ------------------------------------------------------------ the store

    def get(self, key: str) -> bytes | None:
        """The page, or None."""
        found = self._dirty.get(key)
        if found is not None:
            return found[0]
        value = self._clean.get(key)
        if value is not None:
            self._clean.move_to_end(key)
            self._used(key, value)
            return value
        if key not in self._there:
            return None
        self.misses += 1
        value = self.writer.get(key)
        if value is not None:
            self._keep(key, value)
        return value

    def put(self, key: str, value: bytes) -> None:
        """Write a page."""
        self._forget(key)
        self._dirty[key] = (value, time.monotonic())
        self.dirty_bytes += len(value) + PAGE_BYTES

    def delete(self, key: str) -> None:
        """Remove a page; one that is not there is no error."""
        self._forget(key)
        if key in self._there:
            self._dirty[key] = (None, time.monotonic())
            self.dirty_bytes += PAGE_BYTES

    def _forget(self, key: str) -> None:
        dirty = self._dirty.pop(key, None)
        if dirty is not None:
            self.dirty_bytes -= len(dirty[0] or b"") + PAGE_BYTES
            return
        if key in self._clean:
            self._let_go(key)

    def _let_go(self, key: str) -> None:
        size = len(self._clean.pop(key)) + PAGE_BYTES
        self._clean_bytes -= size
        if self._large.pop(key, None) is not None:
            self._large_bytes -= size

    def _used(self, key: str, value: bytes) -> None:
        if len(value) >= LARGE_BYTES:
            self._large[key] = time.monotonic()
            self._large.move_to_end(key)

    def _keep(self, key: str, value: bytes) -> None:
        size = len(value) + PAGE_BYTES
        self._clean[key] = value
        self._clean_bytes += size
        if len(value) >= LARGE_BYTES:
            self._large_bytes += size
        self._used(key, value)
        while self._clean and self.held_bytes > self._max:
            large = self._large_bytes > self._max // LARGE_SHARE
            self._let_go(next(iter(self._large if large else self._clean)))

    # ------------------------------------------------------------ writing

    def write_behind(self) -> None:
        """Write pages that have not changed for a while or do not fit, and drop large pages that no
        step reads. Called between two steps."""
        now = time.monotonic()
        while self._large and now - self._large[key := next(iter(self._large))] > LARGE_KEPT_S:
            self._let_go(key)
        rested = now - REST_S
        while self._dirty and self.writer.bytes < LEAVING_BYTES_MAX:
            key = next(iter(self._dirty))
            if self._dirty[key][1] > rested and self.dirty_bytes < self._max // 2:
                break
            self._leave(key)

    def _leave(self, key: str) -> None:
        value, _ = self._dirty.pop(key)
        size = len(value or b"") + PAGE_BYTES
        self.dirty_bytes -= size
        self.written_bytes += size
        self.written_pages += 1
        if value is None:
            self._there.discard(key)
        else:
            self._there.add(key)
            self._keep(key, value)
        self.writer.write(key, value)

    def put_to_state(self, key: str, value: bytes) -> None:
        """Write a page of a mark that was already handed over; it goes to the state, not into the
        cache."""
        self.put(key, value)
        self._leave(key)

    def hand_over(self) -> None:
        """Write all dirty pages to the state as they are now. Called between two steps."""
        for key in list(self._dirty):
            self._leave(key)


class Writer:
    """Writes pages in its own thread, in the order in which they come, while steps continue.
    waited_s: how long steps waited for a batch because they needed a page."""

    def __init__(self) -> None:
        self._below: Pages | None = None
        self._calls = threading.Condition()  # a handle takes one call at a time
        self._changed = threading.Condition()
        self._queue: deque[tuple[str, bytes | None]] = deque()
        self._newest: dict[str, bytes | None] = {}
        self._thread: threading.Thread | None = None
        self._end = self._closed = False
        self._reads = False  # a step waits for a page: reads go before writes
        self._failure: BaseException | None = None
        self.bytes = 0
        self.waited_s = 0.0

    def attach(self, below: Pages) -> None:
        """Use the handle of a batch that begins; it has the same pages."""
        self._end = False
        with self._calls:
            self._below = below
            self._calls.notify_all()

    def detach(self) -> None:
        """Stop using the handle of a batch that ends. Readers wait for the next one."""
        with self._calls:
            self._below = None

    def get(self, key: str) -> bytes | None:
        """A page from the state, or its newer content that is not written yet."""
        with self._changed:
            if key in self._newest:
                return self._newest[key]
        self._reads = True
        with self._calls:
            try:
                return self._there().get(key)
            finally:
                self._reads = False
                self._calls.notify_all()

    def call(self, what: Callable[[], None]) -> None:
        """Call the handle for something other than a page."""
        with self._calls:
            what()

    def _there(self) -> Pages:
        begun = time.monotonic()
        while self._below is None:
            if self._closed:
                raise CacheClosed("the state is gone: the engine begins again from its snapshot")
            self._calls.wait()
            self.waited_s += time.monotonic() - begun
            begun = time.monotonic()
        return self._below

    def write(self, key: str, value: bytes | None) -> None:
        """Queue a page to be written, or to be removed (None)."""
        with self._changed:
            if self._failure is not None:
                raise self._failure
            self._queue.append((key, value))
            self._newest[key] = value
            self.bytes += len(value or b"")
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="lakequeue-state")
            self._thread.start()

    def settle(self) -> None:
        """Wait until all pages are written. Raises the thread's error."""
        self._end_thread()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the thread and drop unwritten pages."""
        with self._changed:
            self._queue.clear()
        with self._calls:
            self._closed = True
            self._below = None
            self._calls.notify_all()
        self._end_thread()

    def _end_thread(self) -> None:
        with self._changed:
            self._end = True
            self._changed.notify()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not self._queue:
                        if self._end:
                            return
                        self._changed.wait()
                    key, value = self._queue[0]
                with self._calls:
                    while self._reads:
                        self._calls.wait()
                    below = self._there()
                    if value is None:
                        below.delete(key)
                    else:
                        below.put(key, value)
                with self._changed:
                    if self._queue:
                        self._queue.popleft()
                    self.bytes -= len(value or b"")
                    if self._newest.get(key) is value:
                        self._newest.pop(key, None)
        except BaseException as error:  # raised at the next call of the cache
            self._failure = error
