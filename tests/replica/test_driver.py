"""Steps of the core over a log: cut anywhere, crashed anywhere, replayed any number of times, with
the same outcome.

In memory. The log determines the right outcome: the test replays it once more, from nothing,
without a crash, with all outputs; the outputs and the state of the crashing run must be equal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from lakequeue.protocol import journal_encoding, steplog
from lakequeue.protocol.kafka_headers import UNREADABLE
from lakequeue.protocol.messages import Records
from lakequeue.protocol.wire import WireRecord
from lakequeue.replica.driver import (
    REST_S_MAX,
    UNSAID_MAX,
    Driver,
    Refused,
    Snapshot,
    StepPutAside,
    digest_of,
)
from lakequeue.replica.replica import put_aside
from lakequeue.state import Batch, DictStore, Limits, StepFailed
from lakequeue.state.phases import admission
from loop.memory import HOME, PLACES, SIZES, Crashed, Some, World, clocks
from loop.memory import LIMITS as SMALL

QUEUE = {
    "name": "orders", "message_type": "json", "max_per_subscription_backlog": 5,
    "lease_period": "2s", "max_deliveries": 3, "expiration": "9s",
}  # fmt: skip
FIRST_ID = 1
LIMITS = Limits()
Operation = tuple


class Walk:
    """Operations, one after the other, on a world."""

    def __init__(self, limits: Limits = SMALL) -> None:
        self.world = World(limits=limits)
        self.driver = self.world.open()
        self.sent = 0
        self.world.command(command="begin", epoch=HOME.epoch)
        self.world.command(command="define", definition=QUEUE)
        self.step(9)

    def step(self, most: int) -> None:
        try:
            self.driver.one(Some(self.world, self.driver, most), 0.0)
        except Crashed:
            self.restart()

    def restart(self) -> None:
        """Die and restart, even if it dies again meanwhile."""
        for _ in range(2):
            with contextlib.suppress(Crashed):
                self.driver = self.world.open()
                return
        raise AssertionError("a crash happens once")

    def go(self, walk: list[Operation]) -> None:
        for name, *numbers in walk:
            getattr(self, f"do_{name}")(*numbers)

    def do_publish(self, partition: int, n: int) -> None:
        self.sent += 1
        value = b'{"n": %d}' % n
        place = PLACES[partition]
        self.world.write(place, value, to="orders", producer="p", seq=self.sent, reply=n % 3)

    def do_plain(self, n: int) -> None:
        self.world.write(PLACES[3], b'{"n": %d}' % n)

    def do_subscribe(self, n: int) -> None:
        inbox = {"topic": "default.deliveries", "partition": n, "request": f"r{n}"}
        self.world.command(
            command="subscribe", queue="orders", subscription=f"s{n}", max_backlog=3,
            inbox={"topic": "default.deliveries", "partition": n}, reply=inbox,
        )  # fmt: skip

    def do_ack(self, n: int, i: int) -> None:
        own = {"queue": "orders", "subscription": f"s{n}"}
        self.world.command(command="ack", **own, ids=f"{FIRST_ID}-{FIRST_ID + i}")

    def do_cancel(self, n: int, i: int) -> None:
        own = {"queue": "orders", "subscription": f"s{n}"}
        self.world.command(command="cancel", **own, ids=str(FIRST_ID + i))

    def do_describe(self) -> None:
        reply = {"topic": "default.deliveries", "partition": 0, "request": "d"}
        self.world.command(command="describe", queue="orders", reply=reply)

    def do_garbage(self, place: int) -> None:
        self.world.write(PLACES[place], b"\xff{")

    def do_wait(self, ms: int) -> None:
        self.world.now += ms

    def do_go(self, most: int, ms: int) -> None:
        self.world.now += ms
        self.step(most)

    do_step, do_restart = step, restart

    def do_crash(self, point: str) -> None:
        self.world.point = point

    def do_save(self) -> None:
        try:
            self.world.save(self.driver, self.store)
        except Crashed:
            self.restart()

    def do_lag(self, n: int) -> None:
        self.world.lag = n

    def do_slow(self, n: int) -> None:
        self.world.slow = n

    @property
    def store(self) -> DictStore:
        return self.driver._replica.store  # type: ignore[return-value]


def aloud(world: World) -> tuple[dict[int, list[WireRecord]], Driver, DictStore]:
    """Replay the log from nothing, without a crash, with the outputs of each step."""
    quiet = replace(world, saved=(Snapshot(), DictStore()), said=[], flight=[], lag=0, point=None)
    store = DictStore()
    driver = Driver(
        HOME, world.code, store, Snapshot(), quiet, quiet, clocks(quiet), world.limits
    )  # fmt: skip
    records = [(at, steplog.decode(steplog.encode(r))) for at, r in world.logged()]
    loud = [(at, msgspec.structs.replace(r, acked=0)) for at, r in records]
    driver.replay(loud, quiet)
    return dict(quiet.said), driver, store


def judge(walk: Walk) -> None:
    """The outputs written for a step are a prefix of its outputs, and all were written at least
    once."""
    world = walk.world
    world.point = None
    walk.restart()
    world.land(0)
    wanted, reference, store = aloud(world)
    whole: set[int] = set()
    for step, records in world.said:
        assert records == wanted[step][: len(records)], f"step {step} said something else"
        if len(records) == len(wanted[step]):
            whole.add(step)
    assert whole == set(wanted), "a step's outputs are missing"
    assert walk.driver.snapshot(1) == reference.snapshot(1)
    assert walk.store.pages == store.pages


def test_the_log_records_the_mark_a_worker_started_from() -> None:
    """A replay from an earlier snapshot makes the mark in the same place: a mark's settled contents
    decide the block of a content."""
    walk = Walk()
    walk.go([("publish", 1, 1), ("step", 1), ("save",), ("restart",), ("publish", 1, 2)])
    walk.go([("step", 1), ("publish", 1, 3), ("step", 1)])
    assert [r.marked for _, r in walk.world.logged()[-2:]] == [True, False]
    judge(walk)


def test_a_mark_contains_no_later_steps() -> None:
    """The journal's rows, and newly known topics, while the mark is still to be saved."""
    walk = Walk()
    walk.go([("slow", 9), ("subscribe", 0), ("publish", 1, 1), ("go", 4, 1)])
    assert walk.driver._unsaid
    walk.step(1)  # nothing to do: records of the log are sent
    assert not walk.driver._unsaid
    mark = walk.driver.snapshot(5)
    assert mark.journal
    before = msgspec.msgpack.encode(mark)
    walk.driver.learn(SIZES | {"default.deliveries": 4})
    walk.go([("publish", 1, 2), ("plain", 1), ("go", 4, 1), ("publish", 2, 3), ("go", 4, 1)])
    assert msgspec.msgpack.encode(mark) == before
    judge(walk)


