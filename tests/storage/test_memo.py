"""Pages that are kept beside their bytes: taken by identity, and no step comes out differently."""

import random
from typing import Any

import pytest
from kept_pages import VerifiedMemo, use
from lakequeue.protocol import commands as c
from lakequeue.state import Batch, DictStore, step
from lakequeue.state.commands import leases
from lakequeue.state.storage.memo import PageMemo
from rules.steps import NOW, Steps, define, delivered, subscribe
from storage.tiny import TINY


def some_bytes() -> bytes:
    return bytes(bytearray(b"a page"))  # not the object that an equal one may be


def test_a_page_is_taken_by_its_very_bytes_and_once() -> None:
    memo = PageMemo(2)
    data, equal = some_bytes(), some_bytes()
    page = object()
    memo.keep(data, page)
    assert memo.take(equal) is None
    assert memo.take(data) is page
    assert memo.take(data) is None


def test_the_pages_that_were_kept_first_go_first() -> None:
    memo = PageMemo(2)
    kept = [some_bytes() for _ in range(3)]
    for n, data in enumerate(kept):
        memo.keep(data, n)
    assert [memo.take(data) for data in kept] == [None, 1, 2]


class Forgetful(PageMemo):
    def take(self, data: bytes) -> Any:
        return None


def traffic(seed: int) -> tuple[dict[str, bytes], list[Any]]:
    """A queue that is filled and emptied; the pages in the end, and what was said."""
    r = random.Random(seed)
    steps = Steps(DictStore(), checked=False, limits=TINY)
    order = r.choice(({}, {"priority": "/p"}, {"partition_key": "/k"}))
    said = steps.run([define(max_per_subscription_backlog=9, dead_message_queue="dead", **order)])
    said += steps.run([define("dead"), subscribe("s", 9)])
    for _ in range(60):
        held = delivered(said[-6:], "s")
        commands: list[c.Command] = [
            r.choice((c.Ack, c.Reject))(queue="orders", subscription="s", ids=str(one))
            for one in held[: r.randrange(5)]
        ]
        if r.random() < 0.2:
            bad = c.Cancel(queue="orders", subscription="s", ids="1-999", delay_ms=13)
            commands.insert(r.randrange(len(commands) + 1), bad)
        payload = b'{"p": %d, "k": %d}' % (r.randrange(3), r.randrange(3))
        said += steps.run(commands, [("orders", payload)] * r.randrange(6))
    return steps.store.pages, said


@pytest.mark.parametrize("seed", range(6))
def test_steps_are_the_same_whatever_is_kept_and_whatever_fails(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel that fails half-way is among them: what it did to pages is forgotten."""
    delays = leases._delays

    def failing(queue: Any, seqs: Any, asked: int | None) -> Any:
        if asked == 13 and len(seqs):
            for page, rows, _ in queue.rows(seqs):
                page.cancels[rows] += 7
                queue.changed(page)
            raise ZeroDivisionError("planted")
        return delays(queue, seqs, asked)

    monkeypatch.setattr(leases, "_delays", failing)
    use(monkeypatch, Forgetful())
    expected = traffic(seed)
    memo = VerifiedMemo(12)
    use(monkeypatch, memo)
    assert traffic(seed) == expected
    assert memo.taken > 100


def test_a_store_that_gives_equal_bytes_is_served_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    class Copying(DictStore):
        def get(self, key: str) -> bytes | None:
            page = super().get(key)
            return None if page is None else bytes(bytearray(page))

    memo = VerifiedMemo()
    use(monkeypatch, memo)
    stores = DictStore(), Copying()
    steps = Steps(DictStore(), checked=False)
    batch = Batch(steps.command_records([define(), subscribe("s", 9)]))
    more = Batch(publishes=steps.publish_records([("orders", b"{}")] * 3))
    for store in stores:
        for given in (batch, more, more):
            step(store, given, NOW)
    assert stores[0].pages == stores[1].pages
    assert memo.taken
