"""A home of the earlier core goes on on the live one, whatever state it is in: the scenarios of the
rules do not notice when it happens."""

from __future__ import annotations

from typing import Any

import pytest
from core.carrying import CarriedBroker
from lakequeue.memory.in_process import MemoryEngine
from rules.harness import start
from rules.scenario import Runner, Scenario, load

SCENARIOS = load()
AT = [(s, n) for s in SCENARIOS for n in range(1, len(s.lines))]


@pytest.fixture(autouse=True)
def _carried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryEngine, "BROKER", CarriedBroker)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s.name for s in SCENARIOS])
def test_a_scenario_that_changes_over_behind_any_of_its_lines(scenario: Scenario) -> None:
    for n in range(1, len(scenario.lines)):
        lines = 0

        def between(connection: Any, n: int = n) -> None:
            nonlocal lines
            lines += 1
            if lines == n:
                for broker in connection.engine.brokers:
                    broker.carry()

        try:
            Runner(start(), between=between).run(scenario)
        except Exception as error:
            error.add_note(f"changed over behind line {n}: {scenario.lines[n - 1].text}")
            raise


def test_X1_a_message_that_does_not_expire_still_does_not() -> None:
    connection = start()
    connection.admin().define({"name": "q", "message_type": "text"})
    connection.producer().send("q", b"1")
    for broker in connection.engine.brokers:
        broker.carry()  # type: ignore[attr-defined]
    (seen,) = connection.admin().browse("q")
    assert seen.expires_at is None
    with connection.consumer("q") as consumer:
        message = consumer.receive(timeout=0)
    assert message is not None
    assert message.expires_at is None