def test_outputs_wait_for_the_log() -> None:
    """Steps continue while the log is slow, up to a limit; their outputs wait, in order."""
    walk = Walk()
    walk.go([("subscribe", 0), ("step", 9), ("slow", 9)])
    before = len(walk.world.said)
    for n in range(2 * UNSAID_MAX):
        walk.go([("publish", 1, n), ("step", 1)])
        waited = UNSAID_MAX * (n // UNSAID_MAX)  # one step too many: it waits for the log
        assert len(walk.world.said) - before == waited
    newest = walk.driver.step
    records = [record for _, record in walk.world.logged()]
    assert records[-1].acked == newest - UNSAID_MAX, "unsent outputs have not arrived"
    walk.step(1)  # nothing to do: now it waits for the log
    assert [step for step, _ in walk.world.said][-1] == newest
    judge(walk)


def test_time_does_not_pass_commands_not_yet_read() -> None:
    """A session whose heartbeats wait in the topic while the engine was away is not lost."""
    walk = Walk()
    world = walk.world
    subscribe = {"command": "subscribe", "queue": "orders", "subscription": "s", "session": "x"}
    world.command(**subscribe, inbox={"topic": "default.deliveries", "partition": 0})
    walk.step(9)
    before = world.now
    for _ in range(10):
        world.now += 10_000
        world.command(command="heartbeat", session="x")
    walk.restart()
    inputs = Some(world, walk.driver, 1)
    for n in range(1, 11):
        inputs.until = before + 10_000 * n if n < 10 else None
        walk.driver.one(inputs, 0.0)
        assert walk.driver.now == before + 10_000 * n
    inputs.until = walk.driver.now
    world.now += 1_000_000
    assert walk.driver.one(inputs, 0.0) is None, "a deadline waits for unread commands"
    walk.step(1)
    world.now += 1_000
    walk.step(1)
    judge(walk)
    journals = {r.value for _, records in world.said for r in records if "journal" in r.topic}
    events = [event for j in journals for event in journal_encoding.decode(j)["event"].to_pylist()]
    assert events.count("session_lost") == 1, "only once it was really silent"


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets a driver's pauses: by default longer than a test takes."""

    def settings(due: float = 0.0, bulk: float = 0.0, most: float = 600.0) -> None:
        given = {"REST_OF_DUE": due, "REST_OF_BULK": bulk, "REST_S_MAX": most, "RECENT_S": 600.0}
        for name, value in given.items():
            monkeypatch.setattr(f"lakequeue.replica.driver.{name}", value)

    return settings


def full(rows: int) -> Walk:
    """This many messages have just come in."""
    walk = Walk()
    walk.go([("plain", n % 10) for n in range(rows)])
    walk.step(rows)
    return walk


def test_background_work_pauses_while_messages_come_in(
    rests: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million messages expire at once."""
    rests(due=1e6)
    walk = full(3 * LIMITS.due_rows)
    driver, nothing = walk.driver, Some(walk.world, walk.driver, 0)
    walk.world.now += 60_000
    assert driver.due_in() == 0
    driver.one(nothing, 0.0)
    assert driver.now == walk.world.now, "a part of them has expired"
    assert driver.due_in() > 0, "the next part waits"
    before = driver.step
    walk.go([("describe",), ("step", 1)])
    assert driver.step == before + 1, "new messages do not"
    monkeypatch.setattr("lakequeue.replica.driver.RECENT_S", 0.0)
    driver._rested = 0.0
    driver.one(nothing, 0.0)
    assert driver.due_in() == 0, "without new messages it continues"
    judge(walk)


def test_a_purge_has_pauses_of_its_own(rests: Callable[..., None]) -> None:
    """A client waits for it."""
    rests(bulk=1e6)
    walk = full(3 * LIMITS.bulk_rows)
    walk.world.command(command="purge", queue="orders", epoch=HOME.epoch)
    walk.step(1)
    driver, nothing = walk.driver, Some(walk.world, walk.driver, 0)
    assert driver.due_in() == 0, "a command's remaining work continues at once"
    driver.one(nothing, 0.0)
    assert driver.due_in() > 0
    driver._rested = 0.0
    driver.one(nothing, 0.0)
    judge(walk)


def test_no_pause_is_longer_than_a_deadline_may_be_late(rests: Callable[..., None]) -> None:
    rests(due=1e6, most=REST_S_MAX)
    walk = full(2 * LIMITS.due_rows)
    walk.world.now += 60_000
    walk.driver.one(Some(walk.world, walk.driver, 0), 0.0)
    assert walk.driver.due_in() <= REST_S_MAX


def test_a_new_home_begins_at_the_present_time() -> None:
    """Its first step is not dated 1970, although commands are still to be read."""
    world = World()
    driver = world.open()
    inputs = Some(world, driver, 9)
    inputs.until = 0  # nothing is known of the commands yet
    world.command(command="begin", epoch=HOME.epoch)
    driver.one(inputs, 0.0)
    assert driver.now == world.now


# ---------------------------------------------------------------- refusals


def stopped() -> World:
    """Two steps in the log that no snapshot has."""
    walk = Walk()
    walk.go([("save",), ("publish", 1, 1), ("step", 1), ("publish", 1, 2), ("step", 1)])
    return walk.world


def other_version(world: World) -> None:
    world.code = "v2"


def other_input(world: World) -> None:
    world.topics[PLACES[1]][0].value_ += b" "


def other_home(world: World) -> None:
    """Its instructions are at the same offsets as the other home's."""
    world.saved = (Snapshot(), DictStore())
    other_input(world)


def hole(world: World) -> None:
    first = world.saved[0].log_at
    world.log[first] = world.log[first + 1]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (other_version, r"version v1 ran .* this is v2: start that version"),
        (other_input, r"had other inputs .* keep the home and report it"),
        (other_home, r"most likely another home's; use that home"),
        (hole, r"continues with step .*lakequeue rebuild"),
    ],
)
def test_a_log_that_does_not_fit_the_state_is_refused(
    spoil: Callable[[World], None], why: str
) -> None:
    world = stopped()
    spoil(world)
    with pytest.raises(Refused, match=why):
        world.open()


