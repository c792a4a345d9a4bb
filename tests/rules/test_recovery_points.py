"""R2: from which point on a queue takes records that its topics already have."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from lakequeue.protocol import ConfigError
from lakequeue.protocol.ids import make_id
from rules.harness import Bench, drain
from rules.mesh import Mesh, local, shared

HOUR = timedelta(hours=1)


def write(bench: Bench, *when: datetime) -> None:
    """Plain records with these times, as on an old topic found by a new queue."""
    for at in when:
        bench.connection.publish_raw(
            "orders", at.isoformat().encode(), timestamp=round(at.timestamp() * 1000)
        )


def taken(bench: Bench) -> list[datetime]:
    with bench.consumer(ack_mode="auto") as consumer:
        return [datetime.fromisoformat(m.payload.decode()) for m in drain(consumer)]


def define(bench: Bench, point: str | None, **keys: Any) -> None:
    more = {} if point is None else {"recovery_point": point}
    bench.define(message_type="text", max_per_subscription_backlog=100, **more, **keys)


@pytest.mark.parametrize("point", [None, "epoch", "now", "creation", "time", "1", "99"])
def test_R2_the_start_of_a_queue_without_a_state(point: str | None) -> None:
    bench = Bench()
    now = bench.connection.now()
    old, older = now - HOUR, now - 3 * HOUR
    define(bench, (now - 2 * HOUR).isoformat() if point == "time" else point)
    write(bench, older, old, now)
    wanted = {
        "now": [now], "creation": [now], "time": [old, now], "99": [],
    }.get(point or "", [older, old, now])  # fmt: skip
    assert taken(bench) == wanted


def test_R2_a_bookmark_is_the_first_message_that_enters() -> None:
    bench = Bench()
    bench.define("others")
    define(bench, "3")
    now = bench.connection.now()
    write(bench, now)  # it would get the id 1
    for _ in range(2):
        bench.send({}, "others")
    write(bench, now + HOUR)
    assert taken(bench) == [now + HOUR]


def test_R2_a_recorded_state_wins_if_the_setting_has_not_changed() -> None:
    bench = Bench()
    define(bench, "now")
    begun = bench.connection.now()
    bench.advance("10m")
    define(bench, "now", max_deliveries=3)  # another setting, the same point
    write(bench, begun)
    define(bench, "creation", max_deliveries=3)
    write(bench, begun)
    define(bench, "now", max_deliveries=3)
    write(bench, begun, bench.connection.now())
    assert taken(bench) == [begun, begun, bench.connection.now()]


def test_R2_a_client_that_waits_for_the_answer_is_never_too_early() -> None:
    bench = Bench()
    define(bench, (datetime.now(UTC) + 24 * HOUR).isoformat())
    assert bench.send(b"2026-01-01T00:00:00+00:00")
    assert len(taken(bench)) == 1


def test_R2_an_invalid_recovery_point_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"recovery_point.*a bookmark .a message id. or an ISO"):
        define(Bench(), "13948331409633883|1234|")


# ---------------------------------------------------------------- several brokers

OF_B = make_id(1, 3)


@pytest.mark.parametrize(
    ("queue", "hosts"),
    [(local("orders", "a"), "'a'"), (shared(), "'a', 'b', 'c'")],
    ids=["of one broker", "of several"],
)
@pytest.mark.parametrize("is_new", [True, False])
def test_R2_a_bookmark_of_another_broker_is_refused(
    queue: dict[str, Any], hosts: str, is_new: bool
) -> None:
    mesh = Mesh(*([] if is_new else [queue]))
    with pytest.raises(ConfigError) as refused:
        mesh.admin.define(queue | {"recovery_point": str(OF_B)})
    assert str(refused.value) == (
        f"queue 'orders': recovery_point: '{OF_B}' – must be epoch, now, creation, a time, or an "
        f"id of the only broker of the queue, which is on {hosts}"
    )


def test_R2_a_single_broker_refuses_a_bookmark_of_another_one() -> None:
    with pytest.raises(ConfigError, match="recovery_point: '281474976710659'"):
        define(Bench(), str(OF_B))
