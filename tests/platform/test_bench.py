"""The computations of the benchmarks."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from lakequeue.bench import bridge_cost, core, questions
from lakequeue.bench.burst import max_step_ms
from lakequeue.bench.harness import percentile
from lakequeue.bench.idle_queues import BATCH_S, step_figures
from lakequeue.bench.recovery import replay_ratio
from lakequeue.bench.steady import Traffic
from lakequeue.bench.subcommands import show
from lakequeue.protocol.errors import LakequeueError


def test_percentiles() -> None:
    values = [float(n) for n in range(1000, 0, -1)]
    assert [percentile(values, p) for p in (50, 99, 100)] == [501.0, 991.0, 1000.0]
    assert percentile([7.0], 99) == 7.0
    with pytest.raises(LakequeueError, match="Nothing was measured"):
        percentile([], 99)


@pytest.mark.parametrize("width", [80, 200])
def test_a_table_shows_every_number_whole(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where ten columns do not fit, each row becomes a column."""
    monkeypatch.setenv("COLUMNS", str(width))
    names = [f"a_long_name_{n}" for n in range(10)]
    show("Many", [dict.fromkeys(names, n) for n in (12_345.5, 67_890.5)], as_json=False)
    shown = capsys.readouterr().out
    assert shown.count("12,345.50") == shown.count("67,890.50") == 10
    assert all(f" {name} " in shown for name in names)
    assert max(map(len, shown.splitlines())) <= width


def test_recovery_counts_messages_sent_after_the_kill() -> None:
    """Messages in flight before the kill are no sign of recovery."""
    flow = Traffic("memory://none", ["q"], 1)
    flow.taken = [(9.0, 0.5), (9.9, 3.0), (10.5, 2.0), (10.6, 2.0)]
    assert flow.between(9.5, 10.55) == [3000.0, 2000.0]
    flow.taken, later = [], list(flow.taken)
    threading.Timer(0.05, lambda: flow.taken.extend(later)).start()
    assert flow.first_after(10.0, 5) == pytest.approx(2500.0)
    with pytest.raises(LakequeueError, match="No message arrived within 0 s"):
        Traffic("memory://none", ["q"], 1).first_after(10.0, 0.05)


def progress(ms: int, **observed: Any) -> dict[str, Any]:
    return {"durationMs": {"triggerExecution": ms}, "observedMetrics": {"engine": observed}}


def test_the_longest_step_is_the_engines_figure() -> None:
    said = [progress(30_000, step_max_ms=12), progress(30_000, step_max_ms=40)]
    assert max_step_ms(said) == 40
    assert max_step_ms([progress(300), {"durationMs": {}}]) is None


def test_replay_beside_life() -> None:
    batches = [
        progress(1, replay_ms=500, replayed_life_ms=2000), progress(1), {"durationMs": {}}
    ]  # fmt: skip
    assert replay_ratio(batches) == 4.0
    assert replay_ratio(batches[1:]) is None


def test_a_steps_time_covers_only_batches_with_the_traffic() -> None:
    batches = [
        (10.0, progress(1, steps=1_000, step_ms=9_000)),  # began before the traffic did
        (10.0 + BATCH_S, progress(1, steps=30, step_ms=10)),
        (11.0 + BATCH_S, progress(1, steps=10, step_ms=10)),
        (12.0 + BATCH_S, {"durationMs": {}}),
    ]
    assert step_figures(batches, since=9.9) == {"step_ms": 0.5, "steps": 40}
    with pytest.raises(LakequeueError, match="Nothing was measured"):
        step_figures(batches[:1], since=9.9)


def test_every_query_of_the_tables_has_rows() -> None:
    rows = questions.run(20, say=print)
    assert [row["question"] for row in rows] == [*questions.QUESTIONS, "trace"]
    assert {row["messages"] for row in rows} == {20}


@pytest.mark.parametrize("bench", [bridge_cost, core])
@pytest.mark.parametrize(("messages", "batch"), [(1, 1_000), (25, 10)])
def test_a_bench_uses_the_requested_number_of_messages(
    bench: Any, messages: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in its last batch; the warm-up uses no more than the measurement."""
    name = "_publishes" if bench is bridge_cost else "publishes"
    publishes, taken = getattr(bench, name), []

    def counted(first: int, n: int, *more: int) -> Any:
        taken.append(n)
        return publishes(first, n, *more)

    monkeypatch.setattr(bench, name, counted)
    more = (1,) if bench is bridge_cost else ()
    bench.run(messages, batch, *more, say=lambda line: None)
    assert sum(taken) == 2 * messages
    assert max(taken) == min(messages, batch)
