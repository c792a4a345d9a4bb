"""Walks over brokers that are made again from tables that know each as of another step
(`rebuilt_walk`), and how steps are found that go together (R3)."""

import pytest
from lakequeue.client import following
from lakequeue.state.broker import BrokerHeader
from lakequeue.state.mesh.peer import Peer
from lakequeue.state.mesh.rejoining import agree, is_lost, next_word, pass_over

from . import moving_walk
from .rebuilt_walk import RebuiltWalk


@pytest.mark.parametrize("seed", [0, 2, 3, 5, 113])
def test_R3_brokers_that_are_made_again_go_on_together(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PAUSE_S", 0.002)
    monkeypatch.setattr(moving_walk, "PAUSE_S", 0.002)
    walk = RebuiltWalk(seed)
    walk.go(120)
    assert len(walk.sent) > 20
    assert walk.lost > 0


def header_at(name: str, step: int) -> BrokerHeader | None:
    """a says one thing a step; b hears, of each pair of them, both in its second step."""
    if not 1 <= step <= 100:
        return None
    if name == "a":
        return BrokerHeader(1, "a", 0, peers={1: Peer("b", said=step)})
    return BrokerHeader(1, "b", 1, peers={0: Peer("a", heard=step // 2 * 2)})


def test_R3_nobody_has_heard_what_nobody_has_said() -> None:
    assert agree({"a": 100, "b": 100}, header_at) == {"a": 100, "b": 100}
    assert agree({"a": 30, "b": 100}, header_at) == {"a": 30, "b": 31}
    assert agree({"a": 1, "b": 2}, header_at) == {"a": 1, "b": 1}
    with pytest.raises(LookupError, match="'b': nothing that is known of it goes with"):
        agree({"a": 50, "b": 100}, lambda name, n: header_at(name, n) if n in (50, 100) else None)


def test_R3_words_of_lost_steps_are_passed_over() -> None:
    a = BrokerHeader(1, "a", 0, peers={1: Peer("b", said=30)})
    b = BrokerHeader(1, "b", 1, peers={0: Peer("a", heard=28)})
    pass_over({"a": a, "b": b})
    peer = b.peers[0]
    assert [n for n in range(26, 40) if is_lost(peer, n)] == list(range(31, 40))
    assert next_word(peer) == 29
    peer.heard = 30
    assert next_word(peer) == a.peers[1].said + 1
    assert not is_lost(peer, a.peers[1].said + 1)
