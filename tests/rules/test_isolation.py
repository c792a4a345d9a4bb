"""What fails is undone and refused, never the step: with mistakes planted in the engine itself."""

from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.outputs import Deliveries, Receipts, RejectedRecord, Reply
from lakequeue.state import DictStore, Limits
from lakequeue.state.commands import administration, leases, turns
from lakequeue.state.limits import beside
from lakequeue.state.phases import admission, delivery, judging
from lakequeue.state.storage import StoreFailed
from rules.steps import Steps

INBOX = c.Inbox("default.deliveries")


@pytest.fixture
def steps() -> Steps:
    made = Steps()
    made.run(
        [
            c.Define(definition={"name": name, "message_type": "binary",
                                 "max_per_subscription_backlog": 9})
            for name in ("orders", "other")
        ]
    )  # fmt: skip
    made.run(
        [
            c.Subscribe(queue=q, subscription=q, inbox=INBOX, max_backlog=9)
            for q in ("orders", "other")
        ]
    )
    return made


def of(kind: type, outputs: list[Any]) -> list[Any]:
    return [o for o in outputs if isinstance(o, kind)]


@pytest.fixture
def bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancel with a delay of 13 ms raises what nobody thought of, after it has changed rows; so
    does a message `bomb` as it comes in, and serving the queue `orders` if it holds `mine`."""
    delays = leases._delays
    serve = delivery.choose_messages

    def failing_delays(queue: Any, seqs: Any, asked: int | None) -> Any:
        if asked == 13:
            queue.header.depth += 7
            queue.ready.add([99_999])
            raise ZeroDivisionError("planted")
        return delays(queue, seqs, asked)

    def failing_size(broker: Any, vpn: str, queue: Any, header: Any, *more: Any) -> Any:
        if header.ttl_ms == 13:
            queue.header.depth += 7
            raise OverflowError("planted")
        return reason(broker, vpn, queue, header, *more)

    def failing_serve(broker: Any, queue: Any, *more: Any) -> Any:
        if queue.header.bytes == 4 and queue.definition.name == "orders":
            queue.header.leased += 3
            raise RuntimeError("planted")
        return serve(broker, queue, *more)

    reason = judging.reason_of
    monkeypatch.setattr(leases, "_delays", failing_delays)
    monkeypatch.setattr(admission, "reason_of", failing_size)
    monkeypatch.setattr(judging, "reason_of", failing_size)
    monkeypatch.setattr(delivery, "choose_messages", failing_serve)


@pytest.mark.usefixtures("bomb")
def test_S1_a_command_that_fails_is_refused_and_the_rest_is_carried_out(steps: Steps) -> None:
    steps.run(publishes=[("orders", b"a"), ("orders", b"bc")])
    bad = c.Cancel(queue="orders", subscription="orders", ids="1", delay_ms=13,
                   reply=c.ReplyTo("default.deliveries", request="r"))  # fmt: skip
    out = steps.run([bad, c.Ack(queue="orders", subscription="orders", ids="2")])
    (rejected,) = of(RejectedRecord, out)
    assert "ZeroDivisionError: planted" in rejected.error
    (reply,) = of(Reply, out)
    assert "planted" in reply.error
    described = steps.run([c.Describe(queue="orders", reply=c.ReplyTo("default.deliveries"))])
    seen = of(Reply, described)[0].result
    assert (seen["depth"], seen["leased"], seen["acknowledged"], seen["canceled"]) == (1, 1, 1, 0)
    usage = steps.run([c.Usage(reply=c.ReplyTo("default.deliveries"))])
    assert of(Reply, usage)[0].result["vpn"]["refused"] == {"malformed": 1}


@pytest.mark.usefixtures("bomb")
def test_S1_a_record_that_fails_is_refused_and_the_rest_is_stored(steps: Steps) -> None:
    sent = [("orders", b"a"), ("orders", b"b", {"ttl_ms": 13}), ("orders", b"c")]
    out = steps.run(publishes=sent)
    (rejected,) = of(RejectedRecord, out)
    assert (rejected.value, "OverflowError: planted" in rejected.error) == (b"b", True)
    assert [d.payloads for d in of(Deliveries, out)] == [[b"a", b"c"]]


@pytest.mark.usefixtures("bomb")
def test_S1_many_that_fail_are_refused_one_by_one(steps: Steps) -> None:
    """More than the step tries at once: then each record has a step of its own."""
    sent: list[Any] = [("orders", b"x", {"ttl_ms": 13})] * 9 + [("other", b"y")]
    out = steps.run(publishes=sent)
    assert len(of(RejectedRecord, out)) == 9
    assert [d.payloads for d in of(Deliveries, out)] == [[b"y"]]
    assert len({o.step for o in out if hasattr(o, "segments")}) == 1


@pytest.mark.usefixtures("bomb")
def test_S1_a_queue_that_fails_is_left_alone_until_it_is_defined_again(steps: Steps) -> None:
    out = steps.run(publishes=[("orders", b"mine"), ("other", b"flows")])
    assert [d.payloads for d in of(Deliveries, out)] == [[b"flows"]]
    assert not of(RejectedRecord, out)
    look = c.Describe(queue="orders", reply=c.ReplyTo("default.deliveries"))
    (reply,) = of(Reply, steps.run([look]))
    assert reply.result["faulted"] == "RuntimeError: planted"
    assert reply.result["blocked"] == "faulted: RuntimeError: planted"
    steps.run(publishes=[("orders", b"and more")])  # now nothing fails any more
    again = {"name": "orders", "message_type": "binary", "max_per_subscription_backlog": 8}
    out = steps.run([c.Define(definition=again)])
    assert [d.payloads for d in of(Deliveries, out)] == [[b"mine", b"and more"]]


@pytest.mark.usefixtures("bomb")
def test_R_what_failed_fails_alike_again(steps: Steps) -> None:
    """A replay comes to the same outputs and the same bytes."""
    sent = [("orders", b"a"), ("orders", b"b", {"ttl_ms": 13}), ("orders", b"mine")]
    other = Steps(DictStore.load(steps.store.dump()))
    other.offsets, other.now = steps.offsets, steps.now
    assert steps.run(publishes=sent) == other.run(publishes=sent)
    assert steps.store.dump() == other.store.dump()


def test_R_a_store_that_fails_is_nobodys_fault(steps: Steps) -> None:
    """It is not taken for a mistake of what came in: who runs the step hears of it."""
    store = steps.store
    get = store.get

    def failing(key: str) -> bytes | None:
        if key.startswith("q/"):
            raise ConnectionError("the state is gone")
        return get(key)

    store.get = failing  # type: ignore[method-assign]
    before = store.dump()
    with pytest.raises((ConnectionError, StoreFailed)):
        steps.run(publishes=[("orders", b"a")])
    assert store.dump() == before


def test_P4_a_producer_is_answered_although_another_failed(steps: Steps, bomb: None) -> None:
    sent = [
        ("orders", b"a", {"producer": "p", "seq": 1}),
        ("orders", b"b", {"producer": "bad", "seq": 1, "ttl_ms": 13}),
    ]
    out = steps.run(publishes=sent)
    told = {r.producer: (r.up_to, [nack[:2] for nack in r.nacks]) for r in of(Receipts, out)}
    assert told == {"p": (1, []), "bad": (1, [(1, "malformed")])}


def test_S1_what_waits_in_a_queue_that_failed_goes_on_when_it_is_defined_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = Steps(limits=Limits(command_rows=3, bulk_rows=3))
    steps.run([c.Define(definition={"name": "orders", "message_type": "binary"})])
    steps.run(publishes=[("orders", b"x")] * 10)
    calls: list[int] = []

    def failing(*arguments: Any) -> bool:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("planted")
        return administration.purge(*arguments)

    monkeypatch.setitem(turns.IN_TURN, c.Purge, failing)
    steps.run([c.Purge(queue="orders")])
    look = c.Describe(queue="orders", reply=c.ReplyTo("default.deliveries"))
    seen = of(Reply, steps.run([look]))[0].result
    assert (seen["faulted"], seen["depth"]) == (
        "RuntimeError: planted",
        10 - beside(steps.limits, 1).bulk_rows,
    )
    steps.run([c.Define(definition={"name": "orders", "message_type": "binary"})])
    seen = of(Reply, steps.run([look]))[0].result
    assert (seen["faulted"], seen["depth"], seen["purged"]) == (None, 0, 10)


def test_B4_who_waits_for_others_acks_is_served_in_the_next_step_too() -> None:
    """Where a step's budget ends before all that wait were served, another step is asked for."""
    steps = Steps(limits=Limits(delivery_rows=2))
    names = [f"q{n}" for n in range(6)]
    steps.run([c.Configure(system={"max_delivered_unacked": 6})])
    for name in names:
        definition = {"name": name, "message_type": "binary", "max_per_subscription_backlog": 6}
        subscribe = c.Subscribe(queue=name, subscription=name, inbox=INBOX, max_backlog=6)
        steps.run([c.Define(definition=definition), subscribe])
    steps.run(publishes=[("q0", b"x")] * 6)
    for name in names[1:]:
        steps.run(publishes=[(name, b"y")])
    out = steps.run([c.Ack(queue="q0", ids="1-6")])
    assert sorted(d.queue for d in of(Deliveries, out)) == names[1:]
