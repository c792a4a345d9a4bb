"""Crafted names, headers and texts, wherever the command line prints or exports them: a terminal
obeys none of them, a table shows them unchanged, a spreadsheet computes nothing."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import lakequeue
import pytest
from click.testing import CliRunner
from lake.on_files import RecordedBench
from lakequeue.cli import main
from lakequeue.cli.broker_commands import _broker_table as brokers_table
from lakequeue.cli.printing import console
from lakequeue.cli.sql import lines
from lakequeue.lake import open_lake, trace
from memory_shell import Engine
from rules.harness import drain

# Possible names of a queue; and other texts, for a consumer, a reason, a header.
NAMES = [
    "../../etc/passwd", "=HYPERLINK(0,1)", "[red]markup[/red]", "<b>&amp;</b>", "+1+1", "%s%n",
    "\N{RIGHT-TO-LEFT MARK}\N{SNOWMAN}", "@SUM(A1)", "-2+3", "x" * 200, "'; drop table t;--",
]  # fmt: skip
TEXTS = [
    "\x1b[31mred", "\x1b]0;title\x07", "a\nb\rc\td", "\N{RIGHT-TO-LEFT OVERRIDE}gnp", "\x9b2J",
    "\x00", *NAMES,
]  # fmt: skip


def assert_harmless(text: str) -> None:
    wrong = {c for c in text if not c.isprintable()} - {"\n"}
    assert not wrong, wrong


@pytest.mark.parametrize("name", NAMES)
def test_a_queues_name_is_shown_as_it_is(shell: Engine, name: str) -> None:
    shell.admin.define({"name": name, "message_type": "text", "underlying_topic": "t"})
    shell.send(name, b"x")
    shown = "".join(c if c.isprintable() else " " for c in name)
    for command in (["queues"], ["events"], ["queues", *([name] if name[0] != "-" else [])]):
        out = shell.run(*command).stdout
        assert_harmless(out)
        assert shown in out or len(name) > 100  # a column is narrower
    assert shell.json("queues")[0]["name"] == name


@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_consumers_are_escaped(shell: Engine, text: str) -> None:
    shell.admin.define({"name": "q", "message_type": "text", "dead_message_queue": "dead"})
    shell.admin.define({"name": "dead", "message_type": "text"})
    producer = shell.connection.producer()
    for _ in range(2):
        producer.send("q", text.encode(), headers={"k": text})
    consumer = shell.connection.consumer("q", name=text[:100], max_backlog=2, ack_mode="individual")
    message = consumer.receive(0)
    message.reject(reason=text)
    for command in (["queues"], ["queues", "q"], ["events"], ["browse", "q"], ["browse", "dead"]):
        assert_harmless(shell.run(*command).stdout)
    assert shell.json("browse", "q")  # one line of JSON, whatever it contains
    for command in (["queues"], ["queues", "q"], ["events"], ["browse", "dead"]):
        assert_harmless(shell.run(*command, "--json").stdout)
    assert shell.json("browse", "dead")["headers"]["k"] == text


@pytest.mark.parametrize("time", ["²", "soon", "9" * 30, "9" * 5_000, "-1"])
def test_a_living_message_with_dead_message_headers_is_shown_as_living(
    shell: Engine, time: str
) -> None:
    shell.admin.define({"name": "q", "message_type": "text"})
    headers = {"lq-dead-time": time, "lq-dead-reason": "expired", "k": "v"}
    shell.connection.producer().send("q", b"x", headers=headers)
    assert "expired" not in shell.run("browse", "q").stdout
    seen = shell.json("browse", "q")
    assert seen["dead"] is None
    assert seen["headers"] == {"k": "v"}
    consumer = shell.connection.consumer("q", ack_mode="individual")
    message = consumer.receive(0)
    assert message.headers == {"k": "v"}


@pytest.mark.parametrize("text", TEXTS)
def test_broker_commands_escape_names(text: str) -> None:
    one = {"name": text, "number": 1, "state": "failed", "worker": text, "steps": 1, "load": None,
           "why": text, "group": text}  # fmt: skip
    out = console()
    with out.capture() as captured:
        out.print(brokers_table([one]))
    assert_harmless(captured.get())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each text as payload, consumer's name, reason; each name as a queue."""
    bench = RecordedBench()
    for name in NAMES:
        bench.admin.define({"name": name, "message_type": "text", "underlying_topic": "t"})
    bench.define("q", message_type="text", max_per_subscription_backlog=99)
    for text in TEXTS:
        bench.producer.send("q", text.encode("utf-8", "replace"))
        with bench.consumer("q", name=text[:100]) as consumer:
            drain(consumer)[0].reject(reason=text)
    return bench.recorded.write(tmp_path_factory.mktemp("home"))


