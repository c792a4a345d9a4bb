"""The cost of a mark follows what changed since the last one."""

from __future__ import annotations

import pytest
from lakequeue.state import Broker, DictStore, Home, Limits
from lakequeue.state.queue.producers import ProducerHistory

MANY = 5_000


def marked(names: int) -> Broker:
    broker = Broker.load(DictStore(), Home(), Limits())
    for n in range(names):
        broker.producer("default", f"p{n}")
    broker.mark()
    broker.begin(1)
    return broker


def test_a_mark_visits_no_producer_of_an_unchanged_bucket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = marked(MANY)
    loaded = Broker.load(broker.store, Home(), Limits())
    looks: list[str] = []
    known = ProducerHistory.state

    def counted(self: ProducerHistory) -> list[object]:
        looks.append(self.name)
        return known(self)

    monkeypatch.setattr(ProducerHistory, "state", counted)
    for one in (broker, loaded):
        looks.clear()
        one.producer("default", "p7").high = 3
        one.mark()
        assert "p7" in looks
        assert len(looks) < MANY // 50


def test_a_forgotten_producer_is_removed_from_its_page() -> None:
    broker = marked(2)
    broker.forget_producer(("default", "p0"))
    broker.mark()
    # type: ignore[attr-defined]
    pages = [key for key in broker.store.pages if key.startswith("p/")]
    assert len(pages) == 1
    assert set(Broker.load(broker.store, Home(), Limits()).producers) == {("default", "p1")}
