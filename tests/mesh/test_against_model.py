"""The independent model of three brokers, beside brokers that are clients of their neighbours and
die: queues of each type, moves, dead messages, clients that die, administration from anywhere (Q5,
H4, L, B1, B2, O2, X1, X5, C3, R6)."""

from __future__ import annotations

from typing import Any

import pytest
from model.test_mesh_model import DEAD, MANY, MeshWalk
from mortal_mesh import MortalMeshBroker
from rules import mortal


class NeighboursWalk(MeshWalk):
    """Producers know where queues are: one that does not is not told, for whoever it asks takes its
    message in (M2)."""

    def send(self) -> None:
        for connection in self.mesh.at.values():
            connection.attend()
        super().send()


@pytest.mark.parametrize(
    ("seed", "keys"),
    [
        (309, {"lease_period": "250ms"}),
        (3, {"max_cancels": 2, "fairness_model": "round-robin"}),
        (2001, MANY),
        (7005, {"max_backlog": 2, "kills": True, "delays": True, "lease_period": "250ms"}),
        (3018, {"max_deliveries": 2, "dead_message_queue": DEAD, "kills": True}),
    ],
)
def test_Q5_H4_walks_over_three_brokers(
    seed: int, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mortal.MortalEngine, "BROKER", MortalMeshBroker)
    walk = NeighboursWalk(seed, 0.1, **keys)
    walk.go(60)
    assert walk.n > 10
    assert walk.fate.deaths > 20
