"""A broker's time: it advances whatever the wall clock shows (L4, X1, C3 depend on it)."""

import pytest
from lakequeue.replica.clock import DRIFT, BrokerClock

HOUR_MS = 3_600_000
YEARS_MS = 10 * 365 * 24 * HOUR_MS


class Clocks:
    """A wall clock and a monotonic one that a test moves."""

    def __init__(self) -> None:
        self.wall_ms, self.monotonic_s = 1_700_000_000_000.0, 5.0
        self.clock = BrokerClock(lambda: self.wall_ms, lambda: self.monotonic_s)
        self.began = self.clock()

    def pass_time(self, seconds: float, every_s: float = 0.1) -> int:
        """Let time pass on both clocks, while the broker reads its own. Returns the broker's
        elapsed time."""
        for _ in range(round(seconds / every_s)):
            self.monotonic_s += every_s
            self.wall_ms += every_s * 1000
            self.clock()
        return self.clock() - self.began


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.mark.parametrize(
    ("set_by_ms", "least_ms", "most_ms"),
    [
        (0, 59_998, 60_002),
        (-HOUR_MS, 60_000 * (1 - DRIFT) - 10, 60_000 * (1 - DRIFT) + 10),
        (HOUR_MS, 0, 60_000 * (1 + DRIFT) + 10),
    ],
    ids=["steady", "set back: leases end on time", "set ahead: nothing ends early"],
)
def test_a_minute_lasts_a_minute_whatever_the_wall_clock_shows(
    clocks: Clocks, set_by_ms: int, least_ms: float, most_ms: float
) -> None:
    clocks.wall_ms += set_by_ms
    assert least_ms <= clocks.pass_time(60) <= most_ms


def test_one_reading_ten_years_ahead_has_no_lasting_effect(clocks: Clocks) -> None:
    clocks.wall_ms += YEARS_MS
    clocks.monotonic_s += 0.1
    clocks.clock()
    clocks.wall_ms -= YEARS_MS - 100
    assert clocks.pass_time(60) == pytest.approx(60_100, abs=2)


def test_time_never_runs_backwards(clocks: Clocks) -> None:
    seen = [clocks.clock()]
    for step in range(200):
        clocks.wall_ms += (-1) ** step * HOUR_MS
        clocks.monotonic_s += 0.01
        seen.append(clocks.clock())
    assert seen == sorted(seen)


def test_a_broker_continues_from_its_last_time(clocks: Clocks) -> None:
    lived = int(clocks.wall_ms) + HOUR_MS  # the wall clock was set back during the downtime
    clocks.clock.start(lived)
    clocks.monotonic_s += 10
    clocks.wall_ms += 10_000
    assert clocks.clock() == pytest.approx(lived + 10_000 * (1 - DRIFT), abs=10)


def test_time_passes_while_the_engine_is_stopped(clocks: Clocks) -> None:
    clocks.wall_ms += HOUR_MS
    clocks.clock.start(clocks.began)
    assert clocks.clock() == pytest.approx(clocks.began + HOUR_MS, abs=2)


def test_one_wrong_reading_at_the_start_has_no_effect() -> None:
    now = 1_700_000_000_000
    readings = iter([now, now + YEARS_MS, now, now, now + YEARS_MS, now, now])
    clock = BrokerClock(lambda: next(readings), lambda: 5.0)
    clock.start(now)
    assert clock() == now