def asked(home: Path, *arguments: str) -> str:
    done = CliRunner().invoke(main, [*arguments, "--home", str(home)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_no_cell_of_an_export_is_a_formula(home: Path) -> None:
    query = "select queue, subscription, reason, message_id, -1 as below, -0.5 as half from journal"
    rows = list(csv.reader(io.StringIO(asked(home, "sql", query, "--csv"))))
    assert len(rows) > len(TEXTS)
    found = {cell for row in rows[1:] for cell in row[:4]}
    assert not {cell for cell in found if cell[:1] in tuple("=+-@\t\r")}
    assert {"'=HYPERLINK(0,1)", "'+1+1", "'@SUM(A1)", "'-2+3"} <= found
    assert {row[4] for row in rows[1:]} == {"-1"}  # numbers stay numbers
    assert {row[5] for row in rows[1:]} == {"-0.5"}
    # Programs get the unchanged text.
    told = [json.loads(line) for line in asked(home, "sql", query, "--json").splitlines()]
    assert {"=HYPERLINK(0,1)", "-2+3"} <= {row["reason"] or row["queue"] for row in told} | {
        row["queue"] for row in told
    }


def test_tables_and_traces_are_escaped(home: Path) -> None:
    for asked_for in (["sql", "select * from journal"], ["trace", "1"]):
        assert_harmless(asked(home, *asked_for))
        assert_harmless(asked(home, *asked_for, "--json"))
    with open_lake(home) as lake:
        for number in range(1, len(TEXTS) + 1):
            assert_harmless("\n".join(lines(trace(lake, str(number)))))


@pytest.mark.parametrize("number", ["9" * 5_000, "²", "-1", "0", "1.5", "\x1b[31m1"])
def test_an_invalid_message_id_is_reported_in_a_sentence(home: Path, number: str) -> None:
    done = CliRunner().invoke(main, ["trace", "--home", str(home), "--", number])
    assert done.exit_code == 2, done.output
    assert "is not a message id" in done.stderr
    assert len(done.stderr) < 400
    assert_harmless(done.stderr)


SPOKEN = "\N{RIGHT-TO-LEFT OVERRIDE}[red]gnp[/red]"  # a queue may have this name


def test_results_of_commands_are_escaped(shell: Engine) -> None:
    for keys in ({"name": SPOKEN, "dead_message_queue": "dead"}, {"name": "dead"}):
        shell.admin.define({"message_type": "text", "max_spool_messages": 1, **keys,
                            "underlying_topic": f"t{len(keys)}"})  # fmt: skip
    shell.send(SPOKEN, b"x")
    refused = shell.run("publish", SPOKEN, stdin="y\n").stdout
    assert "queue_quota by  [red]gnp[/red]" in refused
    consumer = shell.connection.consumer(SPOKEN, ack_mode="individual")
    message = consumer.receive(0)
    message.reject()
    consumer.close()
    said = ("redrive dead", "purge Q --all", "shutdown Q --egress", "queues Q", "delete Q --yes")
    for command in said:
        out = shell.run(*command.replace("Q", SPOKEN).split()).stdout
        assert "[red]gnp[/red]" in out
        assert_harmless(out)
    assert_harmless(refused + shell.run("publish", "nowhere", stdin="y\n").stderr)


def test_a_far_queues_name_is_escaped(shell: Engine) -> None:
    """The names come from whoever runs the other home."""
    with lakequeue.connect("memory://crafted-far") as far:
        there = {"name": "out", "from": shell.url, "to": "broker-0", "subscriptions": ["a/>"]}
        far.admin().bridge(there)
        queue = {"name": SPOKEN, "message_type": "text", "max_spool_messages": 1}
        keys = {"type": "LocalQueue", "underlying_topic": "t", "subscriptions": ["a/>"]}
        far.admin().define({**queue, **keys})
        shell.run("bridges", "name=out", "to=memory://crafted-far", "subscriptions=[a/>]")
        for n in range(3):
            shell.send("a/x", b"%d" % n)
        out = shell.run("bridges").stdout
        assert "[red]gnp[/red]: queue_quota" in out
        assert_harmless(out)
