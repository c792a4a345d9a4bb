"""The scenarios of `tests/rules`, unchanged, on real Kafka, Spark and Delta.

Each line is a round trip through a batch, so they run side by side: each on its own connection,
with queues of its own, on one engine. One test per scenario looks at what came out.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from job.conftest import Job
from job.scenarios import GROUPS, chosen, queue_name
from rules.scenario import Clock, Runner, Scenario

pytestmark = pytest.mark.job

SCENARIOS = chosen()
AT_ONCE = 12
# The longer the stretch, the slower a machine may be: a lease of 1 s must outlive two batches.
PATIENCE_S, QUIET_S, STRETCH = 20.0, 1.2, 5.0
SLOWLY = 3.0


def run(job: Job, index: int, scenario: Scenario, slower: float = 1.0) -> None:
    clock = Clock(moves=False, patience_s=PATIENCE_S, quiet_s=QUIET_S, stretch=STRETCH * slower)
    again = "" if slower == 1.0 else " again"
    with job.connect(f"scenario-{index}") as connection:
        Runner(connection, clock, lambda name: queue_name(index, name) + again).run(scenario)


@pytest.fixture(scope="module")
def outcomes(job: Job) -> dict[str, Future[None]]:
    """Every scenario, run to its end."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {s.name: pool.submit(run, job, i, s) for i, s in enumerate(SCENARIOS)}


@pytest.mark.parametrize("name", [s.name for s in SCENARIOS])
def test_scenario(job: Job, outcomes: dict[str, Future[None]], name: str) -> None:
    """One that waits for what must not have happened yet fails where the machine is late. It shows
    alone, and slowly, which of the two it was."""
    try:
        outcomes[name].result()
    except AssertionError:
        index = next(i for i, scenario in enumerate(SCENARIOS) if scenario.name == name)
        if not SCENARIOS[index].waits_s:
            raise
        run(job, index, SCENARIOS[index], SLOWLY)


def test_enough_scenarios_of_every_group() -> None:
    assert len(SCENARIOS) >= 25
    assert set(GROUPS) <= {s.name[0] for s in SCENARIOS}
