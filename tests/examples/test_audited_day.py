"""R1, R4: what the audit's story holds beside the answers of the tables; what it shows of commands.

On real Kafka, Spark and Delta it is told in tests/job/test_audit_story.py.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner
from lakequeue.cli import main
from lakequeue.cli.common import console
from lakequeue.conf import load
from lakequeue.examples.demo import demo as demo_module
from lakequeue.examples.demo.audited_day import (
    BACKLOG,
    CONFIGURATION,
    FINDINGS,
    FLIGHTS,
    LATE,
    NEW,
    NOON,
    OLD,
    QUEUE,
    STALL_S,
    WHICH,
    AuditDemo,
    Told,
)
from lakequeue.examples.demo.flight_data import load_flights
from lakequeue.examples.demo.typed_commands import TypedCommands
from lakequeue.protocol.errors import LakequeueError


@cache
def flights_of_the_day() -> tuple[bytes, ...]:
    """Read once: they are chosen among 336,776."""
    return tuple(load_flights(FLIGHTS).days[0].payloads)


def told() -> Told:
    """All as it should be."""
    flights = list(flights_of_the_day())
    full = round(STALL_S * 1000)
    found = Told(flights, written=list(flights))
    lost = len(found.afternoon)
    morning = len(flights) - lost
    found.again = [str(morning + n) for n in range(lost)]
    found.which = [{"message_id": "121", "waiting_ms": full, "consumers": [OLD]}]
    found.why = [{"ms": full, "why": "every consumer's backlog is full"}]
    found.then = {"ready": 7, "consumers": [{"name": OLD, "held": BACKLOG, "blocked": True}]}
    found.who = [
        {"consumers": [OLD], "flights": morning},
        {"consumers": [NEW], "flights": lost},
    ]
    examples = [{"payload": payload.decode()} for payload in found.afternoon[:5]]
    found.dry = {"count": lost, "examples": examples}
    found.now = [
        {"consumers": [OLD], "flights": len(flights)},
        {"consumers": [NEW], "flights": lost},
    ]
    return found


def wrong(found: Told) -> list[str]:
    return [finding.__name__ for finding in FINDINGS if not finding(found)[1]]


def test_its_queue_loads_and_the_day_has_a_morning_and_an_afternoon() -> None:
    (queue,) = load(CONFIGURATION).queues
    assert (queue.name, queue.max_per_subscription_backlog) == (QUEUE, BACKLOG)
    flights = [json.loads(p) for p in told().flights]
    names = {(f["carrier"], f["flight"]) for f in flights}
    assert len(names) == len(flights) == FLIGHTS, "a flight is one message"
    assert flights == sorted(flights, key=lambda f: f["sched_dep_time"])
    assert flights[LATE]["sched_dep_time"] < NOON


def test_R1_R4_an_answer_that_is_not_what_happened_is_seen() -> None:
    assert wrong(told()) == []
    assert wrong(Told(told().flights)) == [finding.__name__ for finding in FINDINGS]


def lost_one(found: Told) -> None:
    found.written.pop()


def another_order(found: Told) -> None:
    found.written[0], found.written[1] = found.written[1], found.written[0]


def twice(found: Told) -> None:
    found.again[0] = found.again[1]


def idle(found: Told) -> None:
    found.then["consumers"][0]["held"] = 0


def mixed(found: Told) -> None:
    found.who[0]["consumers"] = [OLD, NEW]


def more(found: Told) -> None:
    found.dry["count"] += 1


def forgot(found: Told) -> None:
    del found.now[1]


@pytest.mark.parametrize(
    ("what", "where"),
    [
        (lost_one, "found_written"), (another_order, "found_written"), (twice, "found_written"),
        (idle, "found_then"), (mixed, "found_who"), (more, "found_dry"), (forgot, "found_now"),
        (lambda t: t.which.append(t.which[0]), "found_late"),
        (lambda t: t.why[0].update(why="no consumer"), "found_why"),
    ],
)  # fmt: skip
def test_each_finding_fails_by_itself(what: Callable[[Told], None], where: str) -> None:
    found = told()
    what(found)
    assert wrong(found) == [where]


@pytest.mark.parametrize(("good", "status"), [(True, 0), (False, 1)])
def test_its_exit_status_says_whether_it_adds_up(
    good: bool, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_module.AuditDemo, "run", lambda self: good)
    done = CliRunner().invoke(main, ["demo", "audit", "--json", "--home", str(tmp_path / "new")])
    assert done.exit_code == status


@pytest.mark.parametrize(("good", "said"), [(True, "knew all"), (False, "found_dry")])
def test_it_ends_with_a_verdict(
    good: bool, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play = AuditDemo(tmp_path, as_json=False)
    play._told = told()
    if not good:
        more(play._told)
    assert play._close() is good
    assert said in capsys.readouterr().out


# ---------------------------------------------------------------- commands, as they are shown


def test_a_command_is_shown_as_a_shell_reads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["sql", WHICH.format(carrier="UA", flight=1), "--json"]
    commands = TypedCommands(tmp_path, console())
    monkeypatch.setattr(commands, "_run", lambda *given: "")
    commands.do(*words)
    typed = capsys.readouterr().out
    assert shlex.split(typed) == ["$", "lakequeue", *words]


def test_what_a_command_says_when_it_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LakequeueError, match=r"lakequeue trace: .* has no table messages"):
        TypedCommands(tmp_path, None).rows("trace", "17")


def test_the_environment_does_not_change_a_storys_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEQUEUE_JSON", "true")
    monkeypatch.setenv("LAKEQUEUE_URL", "kafka://nowhere:1")
    with pytest.raises(LakequeueError, match="Nothing runs at the home"):
        TypedCommands(tmp_path, None).do("queues")