def test_another_version_continues_after_a_clean_stop() -> None:
    walk = Walk()
    walk.go([("publish", 1, 1), ("step", 1), ("save",)])
    walk.world.code = "v2"
    assert walk.world.open().step == walk.driver.step


def test_R1_headers_of_a_command_are_ignored() -> None:
    """The tables do not keep them either: a replay comes without them."""

    def inputs(meta: bytes | None, topic: str = "commands") -> int:
        one = Records([topic], [0], [0], [0], [b"key"], [b"value"], [meta], [None])
        return digest_of(Batch(one) if topic == "commands" else Batch(publishes=one))

    assert inputs(UNREADABLE) == inputs(None)
    assert inputs(UNREADABLE, "publish") != inputs(None, "publish")


def test_newly_known_topics_are_an_input_too() -> None:
    """A reply to a partition that did not exist then is refused in the replay, too."""
    walk = Walk()
    walk.go([("subscribe", 2), ("step", 1)])  # partition 2 of deliveries does not exist
    walk.driver.learn(SIZES | {"default.deliveries": 3})
    walk.go([("subscribe", 1), ("subscribe", 2), ("step", 9)])
    walk.driver.learn({topic: n for topic, n in SIZES.items() if topic != "orders"})
    walk.go([("subscribe", 1), ("step", 9)])
    assert "orders" not in walk.driver.sizes
    judge(walk)
    refused = [r for _, records in walk.world.said for r in records if "rejected" in r.topic]
    assert refused


