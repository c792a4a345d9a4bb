"""Ranges of numbers against a set of the same numbers."""

from __future__ import annotations

from random import Random

import pytest
from lakequeue.protocol.ids import within
from lakequeue.state.storage.ranges import Ranges, insert, remove, union, without


def ranges_of(numbers: set[int]) -> Ranges:
    """The fewest ranges, ascending."""
    found: Ranges = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


@pytest.mark.parametrize("seed", range(20))
def test_number_ranges_agree_with_a_set(seed: int) -> None:
    random = Random(seed)
    ranges: Ranges = []
    there: set[int] = set()
    for _ in range(400):
        number = random.randrange(60)
        assert within(number, ranges) == (number in there)
        if random.random() < 0.55:
            insert(ranges, number)
            there.add(number)
        else:
            assert remove(ranges, number) == (number in there)
            there.discard(number)
        assert ranges == ranges_of(there)
    one, other = (ranges_of(set(random.sample(range(60), 30))) for _ in range(2))
    numbers = [{n for first, last in some for n in range(first, last + 1)} for some in (one, other)]
    mixed = [*one, *other]
    random.shuffle(mixed)
    assert union(mixed) == ranges_of(numbers[0] | numbers[1])
    random.shuffle(one)
    assert union(without(one, other)) == ranges_of(numbers[0] - numbers[1])
    assert all(first <= last for first, last in without(one, other))
