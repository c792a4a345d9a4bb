"""`browse` shows how a message died; `publish` says why nothing took one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lakequeue.cli.common import confirm
from lakequeue.cli.group import EnvironmentFault
from memory_shell import Engine


@pytest.fixture
def dead(shell: Engine) -> Engine:
    """A dead message queue with one that was rejected and one that expired."""
    shell.admin.define({"name": "graves", "message_type": "json"})
    shell.admin.define({"name": "orders", "message_type": "json", "dead_message_queue": "graves"})
    shell.connection.producer().send("orders", b'{"n": 1}')
    with shell.connection.consumer("orders") as consumer:
        message = consumer.receive(0)
        message.reject("no such customer")
    shell.connection.producer(ttl="1s").send("orders", b'{"n": 2}')
    shell.connection.advance("1s")
    return shell


def test_x5_browse_shows_what_a_message_died_of_where_and_when(dead: Engine) -> None:
    head, first, second = dead.run("browse", "graves").stdout.splitlines()
    assert "died of" in head
    day = f"{dead.connection.now():%Y-%m-%d} "
    assert "rejected: no such customer  orders    " + day in first
    assert "expired" in second
    said = dead.run("browse", "graves", "--json").stdout.splitlines()
    one, other = (json.loads(line)["dead"] for line in said)
    assert (one["reason"], one["queue"], one["detail"]) == (
        "rejected",
        "orders",
        "no such customer",
    )
    assert (other["reason"], other["time"]) == ("expired", dead.connection.now().isoformat())
    dead.connection.producer().send("graves", b"{}")
    assert len(dead.run("browse", "graves").stdout.splitlines()) == 4


def test_a_queue_without_dead_messages_has_no_such_columns(shell: Engine) -> None:
    shell.admin.define({"name": "orders", "message_type": "json"})
    shell.send("orders", b"{}")
    assert "died of" not in shell.run("browse", "orders").stdout
    assert shell.json("browse", "orders")["dead"] is None


def test_s6_publish_names_the_queues_that_are_there(dead: Engine) -> None:
    result = dead.run("publish", "odrers", stdin="1\n")
    assert result.exit_code == 1
    assert result.stderr == (
        "No queue takes what is sent to 'odrers'. Queues here: graves, orders\n"
    )


def test_s6_publish_says_that_a_filter_refuses(shell: Engine) -> None:
    shell.run("define", "name=dear", "message_type=json", "filter=/price > 100")
    result = shell.run("publish", "dear", stdin='{"price": 1}\n')
    assert result.stderr == "dear takes only messages that match its filter: /price > 100\n"


def test_s6_publish_without_any_queue_says_how_to_define_one(shell: Engine) -> None:
    result = shell.run("publish", "orders", stdin="1\n")
    assert (
        result.stderr == "There are no queues yet: lakequeue define name=orders message_type=json\n"
    )


def test_s4_publish_says_what_was_discarded(shell: Engine) -> None:
    shell.admin.define({"name": "orders", "message_type": "json"})
    shell.run("shutdown", "orders", "--ingress")
    result = shell.run("publish", "orders", stdin="1\n2\n")
    assert result.exit_code == 1
    assert result.stdout == "0 stored, 0 refused, 2 discarded\n  2 × queue_shutdown by orders\n"
    found = shell.run("publish", "orders", "--json", stdin="1\n").stdout
    assert json.loads(found)["discarded"] == 1


@pytest.mark.parametrize("option", [("--key", "k"), ("--header", "a=k"), ("--header", "k=a")])
def test_publish_refuses_what_the_shell_gave_as_bytes_that_are_no_text(
    shell: Engine, option: tuple[str, str]
) -> None:
    """Python has half a surrogate for each such byte."""
    name, value = option
    shell.admin.define({"name": "orders", "message_type": "text"})
    found = shell.run("publish", "orders", name, value.replace("k", "\udcff"), stdin="x")
    assert found.exit_code == 2
    assert "\\udcff' – allowed" in found.stderr
    assert shell.admin.describe("orders")["depth"] == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--ttl", "-5"), "ttl: '-5'"),
        (("--ttl", "soon"), "ttl: 'soon'"),
        (("--delay", "5"), "delay: '5'"),
        (("--delay", "2h", "--ttl", "1h"), "delay: 7200000 ms from now"),
        (("--header", "lq=1"), "headers: 'lq'"),
        (("--header", "x=\udcff"), "headers['x']"),
        (("--key", "\udcff"), "key"),
        (("--priority", "256"), "256"),
        (("--header", "x"), "--header"),
    ],
)
def test_publish_refuses_a_wrong_option_without_any_input(
    shell: Engine, options: tuple[str, ...], named: str
) -> None:
    """A script that has nothing to send today learns it today."""
    shell.admin.define({"name": "orders", "message_type": "text"})
    result = shell.run("publish", "orders", *options, stdin="")
    assert (result.exit_code, result.stdout) == (2, "")
    assert named in result.stderr
    assert shell.run("publish", "orders", stdin="").exit_code == 0
    assert shell.run("publish", "", stdin="").exit_code == 2


@pytest.mark.parametrize(
    ("closed", "command", "status", "stream"),
    [
        ("<&-", "publish orders", 3, "input"),
        ("<&-", "define -", 3, "input"),
        ("<&-", "purge orders --all", 0, ""),  # nothing to ask about
        (">&-", "consume orders --count 1", 3, "output"),
        (">&-", "consume orders --timeout 0 --exec cat", 0, ""),
    ],
)
def test_a_closed_standard_stream_is_a_sentence_where_it_is_needed(
    tmp_path: Path, closed: str, command: str, status: int, stream: str
) -> None:
    """A consumer without an output would acknowledge what nobody gets."""
    (tmp_path / "q.yaml").write_text("queues: [{name: orders, message_type: text}]")
    program = f"{sys.executable} -m lakequeue.cli {command} --url memory://?config=q.yaml {closed}"
    ended = subprocess.run(
        ["sh", "-c", program], cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=60
    )
    assert ended.returncode == status, ended.stderr
    said = f"standard {stream} is closed, and is needed here\n"
    assert ended.stderr == said if stream else "should not" not in ended.stderr


def test_a_question_without_standard_input_is_not_asked(
    shell: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(EnvironmentFault, match="standard input is closed"):
        confirm("Remove all?", as_json=False)


def test_edit_refuses_to_set_and_to_remove_one_header(shell: Engine) -> None:
    shell.admin.define({"name": "orders", "message_type": "text"})
    result = shell.run("edit", "orders", "--header", "x=1", "--remove", "x", "--all", "--yes")
    assert result.exit_code == 2
    assert "--header and --remove: both name x" in result.stderr
