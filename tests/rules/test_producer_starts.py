"""P1 where a producer's name is used more than once: by the next start of its program, by two
programs at a time, and by clients that count by themselves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lakequeue import Rejected
from lakequeue.protocol import commands as c
from lakequeue.protocol.outputs import Receipts
from rules.harness import Bench
from rules.steps import Steps, define, described, of, started

ONE = {"start": "one"}
TWO = {"start": "two", "reply": 1}


def receipts(out: list[Any]) -> list[tuple[Any, ...]]:
    """Start, partition, ranges, repeated, refused."""
    return [
        (r.start, r.partition, r.runs, r.repeated, [(s, why) for s, why, *_ in r.nacks])
        for r in of(Receipts, out)
    ]


def message(seq: int, body: bytes = b"{}", **header: Any) -> tuple[Any, ...]:
    return ("orders", body, {"producer": "p", **header, "seq": seq})


@pytest.fixture
def steps() -> Steps:
    return started(define())


def test_P1_a_new_start_continues_after_the_last_sequence(steps: Steps) -> None:
    steps.run(publishes=[message(1, **ONE), message(2, **ONE)])
    steps.restart()
    out = steps.run(publishes=[message(1, **TWO), message(2, **TWO)])
    assert receipts(out) == [("two", 1, [[3, 2, 3]], [], [])]
    assert [o.base for o in of(Receipts, out)] == [2]


def test_P1_messages_of_an_earlier_start_are_refused(steps: Steps) -> None:
    """All in one step: each start gets receipts of its own messages, where it listens."""
    sent = [(1, ONE), (1, TWO), (2, ONE), (2, TWO), (1, ONE)]
    assert receipts(steps.run(publishes=[message(seq, **start) for seq, start in sent])) == [
        ("one", 0, [[1, 1, 1]], [], []),
        ("two", 1, [[2, 1, 2]], [], []),
        ("one", 0, [], [], [(2, "superseded")]),
        ("two", 1, [[3, 1, 3]], [], []),
        ("one", 0, [[1, 1, 1]], [[1, 1]], []),
    ]
    assert described(steps)["depth"] == 3


def test_P1_gaps_of_an_earlier_start_are_refused(steps: Steps) -> None:
    """The later start's receipts do not wait for it."""
    steps.run(publishes=[message(1, **ONE), message(3, **ONE)])
    out = steps.run(publishes=[message(1, **TWO), message(2, **ONE)])
    assert [r[4] for r in receipts(out)] == [[], [(2, "superseded")]]
    assert [o.up_to for o in of(Receipts, out)] == [4, 3]


def test_P1_a_start_that_skips_most_sequences_leaves_room_for_the_next(steps: Steps) -> None:
    """A client in another language; no later start is refused as superseded for that."""
    last = (1 << 61) - 1
    assert receipts(steps.run(publishes=[message(last, **ONE)]))[0][-1] == []
    out = steps.run(publishes=[message(seq, **TWO) for seq in range(1, 9)])
    assert [r[-1] for r in receipts(out)] == [[]]
    assert described(steps)["depth"] == 9


@pytest.mark.parametrize("seq", [1 << 61, (1 << 62) - 1])
def test_P1_a_sequence_out_of_bounds_is_refused_and_affects_no_other(
    steps: Steps, seq: int
) -> None:
    (told,) = receipts(steps.run(publishes=[message(seq, **ONE)]))
    assert told[-1] == [(seq, "malformed")]
    assert [r[2] for r in receipts(steps.run(publishes=[message(1, **ONE)]))] == [[[1, 1, 1]]]


def test_P1_a_producer_without_sequences_left_is_told_the_remedy(steps: Steps) -> None:
    last = (1 << 61) - 1
    steps.run(publishes=[message(last, **ONE)])
    steps.run(publishes=[message(last, **TWO)])
    steps.run(publishes=[message(1, start="three")])
    out = steps.run(publishes=[message(seq, start="three") for seq in (2, 3, 4)])
    nacks = [nack for o in of(Receipts, out) for nack in o.nacks]
    assert {(reason, "another producer_id" in why) for _, reason, _, why in nacks} == {
        ("malformed", True)
    }


def test_P1_a_producer_with_its_own_sequences_replaces_no_other(steps: Steps) -> None:
    steps.run(publishes=[message(1, **ONE)])
    out = steps.run(publishes=[message(seq) for seq in (1, 2)])
    assert receipts(out) == [("", 0, [[1, 2, 1]], [[1, 1]], [])]
    assert receipts(steps.run(publishes=[message(3, **ONE)])) == [("one", 0, [[3, 1, 3]], [], [])]


