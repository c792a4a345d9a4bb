"""Ranges of ids against a dict of every id (L9)."""

from __future__ import annotations

import random

import pytest
from lakequeue.state.storage.id_ranges import IdRange, IdRanges
from lakequeue.state.storage.row import NEVER


@pytest.mark.parametrize("seed", range(10))
def test_ranges_agree_with_a_dict(seed: int) -> None:
    rnd = random.Random(seed)
    ranges, model = IdRanges(), dict[int, int]()
    for _ in range(300):
        first = rnd.randrange(200)
        last = min(first + rnd.choice([0, 0, 3, 40]), 199)
        if rnd.random() < 0.6:
            until, before = rnd.randrange(5), ranges.state()
            if ranges.put(first, last, until, most=12):
                model.update(dict.fromkeys(range(first, last + 1), until))
                assert len(ranges) <= 12
            else:
                assert ranges.state() == before
        elif rnd.random() < 0.5:
            found = ranges.find(first)
            assert (None if found is None else found.until) == model.get(first)
            if found is not None:  # its message came
                rest = [IdRange(found.first, first - 1, found.until)] if found.first < first else []
                rest += [IdRange(first + 1, found.last, found.until)] if first < found.last else []
                ranges.replace(found, rest)
                del model[first]
        else:
            now, before = rnd.randrange(5), ranges.ranges[:]
            removed = ranges.remove_over(now, most=3)
            over = [one for one in before if one not in ranges.ranges]
            assert len(over) == removed <= 3
            for one in over:
                assert one.until <= min(now, ranges.next_end())
                for number in range(one.first, one.last + 1):
                    del model[number]
            if removed < 3:
                assert all(until > now for until in model.values())
        if rnd.random() < 0.2:
            ranges = IdRanges(ranges.state())
        assert ranges.next_end() == min(model.values(), default=NEVER)
        held = {n: until for a, b, until in ranges.state() for n in range(a, b + 1)}
        assert held == model


def test_consecutive_ids_are_one_range() -> None:
    ranges = IdRanges()
    assert all(ranges.put(number, number, 7, most=1) for number in range(1000))
    assert ranges.state() == [[0, 999, 7]]
    assert not ranges.put(2000, 2000, 7, most=1)
