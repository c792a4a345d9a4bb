"""Pages as objects, beside the bytes that they were written as or read from.

Most pages that a step reads, the step before has written. To take them apart again costs a small
step more than what it does. So whoever has written a page *keeps* it here with its bytes, and
whoever is given these very bytes by a store *takes* it: the same object in memory, not equal ones,
so a page cannot be another than its bytes say, whatever store they lie in. Who takes a page owns
it; it is not here until it is kept again. So what a step that failed did to a page is forgotten
with the step, and nothing but time depends on what is here.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

PAGES_KEPT = 128  # of at most some 80 KB


class PageMemo:
    """The pages that were kept last, of whatever broker."""

    def __init__(self, most: int = PAGES_KEPT) -> None:
        self._most = most
        self._pages: OrderedDict[int, tuple[bytes, Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pages)

    def take(self, data: bytes) -> Any:
        """The page that was kept with these bytes, or None; it is the caller's now."""
        # What is kept holds its bytes, so no other object has their identity meanwhile.
        known = self._pages.pop(id(data), None)
        return None if known is None or known[0] is not data else known[1]

    def keep(self, data: bytes, page: Any) -> None:
        """A page that is what these bytes say, and that nobody changes from now on."""
        self._pages[id(data)] = (data, page)
        if len(self._pages) > self._most:
            self._pages.popitem(last=False)


MEMO = PageMemo()
