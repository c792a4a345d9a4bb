"""`lakequeue top`: the screen, and the keys."""

from __future__ import annotations

import io
import os
import pty
import termios
from collections.abc import Iterator
from typing import Any

import lakequeue
import pytest
from lakequeue.cli.monitor import keyboard, read_key, show
from lakequeue.monitor import terminal
from lakequeue.monitor.snapshot import VpnMonitor, VpnSnapshot
from lakequeue.monitor.terminal import BARS, Screen, pressed, spark
from monitor.cases import CASES, prepared
from rich.console import Console

URL = "memory://top"


@pytest.fixture(scope="module")
def vpn_monitor() -> Iterator[VpnMonitor]:
    engine = prepared(URL)
    one = VpnMonitor(lambda: lakequeue.connect(URL), every_s=0)
    yield one
    one.close()
    engine.close()


def shown(vpn_monitor: VpnMonitor, view: Screen, height: int = 40) -> str:
    console = Console(width=160, height=height, file=io.StringIO(), record=True)
    console.print(terminal.screen(vpn_monitor, view, height))
    return console.export_text()


def test_the_screen_lists_all_queues_with_their_reasons(vpn_monitor: VpnMonitor) -> None:
    text = shown(vpn_monitor, Screen())
    for case in CASES:
        assert case.code in text
    assert "alert delivered_unacked: per_flow" in text
    assert "partition_key" in text


CRAFTED = [
    "\x1b[31mred", "\x1b]0;title\x07", "a\nb\rc", "[red]markup[/red]", "\x9b2J",
    "\N{RIGHT-TO-LEFT OVERRIDE}gnp", "<b>x</b>", "../../etc", "x" * 200,
]  # fmt: skip


@pytest.mark.parametrize("text", CRAFTED)
def test_names_are_escaped_on_the_screen(text: str) -> None:
    name = "".join(c for c in text if c >= " " and not "\x7f" <= c <= "\x9f")  # as in queues
    with lakequeue.connect("memory://crafted") as engine:
        engine.admin().define({"name": name, "message_type": "json", "underlying_topic": "t"})
        for _ in range(2):
            engine.producer().send(name, text.encode(), headers={"k": text})
        engine.consumer(name, name=text[:100], max_backlog=1, filter="@key IS NULL").receive(0)
        vpn_monitor = VpnMonitor(lambda: lakequeue.connect("memory://crafted"), every_s=0)
        for view in (Screen(), Screen(name, open=True)):
            wrong = {c for c in shown(vpn_monitor, view) if not c.isprintable()} - {"\n"}
            assert not wrong
        vpn_monitor.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_the_details_of_a_queue_have_its_reason(vpn_monitor: VpnMonitor, case: Any) -> None:
    ids = [m.id for m in vpn_monitor.queue(case.code)[1]]
    text = " ".join(shown(vpn_monitor, Screen(case.code, open=True)).split())
    assert case.text.format(*ids) in text


def test_a_small_window_shows_the_chosen_queue(vpn_monitor: VpnMonitor) -> None:
    text = shown(vpn_monitor, Screen("queue_backlog", sort="name"), height=14)
    assert "queue_backlog" in text
    assert " more" in text
    assert "barrier_filter" not in text


def test_keys_move_open_sort_and_end() -> None:
    base = {"ready": 0, "blocked": None, "in_s": 0, "out_s": 0, "oldest_age_s": None}
    depths = {"a": 1, "b": 9, "c": 5}
    seen = VpnSnapshot([base | {"name": name, "depth": depth} for name, depth in depths.items()])

    def after(*keys: str) -> Screen:
        view = Screen()
        for key in keys:
            view = pressed(view, key, seen)
        return view

    assert after("down").at == "b"
    assert after("down", "j").at == "c"
    assert after("down", "down", "down", "down").at == "a"
    assert after("down", "down", "up", "k").at == "b"
    assert after("enter") == Screen("b", open=True)
    assert after("down", "enter", "escape") == Screen("b")
    assert after(*["s"] * 5, "down") == Screen("a", "name")
    assert after(*["s"] * 6).sort == "depth"
    assert after("x") == Screen()
    assert after("q").over
    assert (
        pressed(Screen(), "enter", VpnSnapshot())
        == pressed(Screen(), "down", VpnSnapshot())
        == Screen()
    )


def test_a_session_from_start_to_end(vpn_monitor: VpnMonitor) -> None:
    """Choose the deepest queue, open it, go back, end."""
    keys = iter(["down", "", "enter", "escape", "q"])
    console = Console(width=160, height=40, force_terminal=True, file=io.StringIO())
    show(vpn_monitor, console, lambda wait_s: next(keys), 0.5)
    assert next(keys, None) is None
    assert "every consumer's backlog" in console.file.getvalue()


def test_bars() -> None:
    assert spark([0, 1, 2, 7]) == BARS[0] + BARS[1] + BARS[2] + BARS[7]
    assert spark([0, 0]) == BARS[0] * 2
    assert spark([]) == ""


def test_key_sequences_of_a_terminal_are_understood() -> None:
    """Also: the terminal is restored afterwards, and its end ends the command."""
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    with keyboard(theirs) as key:
        for sent, name in (
            (b"\x1b[A", "up"), (b"\x1bOB", "down"), (b"\r", "enter"), (b"\x1b", "escape"),
            (b"s", "s"), (b"jj", "j"), (b"\x1b[B\x1b[B", "down"), (b"q", "q"),
        ):  # fmt: skip
            os.write(ours, sent)
            assert key(2) == name
        assert key(0) == ""
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    assert read_key(theirs, 2) == "q"
    os.close(theirs)
