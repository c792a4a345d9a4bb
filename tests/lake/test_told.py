"""R1, R4: the answers of views, `trace` and `replay` about an engine's actions: see `told.txt`."""

from __future__ import annotations

import json
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from lake.agreement import lifecycle_adds_up, queued_agrees
from lake.on_files import Recorded
from lakequeue.lake import trace
from rules.harness import drain, start
from rules.scenario import Line, Runner, Scenario, options, parse

SCENARIOS = list(parse(Path(__file__).with_name("told.txt").read_text(), "told.txt"))


class Told(Runner):
    """A scenario whose lines may also query the tables."""

    def __post_init__(self) -> None:
        self.recorded = Recorded(self.connection.engine)
        self.marks: dict[str, datetime] = {}
        super().__post_init__()

    def life(self, number: str) -> list[dict[str, Any]]:
        with self.recorded.lake() as lake:
            found = trace(lake, self.id_of(number))["queues"]
        return [event for queue in found if queue["queue"] == "orders" for event in queue["life"]]

    def do_waited(self, line: Line) -> None:
        """Each interval in which a message of `orders` was ready."""
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

    def do_take(self, line: Line) -> None:
        """Receive and acknowledge all; returns the `n` of each."""
        with self.connection.consumer(line.words[1], max_backlog=100, ack_mode="individual") as one:
            messages = drain(one)
            for message in messages:
                message.ack()
        assert [str(json.loads(message.payload)["n"]) for message in messages] == line.expected

    def do_mark(self, line: Line) -> None:
        self.marks[line.words[1]] = self.connection.now()

    def replayed(self, line: Line, **more: Any) -> Any:
        given = options(line.words[2:])
        for key, value in given.items():
            if value[0] == "@":
                at = self.marks[value[1:]]
                given[key] = at if key == "until" else at.isoformat()
            elif value[0] == "^":
                given[key] = ",".join(self.id_of(number) for number in value[1:].split(",^"))
        with tempfile.TemporaryDirectory() as folder:
            home = self.recorded.write(Path(folder))
            return self.admin.replay(line.words[1], home=home, **given, **more)

    def do_replay(self, line: Line) -> None:
        done = self.replayed(line)
        refused = [f"{why}={count}" for why, count in done.refused.items()]
        assert [str(done.count), *refused] == line.expected

    def do_dry_run(self, line: Line) -> None:
        """The count and the first of them: their numbers, or the outcomes of those without an
        id."""
        found = self.replayed(line, dry_run=True)
        shown = [
            str(self.ids.index(one["id"]) + 1) if one["id"] else one["event"]
            for one in found.examples
        ]
        assert [str(found.count), *shown] == line.expected


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_views_trace_and_replay_scenario(scenario: Scenario) -> None:
    Told(start()).check(scenario)
