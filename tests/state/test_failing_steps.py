"""Bugs planted in each phase of a step: one bad record costs one replay, and never fails twice;
everything else is delivered, and the failure is reported (S1)."""

from collections.abc import Callable
from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.journal import Journal
from lakequeue.protocol.messages import encode_run
from lakequeue.protocol.outputs import RejectedRecord
from lakequeue.state.commands import intake, multi_step_commands
from lakequeue.state.phases import admission, alerts, deadlines, delivery
from lakequeue.state.queue.queue import Queue
from rules.steps import REPLY, define, delivered, described, replies, subscribe

from .twin_steps import FailingSteps

QUEUES = ("orders", "other")


def begun(names: tuple[str, ...] = QUEUES, **options: Any) -> FailingSteps:
    made = FailingSteps(**options)
    made.run([define(name, max_per_subscription_backlog=9) for name in names])
    made.run([subscribe(name, 9, name) for name in names])
    made.check_marks()  # the steps so far are not replayed with a planted bug
    return made


@pytest.fixture(params=[0.0, 0.4], ids=["from the beginning", "from marks"])
def steps(request: pytest.FixtureRequest) -> FailingSteps:
    return begun(chance=request.param)


def events(outputs: list[Any], event: str) -> list[str]:
    segments = [s for o in outputs if isinstance(o, Journal) for s in o.segments]
    return [s.queue for s in segments if s.event == event]


def rejected(outputs: list[Any]) -> list[RejectedRecord]:
    return [o for o in outputs if isinstance(o, RejectedRecord)]


RUN = {"producer": "p", "count": 3}
BAD, GOOD = ([b'{"n":%d}' % n for n in numbers] for numbers in ((1, 13, 2), (3, 4, 5)))


@pytest.mark.parametrize(
    ("sent", "left_out"),
    [
        ([("orders", payload) for payload in BAD], BAD[1]),
        (
            [
                ("orders", encode_run(BAD), RUN | {"seq": 1}),
                ("orders", encode_run(GOOD), RUN | {"seq": 4}),
            ],
            encode_run(BAD),
        ),
    ],
    ids=["messages that are stored together", "a record with several messages"],
)
def test_a_record_that_fails_while_stored_is_found_and_skipped(
    steps: FailingSteps, monkeypatch: pytest.MonkeyPatch, sent: list[Any], left_out: bytes
) -> None:
    """It fails together with others, so each of them is then stored by itself."""
    store = admission.Admission._store

    def planted(self: Any, judged: Any, messages: Any) -> int:
        if any(b"13" in payload for payload in messages.payloads):
            raise OverflowError("planted")
        return store(self, judged, messages)

    monkeypatch.setattr(admission.Admission, "_store", planted)
    out = steps.run(publishes=sent)
    assert [record.value for record in rejected(out)] == [left_out]
    assert len(delivered(out, "orders")) == (2 if left_out == BAD[1] else 3)
    assert len(steps.failures) == 2
    steps.run(publishes=[("orders", b"{}")])
    assert len(steps.failures) == 2


