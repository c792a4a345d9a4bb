"""The demo's data and accounts."""

from __future__ import annotations

import json
from functools import cache

import pandas as pd
import pytest
from lakequeue.conf import load
from lakequeue.examples.demo.accounts import Account, balance, check_barriers
from lakequeue.examples.demo.demo_worker import fits
from lakequeue.examples.demo.flight_data import load_flights
from lakequeue.examples.demo.flights import CONFIGURATION, JOBS, share_jobs

NO_COUNTS = {"spooled": 0, "delivered": 0, "redelivered": 0, "acknowledged": 0}

read_flights = cache(load_flights)  # of 336,776


def test_the_subset_is_the_first_in_time_order() -> None:
    flights = read_flights(2000)
    assert flights.total == 2000 == sum(len(day.payloads) for day in flights.days)
    assert [day.date for day in flights.days] == ["2013-01-01", "2013-01-02", "2013-01-03"]
    times = [json.loads(p)["sched_dep_time"] for p in flights.days[0].payloads]
    assert times == sorted(times)
    assert flights.description.startswith("the first 2,000 of 336,776 flights")


def test_missing_values_are_null_and_whole_numbers_are_integers() -> None:
    rows = [json.loads(p) for day in read_flights(2000).days for p in day.payloads]
    assert {row["dep_delay"] for row in rows if row["dep_time"] is None} == {None}
    assert all(isinstance(row["dep_delay"], int | None) for row in rows)


def test_expected_counts_agree_with_the_filters() -> None:
    flights = read_flights(2000)
    payloads = [p for day in flights.days for p in day.payloads]
    markers = [day.marker for day in flights.days]
    assert flights.expected == {
        "flights": len(payloads) + len(markers),
        "delayed": sum(fits("delayed", p) for p in payloads + markers),
        "united": sum(fits("united", p) for p in payloads + markers),
    }
    assert json.loads(markers[0]) == {"end_of_day": "2013-01-01"}


def test_the_demos_configuration_loads() -> None:
    queues = {queue.name: queue for queue in load(CONFIGURATION).queues}
    assert set(queues) == {"flights", "delayed", "united"}
    assert {queue.underlying_topic for queue in queues.values()} == {"flights"}


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
def test_every_job_is_done_by_some_worker(workers: int) -> None:
    shares = share_jobs(workers)
    assert len(shares) == workers
    assert all(shares)
    assert {job for share in shares for job in share} == set(JOBS)


def journal(*rows: tuple[int, str, str]) -> pd.DataFrame:
    """Rows (step, event, message ids separated by blanks)."""
    return pd.DataFrame(
        [(step, "q", event, i) for step, event, ids in rows for i in ids.split()],
        columns=["step", "queue", "event", "message_id"],
    )


def account(rows: pd.DataFrame, sent: int, depth: int, **counters: int) -> Account:
    """The account of a queue with these counters."""
    (found,) = balance(rows, {"q": sent}, {"q": {"counters": NO_COUNTS | counters, "depth": depth}})
    return found


def test_accounts_add_up() -> None:
    rows = journal(
        (1, "spooled", "1 2 3"), (1, "delivered", "1 2"), (2, "redelivered", "2"),
        (3, "acknowledged", "1 2"),
    )  # fmt: skip
    found = account(rows, 3, 1, spooled=3, delivered=3, redelivered=1, acknowledged=2)
    assert found.problems == ()
    assert (found.spooled, found.delivered, found.redelivered) == (3, 3, 1)
    assert (found.acknowledged, found.expired, found.left) == (2, 0, 1)


def test_the_accounts_show_a_lost_message() -> None:
    rows = journal((1, "spooled", "1 2 3"), (2, "acknowledged", "1 2"))
    found = account(rows, 3, 0, spooled=3, acknowledged=2)
    assert found.problems == ("spooled: 3 in Delta, 2 acknowledged, expired or still there",)


def test_the_accounts_show_holes_in_the_journal() -> None:
    assert len(account(journal((1, "spooled", "1")), 2, 2, spooled=2).problems) == 3


@pytest.mark.parametrize(
    ("acked_2", "delivered_4", "wrong"), [(5, 5, 0), (5, 6, 0), (6, 5, 1), (5, 4, 1)]
)
def test_the_accounts_show_an_overtaken_barrier(acked_2: int, delivered_4: int, wrong: int) -> None:
    """O3: 3 is a barrier, delivered in step 5."""
    rows = journal(
        (1, "spooled", "1 2 3 4"), (1, "delivered", "1 2"), (2, "acknowledged", "1"),
        (acked_2, "acknowledged", "2"), (5, "barrier_delivered", "3 3"), (5, "acknowledged", "3"),
        (delivered_4, "delivered", "4"),
    )  # fmt: skip
    found = check_barriers(rows, "q")
    assert (found.delivered, found.wrong) == (1, wrong)


def test_accounts_without_barriers() -> None:
    found = check_barriers(journal((1, "spooled", "1")), "q")
    assert (found.delivered, found.wrong) == (0, 0)
