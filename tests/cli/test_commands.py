"""The commands, on `memory://`: two connections to one name in a process share an engine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import lakequeue
import pytest
from click.testing import CliRunner
from lakequeue.cli import COMMANDS, OTHER_NAMES, main
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
    """Every command, and each of its options that takes this kind of number."""
    top = click.Context(main)
    commands = {(name,): main.get_command(top, name) for name in COMMANDS}
    bench = commands[("bench",)]
    assert isinstance(bench, click.Group)
    commands |= {("bench", name): one for name, one in bench.commands.items()}
    for words, command in commands.items():
        for one in command.params if command else ():
            if isinstance(one.type, kind):
                yield (*words, one.opts[0])


WITH_FRACTIONS = list(options_of(click.types.FloatParamType))
COUNTS_OF_BENCHES = [n for n in options_of(click.types.IntParamType) if n[0] == "bench"]


# ---------------------------------------------------------------- numbers


def test_there_are_numbers_to_give() -> None:
    assert len(WITH_FRACTIONS) >= 6
    assert len(COUNTS_OF_BENCHES) > 20


@pytest.mark.parametrize(
    ("words", "value"),
    [(words, value) for words in WITH_FRACTIONS for value in ("nan", "inf", "-1")]
    + [(words, value) for words in COUNTS_OF_BENCHES for value in ("0", "-1")],
    ids=str,
)
def test_a_number_that_cannot_be_meant_is_refused_before_anything_is_done(
    words: tuple[str, ...], value: str
) -> None:
    result = run(*words, value)
    assert result.exit_code == 2
    assert f"Invalid value for '{words[-1]}'" in result.stderr
    assert value in result.stderr


FILES = ("--config", "--token-file", "files")
PATHS = [words for words in options_of(click.Path) if words[-1] not in FILES]


@pytest.mark.parametrize("words", PATHS, ids=str)
def test_an_empty_path_is_not_this_directory(words: tuple[str, ...]) -> None:
    result = run(*words, "")
    assert result.exit_code == 2
    assert f"Invalid value for '{words[-1]}'" in result.stderr
    assert "the path is empty: name a directory" in result.stderr


# ---------------------------------------------------------------- help


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "bench"])
def test_help_teaches_with_an_example_and_variables(command: str) -> None:
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


# ---------------------------------------------------------------- configuration (Q7)

BROKEN = """
queues:
  - name: orders
    message_type: xml
    lease_period: 5 parsecs
  - name: more
    message_type: json
    colour: red
