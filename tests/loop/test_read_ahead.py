"""Records read ahead: in order within a partition, fair between partitions, within a step's limits.

A message is (partition, number, size). Sizes and limits are tiny, so that each boundary is crossed.
"""

from __future__ import annotations

import random

from hypothesis import assume, given
from hypothesis import strategies as st
from lakequeue.sources.read_ahead import LONG_S, SHARES, TURNS, ReadAhead
from lakequeue.sources.step_batch import PartitionId

Item = tuple[PartitionId, int, int]
RECORDS, BYTES = 20, 1_000
SIZE_MAX = 3_000
PLACES: list[PartitionId] = [("default.publish", n) for n in range(4)]


def ahead(records: int = RECORDS, most: int = BYTES) -> ReadAhead[Item]:
    return ReadAhead(lambda item: item[2], records, most)


def items(place: PartitionId, sizes: list[int], first: int = 0) -> list[Item]:
    return [(place, first + n, size) for n, size in enumerate(sizes)]


def price(item: Item) -> int:
    return max(item[2], BYTES // RECORDS)


walks = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(PLACES), st.lists(st.integers(1, SIZE_MAX), max_size=30)),
        st.just("take"),
        st.tuples(st.just("take"), st.integers(0, BYTES)),
        st.tuples(st.just("slow"), st.sets(st.sampled_from(PLACES))),
        st.tuples(st.just("aside"), st.sampled_from([0.0, 1 / 32, 1 / 4])),
        st.tuples(st.just("took"), st.sampled_from([0.0, 2 * LONG_S])),
    ),
    max_size=40,
)


@given(walks)
def test_nothing_is_lost_and_each_partition_keeps_its_order(walk: list) -> None:
    waiting = ahead()
    put: dict[PartitionId, list[Item]] = {place: [] for place in PLACES}
    taken: dict[PartitionId, list[Item]] = {place: [] for place in PLACES}

    def take(most: int | None = None, slow_part: float | None = None) -> None:
        held, others = waiting.bytes, waiting.has_others()
        found, size = waiting.take(most, slow_part)
        if slow_part is not None:
            own = [item for p, these in found.items() if p in waiting.slow for item in these]
            part = slow_part * BYTES * waiting.share
            assert not own or sum(map(price, own)) - max(map(price, own)) < part
            assert bool(found.keys() - waiting.slow) == others, "another partition gets nothing"
        one_by_one = [item for these in found.values() for item in these]
        assert size == sum(item[2] for item in one_by_one) == held - waiting.bytes
        assert len(one_by_one) <= RECORDS
        prices = list(map(price, one_by_one))
        usual = int(BYTES * waiting.share)
        if most is None or most >= usual:
            last = prices if slow_part is None else sorted(prices)[-2:]  # one of slow ones too
            over = max(last, default=1) if slow_part is None else sum(last) + 1
            assert sum(prices) - usual < over, "only the last record may overdraw the budget"
        else:
            assert sum(prices) <= most
        for place, these in found.items():
            assert these
            taken[place] += these

    for what in walk:
        if what == "take":
            take()
        elif what[0] == "take":
            take(what[1])
        elif what[0] == "slow":
            waiting.slow = frozenset(what[1])
        elif what[0] == "aside":
            take(None, what[1])
        elif what[0] == "took":
            waiting.took(what[1])
        else:
            place, sizes = what
            new = items(place, sizes, len(put[place]))
            put[place] += new
            waiting.put(place, new)
        left = {p: put[p][len(taken[p])] for p in PLACES if len(put[p]) > len(taken[p])}
        assert waiting.next_of_each() == left
        assert bool(waiting) == bool(left)
    while waiting:
        before = waiting.bytes
        take()
        assert waiting.bytes < before, "a step takes at least one record, whatever its size"
    assert taken == put
    assert waiting.bytes == 0
    assert waiting.take() == ({}, 0)


@given(st.lists(st.integers(0, 1 << 32), min_size=2, max_size=4), st.integers(1, 40))
def test_busy_partitions_get_equal_shares(seeds: list[int], steps: int) -> None:
    """At any moment, apart from one record and one grant each."""
    waiting = ahead()
    sizes = [random.Random(seed).choices(range(1, SIZE_MAX + 1), k=200) for seed in seeds]
    for place, these in zip(PLACES, sizes, strict=False):
        waiting.put(place, items(place, these))
    places = PLACES[: len(sizes)]
    share = dict.fromkeys(places, 0)
    for _ in range(steps):
        for place, these in waiting.take()[0].items():
            share[place] += sum(map(price, these))
        if len(waiting.next_of_each()) < len(places):
            return  # one partition is empty
        assert max(share.values()) - min(share.values()) <= 2 * SIZE_MAX + waiting.grant


