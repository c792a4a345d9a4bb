"""Behaviour of commands that transcripts cannot show: common options, addresses, streams and
signals."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import lakequeue
import pytest
from click.testing import CliRunner
from lakequeue.cli import COMMANDS, OTHER_NAMES, main
from lakequeue.cli.command_options import EngineCall
from lakequeue.cli.group import EnvironmentFault
from lakequeue.cli.queues import newer
from memory_shell import Engine, run

QUEUES: dict[str, Any] = {
    "queues": [
        {"name": "orders", "message_type": "json", "max_per_subscription_backlog": 100},
        {"name": "small", "message_type": "binary", "max_message_size": 5},
    ]
}


@pytest.fixture
def engine() -> Iterator[Engine]:
    one = Engine(QUEUES)
    yield one
    one.connection.close()


def options_of(kind: type[click.ParamType]) -> Iterator[tuple[str, ...]]:
    """Every command, with each of its options of this type."""
    top = click.Context(main)
    commands = {(name,): main.get_command(top, name) for name in COMMANDS}
    bench = commands[("bench",)]
    assert isinstance(bench, click.Group)
    commands |= {("bench", name): bench.get_command(top, name) for name in bench.list_commands(top)}
    for words, command in commands.items():
        for one in command.params if command else ():
            if isinstance(one.type, kind):
                yield (*words, one.opts[0])


WITH_FRACTIONS = list(options_of(click.types.FloatParamType))
COUNTS_OF_BENCHES = [n for n in options_of(click.types.IntParamType) if n[0] == "bench"]


# ---------------------------------------------------------------- numbers


def test_commands_with_numeric_options_exist() -> None:
    assert len(WITH_FRACTIONS) >= 6
    assert len(COUNTS_OF_BENCHES) > 20


@pytest.mark.parametrize(
    ("words", "value"),
    [(words, value) for words in WITH_FRACTIONS for value in ("nan", "inf", "-1")]
    + [(words, value) for words in COUNTS_OF_BENCHES for value in ("0", "-1")],
    ids=str,
)
def test_senseless_numbers_are_refused_before_anything_happens(
    words: tuple[str, ...], value: str
) -> None:
    result = run(*words, value)
    assert result.exit_code == 2
    assert f"Invalid value for '{words[-1]}'" in result.stderr
    assert value in result.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("browse orders --where '/a >'", "where: '/a >' – must be an expression"),
        ("purge orders --where '/a >' --yes", "where: '/a >' – must be an expression"),
        ("purge orders --ids 1,x --yes", "ids: 'x' – allowed are message ids"),
        ("move orders others --ids 5-1 --yes", "'5-1'"),
        ("move orders others --yes", "choose messages: --where EXPRESSION"),
        ("edit orders --header lq-id=1 --all --yes", "headers: 'lq-id' – allowed are names"),
        ("edit orders --header a=1 --where '/a >' --yes", "where: '/a >' – must be an expression"),
        ("redrive orders --where '/a >'", "where: '/a >' – must be an expression"),
        ("replay orders --since yesterday --yes", "since: 'yesterday' – allowed is ISO-8601"),
        ("replay orders --where '/a >' --yes", "where: '/a >' – must be an expression"),
    ],
)
def test_a_wrong_value_is_refused_before_kafka_is_contacted(words: str, why: str) -> None:
    result = run(*shlex.split(words), "--url", "kafka://127.0.0.1:1")
    assert result.exit_code == 2
    assert why in result.stderr


FILES = ("--config", "files")
PATHS = [words for words in options_of(click.Path) if words[-1] not in FILES]


@pytest.mark.parametrize("words", PATHS, ids=str)
def test_an_empty_path_does_not_mean_the_current_directory(words: tuple[str, ...]) -> None:
    result = run(*words, "")
    assert result.exit_code == 2
    assert f"Invalid value for '{words[-1]}'" in result.stderr
    assert "the path is empty: name a directory" in result.stderr


# ---------------------------------------------------------------- help


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "bench"])
def test_help_has_an_example_and_the_variables(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"  lakequeue {command}" in result.stdout
    assert "[env var: LAKEQUEUE_" in " ".join(result.stdout.split())


def test_help_lists_every_command() -> None:
    result = run("--help")
    assert all(f"  {command} " in result.stdout for command in COMMANDS)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("publihs", "publish"), *OTHER_NAMES.items(), ("xyzzy", None)],
)
def test_unknown_command(typed: str, meant: str | None) -> None:
    result = run(typed)
    assert result.exit_code == 2
    assert f"No such command {typed!r}." in result.stderr
    assert ("Did you mean" in result.stderr) == (meant is not None)
    assert not meant or (meant.split()[0] in COMMANDS and f" {meant}`" in result.stderr)


# ---------------------------------------------------------------- addresses


def test_a_home_gives_the_address(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "address").write_text(engine.url + "\n")
    result = run("queues", "--home", str(tmp_path), "--json")
    assert [queue["name"] for queue in json.loads(result.stdout)] == ["orders", "small"]


def test_the_url_from_the_environment(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEQUEUE_URL", engine.url)
    monkeypatch.setenv("LAKEQUEUE_HOME", "nowhere")
    assert run("queues").exit_code == 0
    assert run("queues", "--home", "elsewhere").exit_code == 3


def test_a_traceback_is_printed_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEQUEUE_DEBUG", "1")
    with pytest.raises(lakequeue.ConfigError):
        run("queues", "--url", "http://there")


# ---------------------------------------------------------------- publish


@pytest.mark.parametrize("stdin", ["", "x"], ids=["no input", "input"])
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--ttl", "-5"), "ttl: '-5'"),
        (("--ttl", "soon"), "ttl: 'soon'"),
        (("--delay", "5"), "delay: '5'"),
        (("--delay", "2h", "--ttl", "1h"), "delay: 7200000 ms from now"),
        (("--header", "lq=1"), "headers: 'lq'"),
        (("--header", "x"), "--header"),
        (("--priority", "256"), "256"),
        # The shell's Python decodes bytes that are no text as lone surrogates.
        (("--header", "x=\udcff"), "headers['x']: '\\udcff' – allowed"),
        (("--header", "\udcff=x"), "\\udcff' – allowed"),
        (("--key", "\udcff"), "key: '\\udcff' – allowed"),
    ],
)
def test_publish_refuses_a_wrong_option(
    engine: Engine, options: tuple[str, ...], named: str, stdin: str
) -> None:
    """A script with nothing to send today learns of its mistake today."""
    result = engine.run("publish", "orders", *options, stdin=stdin)
    assert (result.exit_code, result.stdout) == (2, "")
    assert named in result.stderr
    assert engine.depth("orders") == 0


def test_publish_accepts_empty_input_but_needs_a_queue(engine: Engine) -> None:
    assert engine.run("publish", "orders", stdin="").exit_code == 0
    assert engine.run("publish", "", stdin="").exit_code == 2


# ---------------------------------------------------------------- the terminal


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_a_character_gets_its_code(engine: Engine, encoding: str) -> None:
    engine.send("orders", '{"name": "☃"}'.encode())
    for command in ("browse", "queues"):
        shell = CliRunner(charset=encoding)
        result = shell.invoke(main, [command, "orders", "--url", engine.url])
        assert result.exit_code == 0, result.stderr
        assert command == "queues" or "\\u2603" in result.stdout


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
def test_a_closed_standard_stream_is_an_error_where_it_is_needed(
    tmp_path: Path, closed: str, command: str, status: int, stream: str
) -> None:
    """A consumer without an output would acknowledge messages that nobody gets."""
    (tmp_path / "q.yaml").write_text("queues: [{name: orders, message_type: text}]")
    program = f"{sys.executable} -m lakequeue.cli {command} --url memory://?config=q.yaml {closed}"
    ended = subprocess.run(
        ["sh", "-c", program], cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=60
    )
    assert ended.returncode == status, ended.stderr
    said = f"standard {stream} is closed, but this command needs it\n"
    assert ended.stderr == said if stream else "should not" not in ended.stderr


def test_no_question_is_asked_without_standard_input(
    shell: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(EnvironmentFault, match="standard input is closed"):
        EngineCall().confirm("Remove all?")


# ---------------------------------------------------------------- events


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
def test_only_newer_events_are_printed(before: list[int], now: list[int], new: list[int]) -> None:
    given = [[{"n": n} for n in numbers] for numbers in (before, now, new)]
    assert newer(given[0], given[1]) == given[2]


def test_events_are_followed_until_a_signal(engine: Engine) -> None:
    def later() -> None:
        time.sleep(0.1)
        engine.admin.define({"name": "two", "message_type": "json"})
        time.sleep(0.4)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: None)
    beside = threading.Thread(target=later)
    beside.start()
    result = engine.run("events", "--follow", "--every", "0.2")
    beside.join()
    signal.signal(signal.SIGTERM, before)
    assert result.exit_code == 0
    assert [line.split()[-2:] for line in result.stdout.splitlines()] == [
        ["defined", "orders"], ["defined", "small"], ["defined", "two"],
    ]  # fmt: skip


def test_an_event_shows_its_time(engine: Engine) -> None:
    (first, _) = map(json.loads, engine.run("events", "--json").stdout.splitlines())
    assert (first["event"], first["queue"]) == ("defined", "orders")
    assert first["time"] == engine.connection.now().isoformat()


# ---------------------------------------------------------------- bridges


def test_H2_bridges_are_defined_shown_and_deleted(shell: Engine) -> None:
    assert shell.run("bridges").stdout == "VPN 'default' has no bridges.\n"
    with lakequeue.connect("memory://cli-far") as far:
        there = {"name": "out", "from": shell.url, "to": "broker-0", "subscriptions": ["a/>"]}
        far.admin().bridge(there)
        queue = {"message_type": "text", "type": "LocalQueue", "subscriptions": ["a/>"]}
        far.admin().define({"name": "small", "max_spool_messages": 1, **queue})
        shell.run("bridges", "name=out", "to=memory://cli-far", "subscriptions=[a/>, b]")
        for n in range(3):
            shell.send("a/x", b"%d" % n)
        (one,) = shell.json("bridges")
        assert (one["state"], one["waiting"], one["taken"]) == ("blocked", 2, 1)
        assert one["subscriptions"] == ["a/>", "b"]
        lines = shell.run("bridges").stdout.splitlines()
        assert lines[0].split("  ")[0] == "bridge"
        assert "small: queue_quota for 0 ms, 2 waiting" in lines[1]
        refused = shell.run("bridges", "--delete", "out", stdin="n\n")
        assert refused.exit_code == 1
        done = shell.json("bridges", "--delete", "out", "--yes")
        assert done == {"bridge": "out", "deleted": True, "messages": 2}
    assert shell.json("bridges") == []
