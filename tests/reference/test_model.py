"""The model itself, rule by rule, in its own words; and the scenarios, with the model as engine."""

from typing import Any

import pytest
from reference import twin
from reference.model import Model
from rules.scenario import Runner, Scenario, load

SCENARIOS = load()


def model(**keys: Any) -> Model:
    made = Model()
    made.define({"name": "q", "message_type": "json", "max_per_subscription_backlog": 9} | keys)
    return made


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s.name for s in SCENARIOS])
def test_scenario_on_the_model(scenario: Scenario) -> None:
    Runner(twin.connect()).run(scenario)
