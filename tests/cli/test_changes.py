"""R6, R4, R1: `move`, `edit`, `purge --dry-run`, `replay` and `at` from the shell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from lake.history import write_history
from lake.on_files import Recorded
from lake.test_past import lived
from memory_shell import Engine, run


@pytest.fixture
def orders(shell: Engine) -> Engine:
    """Queues `orders`, with three messages, and `others`."""
    for name in ("others", "orders"):
        shell.admin.define({"name": name, "message_type": "json"})
    shell.send("orders", b'{"n": 1}', b'{"n": 2}', b'{"n": 3}')
    return shell


def depths(shell: Engine) -> dict[str, int]:
    return {queue["name"]: queue["depth"] for queue in shell.admin.queues()}


def test_r6_move(orders: Engine) -> None:
    result = orders.run("move", "orders", "others", "--where", "/n > 1", "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "2 would be moved to others\n")
    assert depths(orders) == {"orders": 3, "others": 0}
    refused = orders.run("move", "orders", "others", "--where", "/n > 1", stdin="n\n")
    assert refused.exit_code == 1
    assert "Move 2 messages from orders to others?" in refused.stdout
    assert depths(orders) == {"orders": 3, "others": 0}
    orders.admin.define({"name": "others", "message_type": "json", "filter": "/n < 3"})
    command = ("move", "orders", "others", "--where", "/n > 1", "--yes", "--why", "typo")
    assert orders.json(*command) == {
        "queue": "orders", "to": "others", "dry_run": False, "count": 1, "stayed": 1,
        "why": {"filter": 1},
    }  # fmt: skip
    assert depths(orders) == {"orders": 2, "others": 1}
    (event,) = [e for e in orders.admin.events() if e["event"] == "moved"]
    assert (event["who"], event["why"]) == ("move", "typo")
    assert "2 stayed" not in orders.run("move", "orders", "others", "--ids", "1", "--yes").stdout


def test_r6_edit(orders: Engine) -> None:
    command = ("edit", "orders", "-H", "checked=yes", "--ids", "1-2")
    assert orders.run(*command, "--dry-run").stdout == "2 would be edited in orders\n"
    assert orders.run(*command, "--yes").stdout == "2 edited in orders\n"
    assert [m.headers for m in orders.admin.browse("orders")] == [
        {"checked": "yes"}, {"checked": "yes"}, {},
    ]  # fmt: skip
    orders.run("edit", "orders", "--remove", "checked", "--all", "--yes")
    assert [m.headers for m in orders.admin.browse("orders")] == [{}, {}, {}]
    assert orders.run("edit", "orders", "--all", "--yes").exit_code == 2


def test_r6_purge_by_id_asks_with_the_number(orders: Engine) -> None:
    first, second, third = (message.id for message in orders.admin.browse("orders"))
    refused = orders.run("purge", "orders", "--ids", f"{first},{third}", stdin="n\n")
    assert refused.exit_code == 1
    assert "Remove 2 messages from orders for good?" in refused.stdout
    orders.run("purge", "orders", "--ids", f"{first},{third}", "--yes")
    assert [message.id for message in orders.admin.browse("orders")] == [second]


def test_r6_purge_dry_run(orders: Engine) -> None:
    result = orders.run("purge", "orders", "--where", "/n > 1", "--dry-run")
    assert result.stdout == "2 would be removed from orders\n"
    assert depths(orders)["orders"] == 3


@pytest.mark.parametrize(
    "command", [("move", "orders", "others"), ("edit", "orders", "-H", "a=b"), ("purge", "orders")]
)
def test_which_messages_must_be_said(orders: Engine, command: tuple[str, ...]) -> None:
    for more, both in (((), ""), (("--all", "--ids", "1"), "; --all goes without the others")):
        result = orders.run(*command, *more, "--yes")
        assert result.exit_code == 2
        assert f"--where EXPRESSION, --ids RANGES or --all{both}\n" in result.stderr


def test_r4_replay(orders: Engine, tmp_path: Path) -> None:
    engine = orders.connection.engine
    recorded = Recorded(engine)
    orders.admin.purge("orders")
    orders.send("orders", *(b'{"n": %d}' % n for n in range(4, 11)))
    orders.admin.purge("orders")
    recorded.write(tmp_path)
    command = ("replay", "orders", "--since", "4", "--home", str(tmp_path))
    shown = orders.run(*command, "--dry-run").stdout.splitlines()
    assert shown[0].startswith("7 messages to publish again; the tables begin ")
    assert shown[1].endswith('spooled  {"n": 4}')
    assert shown[-1] == "  and 2 more"
    assert depths(orders)["orders"] == 0
    assert orders.run(*command, "--rate", "1000", stdin="y\n").stdout.endswith(
        "7 published to orders\n"
    )
    assert [m.headers["lq-replay-of"] for m in orders.admin.browse("orders")] == [
        str(n) for n in range(4, 11)
    ]
    assert orders.run("replay", "orders").exit_code == 2


# ---------------------------------------------------------------- at


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    walk = lived(3)
    return write_history(walk.world, tmp_path_factory.mktemp("home"), walk.saved)


def at(home: Path, *words: str) -> Result:
    return run("at", *words, "--home", str(home))


def test_r1_at_any_moment(home: Path) -> None:
    (queue,) = json.loads(at(home, "last", "queues", "--json").stdout)
    assert json.loads(at(home, "last", "describe", "orders", "--json").stdout) == queue
    found = at(home, "last", "browse", "orders", "--limit", "1000", "--json")
    assert len(found.stdout.splitlines()) == queue["depth"] > 0
    assert found.stderr.startswith("Broker broker-0 after step ")
    early = json.loads(at(home, "--step", "1", "queues", "--json").stdout)
    assert [(q["name"], q["depth"]) for q in early] == [("orders", 0)]
    assert "orders" in at(home, "2040-01-01T00:00:00Z", "queues").stdout
    assert "defined" in at(home, "last", "events").stdout


def test_r1_what_a_step_took_and_said(home: Path) -> None:
    step = json.loads(at(home, "--step", "1", "step", "--json").stdout)
    assert [r["topic"] for r in step["took"]] == ["default.commands"] * 2
    # the journal goes out with a later step: several are gathered
    assert {r["topic"] for r in step["said"]} == {"default.directory"}
    assert at(home, "--step", "1", "step").stdout.startswith("It took 2 records:\n")


def test_r3_rebuild(home: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    command = ["rebuild", "--from", str(home), "--home", str(new)]
    said = run(*command)
    assert said.exit_code == 0
    assert said.stdout.startswith("broker-0: ")
    assert said.stdout.endswith(f"Start the engine with --home {new}\n")
    again = run(*command)
    assert (again.exit_code, "is not empty" in again.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "The time is missing"), (("last",), "Error: Name what to look at"),
        (("last", "qeues"), "Error: 'qeues' cannot be looked at. Name what to look at: one of qu"),
        (("last", "browse"), "a QUEUE"),
        (("last", "queues", "a", "b"), "takes"), (("yesterday", "queues"), "time: 'yesterday'"),
        (("2001-01-01T00:00:00Z", "queues"), "the tables begin later: steps 1 to"),
        (("last", "describe", "nobody"), "there was no such queue"),
        (("last", "browse", "orders", "--where", "n > 1"), "where: 'n > 1' – must be an exp"),
        (("--step", "9999", "queues"), "the tables have steps 1 to"),
    ],
)  # fmt: skip
def test_at_wrong_words(home: Path, words: tuple[str, ...], said: str) -> None:
    result = at(home, *words)
    assert result.exit_code == 2
    assert said in result.stderr
