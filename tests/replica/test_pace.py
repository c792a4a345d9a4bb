"""The pace of steps: the more records come in, the longer a step waits for more; few records never
wait."""

import pytest
from lakequeue.replica.pace import MOST_S, Pace


def at_rate(rate: int, seconds: float = 3.0, each: int = 1) -> tuple[Pace, float]:
    pace, now = Pace(), 0.0
    while now < seconds:
        now += each / rate
        pace.began(now, each)
    return pace, now


@pytest.mark.parametrize(
    ("rate", "least", "most"),
    [(200, 0, 0), (600, 0, 0), (1_000, 0.0022, 0.003), (1_500, 0.0035, 0.0045)],
)
def test_the_pace_follows_what_comes(rate: int, least: float, most: float) -> None:
    pace, now = at_rate(rate)
    assert least <= pace.rest_s(now) <= most


@pytest.mark.parametrize("rate", [6_000, 100_000])
def test_no_step_waits_longer_than_the_longest_pace(rate: int) -> None:
    pace, now = at_rate(rate, each=20)
    assert pace.rest_s(now) == pytest.approx(MOST_S)


def test_the_first_record_after_an_idle_time_does_not_wait() -> None:
    pace, now = at_rate(1_000)
    assert pace.rest_s(now + 0.004) == 0
    pace.began(now + 5, 1)
    assert pace.rest_s(now + 5) == 0
