"""`brokers`: which there are."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import lakequeue
import pytest
from lakequeue.cli.broker_commands import _broker_table
from lakequeue.cli.queues import _rows
from lakequeue.client.admin import Admin
from memory_shell import Engine
from rich.console import Console


def test_the_brokers_and_their_states(shell: Engine) -> None:
    (one,) = shell.json("brokers")
    assert (one["name"], one["number"], one["state"]) == ("broker-0", 0, "running")
    assert one["load"] is None  # no batch has ended
    shown = shell.run("brokers").stdout.splitlines()
    assert shown[0].split() == ["broker", "number", "state", "worker", "steps", "load", "why"]
    assert shown[1].split() == ["broker-0", "0", "running", "–", "–", "–"]


def test_groups_are_shown_where_there_are_some(shell: Engine) -> None:
    brokers: list[Any] = [{"name": "a", "group": "east"}, "b"]
    given = {"brokers": brokers, "queues": [{"name": "q", "message_type": "json"}]}
    with lakequeue.connect("memory://grouped-brokers", config=given) as connection:
        found = connection.admin().brokers()
        assert [one["group"] for one in found] == ["east", ""]
        table = StringIO()
        Console(file=table, width=120).print(_broker_table(found))
        rows = [line.split() for line in table.getvalue().splitlines()]
        assert [row[:4] for row in rows] == [
            ["broker", "number", "group", "state"],
            ["a", "0", "east", "running"],
            ["b", "1", "–", "running"],
        ]
        used = connection.admin().usage()
        said = {of: mine for of, mine, *_ in _rows(used)}
        assert [said[f"broker {name}"] for name in "ab"] == [
            used["brokers"][name]["broker"] for name in "ab"
        ]
    refused = shell.run("brokers", "--group", "east")
    assert refused.exit_code == 2
    assert "--group east: only with --add, for the added broker" in refused.stderr
    refused = shell.run("brokers", "--add", "west", "--to", "east")
    assert refused.exit_code == 2
    assert "--to east: only with --remove, for the queues of the removed broker" in refused.stderr


def test_what_moved_away_from_a_removed_broker_is_said_beside_the_table(
    shell: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def remove(admin: Admin, name: str, to: str | None) -> list[dict[str, str]]:
        asked.append((name, to))
        return [{"vpn": "default", "queue": "q", "broker": "east"}]

    monkeypatch.setattr(Admin, "remove_broker", remove)
    result = shell.run("brokers", "--remove", "west", "--to", "east", "--json")
    assert asked == [("west", "east")]
    assert result.stderr == "queue 'q' of VPN 'default' is on 'east' now\n"
    assert json.loads(result.stdout)[0]["name"] == "broker-0"


def test_M4_brokers_come_and_go_in_memory(shell: Engine) -> None:
    shell.admin.define({"name": "q", "message_type": "json", "type": "LocalQueue"})
    added = shell.json("brokers", "--add", "west", "--group", "far")
    assert [(one["name"], one["number"], one["group"]) for one in added] == [
        ("broker-0", 0, ""), ("west", 1, "far"),
    ]  # fmt: skip
    result = shell.run("brokers", "--remove", "broker-0", "--json")
    assert result.stderr == "queue 'q' of VPN 'default' is on 'west' now\n"
    assert [one["name"] for one in json.loads(result.stdout)] == ["west"]
    refused = shell.run("brokers", "--remove", "west")
    assert refused.exit_code == 1
    assert "'west': is the home's only one, and cannot be removed" in refused.stderr
