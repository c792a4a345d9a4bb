"""What a step reads and writes, and how long its loops are, as docs/internals/batch-cost.md says.

Depth is made once for all tests of this file; each runs on a copy.
"""

from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.ids import format_ranges
from lakequeue.protocol.outputs import Deadline, Deliveries, Reply
from lakequeue.state import Batch, DictStore, Limits, step
from lakequeue.state.limits import beside
from lakequeue.state.rules.order import key_of
from rules.steps import CountingStore, Steps, delivered

INBOX = c.Inbox("default.deliveries")
SHALLOW, DEEP = 1_000, 60_000
# One page more on the way for each level of the directory and the ready index.
LEVELS = 6


def queue(name: str, **keys: Any) -> c.Define:
    usual = {"max_per_subscription_backlog": 5_000, "message_type": "binary", "name": name}
    return c.Define(definition=usual | keys)


def filled(depth: int) -> Steps:
    steps = Steps(checked=False)
    steps.run([queue("orders", dead_message_queue="dead"), queue("dead"), queue("other")])
    for start in range(0, depth, 10_000):
        steps.run(publishes=[("orders", b"x")] * min(10_000, depth - start))
    return steps


@pytest.fixture(scope="module")
def stores() -> dict[int, tuple[bytes, int]]:
    made = {depth: filled(depth) for depth in (SHALLOW, DEEP)}
    return {depth: (steps.store.dump(), steps.offsets) for depth, steps in made.items()}


def loaded(stores: dict[int, tuple[bytes, int]], depth: int) -> Steps:
    dumped, offsets = stores[depth]
    steps = Steps(CountingStore(DictStore.load(dumped).pages), checked=False)
    steps.offsets = offsets
    return steps


def cost(steps: Steps, *given: c.Command, publishes: Any = ()) -> tuple[int, int]:
    """Page reads and writes of one step."""
    before = steps.store.reads, steps.store.writes
    batch = Batch(steps.command_records(given), steps.publish_records(publishes))
    step(steps.store, batch, steps.now, **steps.options)
    return steps.store.reads - before[0], steps.store.writes - before[1]


SUBSCRIBE = c.Subscribe(queue="orders", subscription="a", inbox=INBOX, max_backlog=10)
OPERATIONS: dict[str, tuple[list[c.Command], list[Any]]] = {
    "publish 10": ([], [("orders", b"x")] * 10),
    "subscribe and deliver 10": ([SUBSCRIBE], []),
    "acknowledge 10": ([c.Ack(queue="orders", ids="1-10")], []),
    "acknowledge a range of everything, nothing held": (
        [c.Ack(queue="other", ids="1-281474976710655")], [],
    ),
    "describe": ([c.Describe(queue="orders", reply=c.ReplyTo("default.deliveries"))], []),
    "define again": ([queue("orders", priority="/@priority")], []),
}  # fmt: skip
READS_MAX, WRITES_MAX = 30, 26


@pytest.mark.parametrize("name", OPERATIONS)
def test_O1_the_cost_of_a_step_follows_what_changes(
    stores: dict[int, tuple[bytes, int]], name: str
) -> None:
    commands, publishes = OPERATIONS[name]
    shallow, deep = (
        cost(loaded(stores, depth), *commands, publishes=publishes) for depth in (SHALLOW, DEEP)
    )
    assert deep[0] <= READS_MAX, f"{deep[0]} pages read"
    assert deep[1] <= WRITES_MAX, f"{deep[1]} pages written"
    assert deep[0] <= shallow[0] + LEVELS
    assert deep[1] <= shallow[1] + LEVELS


def test_S12_what_came_in_this_step_is_not_read_back(stores: dict[int, tuple[bytes, int]]) -> None:
    steps = loaded(stores, SHALLOW)
    steps.run([c.Purge(queue="orders"), SUBSCRIBE])
    reads: list[str] = []
    get = steps.store.get
    steps.store.get = lambda key: reads.append(key) or get(key)  # type: ignore[method-assign]
    out = steps.run(publishes=[("orders", b"new")] * 5)
    assert [o.payloads for o in out if isinstance(o, Deliveries)] == [[b"new"] * 5]
    assert not [key for key in reads if key.startswith("b/")]


