"""S9, S8, B4, S10: alerts, their thresholds, and how long is left to react."""

import logging
from typing import Any

import lakequeue
import pytest
from lakequeue.definitions import SystemLimits, parse_definition
from lakequeue.protocol.errors import Rejected
from lakequeue.state.phases.alerts import is_over, mark, rate, time_to_react_s
from rules.harness import Bench, drain

KB = 1000
LEVELS = ("level", "limit", "percent")


def alerts(bench: Bench, scope: str = "queue") -> list[tuple[str, int]]:
    """The alerts of a scope so far: what, and the level."""
    return [
        (e["event"], e["level"])
        for e in bench.admin.events()
        if e["event"].endswith(("_high", "_cleared")) and e["scope"] == scope
    ]


def configured(**system: Any) -> Bench:
    return Bench(config={"system": system})


@pytest.mark.parametrize(
    ("messages_per_s", "minutes"), [(1_000, 62.5), (30_000, 2.08)], ids=["1K", "30K"]
)
def test_S10_the_time_to_react_with_defaults_and_messages_of_1_KB(
    messages_per_s: int, minutes: float
) -> None:
    """From the alert of the default queue to its default quota, by the engine's own functions."""
    queue = parse_definition({"name": "q", "message_type": "binary"})
    limit, high = queue.max_spool_usage, queue.spool_usage_high_percent
    clear = queue.spool_usage_clear_percent
    marks: list[list[int]] = []
    level = now = 0
    while not is_over(level, limit, high, clear, before=False):
        mark(marks, now, level)
        now += 1000
        level += messages_per_s * KB
    per_second = rate(marks, now, 0, level)
    assert per_second == messages_per_s * KB
    left = time_to_react_s(limit, level, per_second)
    assert left is not None
    assert left / 60 == pytest.approx(minutes, abs=0.02)


def test_S9_the_time_to_react_is_part_of_the_alert(empty: Bench) -> None:
    """A thousandth of the default queue, at a thousandth of the rate: the same 62.5 minutes."""
    empty.engine.checking = False
    empty.define(message_type="binary", max_spool_usage="5MB")
    for _ in range(1250):
        empty.advance("1s")
        empty.send(b"x" * KB)
    (event,) = [e for e in empty.admin.events() if e["event"] == "spool_usage_high"]
    assert {k: event[k] for k in ("vpn", "queue", "scope", "unit", *LEVELS)} == {
        "vpn": "default", "queue": "orders", "scope": "queue", "unit": "bytes",
        "level": 1_250_000, "limit": 5_000_000, "percent": 25.0,
    }  # fmt: skip
    assert event["per_second"] == 1000
    assert event["time_to_react_s"] == 62.5 * 60
    assert event["time"] == empty.connection.now()


def test_S9_a_rate_that_is_not_known_gives_no_time(empty: Bench) -> None:
    empty.define(message_type="binary", max_spool_usage=100)
    empty.send(b"x" * 50)
    (event,) = [e for e in empty.admin.events() if e["event"] == "spool_usage_high"]
    assert event["time_to_react_s"] is event["per_second"] is None


def test_S9_a_burst_after_a_silence_counts_as_within_a_minute(empty: Bench) -> None:
    empty.define(message_type="binary", max_spool_usage=100)
    empty.advance("1h")
    empty.send(b"x" * 40)
    (event,) = [e for e in empty.admin.events() if e["event"] == "spool_usage_high"]
    assert event["time_to_react_s"] == 90  # 60 of 40 a minute


def test_S9_set_at_25_percent_cleared_below_18_and_never_repeated(empty: Bench) -> None:
    empty.define(message_type="binary", max_spool_usage=1000)
    consumer = empty.consumer(backlog=1)
    for _ in range(24):
        empty.send(b"x" * 10)
    assert alerts(empty) == []
    empty.send(b"x" * 10)
    assert alerts(empty) == [("spool_usage_high", 250)]
    empty.send(b"x" * 10)
    for left in (250, 240, 250, 240, 230, 220, 210, 200, 190, 180):  # ends at exactly 18 %
        if left > empty.seen()["spool_bytes"]:
            empty.send(b"x" * 10)
        else:
            consumer.receive(timeout=0).ack()
        assert empty.seen()["spool_bytes"] == left
    assert alerts(empty) == [("spool_usage_high", 250)]
    consumer.receive(timeout=0).ack()
    assert alerts(empty)[1:] == [("spool_usage_cleared", 170)]
    consumer.receive(timeout=0).ack()
    for _ in range(9):
        empty.send(b"x" * 10)
    assert [a[0] for a in alerts(empty)[2:]] == ["spool_usage_high"]


