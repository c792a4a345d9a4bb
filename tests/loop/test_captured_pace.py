"""What queues capture comes in at a rate while producers publish, else as it can."""

from __future__ import annotations

import pytest
from lakequeue.sources.input_pace import BYTES_PER_S, RECENT_S, SAVED_S, CapturedPace

MB = 1_000_000


class Paced:
    """A pace by a clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pace = CapturedPace(lambda: self.now)

    def take_for(self, seconds: float, published: int, captured: int) -> float:
        """Steps that take so much each as soon as they may; captured bytes a second."""
        begun, taken = self.now, 0
        while self.now < begun + seconds:
            self.pace.took(published, captured)
            taken += captured
            self.now += max(0.001, self.pace.rest_s())
        return taken / (self.now - begun)


@pytest.fixture
def paced() -> Paced:
    return Paced()


def test_alone_it_has_no_rate(paced: Paced) -> None:
    assert paced.take_for(2.0, 0, MB) == pytest.approx(MB / 0.001, rel=0.01)


def test_beside_messages_it_has_one(paced: Paced) -> None:
    rate = paced.take_for(10.0, 1, MB)
    assert rate == pytest.approx(BYTES_PER_S, rel=0.02)


def test_small_records_do_not_notice(paced: Paced) -> None:
    """Steps of 20 KB, each ms: 20 MB a second."""
    assert paced.take_for(5.0, 1_000, 20_000) == pytest.approx(20 * MB, rel=0.01)


def test_what_came_in_alone_is_no_debt(paced: Paced) -> None:
    paced.take_for(30.0, 0, MB)
    paced.pace.took(1, MB)
    assert paced.pace.rest_s() <= MB / BYTES_PER_S


def test_a_silence_is_saved_for_a_moment_only(paced: Paced) -> None:
    paced.take_for(1.0, 1, MB)
    for _ in range(100):
        paced.now += RECENT_S / 2
        paced.pace.took(1, 0)
    saved = int(SAVED_S * BYTES_PER_S)
    paced.pace.took(1, saved)
    assert paced.pace.rest_s() == pytest.approx(0.0, abs=1e-6)
    paced.pace.took(1, MB)
    assert paced.pace.rest_s() == pytest.approx(MB / BYTES_PER_S)


def test_the_rest_ends_when_nobody_publishes_any_more(paced: Paced) -> None:
    """However much a record has: a second later it is forgotten."""
    paced.pace.took(1, 100 * MB)
    assert paced.pace.rest_s() == RECENT_S
    paced.now += RECENT_S
    assert paced.pace.rest_s() == 0.0
