"""The scenarios of `tests/rules`, unchanged, on real Kafka, Spark and Delta.

Each line is a round trip through a step, so they run side by side: each on its own connection,
with queues of its own, on one engine. One test per rule looks at what came out. In micro-batches,
where a round trip takes longer, it is one scenario of a few rules: what a step does is the same.
"""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from job.conftest import Job, in_real_time
from job.scenarios import GROUPS, chosen, queue_name, rule_of
from lakequeue.streaming.queries import REAL_TIME
from rules.scenario import Clock, Runner

pytestmark = pytest.mark.job

SCENARIOS = chosen()
RULES: dict[str, list[int]] = defaultdict(list)
for _index, _scenario in enumerate(SCENARIOS):
    RULES[rule_of(_scenario)].append(_index)
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


def of_rule(job: Job, rule: str) -> list[int]:
    if job.engine.trigger == REAL_TIME:
        return RULES[rule]
    return RULES[rule][:1] if rule in IN_MICRO_BATCHES else []


@pytest.fixture(scope="module")
def outcomes(job: Job) -> dict[int, Future[None]]:
    """Every scenario of this trigger, run to its end."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {i: pool.submit(run, job, i) for rule in RULES for i in of_rule(job, rule)}


@in_real_time
@pytest.mark.parametrize("rule", RULES)
def test_scenarios(job: Job, outcomes: dict[int, Future[None]], rule: str) -> None:
    look(job, outcomes, rule)


def test_a_few_with_either_trigger(job: Job, outcomes: dict[int, Future[None]]) -> None:
    for rule in IN_MICRO_BATCHES:
        look(job, outcomes, rule)


def look(job: Job, outcomes: dict[int, Future[None]], rule: str) -> None:
    """One that waits for what must not have happened yet fails where the machine is late. It shows
    alone, and slowly, which of the two it was."""
    for index in of_rule(job, rule):
        try:
            outcomes[index].result()
        except AssertionError:
            if not SCENARIOS[index].waits_s:
                raise
            run(job, index, SLOWLY)


def test_enough_scenarios_of_every_group() -> None:
    assert len(RULES) >= 25
    assert set(GROUPS) <= {rule[0] for rule in RULES}
