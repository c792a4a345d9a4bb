"""`define`, `delete`, `shutdown`, `events`, `usage`: a queue's life from the shell."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from lakequeue.cli.queues import newer
from memory_shell import Engine

FILE = """
queues:
  - name: orders
    message_type: json
    max_deliveries: 3
    dead_message_queue: dead
  - name: dead
    message_type: json
"""

# ---------------------------------------------------------------- define (Q7, Q9)


def test_q1_a_queue_is_defined_from_its_keys(shell: Engine) -> None:
    keys = ("name=orders", "message_type=json", "filter=/price > 10", "max_deliveries=5")
    result = shell.run("define", *keys, "lease_period=30s", "respect_ttl=true")
    assert (result.exit_code, result.stdout) == (0, "orders defined\n")
    found = shell.admin.describe("orders")["definition"]
    assert (found["filter"], found["max_deliveries"]) == ("/price > 10", 5)
    assert (found["lease_period_ms"], found["respect_ttl"]) == (30_000, True)


def test_q7_a_word_that_is_no_key_and_a_key_given_twice_are_named(shell: Engine) -> None:
    result = shell.run("define", "name=orders", "max_deliveries")
    assert result.exit_code == 2
    assert "'max_deliveries' is not KEY=VALUE" in result.stderr
    result = shell.run("define", "name=orders", "max_backlog=1", "max_backlog=2")
    assert result.exit_code == 2
    assert "'max_backlog' is given twice" in result.stderr


def test_q9_keys_that_are_not_named_stay_as_they_are(shell: Engine) -> None:
    shell.run("define", "name=orders", "message_type=json", "max_deliveries=5", "priority=/p")
    result = shell.run("define", "name=orders", "max_backlog=7")
    assert (result.exit_code, result.stdout) == (0, "orders defined again\n")
    found = shell.admin.describe("orders")["definition"]
    assert (found["max_deliveries"], found["priority"], found["max_backlog"]) == (5, "/p", 7)
    assert shell.run("define", "name=orders", "max_backlog=").exit_code == 0
    assert shell.admin.describe("orders")["definition"]["max_backlog"] is None


def test_the_queues_of_a_file_are_defined(shell: Engine, tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(FILE)
    assert shell.json("define", str(file)) == {"defined": ["orders", "dead"], "again": []}
    result = shell.run("define", "-", stdin=FILE)
    assert result.stdout == "orders defined again\ndead defined again\n"
    assert shell.admin.describe("orders")["definition"]["max_deliveries"] == 3


def test_q7_a_file_with_a_problem_defines_nothing(shell: Engine, tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(FILE + "    colour: red\n")
    result = shell.run("define", str(file))
    assert result.exit_code == 2
    assert "colour" in result.stderr
    assert shell.admin.queues() == []


def test_what_a_file_says_besides_is_told(shell: Engine, tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(FILE + "system:\n  max_spool_usage: 1GB\n")
    result = shell.run("define", str(file))
    assert result.exit_code == 0
    assert "system is read when the engine starts" in result.stderr


def test_a_file_for_another_vpn_is_refused(shell: Engine, tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(FILE.replace("    max_deliveries: 3", "    vpn: east"))
    result = shell.run("define", str(file))
    assert result.exit_code == 1
    assert "add --vpn east" in result.stderr
    assert shell.admin.queues() == []


@pytest.mark.parametrize("what", [("name=a", "queues.yaml"), ("message_type=json",), ()])
def test_what_cannot_be_meant_is_a_usage_error(shell: Engine, what: tuple[str, ...]) -> None:
    assert shell.run("define", *what).exit_code == 2


# ---------------------------------------------------------------- delete (S7), shutdown (H5)


@pytest.fixture
def orders(shell: Engine) -> Engine:
    """With the queue `orders`, which holds two messages."""
    shell.admin.define({"name": "orders", "message_type": "json"})
    shell.send("orders", b"1", b"2")
    return shell


def test_s7_delete_asks(orders: Engine) -> None:
    result = orders.run("delete", "orders", stdin="n\n")
    assert result.exit_code == 1
    assert "orders holds 2 messages and has 0 consumers. Delete it?" in result.output
    assert len(orders.admin.queues()) == 1
    found = orders.json("delete", "orders", "--yes")
    assert found == {"queue": "orders", "deleted": True, "messages": 2}
    assert orders.admin.queues() == []
    assert "orders" in orders.run("delete", "orders", "--yes").stderr


def test_h5_what_is_not_named_stays_as_it_is(orders: Engine) -> None:
    result = orders.run("shutdown", "orders", "--ingress")
    assert result.stdout == "orders: ingress shut down, egress open\n"
    result = orders.run("shutdown", "orders", "--egress")
    assert result.stdout == "orders: ingress shut down, egress shut down\n"
    line = orders.run("queues").stdout.splitlines()[1]
    assert "ingress shut down, egress shut down" in line
    found = orders.json("shutdown", "orders", "--open-ingress")
    assert found == {"queue": "orders", "shut_down": {"ingress": False, "egress": True}}
    look = orders.admin.describe("orders")
    assert (look["ingress"], look["egress"]) == (True, False)
    assert orders.run("shutdown", "orders").exit_code == 2


# ---------------------------------------------------------------- alerts (S9): queues, usage


def test_s9_an_alert_and_a_full_quota_stand_in_queues(shell: Engine) -> None:
    orders = {"name": "orders", "message_type": "binary", "max_spool_usage": "10KB"}
    shell.admin.define(orders)
    shell.send("orders", *[bytes(1000)] * 2)
    assert "spool_usage" not in shell.run("queues").stdout
    shell.send("orders", *[bytes(1000)] * 2)
    line = shell.run("queues").stdout.splitlines()[1]
    assert "no consumer" in line
    assert "spool_usage 40.0 %" in line
    assert "full" not in line
    shell.send("orders", *[bytes(1000)] * 6)
    assert "spool_usage 100.0 %, full" in shell.run("queues").stdout
    assert "spool_usage 100.0 %, full" in shell.run("queues", "orders").stdout


def test_s9_alerts_of_the_broker_stand_under_the_queues() -> None:
    system = {"max_spool_usage": "10KB"}
    queue = {"name": "orders", "message_type": "binary"}
    shell = Engine({"system": system, "queues": [queue]})
    shell.send("orders", *[bytes(1000)] * 8)
    last = shell.run("queues").stdout.splitlines()[-1].rstrip()
    assert last == "Alert spool_usage of broker broker-0: 8.0 KB of 10.0 KB, 80.0 %"
    table = shell.run("usage").stdout
    assert [line.split()[-1] for line in table.splitlines() if "set" in line] == ["set"]
    assert shell.json("usage")["broker"]["alerts"] == ["spool_usage"]


def test_usage_tells_what_was_refused(orders: Engine) -> None:
    orders.run("publish", "nowhere", stdin="1\n")
    assert "1 refused: no_matching_destination" in orders.run("usage").stdout
    assert orders.json("usage")["vpn"]["spool_bytes"] == 2
    orders.admin.define({"name": "orders", "message_type": "json", "max_spool_messages": 2})
    orders.run("publish", "orders", stdin='{"n": 1}\n{"n": 2}\n')
    assert orders.run("usage").stdout.splitlines()[-1] == "2 refused: queue_quota by orders"


# ---------------------------------------------------------------- events


def test_events_are_lines_with_their_details(orders: Engine) -> None:
    orders.run("shutdown", "orders", "--ingress")
    first, second = orders.run("events").stdout.splitlines()
    assert first.endswith("  defined  orders")
    assert second.endswith("  shutdown  orders  ingress=True egress=False")
    assert orders.run("events", "--limit", "1").stdout == second + "\n"
    assert orders.run("events", "--limit", "0").stdout == ""
    none = orders.run("events", "--queue", "other")
    assert (none.stdout, none.stderr) == ("", "No such events so far.\n")


def test_events_json_has_the_time(orders: Engine) -> None:
    (event,) = map(json.loads, orders.run("events", "--json").stdout.splitlines())
    assert (event["event"], event["queue"]) == ("defined", "orders")
    assert event["time"] == orders.connection.now().isoformat()


def test_s9_only_alerts_are_shown_to_those_who_ask(shell: Engine) -> None:
    shell.admin.define({"name": "q", "message_type": "binary", "max_spool_messages": 2})
    shell.send("q", b"1")
    found = shell.run("events", "--alerts").stdout.splitlines()
    assert len(found) == 1
    assert "spool_usage_high  q" in found[0]


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        ([], [1, 2], [1, 2]),
        ([1, 2], [1, 2], []),
        ([1, 2], [1, 2, 3], [3]),
        ([1, 2, 3], [3, 4, 5], [4, 5]),  # the engine dropped 1 and 2
        ([1, 2], [7, 8], [7, 8]),
        ([1, 1], [1, 1, 1], [1]),
    ],
)
def test_what_is_newer(before: list[int], now: list[int], new: list[int]) -> None:
    given = [[{"n": n} for n in numbers] for numbers in (before, now, new)]
    assert newer(given[0], given[1]) == given[2]


def test_events_are_followed_until_a_signal(orders: Engine) -> None:
    def later() -> None:
        time.sleep(0.1)
        orders.admin.define({"name": "two", "message_type": "json"})
        time.sleep(0.4)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: None)
    beside = threading.Thread(target=later)
    beside.start()
    result = orders.run("events", "--follow", "--every", "0.2")
    beside.join()
    signal.signal(signal.SIGTERM, before)
    assert result.exit_code == 0
    assert [line.split()[-2:] for line in result.stdout.splitlines()] == [
        ["defined", "orders"], ["defined", "two"],
    ]  # fmt: skip


# ---------------------------------------------------------------- several brokers (Q5)


def test_q5_a_queue_is_shown_with_its_broker_and_moves() -> None:
    local = {"message_type": "json", "type": "LocalQueue"}
    queues = [{"name": "orders", **local}, {"name": "bills", **local}]
    shell = Engine({"brokers": ["east", "west"], "queues": queues})
    shell.send("orders", b"1", b"2")
    assert {q["name"]: q["broker"] for q in shell.json("queues")} == {
        "orders": "east", "bills": "west",
    }  # fmt: skip
    assert "east" in shell.run("queues").stdout
    moved = shell.run("move-queue", "orders", "west")
    assert moved.stdout == "orders is on west now, with 2 messages\n"
    assert shell.json("move-queue", "orders", "east") == {
        "queue": "orders", "broker": "east", "messages": 2,
    }  # fmt: skip
    failed = shell.run("move-queue", "orders", "north")
    assert failed.exit_code != 0
    assert "broker: 'north' – allowed are the home's brokers: east, west" in failed.stderr
    assert shell.run("delete", "bills", "--yes").exit_code == 0
    shell.run("define", "name=orders", "max_cancels=3")
    assert shell.admin.describe("orders")["definition"]["max_cancels"] == 3
    shell.connection.close()
