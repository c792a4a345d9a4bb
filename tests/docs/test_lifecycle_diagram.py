"""The diagram of a message's life is the table that runs."""

from pathlib import Path
from types import ModuleType

from lakequeue.state.queue.table import NAMES, TABLE


def test_the_diagram_is_up_to_date(generate: ModuleType, root: Path) -> None:
    page, make = generate.PARTS["lifecycle"]
    shown = generate.between((root / "docs" / page).read_text(), "lifecycle")
    assert shown == make(), "run: python docs/generate.py"


def test_every_transition_is_an_arrow_and_a_row(generate: ModuleType) -> None:
    text = generate.lifecycle()
    diagram, _, rows = text.partition("| before |")
    for (_, event), what in TABLE.items():
        assert f"{event.value} ({what.rule})" in diagram
        assert f"| {event.value} | {NAMES[what.to]} |" in rows


def test_states_have_names() -> None:
    assert {state for state, _ in TABLE} | {what.to for what in TABLE.values()} == set(NAMES)
