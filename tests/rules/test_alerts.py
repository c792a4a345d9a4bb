"""S9, S8, B4, S10: tests of alerts that need more than a text table. See also
scenarios/engine/limits.txt."""

import logging

import lakequeue
import pytest
from lakequeue.definitions import SystemLimits, parse_definition
from lakequeue.protocol import commands as c
from lakequeue.protocol.outputs import Alert
from lakequeue.state import Limits
from lakequeue.state.phases.alerts import is_over, mark, rate, time_to_react_s
from rules.harness import Bench
from rules.steps import Steps, of

KB = 1000


def alerts(bench: Bench, scope: str) -> list[tuple[str, int]]:
    """The alerts of a scope so far, with their levels."""
    return [(e["event"], e["level"]) for e in bench.admin.events() if e.get("scope") == scope]


@pytest.mark.parametrize(
    ("messages_per_s", "minutes"), [(1_000, 62.5), (30_000, 2.08)], ids=["1K", "30K"]
)
def test_S10_the_time_to_react_with_defaults_and_messages_of_1_KB(
    messages_per_s: int, minutes: float
) -> None:
    """From the alert of the default queue to its default quota, computed by the engine's own
    functions."""
    queue = parse_definition({"name": "q", "message_type": "binary"})
    limit, high = queue.max_spool_usage, queue.spool_usage_high_percent
    marks: list[list[int]] = []
    level = now = 0
    while not is_over(level, limit, high, queue.spool_usage_clear_percent, before=False):
        mark(marks, now, (level,))
        now += 1000
        level += messages_per_s * KB
    per_second = rate(marks, now, 0, level)
    assert per_second == messages_per_s * KB
    assert time_to_react_s(limit, level, per_second) == pytest.approx(minutes * 60, abs=1.2)


def test_S9_the_time_to_react_is_part_of_the_alert(empty: Bench) -> None:
    """A thousandth of the default queue, at a thousandth of the rate: the same 62.5 minutes."""
    empty.engine.checking = False
    empty.define(message_type="binary", max_spool_usage="5MB")
    for _ in range(1250):
        empty.advance("1s")
        empty.send(b"x" * KB)
    (event,) = empty.told("spool_usage_high")
    expected = {
        "vpn": "default", "queue": "orders", "scope": "queue", "unit": "bytes",
        "level": 1_250_000, "limit": 5_000_000, "percent": 25.0, "per_second": 1000,
        "time_to_react_s": 62.5 * 60, "time": empty.connection.now(),
    }  # fmt: skip
    assert expected.items() <= event.items()


def test_S9_alerts_of_the_vpn() -> None:
    vpns = {"default": {"max_spool_usage": 100}, "east": {"max_spool_usage": 100}}
    bench = Bench(config={"vpns": vpns})
    bench.define("one", message_type="binary")
    bench.define("two", message_type="binary")
    bench.send(b"x" * 40, "one")
    bench.send(b"x" * 39, "two")
    assert alerts(bench, "vpn") == []
    bench.send(b"x", "two")
    assert alerts(bench, "vpn") == [("spool_usage_high", 80)]
    bench.admin.purge("two")
    assert alerts(bench, "vpn")[1:] == [("spool_usage_cleared", 40)]
    told = [e for e in bench.admin.events() if e.get("scope") == "vpn"]
    assert {(e["vpn"], e["queue"]) for e in told} == {("default", "")}


def test_S9_alerts_are_journaled_and_logged(empty: Bench, caplog: pytest.LogCaptureFixture) -> None:
    empty.define(message_type="binary", max_spool_usage=100)
    with caplog.at_level(logging.WARNING, "lakequeue"):
        empty.advance("1m")
        empty.send(b"x" * 25)
    (row,) = [r for r in empty.engine.journal() if r["event"] == "spool_usage_high"]
    assert (row["vpn"], row["queue"]) == ("default", "orders")
    assert "limit=100" in row["reason"]
    assert "time_to_react_s=180.0" in row["reason"]
    assert caplog.messages == [
        "spool_usage_high: queue 'orders' of VPN 'default' at 25.0 % of 100, "
        "full in 3.00 min at the current rate"
    ]


def test_S9_default_thresholds() -> None:
    limits = SystemLimits()
    for what in ("spool_usage", "spool_files", "delivered_unacked"):
        assert getattr(limits, f"{what}_high_percent") == 80
        assert getattr(limits, f"{what}_clear_percent") == 60


def test_S9_a_vpn_sees_only_its_own_events() -> None:
    config = {"vpns": {"east": {}, "west": {}}}
    east = lakequeue.connect("memory://alerts-of-vpns", vpn="east", config=config)
    west = lakequeue.connect("memory://alerts-of-vpns", vpn="west")
    east.admin().define({"name": "q", "message_type": "binary", "max_spool_usage": 10})
    east.producer().send("q", b"x" * 9)
    assert "spool_usage_high" in [e["event"] for e in east.admin().events()]
    assert west.admin().events() == []


def test_S9_B4_usage_shows_levels_limits_and_active_alerts() -> None:
    system = {"max_spool_usage": 100, "max_spool_files": 1, "max_delivered_unacked": 10}
    bench = Bench(config={"system": system, "vpns": {"default": {"max_spool_usage": 50}}})
    bench.define(message_type="binary")
    bench.consumer()
    for _ in range(2):
        bench.send(b"x" * 20)
    seen = bench.admin.usage()
    assert seen["vpn"] == {
        "name": "default", "spool_bytes": 40, "max_spool_usage": 50, "alerts": ["spool_usage"],
        "refused": {},
    }  # fmt: skip
    assert seen["broker"] == {
        "name": "broker-0", "spool_bytes": 40, "max_spool_usage": 100, "spool_files": 1,
        "max_spool_files": 1, "delivered_unacked": 1, "max_delivered_unacked": 10,
        "alerts": ["spool_files"],
    }  # fmt: skip
    assert bench.seen()["alerts"] == []
    bench.define(message_type="binary", max_spool_usage=100)
    assert bench.seen()["alerts"] == ["spool_usage"]


def test_S6_refusals_of_no_queue_are_counted(empty: Bench) -> None:
    assert empty.refused(queue="nowhere") == "no_matching_destination"
    empty.engine.command("default.commands", b"", b"not a command")
    refused = empty.admin.usage()["vpn"]["refused"]
    assert refused == {"no_matching_destination": 1, "malformed": 1}


def test_S9_a_vpn_without_a_limit_has_no_alert() -> None:
    bench = Bench(config={"vpns": {"default": {"max_spool_usage": 10}}})
    bench.define(message_type="binary")
    bench.send(b"x" * 9)
    assert alerts(bench, "vpn") == [("spool_usage_high", 9)]
    bench.instruct(c.Configure(vpns={"default": {}}))
    assert [a[0] for a in alerts(bench, "vpn")[1:]] == ["spool_usage_cleared"]
    bench.send(b"x")


def test_S9_S7_a_queue_deleted_over_many_steps_clears_its_alert_once() -> None:
    steps = Steps(limits=Limits(bulk_rows=1))
    queue = {"name": "q", "message_type": "binary", "max_spool_usage": 30}
    steps.run([c.Define(definition=queue)], [("q", b"x" * 10)] * 3)
    out = steps.run([c.Delete(queue="q")])
    assert [one.event for one in of(Alert, out)] == ["spool_usage_cleared"]
