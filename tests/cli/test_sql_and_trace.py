"""`lakequeue sql` and `lakequeue trace`, on tables that an engine in memory has filled (R1)."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from lake.on_files import RecordedBench
from lakequeue.cli import main
from lakequeue.lake import open_lake
from rules.harness import drain


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two messages, a payload that is no text, a consumer that rejects."""
    bench = RecordedBench()
    bench.define(dead_message_queue="dead", max_per_subscription_backlog=9)
    bench.define("dead")
    bench.send({"n": 1})
    bench.advance("1500ms")
    consumer = bench.consumer(name="app-1")
    drain(consumer)[0].reject(reason="a\nb\x1b[31m")
    bench.send(b"\xff\x00")
    bench.advance("250ms")
    return bench.recorded.write(tmp_path_factory.mktemp("home"))


def run(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--home", str(home)], catch_exceptions=False)


def test_a_table_for_people(home: Path) -> None:
    done = run(home, "sql", "SELECT queue, state, consumer, count(*) AS n FROM queued GROUP BY ALL "
               "ORDER BY queue")  # fmt: skip
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "queue   state   consumer  n",
        "dead    ready             1",
        "orders  leased  app-1     1",
    ]


def test_wide_tables_keep_their_columns(home: Path) -> None:
    head = run(home, "sql", "FROM queues").stdout.splitlines()[0]
    assert head.split()[:4] == ["vpn", "queue", "defined_at", "depth"]
    assert head.split()[-1] == "definition"


def test_nothing_reaches_the_terminal_that_it_would_obey(home: Path) -> None:
    sql = "SELECT reason FROM journal WHERE event = 'consumer_rejected'"
    assert run(home, "sql", sql).stdout.splitlines() == ["reason", "a b [31m"]


def test_json_is_a_row_on_each_line(home: Path) -> None:
    done = run(home, "sql", "SELECT * FROM lifecycle ORDER BY queue, message_id", "--json")
    dead, first, second = map(json.loads, done.stdout.splitlines())
    assert (dead["queue"], dead["state"]) == ("dead", "ready")
    assert first["consumers"] == second["consumers"] == ["app-1"]
    assert (first["waiting_ms"], first["ended"]) == (1500, "consumer_rejected")
    assert first["dead_lettered_at"] == dead["entered_at"]
    assert first["entered_at"].endswith("+00:00")


def test_a_payload_in_json(home: Path) -> None:
    done = run(home, "sql", 'SELECT payload FROM messages ORDER BY "offset"', "--json")
    found = [json.loads(line)["payload"] for line in done.stdout.splitlines()]
    assert found == ['{"n": 1}', {"payload": "/wA=", "encoding": "base64"}]


