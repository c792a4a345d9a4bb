"""All possible alerts are in one table, `protocol.outputs.ALERTS` (S9, B4), by which a reader of
the journal tells alerts from other events. The core's alerts, those that `usage` and `describe`
show as active, and those in the reference are compared with it, so that none can be added in one
place alone.

The core's names are read from its source: a run would show only those that it reached.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import lakequeue
import pytest
from docs.printed import ROOT
from lakequeue.protocol.outputs import ALERTS, is_alert

STATE = Path(lakequeue.__file__).parent / "state"
SAYS_THEM = STATE / "phases" / "alerts.py"
TABLE = ("_watch_broker", "what")  # lists its levels in a table, `names`
NO_ALERTS = {"bridge_cleared"}  # H3: a blocked bridge continues; nothing fills up


def calls(file: Path) -> Iterator[tuple[str, ast.Call, str]]:
    """Each call of a file: the enclosing function, the call, and the name of the called
    function."""
    for function in ast.walk(ast.parse(file.read_text())):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                match node:
                    case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)):
                        yield function.name, node, called


def strings(node: ast.AST) -> set[str]:
    """All literal strings below a node except those in comparisons."""
    own = {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()
    below = () if isinstance(node, ast.Compare) else ast.iter_child_nodes(node)
    return own.union(*map(strings, below))


def test_the_core_raises_exactly_the_alerts_of_the_table() -> None:
    said = set()
    for where, call, called in calls(SAYS_THEM):
        if called == "Level" and (where, ast.unparse(call.args[0])) != TABLE:
            said.add(ast.literal_eval(call.args[0]))
    for node in ast.walk(ast.parse(SAYS_THEM.read_text())):
        match node:
            case ast.Assign(targets=[ast.Name(id="names")]):
                said |= strings(node.value)
    assert said == ALERTS


@pytest.mark.parametrize("file", sorted(STATE.rglob("*.py")), ids=lambda f: f.stem)
def test_nothing_else_in_the_core_raises_an_alert(file: Path) -> None:
    for where, call, called in calls(file):
        assert called != "Alert" or (file, where) == (SAYS_THEM, "_compare"), f"{file}: {where}"
        if called == "event" and call.args:
            for name in strings(call.args[0]) - NO_ALERTS:
                assert not name.endswith(("_high", "_cleared")), f"{file}: {where}: {name}"


def test_other_events_are_not_taken_for_alerts() -> None:
    assert not any(map(is_alert, NO_ALERTS))
    assert all(is_alert(f"{name}_{end}") for name in ALERTS for end in ("high", "cleared"))


def test_active_alerts_are_of_the_table() -> None:
    """`describe`, `queues` and `usage`; the broker's are the state's own list of keys."""
    shown = set()
    for node in ast.walk(ast.parse((STATE / "commands" / "inspection.py").read_text())):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "alerts":
                    shown |= strings(value)
    assert {"spool_usage", "delivered_unacked"} <= shown <= ALERTS


def test_the_reference_lists_all_alerts() -> None:
    text = (ROOT / "docs/reference/reasons-and-events.md").read_text()
    table = text.partition("\n## Alerts\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)_high`, `(\w+)_cleared` \|", table, re.MULTILINE)
    assert sorted(rows) == sorted((name, name) for name in ALERTS)
    assert len(re.findall(r"_high`|_cleared`", table)) == 2 * len(ALERTS)