# ---------------------------------------------------------------- steps that fail


POISON = 13


def plant(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Make a message with this number fail as it enters. Returns the list of failures."""
    failures: list[bytes] = []
    real = admission.match

    def failing(queue: Any, payload: bytes, *more: Any) -> Any:
        if payload == b'{"n": %d}' % POISON:
            failures.append(payload)
            raise RuntimeError("planted")
        return real(queue, payload, *more)

    monkeypatch.setattr(admission, "match", failing)
    return failures


def test_each_replay_skips_one_more_of_a_hundred_failing_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    walk, replays = Walk(), 0
    walk.go([("subscribe", 0), ("step", 9), ("save",)])
    walk.go([("publish", 1, POISON)] * 100)
    walk.go([("publish", 1, 1)])
    with pytest.raises(StepPutAside, match="planted"):
        walk.step(101)
    while True:
        try:
            walk.restart()
            break
        except StepPutAside:
            replays += 1
    assert replays == 99
    walk.go([("publish", 1, 2), ("step", 9)])
    judge(walk)
    assert [len(r.skipped) for _, r in walk.world.logged() if r.skipped] == [*range(1, 101)]
    assert max(map(len, walk.world.log)) < 20_000


def test_a_state_that_does_not_match_the_log_is_refused() -> None:
    walk = Walk()
    walk.driver.step += 5
    walk.do_publish(0, 1)
    with pytest.raises(Refused, match=r"step 7 .* has number 2 in its state: .* different homes"):
        walk.step(9)


@pytest.mark.parametrize("place", [None, ("orders", 0, 7)], ids=["unknown", "skipped already"])
def test_a_step_is_not_repeated_if_no_record_can_be_skipped(place: Any) -> None:
    batch = Batch(skipped={} if place is None else {place: "failed before"})
    failed = StepFailed(place, None, RuntimeError("planted"))
    with pytest.raises(StepFailed, match="planted"):
        put_aside(batch, failed)
