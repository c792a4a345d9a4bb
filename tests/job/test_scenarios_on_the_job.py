"""A scenario of each rule of `tests/rules`, unchanged, on real Kafka, Spark and Delta.

Each line is a round trip through a step, so they run side by side: each on its own connection,
with queues of its own, on one engine. One test per group of rules looks at what came out. In
micro-batches, where a round trip takes longer, it is a few rules: what a step does is the same.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from job.conftest import Job, in_real_time
from job.scenarios import GROUPS, chosen, queue_name, rule_of
from lakequeue.streaming.spark.queries import MICRO_BATCH, REAL_TIME
from rules.scenario import Clock, Runner

pytestmark = pytest.mark.job

SCENARIOS = chosen()
RULES = {rule_of(scenario): index for index, scenario in enumerate(SCENARIOS)}
IN_MICRO_BATCHES = ("B1", "C4", "F1", "L4", "L6", "O3", "Q2", "S3", "X5")
AT_ONCE = 16
# The longer the stretch, the slower a machine may be: a lease of 1 s must outlive two batches.
PATIENCE_S, QUIET_S, STRETCH = 20.0, 1.2, 5.0
SLOWLY = 3.0


def run(job: Job, index: int, slower: float = 1.0) -> None:
    clock = Clock(moves=False, patience_s=PATIENCE_S, quiet_s=QUIET_S, stretch=STRETCH * slower)
    again = "" if slower == 1.0 else " again"
    with job.connect(f"scenario-{index}") as connection:
        Runner(connection, clock, lambda name: queue_name(index, name) + again).run(
            SCENARIOS[index]
        )


def chosen_for(job: Job) -> list[str]:
    return [r for r in RULES if job.engine.trigger == REAL_TIME or r in IN_MICRO_BATCHES]


@pytest.fixture(scope="module")
def outcomes(job: Job) -> dict[str, Future[None]]:
    """Of each rule of this trigger its scenario, run to its end."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {rule: pool.submit(run, job, RULES[rule]) for rule in chosen_for(job)}


@in_real_time
@pytest.mark.parametrize("group", GROUPS)
def test_scenarios(job: Job, outcomes: dict[str, Future[None]], group: str) -> None:
    look(job, outcomes, [rule for rule in RULES if rule[0] == group])


@pytest.mark.parametrize("job", [MICRO_BATCH], indirect=True)
def test_a_few_in_micro_batches(job: Job, outcomes: dict[str, Future[None]]) -> None:
    look(job, outcomes, list(IN_MICRO_BATCHES))


def look(job: Job, outcomes: dict[str, Future[None]], rules: list[str]) -> None:
    """One that waits for what must not have happened yet fails where the machine is late. It shows
    alone, and slowly, which of the two it was."""
    for rule in rules:
        try:
            outcomes[rule].result()
        except AssertionError:
            if not SCENARIOS[RULES[rule]].waits_s:
                raise
            run(job, RULES[rule], SLOWLY)


def test_enough_scenarios_of_every_group() -> None:
    assert len(RULES) >= 25
    assert set(GROUPS) <= {rule[0] for rule in RULES}
