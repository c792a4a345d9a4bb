"""Few numbers and many: the same ends, the same sum, the same share of a budget."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lakequeue.state.few import FEW, ends_of, greatest_of, least_of, total_of
from lakequeue.state.limits import Budget, Limits
from lakequeue.state.storage import NEVER, DictStore, Directory

i64 = st.integers(-(2**63), 2**63 - 1)
u32 = st.integers(0, 2**32 - 1)


@given(st.lists(i64, min_size=1, max_size=5))
def test_few_and_many_numbers_have_the_same_ends(numbers: list[int]) -> None:
    few = np.array(numbers, np.int64)
    many = np.array(numbers * FEW + numbers, np.int64)
    for given_numbers in (few, many):
        assert ends_of(given_numbers) == (min(numbers), max(numbers))
        assert (least_of(given_numbers), greatest_of(given_numbers)) == ends_of(few)


@given(st.lists(u32, max_size=5), st.sampled_from([1, FEW]))
def test_a_sum_is_wider_than_its_numbers(numbers: list[int], times: int) -> None:
    assert total_of(np.array(numbers * times, np.uint32)) == sum(numbers) * times


@given(st.lists(u32, max_size=5), st.sampled_from([1, FEW]), st.integers(-5, 2**40))
def test_a_budget_fits_what_is_within_it_and_one_at_least(
    sizes: list[int], times: int, room: int
) -> None:
    sizes *= times
    fitting = sum(sum(sizes[: n + 1]) <= room for n in range(len(sizes)))
    fits = Budget(1, room).fits(np.array(sizes, np.uint32))
    assert fits == min(max(fitting, 1), len(sizes))


@pytest.mark.parametrize("pages", [1, FEW, FEW + 1, 300])
def test_a_tree_sums_up_few_rows_as_many(pages: int) -> None:
    """Also after rows in its middle, and the last ones, are gone."""
    store, root = DictStore(), []
    directory = Directory(store, "d/", root, Limits())
    rows = {n: (1 + n % 3, n % 2, 1_000 - n, 10 + n, 20 + n) for n in range(pages)}
    for number, row in rows.items():
        directory.update(number, *row)
    directory.flush()
    directory = Directory(store, "d/", root, Limits())
    for number in {pages // 2, pages - 1}:
        directory.update(number, 0, 0, NEVER, 0, 0)
        del rows[number]
    for name, expected in (("live", 0), ("leased", 1)):
        assert (directory.total(name) or 0) == sum(row[expected] for row in rows.values())
    assert directory.deadline() == min((row[2] for row in rows.values()), default=NEVER)
