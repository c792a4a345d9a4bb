"""Q8: durations and sizes, read and written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lakequeue.protocol.units import (
    DURATION_MS_MAX,
    SIZE_BYTES_MAX,
    UnitError,
    format_duration,
    format_size,
    parse_duration_ms,
    parse_size,
)


@pytest.mark.parametrize(("written", "ms"), [
    ("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("2h", 7_200_000), ("1d", 86_400_000),
    ("1.5s", 1_500), (" 3 s ", 3_000), ("0s", 0), (30, 30_000), (0.3, 300), (0.1 + 0.2, 300),
    ("0.0001ms", 1), ("36500d", DURATION_MS_MAX),
])  # fmt: skip
def test_Q8_durations(written: object, ms: int) -> None:
    assert parse_duration_ms(written) == ms


@pytest.mark.parametrize(("written", "size_bytes"), [
    ("64KB", 64_000), ("10MB", 10_000_000), ("5GB", 5_000_000_000), ("1KiB", 1024),
    ("2MiB", 2 * 2**20), ("1GiB", 2**30), ("1.5kb", 1_500), ("17B", 17), ("17", 17), (17, 17),
    (0, 0),
])  # fmt: skip
def test_Q8_sizes(written: object, size_bytes: int) -> None:
    assert parse_size(written) == size_bytes


BAD: list[object] = [None, True, -1, -0.5, float("nan"), float("inf"), [],
                     "", "s", "-3s", "1e3s", "3 parsecs"]  # fmt: skip


@pytest.mark.parametrize("value", [*BAD, "30", "30S", "5MB", "36501d", 10**30])
def test_Q8_bad_durations_are_refused_with_the_allowed_form(value: object) -> None:
    with pytest.raises(UnitError) as caught:
        parse_duration_ms(value)
    assert "duration" in caught.value.allowed


@pytest.mark.parametrize("value", [*BAD, "30s", 1.5, "1.0001KB", "2000000TiB", 2**60 + 1])
def test_Q8_bad_sizes_are_refused_with_the_allowed_form(value: object) -> None:
    with pytest.raises(UnitError) as caught:
        parse_size(value)
    assert str(caught.value).endswith(caught.value.allowed)


@given(st.integers(0, DURATION_MS_MAX))
def test_Q8_a_formatted_duration_parses_back(ms: int) -> None:
    assert parse_duration_ms(format_duration(ms)) == ms


@given(st.integers(0, SIZE_BYTES_MAX))
def test_Q8_a_formatted_size_parses_back(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


def test_Q8_values_are_formatted_in_the_largest_fitting_unit() -> None:
    assert format_duration(90_000) == "90s"
    assert format_duration(86_400_000) == "1d"
    assert format_size(10_000_000) == "10MB"
    assert format_size(65_536) == "64KiB"


def test_Q8_an_extremely_long_number_is_refused() -> None:
    with pytest.raises(UnitError, match="a very large number"):
        parse_size(10**5000)
