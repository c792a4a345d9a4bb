"""The options of a consumer. The client refuses values that the engine could not read, and
subscribes nothing.

B3, C1, C4, C6, F1, L10.
"""

from collections.abc import Callable
from typing import Any

import pytest
from lakequeue.client.consumer.consumer import Consumer
from lakequeue.protocol import ConfigError
from lakequeue.protocol.bounds import BACKLOG_MAX
from rules.harness import Bench

BACKLOG = r"max_backlog: .* – allowed are 0 to 1,000,000"
WINDOW = r"transport_ack_window: .* 1 to 100"
TIME = r"transport_ack_time: .* 20ms to 1500ms"
PRIORITY = "priority: .* – allowed are 0 to 255"
DUPS: dict[str, Any] = {"ack_mode": "dups_ok", "dups_ok_interval": 0}
FAST = {"fairness_model": "fast"}
BACKLOGS = [-1, BACKLOG_MAX + 1, 1 << 40, 1.5, "5", True]


@pytest.mark.parametrize(
    ("queue", "says", "options"),
    [
        *(({}, BACKLOG, {"max_backlog": wrong}) for wrong in BACKLOGS),
        *(({}, WINDOW, {"transport_ack_window": wrong}) for wrong in (0, 101, True, "60")),
        *(({}, TIME, {"transport_ack_time": wrong}) for wrong in ("2s", 0, "1501ms")),
        ({}, "dups_ok_count: 4 – allowed is at most the backlog, 3",
         DUPS | {"max_backlog": 3, "dups_ok_count": 4}),
        ({}, "dups_ok_count: 6 – allowed is at most the backlog, 5",
         DUPS | {"max_backlog": 9, "dups_ok_count": 6}),
        ({}, "dups_ok_count: 2 – allowed is at most the backlog, 1", DUPS | {"dups_ok_count": 2}),
        *(({}, "dups_ok_count: ", DUPS | {"dups_ok_count": wrong}) for wrong in (-1, True, 1.5)),
        *(({}, "auto_renew_limit: ", {"auto_renew": renews, "auto_renew_limit": wrong})
          for renews in (True, False) for wrong in (0, "0s", "long")),
        *((FAST, PRIORITY, {"priority": wrong}) for wrong in (-1, 256, True, "9", 1.5)),
        *(({"fairness_model": model}, f"priority: 1 – allowed with .* has '{model}'",
           {"priority": 1}) for model in ("proportional", "round-robin")),
    ],
)  # fmt: skip
def test_B3_C1_C4_C6_F1_L10_invalid_options_are_refused(
    empty: Bench, queue: dict[str, Any], says: str, options: dict[str, Any]
) -> None:
    empty.define(max_per_subscription_backlog=5, **queue)
    with pytest.raises(ConfigError, match=says):
        empty.connection.consumer("orders", **options)
    assert empty.seen()["consumers"] == []
    assert empty.connection.consumer("orders", priority=0) is not None


@pytest.mark.parametrize("backlog", [*BACKLOGS, None])
def test_B3_an_invalid_backlog_keeps_the_old_one(bench: Bench, backlog: Any) -> None:
    consumer = bench.consumer(backlog=1)
    with pytest.raises(ConfigError, match=BACKLOG):
        consumer.set_max_backlog(backlog)
    (seen,) = bench.seen()["consumers"]
    assert (seen["backlog"], consumer._rule.backlog) == (1, 1)


def test_C4_C6_a_backlog_is_at_least_the_count_of_dups_ok(bench: Bench) -> None:
    consumer = bench.consumer(backlog=5, dups_ok_count=5, **DUPS)
    with pytest.raises(ConfigError, match="dups_ok_count: 5 – allowed is at most the backlog, 4"):
        consumer.set_max_backlog(4)


@pytest.mark.parametrize(
    ("count", "limit", "hears"),
    [
        (None, 5, lambda consumer: consumer.set_max_backlog(50)),
        (5, 2, lambda consumer: consumer.set_max_backlog(50)),
        (5, 2, lambda consumer: consumer.subscribe()),  # as after a lost session
    ],
)
def test_C4_C6_dups_ok_never_waits_for_more_than_the_queue_allows(
    bench: Bench, count: int | None, limit: int, hears: Callable[[Consumer], None]
) -> None:
    """With k = 0 the consumer would get no more messages, for ever."""
    bench.define(max_per_subscription_backlog=5)
    consumer = bench.consumer(backlog=5, dups_ok_count=count, **DUPS)
    bench.define(max_per_subscription_backlog=limit)
    hears(consumer)
    for n in range(20):
        bench.send({"n": n})
    assert sum(consumer.receive(0) is not None for _ in range(20)) == 20


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
@pytest.mark.parametrize("held", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("calls_back", [True, False])
def test_C4_Q9_dups_ok_follows_a_limit_that_is_lowered_while_it_holds_messages(
    bench: Bench, held: int, limit: int, calls_back: bool
) -> None:
    consumer, got = bench.consumer(backlog=5, dups_ok_count=5, **DUPS), []
    if calls_back:
        consumer.on_message(got.append)
    for n in range(20):
        if n == held:
            bench.define(max_per_subscription_backlog=limit)
        bench.send({"n": n})
        if not calls_back:
            got.append(consumer.receive(0))
    assert [message.delivery_count for message in got] == [1] * 20
    assert bench.seen()["depth"] < max(limit, held)
    bench.define(max_per_subscription_backlog=1000)
    assert consumer._rule.n == 5


@pytest.mark.parametrize("mode", ["client", "individual", "auto", "dups_ok", "pre_ack", "no_ack"])
def test_B3_with_a_backlog_of_0_nothing_is_delivered_until_it_is_raised(
    bench: Bench, mode: str
) -> None:
    for n in range(2):
        bench.send({"n": n})
    consumer = bench.consumer(backlog=0, ack_mode=mode)
    assert consumer.receive(0) is None
    assert bench.seen()["ready"] == 2
    consumer.set_max_backlog(1)
    assert consumer.receive(0).id == "1"
