"""Limits and budgets."""

from __future__ import annotations

import pytest
from lakequeue.state.limits import Budget, Limits


def test_a_budget_fits_as_many_as_its_bytes_allow_and_one_at_least() -> None:
    assert Budget(9, 10).fits([]) == 0
    assert Budget(9, 10).fits([5, 5]) == 2
    assert Budget(9, 10).fits([5, 5, 1]) == 2
    assert Budget(9, 10).fits([11, 1]) == 1
    assert Budget(9, 10).fits([0, 11]) == 1


def test_a_share_of_a_budget_is_never_zero_while_budget_is_left() -> None:
    some, spent = Budget(10, 7), Budget(0, 7)
    assert some.share(20) == Budget(1, 1, some)
    assert spent.share(2) == Budget(0, 0, spent)


def test_a_share_reduces_the_budget() -> None:
    whole = Budget(10, 7)
    whole.share(2).take(3, 4)
    assert (whole.rows, whole.bytes) == (7, 3)


def test_the_error_of_a_limit_names_the_allowed_values() -> None:
    with pytest.raises(ValueError, match="segment_rows: 0 – allowed is 1 or more"):
        Limits(segment_rows=0)
