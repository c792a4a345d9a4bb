"""Signals to a command: `timeout` sends its own twice, and the second may come late."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from lakequeue.cli import main
from lakequeue.cli.signals import SAME_SIGNAL_S, interrupt_on_signals, stop_on_signals

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """A handled signal changes its handler; restore it for other tests."""
    before = {s: signal.getsignal(s) for s in ENDING}
    yield
    for which, handler in before.items():
        signal.signal(which, handler)


@pytest.mark.parametrize("which", ENDING)
def test_a_second_signal_may_come_while_the_command_ends(which: int) -> None:
    with stop_on_signals() as stop:
        os.kill(os.getpid(), which)
        assert stop.is_set()
    os.kill(os.getpid(), which)  # raises here once the earlier handlers are restored


def test_a_later_second_signal_interrupts_at_once() -> None:
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_set()
        time.sleep(SAME_SIGNAL_S + 0.1)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_the_signal_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_signals():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("which", ENDING)
def test_a_starting_command_can_be_interrupted(which: int) -> None:
    with pytest.raises(KeyboardInterrupt), interrupt_on_signals():
        os.kill(os.getpid(), which)


@pytest.mark.parametrize("which", ENDING)
@pytest.mark.parametrize(
    ("words", "work"),
    [(("demo",), "examples.demo.demo.FlightsDemo.run"), (("bench", "core"), "bench.core.run"),
     (("demo", "bridge"), "examples.demo.demo.BridgeDemo.run")],
)  # fmt: skip
def test_a_demo_and_a_benchmark_clean_up(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], work: str, which: int
) -> None:
    cleaned = []

    def run(*_: object, **given: object) -> None:
        try:
            os.kill(os.getpid(), which)
        finally:
            os.kill(os.getpid(), which)  # the second one, of `timeout`
            cleaned.append(True)

    monkeypatch.setattr(f"lakequeue.{work}", run)
    assert CliRunner().invoke(main, words).exit_code == 130
    assert cleaned


def test_a_command_under_nohup_survives_its_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interrupt_on_signals(), stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not stop.is_set()
