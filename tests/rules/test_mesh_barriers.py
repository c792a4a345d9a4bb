"""A queue with barriers has one host, whatever its type; its consumers connect there (M1, O3)."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.protocol import ConfigError

from .harness import drain
from .mesh import BROKERS, Mesh, numbers, shared
from .mortal import Fate

BARRED = shared(barrier_expression="/b = 1")
KINDS: list[dict[str, Any]] = [
    {"type": "Queue"},
    {"type": "GroupLocalQueue", "initial_owner": "c"},
    {"type": "LocalQueue", "broker": "b"},
]


@pytest.mark.parametrize("keys", KINDS, ids=lambda keys: keys["type"])
def test_M1_a_queue_with_barriers_has_one_host(keys: dict[str, Any]) -> None:
    at = Mesh(BARRED | keys).whole()["broker"]
    assert at == keys.get("initial_owner") or keys.get("broker", at)
    assert at in BROKERS


@pytest.mark.parametrize("key", ["barrier_expression", "partition_key"])
def test_M1_Q9_a_queue_of_several_brokers_gets_neither_barriers_nor_keys(key: str) -> None:
    admin = Mesh(shared()).at["b"].admin()
    with pytest.raises(ConfigError, match=f"{key}: .* needs one broker, but the queue has several"):
        admin.define({"name": "orders", key: "/b = 1" if key == "barrier_expression" else "/b"})
    assert admin.describe("orders")["definition"].get(key) is None


@pytest.mark.parametrize("seed", range(3))
def test_M1_O3_no_message_passes_a_barrier_whichever_broker_dies(seed: int) -> None:
    """One producer, whose broker does not have the queue: its messages stay in order."""
    fate = Fate(seed, death=0.15)
    mesh = Mesh(BARRED | KINDS[seed % 3], fate=fate)
    consumers = {broker: mesh.consumer(broker, fate.random.choice((1, 3))) for broker in BROKERS}
    got: dict[str, list[int]] = {broker: [] for broker in BROKERS}
    barriers = {n for n in range(40) if fate.random.random() < 0.2}
    left: set[int] = set()
    for n in range(100):
        if n < 40:
            mesh.send("a", body={"n": n, "b": int(n in barriers)})
        broker = fate.random.choice(BROKERS)
        for message in drain(consumers[broker]):
            (number,) = numbers([message])
            got[broker].append(number)
            if number in barriers:
                assert left >= set(range(number)) - barriers, number
            else:
                message.ack()
                left.add(number)
        mesh.advance("100ms")
    for seen in got.values():
        assert [n for n in seen if n in barriers] == sorted(barriers)
    assert left == set(range(40)) - barriers
    assert fate.deaths > 5