@given(st.integers(1, 3), st.integers(1, SIZE_MAX), st.integers(0, 300))
def test_a_single_record_waits_for_a_step_or_two(others: int, size: int, before: int) -> None:
    """However much the others hold, and however large it is."""
    waiting = ahead()
    for place in PLACES[1 : 1 + others]:
        waiting.put(place, items(place, [size] * 400))
    for _ in range(before % 100):
        waiting.take()
    assume(len(waiting.next_of_each()) == others)
    waiting.put(PLACES[0], items(PLACES[0], [BYTES // TURNS]))
    price_of_others = others * (max(size, BYTES // RECORDS) + waiting.grant)
    for _ in range(1 + (BYTES // RECORDS // waiting.grant + 1) * price_of_others // BYTES + 1):
        if PLACES[0] in waiting.take()[0]:
            return
    raise AssertionError("it is not taken")


def test_with_little_room_large_records_wait_and_small_ones_go_on() -> None:
    large, small = PLACES[:2]
    waiting = ahead(2_000, 4_000_000)
    waiting.put(large, items(large, [1_000_000] * 8))
    waiting.put(small, items(small, [1_000] * 50))
    found, _ = waiting.take(500_000)
    assert list(found) == [small]
    assert len(found[small]) == 50
    assert waiting.take(500_000) == ({}, 0)
    assert waiting.take(0) == ({}, 0)
    assert len(waiting.take(1_500_000)[0][large]) == 1
    assert len(waiting.take()[0][large]) == 4


def test_long_steps_lower_the_intake_and_short_ones_raise_it() -> None:
    """Only where the intake may be the cause: a step that took little of its share does not
    count."""
    waiting = ahead(800, 8_000)

    def taken() -> int:
        return sum(map(len, waiting.take()[0].values()))

    waiting.put(PLACES[0], items(PLACES[0], [10] * 8_000))
    counts = []
    for _ in range(6):
        counts.append(taken())
        waiting.took(2 * LONG_S)
    assert counts == [800, 400, 200, 100, 100, 100]
    assert counts[-1] == 800 // SHARES
    for _ in range(12):
        waiting.took(LONG_S / 4)
    assert taken() == 800
    while waiting:
        waiting.take()
    waiting.put(PLACES[0], items(PLACES[0], [10] * 400))
    assert taken() == 400
    waiting.took(2 * LONG_S)
    assert waiting.share == 1.0


def test_partitions_still_share_after_long_steps() -> None:
    """A single record does not wait for whatever made steps long."""
    waiting = ahead(800, 8_000)
    many, one = PLACES[:2]
    waiting.put(many, items(many, [10] * 8_000))
    for _ in range(3):
        waiting.take()
        waiting.took(2 * LONG_S)
    waiting.put(one, items(one, [10]))
    assert len(waiting.take()[0][one]) == 1


def test_slow_partitions_share_a_small_part_of_a_step() -> None:
    waiting = ahead(640, 64_000)
    slow, other = PLACES[:2], PLACES[2]
    waiting.slow = frozenset(slow)
    for place in PLACES[:3]:
        waiting.put(place, items(place, [10] * 2_000))
    found, _ = waiting.take(None, 1 / 32)
    assert sum(len(found[place]) for place in slow) == 640 // 32
    assert {len(found[place]) for place in slow} == {10}
    assert len(found[other]) == 640 - 640 // 32
    assert set(waiting.take(None, 0.0)[0]) == {other}
    assert {len(these) for these in waiting.take()[0].values()} <= {210, 220}, "like all others"


def test_a_large_record_of_a_slow_partition_takes_only_that_partitions_share() -> None:
    """It is taken whatever its size, and others share the rest of the step as if it were small."""
    waiting = ahead(640, 64_000)
    slow, other = PLACES[:2]
    waiting.slow = frozenset([slow])
    waiting.put(slow, items(slow, [1_000_000] * 2))
    waiting.put(other, items(other, [10] * 2_000))
    found, _ = waiting.take(None, 1 / 32)
    assert (len(found[slow]), len(found[other])) == (1, 620)
