"""Captured records have a rate limit while producers publish, and none otherwise."""

from __future__ import annotations

import pytest
from lakequeue.sources.input_pace import BYTES_PER_S, RECENT_S, SAVED_S, CapturedPace

MB = 1_000_000


class Paced:
    """A pace with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pace = CapturedPace(lambda: self.now)

    def take_for(self, seconds: float, published: int, captured: int) -> float:
        """Take steps of this size as soon as the pace allows; returns captured bytes per second."""
        begun, taken = self.now, 0
        while self.now < begun + seconds:
            self.pace.took(published, captured)
            taken += captured
            self.now += max(0.001, self.pace.rest_s())
        return taken / (self.now - begun)


@pytest.fixture
def paced() -> Paced:
    return Paced()


def test_captured_records_alone_have_no_rate_limit(paced: Paced) -> None:
    assert paced.take_for(2.0, 0, MB) == pytest.approx(MB / 0.001, rel=0.01)


def test_captured_records_beside_messages_have_a_rate_limit(paced: Paced) -> None:
    rate = paced.take_for(10.0, 1, MB)
    assert rate == pytest.approx(BYTES_PER_S, rel=0.02)


def test_small_records_are_not_slowed(paced: Paced) -> None:
    """Steps of 20 KB each millisecond: 20 MB a second."""
    assert paced.take_for(5.0, 1_000, 20_000) == pytest.approx(20 * MB, rel=0.01)


def test_records_read_without_competition_leave_no_debt(paced: Paced) -> None:
    paced.take_for(30.0, 0, MB)
    paced.pace.took(1, MB)
    assert paced.pace.rest_s() <= MB / BYTES_PER_S


def test_an_idle_time_gives_a_small_credit_only(paced: Paced) -> None:
    paced.take_for(1.0, 1, MB)
    for _ in range(100):
        paced.now += RECENT_S / 2
        paced.pace.took(1, 0)
    saved = int(SAVED_S * BYTES_PER_S)
    paced.pace.took(1, saved)
    assert paced.pace.rest_s() == pytest.approx(0.0, abs=1e-6)
    paced.pace.took(1, MB)
    assert paced.pace.rest_s() == pytest.approx(MB / BYTES_PER_S)


def test_the_pause_ends_once_producers_stop(paced: Paced) -> None:
    """However large a record was, a second later it no longer counts."""
    paced.pace.took(1, 100 * MB)
    assert paced.pace.rest_s() == RECENT_S
    paced.now += RECENT_S
    assert paced.pace.rest_s() == 0.0
