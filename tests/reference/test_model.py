"""The scenarios, with the naive model as engine: what people wrote down judges it as well."""

import pytest
from reference.twin import Connection
from rules.scenario import Runner, Scenario, load

SCENARIOS = load()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s.name for s in SCENARIOS])
def test_scenario_on_the_model(scenario: Scenario) -> None:
    Runner(Connection()).check(scenario)
