"""Q6: payloads that are no JSON in a `json` queue are reported; L4: the holder of an ended lease is
named."""

import pytest
from lakequeue.protocol.errors import Rejected
from rules.harness import Bench, drain

WRONG = (b"", b"{", b"\xff", b"{'a': 1}", b"[1, 2", b"nul", b'{"a": 1} x')


def test_Q6_payloads_that_are_no_json_are_kept_counted_and_reported(empty: Bench) -> None:
    empty.define(max_per_subscription_backlog=99)
    for payload in WRONG:
        empty.send(payload)
    for payload in (b"null", b"1", b'"text"', b' {"a": [1, {"b": null}]} ', b"[]"):
        empty.send(payload)
    seen = empty.seen()
    assert (seen["depth"], seen["invalid"]) == (len(WRONG) + 5, len(WRONG))
    counted = [e["invalid"] for e in empty.told("invalid_json")]
    assert counted == list(range(1, len(WRONG) + 1))
    assert [m.payload for m in drain(empty.consumer())][: len(WRONG)] == list(WRONG)


def test_Q6_a_queue_may_refuse_payloads_that_are_no_json(empty: Bench) -> None:
    empty.define(on_invalid="nack")
    with pytest.raises(Rejected) as refused:
        empty.send(b"{")
    assert (refused.value.reason, refused.value.queue) == ("malformed", "orders")
    empty.send(b"{}")
    seen = empty.seen()
    assert (seen["depth"], seen["invalid"]) == (1, 1)
    assert seen["counters"]["rejected"] == {"malformed": 1}


def test_L4_the_journal_names_the_holder_of_an_ended_lease(empty: Bench) -> None:
    empty.define(lease_period="1s", max_per_subscription_backlog=9)
    holders = [empty.consumer(name=name, backlog=1) for name in ("a", "b")]
    for n in range(2):
        empty.send({"n": n})
    for holder in holders:
        drain(holder)
    empty.advance("1s")
    rows = [r for r in empty.engine.journal() if r["event"] == "lease_ended"]
    assert {r["subscription"] for r in rows} == {c.subscription for c in holders}
