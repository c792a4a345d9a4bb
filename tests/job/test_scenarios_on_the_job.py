"""A scenario of each group of rules, unchanged, on real Kafka, Spark and Delta; some also in
micro-batches.

Each line is a round trip through a step, so they run side by side: each on its own connection, with
its own queues, on one engine.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from job.conftest import Job
from job.scenarios import IN_BATCHES, RULES, chosen, queue_name
from rules.scenario import Clock, Runner, Scenario

pytestmark = pytest.mark.job

# A longer stretch allows for a slower machine: a lease of 1 s must outlast two batches.
PATIENCE_S, QUIET_S, STRETCH = 180.0, 1.2, 5.0
SLOWLY = 3.0


def check(job: Job, rule: str, scenario: Scenario, slower: float = 1.0) -> None:
    clock = Clock(moves=False, patience_s=PATIENCE_S, quiet_s=QUIET_S, stretch=STRETCH * slower)
    again = "" if slower == 1.0 else " again"
    with job.connect(f"scenario-{rule}") as connection:
        Runner(connection, clock, lambda name: queue_name(rule, name) + again).check(scenario)


def test_scenarios(job: Job) -> None:
    check_all(job, RULES)


@pytest.mark.usefixtures("micro_batches")
def test_scenarios_in_micro_batches(job: Job) -> None:
    check_all(job, IN_BATCHES)


def check_all(job: Job, wanted: tuple[str, ...]) -> None:
    """A scenario that expects that something has not happened yet fails on a slow machine. It runs
    once more, alone and slowly: if it fails again, the machine is not the cause."""
    scenarios = {rule: one for rule, one in chosen().items() if rule in wanted}
    assert set(scenarios) == set(wanted)
    with ThreadPoolExecutor(len(wanted)) as pool:
        outcomes = {rule: pool.submit(check, job, rule, one) for rule, one in scenarios.items()}
    for rule, outcome in outcomes.items():
        try:
            outcome.result()
        except AssertionError:
            if not scenarios[rule].waits_s:
                raise
            check(job, rule, scenarios[rule], SLOWLY)
