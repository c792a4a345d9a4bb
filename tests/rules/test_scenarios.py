"""The text-table scenarios, on memory://, plainly and with a restart after every line."""

import re
from pathlib import Path
from typing import Any

import pytest
from rules.engine_scenario import ENGINE_FOLDER, EngineRunner
from rules.harness import start
from rules.scenario import Runner, Scenario, load, parse

pytestmark = pytest.mark.usefixtures("small_active_sets")

SHARED, OWN = load(), load(ENGINE_FOLDER)
SCENARIOS = SHARED + OWN
# The number of rules of each kind.
RULES = {
    "B": 4, "C": 7, "F": 5, "H": 5, "L": 13, "M": 6, "O": 4, "P": 7, "Q": 9, "R": 6, "S": 12,
    "X": 6,
}  # fmt: skip
BY_NAME = pytest.mark.parametrize("scenario", SCENARIOS, ids=[s.name for s in SCENARIOS])


@BY_NAME
def test_scenario(scenario: Scenario) -> None:
    EngineRunner(start()).check(scenario)


@BY_NAME
def test_scenario_with_a_restart_after_every_line(scenario: Scenario) -> None:
    def restart(connection: Any) -> None:
        connection.engine.restart()

    EngineRunner(start(), between=restart).check(scenario)


def test_names_are_unique() -> None:
    names = [s.name for s in SCENARIOS]
    assert len(names) == len(set(names))


def test_names_begin_with_a_rule() -> None:
    assert all(s.name[0] in "QLBFOXSPCRH" and s.name[1].isdigit() for s in SCENARIOS)


def test_every_rule_has_a_test_or_a_scenario_with_its_id() -> None:
    names = [s.name for s in SCENARIOS]
    for file in Path(__file__).parents[1].rglob("test_*.py"):
        names += re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
    tested = {part.upper() for name in names for part in name.split("_")}
    rules = {f"{kind}{n}" for kind, most in RULES.items() for n in range(1, most + 1)}
    assert rules <= tested, sorted(rules - tested)


def test_enough_scenarios_are_fit_for_the_job() -> None:
    assert len(SHARED) >= 50
    assert sum(s.fit_for_job for s in SHARED) >= 25


@pytest.mark.parametrize(
    "wrong",
    [
        "recv a -> 1",
        "recv a -> 2/2 1",
        "is orders depth=3",
        "browse orders -> 2 1",
        "held a 1",
        "send orders n=3 -> queue_quota",
    ],
)
def test_a_wrong_expectation_fails(wrong: str) -> None:
    """A test of the runner: one that never fails proves nothing."""
    text = f"""
    scenario O1_wrong
    queue orders max_per_subscription_backlog=5
    sub a orders backlog=5
    send orders n=1..2
    {wrong}
    """
    (scenario,) = parse(text)
    with pytest.raises(AssertionError):
        Runner(start()).check(scenario)