def test_S9_thresholds_of_a_queue_are_configurable_also_while_it_runs(empty: Bench) -> None:
    keys = {"message_type": "binary", "max_spool_usage": 100}
    empty.define(**keys, spool_usage_high_percent=50, spool_usage_clear_percent=10)
    empty.send(b"x" * 49)
    assert alerts(empty) == []
    empty.define(**keys, spool_usage_high_percent=40, spool_usage_clear_percent=10)
    assert alerts(empty) == [("spool_usage_high", 49)]
    empty.define(**keys, spool_usage_high_percent=90, spool_usage_clear_percent=50)
    assert alerts(empty)[1:] == [("spool_usage_cleared", 49)]


def test_S9_a_quota_of_messages_alerts_too(empty: Bench) -> None:
    empty.define(max_spool_messages=8)
    empty.send()
    assert alerts(empty) == []
    empty.send()
    assert alerts(empty) == [("spool_usage_high", 2)]
    assert empty.admin.events()[-1]["unit"] == "messages"


def test_S9_survives_a_restart_without_repeating_itself(empty: Bench) -> None:
    empty.define(message_type="binary", max_spool_usage=100)
    empty.send(b"x" * 30)
    empty.engine.restart()
    empty.send(b"x")
    assert alerts(empty) == [("spool_usage_high", 30)]
    empty.admin.purge("orders")
    assert alerts(empty)[1:] == [("spool_usage_cleared", 0)]


def test_S9_a_deleted_queue_leaves_no_alert_behind(empty: Bench) -> None:
    empty.define(message_type="binary", max_spool_usage=100)
    empty.send(b"x" * 30)
    empty.admin.delete("orders")
    assert alerts(empty)[1:] == [("spool_usage_cleared", 0)]


def test_S9_of_the_vpn() -> None:
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


# ---------------------------------------------------------------- B4


def flow(bench: Bench, messages: int, limit: int = 10) -> Any:
    bench.define(max_per_subscription_backlog=100, max_delivered_unacked_per_flow=limit)
    consumer = bench.consumer(name="app")
    for _ in range(messages):
        bench.send()
    return consumer


def test_B4_a_flow_is_high_at_80_percent_and_cleared_below_60(empty: Bench) -> None:
    consumer = flow(empty, 7)
    assert alerts(empty, "flow") == []
    empty.send()
    assert alerts(empty, "flow") == [("delivered_unacked_high", 8)]
    empty.send()
    messages = drain(consumer)
    for message in messages[:3]:
        message.ack()
    assert alerts(empty, "flow") == [("delivered_unacked_high", 8)]  # 6 of 10 is not below
    messages[3].ack()
    assert alerts(empty, "flow")[1:] == [("delivered_unacked_cleared", 5)]
    event = next(e for e in empty.admin.events() if e["event"] == "delivered_unacked_high")
    assert (event["queue"], event["consumer"], event["limit"]) == ("orders", "app", 10)


def test_B4_at_the_limit_delivery_stops_and_the_consumer_is_seen_as_blocked(empty: Bench) -> None:
    consumer = flow(empty, 12)
    messages = drain(consumer)
    assert len(messages) == 10
    (seen,) = empty.seen()["consumers"]
    assert (seen["blocked"], seen["why"]) == (True, "max_delivered_unacked_per_flow")
    messages[0].ack()
    assert len(drain(consumer)) == 1


def test_B4_a_flow_that_ends_is_no_longer_high(empty: Bench) -> None:
    consumer = flow(empty, 9)
    consumer.close()
    assert [a[0] for a in alerts(empty, "flow")] == [
        "delivered_unacked_high", "delivered_unacked_cleared",
    ]  # fmt: skip


def test_B4_the_systems_limit_stops_delivery_of_all_queues() -> None:
    bench = configured(max_delivered_unacked=5)
    for name in ("one", "two"):
        bench.define(name, max_per_subscription_backlog=100)
    one, two = bench.consumer("one"), bench.consumer("two")
    for _ in range(4):
        bench.send(queue="one")
        bench.send(queue="two")
    first, second = drain(one), drain(two)
    assert (len(first), len(second)) == (3, 2)
    assert bench.seen("one")["blocked"] == "max_delivered_unacked"
    (seen,) = bench.seen("two")["consumers"]
    assert (seen["blocked"], seen["why"]) == (True, "max_delivered_unacked")
    first[0].ack()  # the room goes to whoever has waited longest
    assert (len(drain(one)), len(drain(two))) == (0, 1)
    first[1].ack()
    assert (len(drain(one)), len(drain(two))) == (1, 0)


