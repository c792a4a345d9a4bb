"""R1: what views and `trace` tell of an engine's life, whose scenarios are in `told.txt`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lake.agreement import lifecycle_adds_up, queued_agrees
from lake.on_files import Recorded
from lakequeue.lake import trace
from rules.harness import start
from rules.scenario import Line, Runner, Scenario, options, parse

SCENARIOS = list(parse(Path(__file__).with_name("told.txt").read_text(), "told.txt"))


class Told(Runner):
    """A scenario whose lines may also ask the tables."""

    def __post_init__(self) -> None:
        self.recorded = Recorded(self.connection.engine)
        super().__post_init__()

    def life(self, number: str) -> list[dict[str, Any]]:
        with self.recorded.lake() as lake:
            found = trace(lake, self.id_of(number))["queues"]
        return [event for queue in found if queue["queue"] == "orders" for event in queue["life"]]

    def do_waited(self, line: Line) -> None:
        """Every part of every time that a message of `orders` was ready."""
        parts = [
            part
            for event in self.life(line.words[1])
            for part in (event["then"] or {}).get("why", ())
        ]
        found = [
            part["why"] if part["ms"] is None else f"{part['why']}: {part['ms']}" for part in parts
        ]
        assert found == line.expected

    def do_life(self, line: Line) -> None:
        found = [
            f"{event['event']} by {event['consumer'] or 'nobody'}, {event['deliveries']}"
            for event in self.life(line.words[1])
        ]
        assert found == line.expected

    def do_agree(self, line: Line) -> None:
        with self.recorded.lake() as lake:
            assert queued_agrees(lake, self.admin) == int(line.words[1])
            lifecycle_adds_up(lake, self.connection.engine.journal())

    def do_shut(self, line: Line) -> None:
        _, queue, *ends = line.words
        self.admin.shutdown(queue, **dict.fromkeys(ends, True))

    def do_move(self, line: Line) -> None:
        assert [str(self.admin.move(line.words[1], to=line.words[2]).count)] == line.expected

    def do_edit(self, line: Line) -> None:
        _, queue, number, *headers = line.words
        self.admin.edit(queue, headers=options(headers), ids=self.id_of(number))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_told(scenario: Scenario) -> None:
    Told(start()).check(scenario)