def test_a_command_that_fails_is_refused(
    steps: FailingSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = multi_step_commands.IN_TURN[c.Cancel]

    def planted(broker: Any, queue: Any, task: Any, command: Any, budget: Any) -> bool:
        if command.delay_ms == 13:
            queue.header.leased += 7
            raise ZeroDivisionError("planted")
        return cancel(broker, queue, task, command, budget)

    monkeypatch.setitem(multi_step_commands.IN_TURN, c.Cancel, planted)
    steps.run(publishes=[("orders", b"{}")] * 2)
    own = {"queue": "orders", "subscription": "orders"}
    bad = c.Cancel(**own, ids="1", delay_ms=13, reply=REPLY)
    out = steps.run([bad, c.Ack(**own, ids="2")])
    (reply,) = replies(out)
    assert "ZeroDivisionError: planted" in (reply.error or "")
    assert "planted" in rejected(out)[0].error
    seen = described(steps)
    assert (seen["depth"], seen["leased"], seen["acknowledged"]) == (1, 1, 1)
    assert len(steps.failures) == 1


def plant(owner: Any, name: str, of: Callable[..., Queue]) -> Callable[[pytest.MonkeyPatch], None]:
    """Anything done to a queue but `other` fails after it changed something."""

    def planted(monkeypatch: pytest.MonkeyPatch) -> None:
        real = getattr(owner, name)

        def failing(*arguments: Any, **more: Any) -> Any:
            queue = of(*arguments)
            if queue.definition.name != "other":
                queue.header.leased += 3
                raise RuntimeError("planted")
            return real(*arguments, **more)

        monkeypatch.setattr(owner, name, failing)

    return planted


PHASES = {
    "delivery": plant(delivery, "choose_messages", lambda broker, queue, *_: queue),
    "deadlines": plant(deadlines, "_handle_rows", lambda broker, queue, *_: queue),
    "tidying": plant(Queue, "spill_over", lambda queue: queue),
    "alerts": plant(alerts, "level_of", lambda queue: queue),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_failing_queue_is_set_aside_until_it_is_redefined(
    steps: FailingSteps, phase: str
) -> None:
    sent = [("orders", b"{}", {"ttl_ms": 500}), ("other", b"{}")]
    with pytest.MonkeyPatch.context() as monkeypatch:
        PHASES[phase](monkeypatch)
        out = steps.run(publishes=sent)
        out += steps.tick(500)
        assert len(delivered(out, "other")) == 1
        assert not rejected(out)
        assert events(out, "queue_faulted") == ["orders"]
        assert described(steps)["faulted"] == "RuntimeError: planted"
        out = steps.run(publishes=[("other", b"{}"), ("orders", b"{}")])
        assert len(delivered(out, "other")) == 1
        assert len(steps.failures) == 1
    out = steps.run([define(max_per_subscription_backlog=8)])
    assert described(steps)["faulted"] is None
    assert len(steps.failures) == 1


def test_a_queue_redefined_in_the_failing_step_is_set_aside(
    steps: FailingSteps,
) -> None:
    """The definition is of the step that failed, so it is no remedy; a later one is."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        PHASES["delivery"](monkeypatch)
        again = define(max_per_subscription_backlog=8)
        out = steps.run([again], publishes=[("orders", b"{}"), ("other", b"{}")])
        assert len(delivered(out, "other")) == 1
        assert described(steps)["faulted"] == "RuntimeError: planted"
        assert len(steps.failures) == 1
    steps.run([again])
    assert described(steps)["faulted"] is None


MANY, MANY_QUEUES = 50, 20  # a replay visits each queue, so the cost is the square of their number


def spoil(broker: Any) -> None:
    broker.names["default", "orders"].header.depth += 7
    raise OverflowError("planted" * 90)


def bad_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    check = admission.check_messages

    def planted(broker: Any, matches: Any, messages: Any) -> Any:
        if any(b"13" in payload for payload in messages.payloads):
            spoil(broker)
        return check(broker, matches, messages)

    monkeypatch.setattr(admission, "check_messages", planted)


def bad_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    carry_out = intake._one

    def planted(broker: Any, vpn: str, command: Any) -> None:
        if getattr(command, "limit", None) == 13:
            spoil(broker)
        carry_out(broker, vpn, command)

    monkeypatch.setattr(intake, "_one", planted)


def undecodable_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = intake.c.decode_command

    def planted(value: Any) -> Any:
        if b'"limit":13' in value:
            raise OverflowError("planted" * 90)
        return decode(value)

    monkeypatch.setattr(intake.c, "decode_command", planted)


@pytest.mark.parametrize("plant", [bad_messages, bad_commands, undecodable_commands])
def test_any_number_of_bad_records_in_one_step_is_skipped(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs one replay; the step's other records are taken (S1). The log's note of them stays
    small."""
    steps = begun(checked=False)
    plant(monkeypatch)
    commands = [c.Browse(queue="orders", limit=13, reply=REPLY)] * MANY
    messages = [("orders", b'{"n":13}')] * MANY
    good = [("orders", b"{}"), ("other", b"{}")]
    if plant is bad_messages:
        out = steps.run(publishes=[*messages, *good])
    else:
        out = steps.run([*commands, c.Browse(queue="other", limit=1, reply=REPLY)], publishes=good)
        assert [reply.error for reply in replies(out)].count(None) == 1
    assert len(rejected(out)) == MANY
    assert (len(delivered(out, "orders")), len(delivered(out, "other"))) == (1, 1)
    assert len(steps.failures) == MANY
    (batch,) = [batch for batch, _ in steps.since if batch.skipped]
    assert sum(map(len, batch.skipped.values())) < 20_000


@pytest.mark.parametrize("phase", PHASES)
def test_any_number_of_failing_queues_in_one_step_is_set_aside(phase: str) -> None:
    names = [f"q{n}" for n in range(MANY_QUEUES)]
    steps = begun((*names, "other"), checked=False)
    with pytest.MonkeyPatch.context() as monkeypatch:
        PHASES[phase](monkeypatch)
        sent = [(name, b"{}", {"ttl_ms": 500}) for name in names]
        out = steps.run(publishes=[*sent, ("other", b"{}")])
        out += steps.tick(500)
        assert len(delivered(out, "other")) == 1
        assert not rejected(out)
        assert sorted(events(out, "queue_faulted")) == sorted(names)
    assert len(steps.failures) == MANY_QUEUES