@pytest.mark.parametrize(
    "command",
    [
        c.Purge(queue="orders"),
        c.Ack(queue="orders", ids="1-60000"),
        c.Ack(queue="orders", where="@key IS NULL"),
        c.Delete(queue="orders"),
    ],
    ids=["purge", "ack", "ack where", "delete"],
)
def test_L13_R6_no_step_changes_more_rows_than_its_limit(
    stores: dict[int, tuple[bytes, int]], command: c.Command
) -> None:
    """And the queue beside it is served in each of these steps."""
    steps = loaded(stores, DEEP)
    steps.run([c.Subscribe(queue="other", subscription="b", inbox=INBOX, max_backlog=500)])
    limits = Limits(command_rows=5_000, bulk_rows=5_000, beside=1)
    batch = Batch(steps.command_records([command]))
    rows: list[int] = []
    for _ in range(60):
        out = step(steps.store, batch, steps.now, limits=limits)
        journal = [s for o in out if hasattr(o, "segments") for s in o.segments]
        rows.append(sum(len(s.ids) for s in journal if s.queue == "orders"))
        if len(rows) > 1:
            assert [len(o.ids) for o in out if isinstance(o, Deliveries)] == [1]
        at = [o.at for o in out if isinstance(o, Deadline)][-1]
        if not 0 < at <= steps.now:
            break
        batch = Batch(publishes=steps.publish_records([("other", b"beside")]))
    assert sum(rows) == DEEP
    assert max(rows) <= 5_000 + 1_024, rows  # a page may be finished
    assert len(rows) >= DEEP // 6_100


def test_L13_R6_what_is_done_in_bulk_takes_nothing_from_acks(
    stores: dict[int, tuple[bytes, int]],
) -> None:
    """A purge goes on in small parts; an ack of more than such a part is done at once."""
    steps = loaded(stores, SHALLOW)
    limits = Limits(bulk_rows=10, page_bits=10)
    steps.run([c.Subscribe(queue="other", subscription="b", inbox=INBOX, max_backlog=500)])
    held = delivered(steps.run(publishes=[("other", b"beside")] * 500))
    commands: list[c.Command] = [c.Purge(queue="orders")]
    for given in (commands, [c.Ack(queue="other", subscription="b", ids=format_ranges(held))]):
        out = step(steps.store, Batch(steps.command_records(given)), steps.now, limits=limits)
        rows = {s.queue: len(s.ids) for o in out if hasattr(o, "segments") for s in o.segments}
        assert rows["orders"] == beside(limits, 1).bulk_rows
        assert [o.at for o in out if isinstance(o, Deadline)] == [steps.now]
    assert rows["other"] == 500


def test_L13_R6_each_queue_gets_its_part_of_what_is_done_in_bulk() -> None:
    """Also where there are more of them than rows in a step."""
    steps = Steps(limits=Limits(bulk_rows=3, command_rows=2), checked=False)
    names = [f"q{n}" for n in range(8)]
    steps.run([queue(name) for name in names], [(name, b"x") for name in names * 3])
    batch = Batch(steps.command_records([c.Purge(queue=name) for name in names]))
    purged: list[str] = []
    for _ in range(60):
        out = step(steps.store, batch, steps.now, **steps.options)
        segments = [s for o in out if hasattr(o, "segments") for s in o.segments]
        purged += [s.queue for s in segments for _ in s.ids if s.event == "purged"]
        batch = Batch()
        if not steps.now >= [o.at for o in out if isinstance(o, Deadline)][-1] > 0:
            break
    assert sorted(purged) == sorted(names * 3)
    assert len(set(purged[3:10])) == 7, purged  # the first began at once, and is through


def test_X1_X5_X6_a_night_of_expiry_and_its_redrive_go_on_over_steps(
    stores: dict[int, tuple[bytes, int]],
) -> None:
    steps = loaded(stores, SHALLOW)
    steps.run([queue("orders", dead_message_queue="dead", expiration="1s")])
    for _ in range(3):
        steps.run(publishes=[("orders", b"x")] * 10_000)
    steps.now += 1_000
    limits = Limits(due_rows=4_000, bulk_rows=4_000)

    def drive(batch: Batch) -> list[int]:
        moved = []
        while True:
            out = step(steps.store, batch, steps.now, limits=limits)
            journal = [s for o in out if hasattr(o, "segments") for s in o.segments]
            moved.append(sum(len(s.ids) for s in journal if s.event == "spooled"))
            at = [o.at for o in out if isinstance(o, Deadline)][-1]
            if not 0 < at <= steps.now:
                return moved
            batch = Batch()

    expired = drive(Batch())
    assert (sum(expired), max(expired) <= 4_000) == (30_000, True)
    back = drive(Batch(steps.command_records([c.Redrive(queue="dead")])))
    assert (sum(back), max(back) <= 4_000 + 1_024) == (30_000, True)