def test_csv(home: Path) -> None:
    done = run(home, "sql", "select 1", "--csv", "--json")
    assert (done.exit_code, "--csv and --json exclude each other" in done.stderr) == (2, True)
    done = run(home, "sql", "SELECT queue, consumers, acknowledged_at FROM lifecycle "
               "WHERE queue = 'dead'", "--csv")  # fmt: skip
    assert list(csv.reader(io.StringIO(done.stdout))) == [
        ["queue", "consumers", "acknowledged_at"], ["dead", "", ""],
    ]  # fmt: skip
    done = run(home, "sql", "SELECT [1, 2] AS l, 'a\n\"b\"' AS t", "--csv")
    assert list(csv.reader(io.StringIO(done.stdout))) == [["l", "t"], ["[1, 2]", 'a\n"b"']]


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("select * from names", 2, "There is no table or view 'names'"),  # a variable of ours
        ("selec 1", 2, 'The SQL has an error: syntax error at or near "selec"'),
        (
            "select * from orders", 2,
            "There is no table or view 'orders'; there are changes, commands, consumers, journal, "
            "lifecycle, messages, queued, queues, snapshots, steps",
        ),
        ("select no from queued", 2, 'The SQL cannot be run: Referenced column "no"'),
        ("select 'x'::int", 2, "The SQL cannot be run: Could not convert string 'x'"),
        ("", 2, "The SQL is empty"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(home: Path, query: str, status: int, said: str) -> None:
    done = run(home, "sql", query)
    assert done.exit_code == status
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(said)


def test_a_table_that_has_nothing_yet_is_said_to_have_nothing(home: Path) -> None:
    done = run(home, "sql", "select count(*) from steps join commands using (time)", "--csv")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == ["count_star()", "0"]
    assert [line.partition(" yet: ")[0] for line in done.stderr.splitlines()] == [
        f"The home {home} has nothing in the table {name!r}" for name in ("commands", "steps")
    ]


@pytest.mark.parametrize("words", [("sql", "select 1"), ("trace", "1")])
def test_a_home_without_tables(tmp_path: Path, words: tuple[str, str]) -> None:
    done = run(tmp_path, *words)
    assert done.exit_code == 3
    (line,) = done.stderr.splitlines()
    assert "has no table messages and no table journal" in line


@pytest.mark.parametrize("words", [("sql", "select * from queued"), ("trace", "1")])
def test_files_that_somebody_deleted(home: Path, words: tuple[str, str], tmp_path: Path) -> None:
    lost = tmp_path / "lost"
    shutil.copytree(home, lost)
    for file in (lost / "tables" / "journal").rglob("part*.parquet"):
        file.unlink()
    done = run(lost, *words)
    assert done.exit_code == 3
    (line,) = done.stderr.splitlines()
    assert line.startswith("A file of the table 'journal' is gone or cannot be read")
    assert line.endswith("`lakequeue tables` shows what is damaged, and how to repair it")


# ---------------------------------------------------------------- trace


def test_the_life_of_a_message(home: Path) -> None:
    done = run(home, "trace", "1")
    assert done.exit_code == 0
    lines = [line for line in done.stdout.splitlines() if line]
    assert lines[0].startswith("Message 1, 8 bytes, published 20")
    assert re.search(r"to default\.publish, partition \d, offset 0$", lines[0])
    assert [line[28:] if line.startswith("  ") else line for line in lines[1:]] == [
        "orders",
        "entered",
        "waited 1.5 s: no consumer",
        "delivered to app-1, attempt 1",
        "rejected by app-1: a b [31m",
        "moved to dead",
        "dead",
        "entered: rejected",
        "waits: no consumer",
    ]  # fmt: skip


def test_the_life_in_json(home: Path) -> None:
    story = json.loads(run(home, "trace", "1", "--json").stdout)
    assert [q["queue"] for q in story["queues"]] == ["orders", "dead"]
    entered = story["queues"][0]["life"][0]
    assert (entered["event"], entered["then"]["state"], entered["then"]["ms"]) == (
        "spooled", "ready", 1500,
    )  # fmt: skip
    assert entered["then"]["why"][0]["why"] == "no consumer"


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [("99", 1, "The tables know no message 99."), ("x", 2, "'x' is no message id")],
)
def test_no_such_message(home: Path, number: str, status: int, said: str) -> None:
    done = run(home, "trace", number)
    assert done.exit_code == status
    (line,) = done.stderr.splitlines()
    assert line.startswith(said)


ODD_MS = [0, -1, 253_402_300_799_999, 253_402_300_800_000, (1 << 63) - 1]


@pytest.fixture
def zones() -> Iterator[pytest.MonkeyPatch]:
    """To change this machine's zone, which is as it was afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch
    time.tzset()


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_L12_no_odd_time_breaks_a_table_an_export_or_a_life(
    tmp_path: Path, zones: pytest.MonkeyPatch, zone: str
) -> None:
    """Of other programs' records, and of a delivery that is never; in any zone, in pandas too."""
    bench = RecordedBench()
    bench.define(message_type="text", underlying_topic="plain", max_per_subscription_backlog=99)
    for ms in ODD_MS:
        bench.connection.publish_raw("plain", b"x", timestamp=ms)
    bench.producer.send("orders", "never", deliver_at="9999-12-31T23:59:59.999999Z")
    for message in drain(bench.consumer())[::2]:
        message.ack()
    home = bench.recorded.write(tmp_path)
    zones.setenv("TZ", zone)
    time.tzset()
    count = len(ODD_MS) + 1
    with open_lake(home) as lake:
        for view in ("messages", "lifecycle"):
            rows = lake.execute(f"FROM {view}").fetchall()
            assert len(lake.execute(f"FROM {view}").df()) == len(rows) > 0
    for export in ([], ["--json"], ["--csv"]):
        done = run(home, "sql", "FROM messages", *export)
        assert done.exit_code == 0
        assert len(done.stdout.splitlines()) == count + (export != ["--json"])
    for number in (2, 3, count):
        assert run(home, "trace", str(number)).exit_code == 0
    entered = "SELECT time FROM journal WHERE message_id = '3' AND event = 'spooled'"
    _, same = run(home, "sql", entered).stdout.splitlines()
    assert same.endswith("Z")
    assert f"{same}  entered" in run(home, "trace", "3").stdout
    found = bench.admin.replay("orders", home=home, since="epoch", dry_run=True)
    assert found.count == len(range(0, len(ODD_MS), 2))
