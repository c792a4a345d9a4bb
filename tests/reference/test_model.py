"""The scenarios, with the naive model as engine: what people wrote down judges it as well. It is a
broker, so what a client does with the messages that it has is not for it."""

import pytest
from reference.twin import Connection
from rules.scenario import Runner, Scenario, load

SCENARIOS = [s for s in load() if not s.lines[0].place.startswith("what_a_client_holds.txt")]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s.name for s in SCENARIOS])
def test_scenario_on_the_model(scenario: Scenario) -> None:
    Runner(Connection()).check(scenario)