@pytest.mark.parametrize("way", ["close", "delete", "expire", "purge", "configure"])
def test_B4_whatever_frees_room_wakes_who_waits(way: str) -> None:
    bench = configured(max_delivered_unacked=1)
    bench.define("one", expiration="1m")
    bench.define("two")
    one, two = bench.consumer("one"), bench.consumer("two")
    bench.send(queue="one")
    bench.send(queue="two")
    assert (len(drain(one)), len(drain(two))) == (1, 0)
    if way == "close":
        bench.admin.shutdown("one", egress=True)
        one.close()
    elif way == "delete":
        bench.admin.delete("one")
    elif way == "expire":
        bench.advance("1m")
    elif way == "purge":
        bench.admin.purge("one")
    else:
        from lakequeue.protocol import commands

        command = commands.Configure(system={"max_delivered_unacked": 2})
        bench.engine.instruct("default", commands.encode_command(command))
    assert len(drain(two)) == 1


def test_B4_what_leaves_on_send_is_never_unacked_and_goes_on() -> None:
    bench = configured(max_delivered_unacked=1)
    bench.define("one")
    bench.define("two", semantics="at-most-once")
    bench.consumer("one")
    bench.send(queue="one")
    bench.send(queue="two")
    assert len(drain(bench.consumer("two"))) == 1
    assert bench.seen("two")["consumers"][0]["blocked"] is False


def test_B4_the_system_is_high_at_80_percent_and_cleared_below_60() -> None:
    bench = configured(max_delivered_unacked=5)
    bench.define("one", max_per_subscription_backlog=100)
    bench.define("two", max_per_subscription_backlog=100)
    one, two = bench.consumer("one"), bench.consumer("two")
    for name in ("one", "two", "one", "two", "one"):
        bench.send(queue=name)
    assert alerts(bench, "broker") == [("delivered_unacked_high", 4)]
    for message in drain(one)[:2]:
        message.ack()
    assert len(alerts(bench, "broker")) == 1  # 3 of 5 is not below 60 %
    drain(two)[0].ack()
    assert alerts(bench, "broker")[1:] == [("delivered_unacked_cleared", 2)]


def test_S9_defaults_of_the_system() -> None:
    limits = SystemLimits()
    for what in ("spool_usage", "spool_files", "delivered_unacked"):
        assert getattr(limits, f"{what}_high_percent") == 80
        assert getattr(limits, f"{what}_clear_percent") == 60


def test_S9_events_are_seen_by_their_own_vpn_only() -> None:
    config = {"vpns": {"east": {}, "west": {}}}
    east = lakequeue.connect("memory://alerts-of-vpns", vpn="east", config=config)
    west = lakequeue.connect("memory://alerts-of-vpns", vpn="west")
    east.admin().define({"name": "q", "message_type": "binary", "max_spool_usage": 10})
    east.producer().send("q", b"x" * 9)
    assert "spool_usage_high" in [e["event"] for e in east.admin().events()]
    assert west.admin().events() == []


def test_S9_B4_usage_shows_levels_limits_and_what_is_set() -> None:
    system = {"max_spool_usage": 100, "max_spool_files": 1, "max_delivered_unacked": 10}
    config = {"system": system, "vpns": {"default": {"max_spool_usage": 50}}}
    bench = Bench(config=config)
    bench.define(message_type="binary")
    bench.consumer()
    for size in (20, 20):
        bench.send(b"x" * size)
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


def test_S6_refusals_of_no_queue_are_counted() -> None:
    bench = Bench()
    with pytest.raises(Rejected):
        bench.send(queue="nowhere")
    bench.engine.command("default.commands", b"", b"not a command")
    refused = bench.admin.usage()["vpn"]["refused"]
    assert refused == {"no_matching_destination": 1, "malformed": 1}


def test_S9_a_vpn_whose_limit_goes_has_no_alert() -> None:
    from lakequeue.protocol import commands

    bench = Bench(config={"vpns": {"default": {"max_spool_usage": 10}}})
    bench.define(message_type="binary")
    bench.send(b"x" * 9)
    assert alerts(bench, "vpn") == [("spool_usage_high", 9)]
    command = commands.Configure(vpns={"default": {}})
    bench.engine.instruct("default", commands.encode_command(command))
    assert [a[0] for a in alerts(bench, "vpn")[1:]] == ["spool_usage_cleared"]
    bench.send(b"x")
