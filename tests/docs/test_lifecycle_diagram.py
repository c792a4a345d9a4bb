"""The diagram of a message's life is the one that `state/lifecycle.py` describes."""

from pathlib import Path
from types import ModuleType

from lakequeue.state.lifecycle import NAMES, TRANSITIONS


def test_the_diagram_is_up_to_date(generate: ModuleType, root: Path) -> None:
    page, make = generate.PARTS["lifecycle"]
    shown = generate.between((root / "docs" / page).read_text(), "lifecycle")
    assert shown == make(), "run: python docs/generate.py"


def test_every_transition_is_an_arrow_and_a_row(generate: ModuleType) -> None:
    text = generate.lifecycle()
    diagram, _, rows = text.partition("| before |")
    for before, what, after, event, rule in TRANSITIONS:
        assert f"{what} ({rule})" in diagram
        assert f"| {before} | {what} | {after} | `{event}` | {rule} |" in rows


def test_states_have_names() -> None:
    known = {*NAMES.values(), "new"}
    assert {before for before, *_ in TRANSITIONS} | {row[2] for row in TRANSITIONS} <= known
