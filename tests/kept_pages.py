"""A page that is taken from the memo must be what its bytes say: held to it at every take."""

from typing import Any

import pytest
from lakequeue.state.storage import columns, index_pages, ready_index
from lakequeue.state.storage.memo import MEMO, PageMemo


class VerifiedMemo(PageMemo):
    """Takes each page apart once more, and compares."""

    def __init__(self, most: int = MEMO._most) -> None:
        super().__init__(most)
        self.taken = 0

    def take(self, data: bytes) -> Any:
        page = super().take(data)
        if page is not None:
            self.taken += 1
            assert content(page) == content(decoded(page, data)), f"{page} is not what it was"
        return page


def decoded(page: Any, data: bytes) -> Any:
    """The page that the bytes say."""
    if isinstance(page, columns.ColumnPage):
        return type(page).unpack(page.number, data, page.bits)
    level = page.level if isinstance(page, index_pages.Branch) else 0
    return index_pages.unpack(page.page, level, data, len(page))


def content(page: Any) -> Any:
    """All of a page, and of which types it is."""
    if not isinstance(page, columns.ColumnPage):
        return page
    rows = {name: getattr(page, name) for name, _, _ in page.FIELDS}
    kinds = {name: (column.dtype, column.tolist()) for name, column in rows.items()}
    return page.number, page.used, page.extras, page.dirty, page.stored, kinds


def use(patch: pytest.MonkeyPatch, memo: PageMemo) -> None:
    """Let the pages of all stores be kept in this memo."""
    patch.setattr(columns, "MEMO", memo)
    patch.setattr(ready_index, "MEMO", memo)