"""


@pytest.mark.parametrize("command", ["up", "run"])
def test_q7_every_problem_of_a_file_is_listed_and_nothing_starts(
    command: str, tmp_path: Path
) -> None:
    config = tmp_path / "queues.yaml"
    config.write_text(BROKEN)
    home = tmp_path / "home"
    result = run(command, "--config", str(config), "--home", str(home))
    assert result.exit_code == 2
    head, *problems = result.stderr.splitlines()
    assert head == "The configuration has 3 problems; nothing was done:"
    assert len(problems) == 3
    for key, value in (("message_type", "xml"), ("lease_period", "parsecs"), ("colour", "red")):
        assert any(key in line and value in line for line in problems)
    assert not home.exists()


@pytest.mark.parametrize(
    ("arguments", "lines", "said"),
    [
        (["up", "--config", "/none.yaml", "--home", "/nowhere"], 1, "cannot be read"),
        (["run", "--bootstrap", "nowhere", "--home", "/nowhere"], 4, "not host:port"),
        (["queues", "--url", "http://there"], 1, "kafka://HOST:PORT"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(arguments: list[str], lines: int, said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == lines
    assert said in result.stderr


def test_a_home_tells_the_address(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "address").write_text(engine.url + "\n")
    result = run("queues", "--home", str(tmp_path), "--json")
    assert [queue["name"] for queue in json.loads(result.stdout)] == ["orders", "small"]


def test_the_url_from_the_environment(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEQUEUE_URL", engine.url)
    monkeypatch.setenv("LAKEQUEUE_HOME", "nowhere")
    assert run("queues").exit_code == 0
    assert run("queues", "--home", "elsewhere").exit_code == 3


def test_a_traceback_only_for_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEQUEUE_DEBUG", "1")
    with pytest.raises(lakequeue.ConfigError):
        run("queues", "--url", "http://there")


# ---------------------------------------------------------------- publish


def test_publish_lines_of_standard_input(engine: Engine) -> None:
    result = engine.run("publish", "orders", stdin='{"n": 1}\n\n{"n": 2}\r\n')
    assert (result.exit_code, result.stdout) == (0, "2 stored, 0 refused\n")
    assert [m.payload for m in engine.connection.admin().browse("orders")] == [
        b'{"n": 1}',
        b'{"n": 2}',
    ]


def test_publish_files_whole_and_by_line(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("1\n2\n")
    (tmp_path / "b.txt").write_text("3\n4\n")
    files = [str(tmp_path / name) for name in ("a.jsonl", "b.txt")]
    result = engine.run("publish", "orders", *files, "--json")
    assert json.loads(result.stdout)["stored"] == 3
    assert engine.connection.admin().browse("orders")[2].payload == b"3\n4\n"
    result = engine.run("publish", "orders", *files, "--whole", "--json")
    assert json.loads(result.stdout)["stored"] == 2
    result = engine.run("publish", "orders", *files, "--lines", "--json")
    assert json.loads(result.stdout)["stored"] == 4


def test_publish_with_headers_key_and_priority(engine: Engine) -> None:
    options = ("--header", "a=b=c", "--key", "k", "--priority", "7")
    assert engine.run("publish", "orders", *options, stdin="1\n").exit_code == 0
    (message,) = engine.connection.admin().browse("orders")
    assert (message.headers, message.key, message.priority) == ({"a": "b=c"}, b"k", 7)


def test_a_message_that_is_published_with_a_delay_waits(engine: Engine) -> None:
    assert engine.run("publish", "orders", "--delay", "1h", stdin="1\n").exit_code == 0
    (message,) = engine.connection.admin().browse("orders")
    assert message.state == "delayed"


def test_publish_counts_what_was_refused_with_reasons(engine: Engine) -> None:
    result = engine.run("publish", "small", stdin="123\n123456\n1234567\n")
    assert result.exit_code == 1
    assert "1 stored, 2 refused" in result.stdout
    assert "2 × message_too_large by small" in result.stdout
    result = engine.run("publish", "nowhere", "--json", stdin="1\n")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["reasons"] == {"no_matching_destination": 1}


def test_publish_bad_header_and_ttl(engine: Engine) -> None:
    assert engine.run("publish", "orders", "--header", "a", stdin="1").exit_code == 2
    result = engine.run("publish", "orders", "--ttl", "soon", stdin="1")
    assert result.exit_code == 2
    assert "ttl: 'soon'" in result.stderr


# ---------------------------------------------------------------- consume


def test_consume_prints_and_acks(engine: Engine) -> None:
    engine.send("orders", b"1", b"2", b"3")
    result = engine.run("consume", "orders", "--count", "2")
    assert result.stdout == "1\n2\n"
    assert engine.depth("orders") == 1
    assert engine.run("consume", "orders", "--timeout", "0").stdout == "3\n"
    assert engine.depth("orders") == 0


def test_consume_filter(engine: Engine) -> None:
    engine.send("orders", b'{"n": 1}', b'{"n": 2}')
    result = engine.run("consume", "orders", "--filter", "/n > 1", "--timeout", "0")
    assert result.stdout == '{"n": 2}\n'
    assert engine.depth("orders") == 1


def test_consume_exec_acks_by_exit_status(engine: Engine, tmp_path: Path) -> None:
    engine.send("orders", b"good", b"bad")
    log = tmp_path / "log"
    command = f'payload=$(cat); echo "$LAKEQUEUE_QUEUE $payload" >> {log}; [ "$payload" = good ]'
    result = engine.run("consume", "orders", "--exec", command, "--count", "2")
    assert (result.exit_code, result.stderr) == (1, "2 messages given to the command, 1 failed\n")
    assert log.read_text() == "orders good\norders bad\n"
    (left,) = engine.connection.admin().browse("orders")
    assert (left.payload, left.state) == (b"bad", "delayed")


def test_consume_exec_needs_a_mode_that_acks_after_work(engine: Engine) -> None:
    result = engine.run("consume", "orders", "--exec", "true", "--ack-mode", "auto")
    assert result.exit_code == 2
    assert "--ack-mode" in result.stderr


@pytest.mark.parametrize(
    ("wrong", "what"),
    [(("--exec", ""), "--exec: is empty"), (("--exec", " "), "--exec: is empty"),
     (("--exec", "true", "--retry-delay", "x"), "--retry-delay: 'x' – allowed is a duration")],
)  # fmt: skip
def test_consume_exec_takes_no_message_with_wrong_options(
    engine: Engine, wrong: tuple[str, ...], what: str
) -> None:
    engine.send("orders", b"1")
    result = engine.run("consume", "orders", "--timeout", "0", *wrong)
    assert result.exit_code == 2
    assert what in result.stderr
    assert engine.depth("orders") == 1


def test_consume_a_queue_that_is_not_there(engine: Engine) -> None:
    result = engine.run("consume", "nowhere", "--timeout", "0")
    assert result.exit_code in (1, 2)
    assert "nowhere" in result.stderr
    assert "`lakequeue queues` lists the queues" in result.stderr
    assert len(result.stderr.splitlines()) == 1


# ---------------------------------------------------------------- queues, browse, purge


def test_queues_and_one_with_consumers_and_counters(engine: Engine) -> None:
    engine.send("orders", b"1", b"2")
    lines = engine.run("queues").stdout.splitlines()
    assert any(line.split()[:2] == ["orders", "2"] for line in lines)
    with engine.connection.consumer("orders", max_backlog=5):
        one = engine.run("queues", "orders").stdout
    assert "spooled" in one
    assert "client" in one
    described = engine.json("queues", "orders")
    assert (described["depth"], described["counters"]["spooled"]) == (2, 2)


def test_browse_takes_nothing(engine: Engine) -> None:
    engine.send("orders", b'{"n": 1}', b'{"n": 2}')
    assert '{"n": 2}' in engine.run("browse", "orders").stdout
    result = engine.run("browse", "orders", "--where", "/n = 2", "--json")
    (message,) = map(json.loads, result.stdout.splitlines())
    assert (message["payload"], message["state"]) == ('{"n": 2}', "ready")
    assert engine.depth("orders") == 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_a_character_gets_its_number(engine: Engine, encoding: str) -> None:
    engine.send("orders", '{"name": "☃"}'.encode())
    for command in ("browse", "queues"):
        shell = CliRunner(charset=encoding)
        result = shell.invoke(main, [command, "orders", "--url", engine.url])
        assert result.exit_code == 0, result.stderr
        assert command == "queues" or "\\u2603" in result.stdout


def test_purge_asks(engine: Engine) -> None:
    engine.send("orders", b'{"n": 1}', b'{"n": 2}')
    assert engine.run("purge", "orders", "--all", stdin="n\n").exit_code == 1
    assert engine.depth("orders") == 2
    result = engine.run("purge", "orders", "--where", "/n = 1", stdin="y\n")
    assert "1 removed" in result.stdout
    result = engine.run("purge", "orders", "--all", "--yes", "--json")
    assert json.loads(result.stdout) == {"queue": "orders", "removed": 1}
    assert engine.depth("orders") == 0


def test_redrive_says_what_moved_and_what_stayed_and_why(engine: Engine) -> None:
    admin = engine.connection.admin()
    admin.define({"name": "dmq", "message_type": "json"})
    admin.define({"name": "orders", "message_type": "json", "dead_message_queue": "dmq"})
    producer = engine.connection.producer(ttl="1s")
    for n in range(3):
        producer.send("orders", b'{"n": %d}' % n)
    engine.connection.advance("1s")
    result = engine.run("redrive", "dmq", "--where", "/n > 1")
    assert (result.exit_code, result.stdout) == (0, "1 moved: 1 to orders\n")
    ids = ",".join(m.id for m in admin.browse("dmq", limit=1))
    assert engine.run("redrive", "dmq", "--ids", ids).exit_code == 0
    admin.delete("orders")
    result = engine.run("redrive", "dmq")
    assert result.exit_code == 1
    assert result.stdout == "0 moved\n1 stayed in dmq: 1 no_such_queue\n"
    result = engine.run("redrive", "dmq", "--json")
    assert json.loads(result.stdout) == {
        "queue": "dmq", "moved": 0, "stayed": 1, "queues": {}, "why": {"no_such_queue": 1},
    }  # fmt: skip


def test_a_bad_expression_is_a_sentence(engine: Engine) -> None:
    engine.send("orders", b"1")
    result = engine.run("browse", "orders", "--where", "/n >")
    assert result.exit_code in (1, 2)
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) <= 2


LOADED = """
import sys
from lakequeue.cli import main
try:
    main(["--help"])
finally:
    print(*sys.modules, file=sys.stderr)
"""


def test_start_up_is_quick() -> None:
    """What takes its time to load is loaded by who needs it."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True)
    assert "Usage: " in done.stdout
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert "click" in loaded
    heavy = {"confluent_kafka", "deltalake", "duckdb", "kafka", "numpy", "pyarrow", "pyspark"}
    assert not heavy & loaded
