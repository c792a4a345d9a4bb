"""The scenarios on the naive model, so that hand-written expectations judge the model too. It is a
broker: scenarios about the client's own behaviour are left out."""

import pytest
from reference.twin import Connection
from rules.scenario import Runner, Scenario, load

SCENARIOS = [s for s in load() if not s.lines[0].place.startswith("what_a_client_holds.txt")]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s.name for s in SCENARIOS])
def test_scenario_on_the_model(scenario: Scenario) -> None:
    Runner(Connection()).check(scenario)