def test_L13_an_ack_of_what_is_held_does_not_read_what_is_gone(
    stores: dict[int, tuple[bytes, int]],
) -> None:
    steps = loaded(stores, DEEP)
    out = steps.run([SUBSCRIBE])
    held = [i for o in out if isinstance(o, Deliveries) for i in o.ids]
    ack = c.Ack(queue="orders", subscription="a", up_to=format_ranges([held[-1]]))
    assert cost(steps, ack)[0] <= READS_MAX


# ---------------------------------------------------------------- looks

LOOK_READS_MAX = 60  # a page for each of 20 messages and its payload, and the ways to them
PRIORITIES = 10


@pytest.fixture(scope="module", params=["by place", "by priority"])
def browsed(request: pytest.FixtureRequest) -> tuple[bytes, int]:
    """100,000 messages, of which the first 2,000 are leased."""
    steps = Steps(checked=False)
    more = {"priority": "/p"} if request.param == "by priority" else {}
    steps.run([queue("orders", **(more | {"message_type": "json"}))])
    bodies = [b'{"p": %d}' % p for p in range(PRIORITIES)]
    for _ in range(10):
        steps.run(publishes=[("orders", bodies[i % PRIORITIES]) for i in range(10_000)])
    steps.run([c.Subscribe(queue="orders", subscription="a", inbox=INBOX, max_backlog=2_000)])
    return steps.store.dump(), steps.offsets


def browse(steps: Steps, **fields: Any) -> tuple[list[dict[str, Any]], str | None, int]:
    """One answer, where the next one begins, and how many pages the step read."""
    before = steps.store.reads
    command = c.Browse(queue="orders", reply=c.ReplyTo("default.deliveries"), **fields)
    out = step(steps.store, Batch(steps.command_records([command])), steps.now, **steps.options)
    (answer,) = [o for o in out if isinstance(o, Reply)]
    assert answer.error is None, answer.error
    return answer.result, answer.more, steps.store.reads - before


def opened(browsed: tuple[bytes, int], **options: Any) -> Steps:
    dumped, offsets = browsed
    steps = Steps(CountingStore(DictStore.load(dumped).pages), checked=False, **options)
    steps.offsets = offsets
    return steps


@pytest.mark.parametrize("start", [None, "10000", str(key_of(55_005, 5)), str(key_of(99_900))])
def test_R6_a_browse_costs_what_it_shows(browsed: tuple[bytes, int], start: str | None) -> None:
    """Also from the middle on, and also of a queue whose order is not by place."""
    rows, _, reads = browse(opened(browsed), limit=20, start=start)
    assert 10 <= len(rows) <= 20
    assert reads <= LOOK_READS_MAX, f"{reads} pages read"


@pytest.mark.parametrize(
    "fields", [{"state": "delayed"}, {"where": "/p = 77"}, {"state": "delayed", "where": "/p = 0"}]
)
def test_R6_what_a_browse_passes_over_has_a_budget(
    browsed: tuple[bytes, int], fields: dict[str, Any]
) -> None:
    limits = Limits()
    steps = opened(browsed)
    rows, more, reads = browse(steps, limit=20, **fields)
    assert (rows, more is None) == ([], False)
    assert reads <= limits.browse_pages + LOOK_READS_MAX


def test_R6_the_parts_of_a_browse_are_the_whole_in_order(browsed: tuple[bytes, int]) -> None:
    """With budgets of a few rows and pages nothing is left out and nothing comes twice."""
    whole, more, _ = browse(opened(browsed), limit=3_000)
    assert (len(whole), more) == (3_000, None)
    for limits in (Limits(browse_rows=100), Limits(browse_pages=3), Limits(browse_bytes=900)):
        steps, found, start = opened(browsed, limits=limits), [], None
        while len(found) < 3_000:
            rows, start, _ = browse(steps, limit=3_000 - len(found), start=start)
            assert len(rows) < 3_000
            found += rows
        assert [row["id"] for row in found] == [row["id"] for row in whole]


def test_L13_a_step_that_brings_little_does_little_beside() -> None:
    """And one that brings much does more than that: what comes in and is over can always go."""
    limits = Limits()
    rows = [beside(limits, records).due_rows for records in (0, 1, 7, 20, 60, 125, 5_000)]
    assert rows == [250, 125, 125, 333, 1_000, 2_000, 2_000]
    assert all(rows[n] >= 8 * records for n, records in enumerate((0, 1, 7, 20, 60, 125)))
    assert beside(limits, 1).bulk_rows == 125
    assert beside(Limits(beside=1), 0) == beside(Limits(beside=1), 1) == Limits(beside=1)
    assert beside(Limits(due_rows=32, bulk_rows=3), 1) == Limits(
        due_rows=16, bulk_rows=1, bulk_bytes=1_000_000, compact_bytes_per_step=500_000
    )
