"""Pages of columns, and grouping by page, against plain lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lakequeue.state.limits import Limits
from lakequeue.state.storage import NEVER, ColumnPage, by_page, holds_any, uniform


class Page(ColumnPage):
    FIELDS = (("id", "<u8", 7), ("state", "|u1", 1), ("until", "<i8", NEVER))
    __slots__ = ("id", "state", "until")


u64, i64 = st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1)
rows = st.lists(st.tuples(u64, st.integers(0, 255), i64), max_size=4)


def page_of(content: list[tuple[int, int, int]], extras: dict[int, str]) -> Page:
    page = Page(3, 2)
    for row, values in enumerate(content):
        page.id[row], page.state[row], page.until[row] = values
    page.used = len(content)
    page.extras = extras
    return page


@given(rows, st.dictionaries(st.integers(0, 3), st.text()))
def test_a_page_is_what_was_packed_and_equal_pages_are_equal_bytes(content, extras) -> None:
    extras = {row: text for row, text in extras.items() if row < len(content)}
    data = page_of(content, extras).pack()
    page = Page.unpack(3, data, 2)
    assert (page.number, page.base, page.used, page.dirty) == (3, 12, len(content), False)
    seen = [(r["id"], r["state"], r["until"]) for r in page.overview()]
    assert seen == content
    assert {i: r["extra"] for i, r in enumerate(page.overview()) if "extra" in r} == extras
    for row in range(len(content), 4):
        assert (page.id[row], page.state[row], page.until[row]) == (7, 1, NEVER)
    assert page.pack() == data
    assert page_of(content, dict(reversed(extras.items()))).pack() == data


@given(st.integers(0, 2**62), st.integers(1, 4))
def test_columns_that_are_constant_or_count_up_take_a_few_bytes(first: int, n: int) -> None:
    content = [(first + i, 1, NEVER) for i in range(n)]
    page = Page.unpack(3, page_of(content, {}).pack(), 2)
    assert page.id[:n].tolist() == [c[0] for c in content]
    assert len(page.pack()) < 40


@given(st.lists(st.integers(0, 60)), st.integers(1, 5))
def test_by_page_groups_in_order(numbers: list[int], bits: int) -> None:
    seen: dict[int, list[tuple[int, int]]] = {}
    for page, in_page, where in by_page(np.array(numbers, np.int64), bits):
        assert page not in seen
        places = np.arange(len(numbers))[where].tolist()
        seen[page] = list(zip(in_page.tolist(), places, strict=True))
    assert list(seen) == sorted({n >> bits for n in numbers})
    for page, found in seen.items():
        assert found == [
            (n & (1 << bits) - 1, i) for i, n in enumerate(numbers) if n >> bits == page
        ]


@pytest.mark.parametrize(
    ("name", "value"),
    [("page_bits", 0), ("page_bits", 16), ("leaf_keys", 1), ("deletes_per_step", 0)],
)
def test_a_limit_that_cannot_be_is_named(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name}: {value} – must be .* or"):
        Limits(**{name: value})


@given(st.lists(st.integers(0, 2), min_size=1, max_size=4))
def test_a_column_holds_something_where_a_value_is_not_zero(values: list[int]) -> None:
    assert holds_any(uniform(values, np.uint8)) == any(values)
    assert holds_any(np.array(values, np.uint8)) == any(values)