def test_P1_a_receipt_flags_a_repetition_also_within_one_step(steps: Steps) -> None:
    out = steps.run(publishes=[message(seq) for seq in (1, 2, 1)])
    assert receipts(out) == [("", 0, [[1, 2, 1]], [[1, 1]], [])]


def test_P1_a_message_after_a_gap_is_stored_once(steps: Steps) -> None:
    steps.run(publishes=[message(2), message(2)])
    assert described(steps)["depth"] == 1


def test_S1_a_new_start_is_confirmed_with_the_tables(steps: Steps) -> None:
    steps.run([c.Tables()])
    wanted = {**TWO, "durability": "delta"}
    steps.run(publishes=[message(1, **ONE)])
    assert receipts(steps.run(publishes=[message(1, **wanted)])) == []
    out = steps.run([c.Tables(up_to={"default.publish/0": 1_000})])
    assert receipts(out) == [("two", 1, [[2, 1, 2]], [], [])]
    assert [o.base for o in of(Receipts, out)] == [1]


WHAT = st.sampled_from(["start", "send", "lose", "again", "step"])


@given(st.lists(st.tuples(WHAT, st.integers(0, 2))))
def test_P1_no_receipt_names_a_message_of_another_start(actions: list[tuple[str, int]]) -> None:
    """Three programs with one name start, send, lose and repeat messages at random: a receipt names
    the message that its start has sent, and each message that is not refused is stored once."""
    steps = started(define())
    starts = 0
    names = [""] * 3
    sent: dict[tuple[str, int], bytes] = {}
    told: dict[tuple[str, int], int] = {}
    refused: set[tuple[str, int]] = set()
    came: set[tuple[str, int]] = set()
    batch: list[tuple[Any, ...]] = []

    def send(name: str, seq: int, lost: bool = False) -> None:
        body = sent.setdefault((name, seq), f'"{name}/{seq}"'.encode())
        if not lost:
            came.add((name, seq))
            batch.append(message(seq, body, start=name, reply=names.index(name)))

    def run() -> None:
        for said in of(Receipts, steps.run(publishes=batch)):
            refused.update((said.start, seq - said.base) for seq, *_ in said.nacks)
            for first, count, number in said.runs:
                for n in range(count):
                    own = said.start, first + n - said.base
                    assert told.setdefault(own, number + n) == number + n
        batch.clear()

    for what, who in actions:
        mine = [seq for name, seq in sent if name == names[who]]
        if what == "step":
            run()
        elif what == "start":
            starts += 1
            names[who] = f"s{starts}"
        elif names[who] and what != "again":
            send(names[who], len(mine) + 1, lost=what == "lose")
        elif names[who]:
            for seq in mine[-3:]:
                send(names[who], seq)
    run()
    rows = steps.ask(c.Browse(queue="orders", limit=1000))
    stored = {int(m["id"]): m["payload"] for m in rows}
    assert {key: stored[number] for key, number in told.items()} == {k: sent[k] for k in told}
    assert told.keys() | refused == came
    assert len(stored) == len(told)


# ---------------------------------------------------------------- as applications see it


def test_P1_the_next_start_of_a_program_loses_nothing(bench: Bench) -> None:
    first = bench.connection.producer(producer_id="app")
    assert [first.send("orders", b'"a"').sequence, first.send("orders", b'"b"').sequence] == [1, 2]
    again = bench.connection.producer(producer_id="app")
    receipt = again.send("orders", b'"c"')
    assert (receipt.sequence, receipt.message_id, receipt.duplicate) == (3, "3", False)
    assert [m.payload for m in bench.admin.browse("orders")] == [b'"a"', b'"b"', b'"c"']


def test_P1_the_later_of_two_producers_takes_over_and_the_earlier_is_told(bench: Bench) -> None:
    one, two = (bench.connection.producer(producer_id="x") for _ in range(2))
    assert one.send("orders", b'"e"').message_id == "1"
    assert two.send("orders", b'"f"').message_id == "2"
    for _ in range(2):  # from the engine's answer, then from the producer's own state
        with pytest.raises(Rejected, match="another producer with the id 'x' has started since"):
            one.send("orders", b'"g"')
    assert two.send("orders", b'"h"').sequence == 3
    assert [m.payload for m in bench.admin.browse("orders")] == [b'"e"', b'"f"', b'"h"']


def test_P1_a_receipt_flags_a_duplicate(bench: Bench) -> None:
    for duplicate in (False, True):
        producer = bench.connection.producer(producer_id="p", first_sequence=1)
        receipt = producer.send("orders", b"{}")
        assert (receipt.message_id, receipt.duplicate) == ("1", duplicate)
    assert repr(receipt) == "<Receipt 1: message 1, a duplicate>"
