"""The page about a message's states shows the table that runs."""

import re
from pathlib import Path
from types import ModuleType

from lakequeue.state.queue.table import NAMES, TABLE, Event


def test_the_table_is_up_to_date(generate: ModuleType, root: Path) -> None:
    page, make = generate.PARTS["lifecycle"]
    shown = generate.between((root / "docs" / page).read_text(), "lifecycle")
    assert shown == make(), "run: python docs/generate.py"


def test_every_transition_is_in_a_row(generate: ModuleType) -> None:
    rows = [re.split(r" *\| *", line.strip("| ")) for line in generate.lifecycle().splitlines()[2:]]
    for (state, event), what in TABLE.items():
        before = "new" if event in (Event.ENTER, Event.ENTER_LATER) else NAMES[state]
        (row,) = [
            r for r in rows
            if before in r[0].split(", ") and r[1:3] == [event.value, NAMES[what.to]]
        ]  # fmt: skip
        assert what.rule in row[4].split(", ")


def test_states_have_names() -> None:
    assert {state for state, _ in TABLE} | {what.to for what in TABLE.values()} == set(NAMES)
