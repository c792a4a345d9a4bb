"""A queue with barriers is hosted by one broker, whatever its type; its consumers connect there
(M1, O3)."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.protocol import ConfigError

from .mesh import BROKERS, Mesh

KINDS: list[dict[str, Any]] = [
    {"type": "Queue"},
    {"type": "GroupLocalQueue", "initial_owner": "c"},
    {"type": "LocalQueue", "broker": "b"},
]


@pytest.mark.parametrize("keys", KINDS, ids=lambda keys: keys["type"])
def test_M1_a_queue_with_barriers_has_one_host(keys: dict[str, Any]) -> None:
    at = Mesh(barrier_expression="/b = 1", **keys).whole()["broker"]
    assert at == keys.get("initial_owner") or keys.get("broker", at)
    assert at in BROKERS


@pytest.mark.parametrize("key", ["barrier_expression", "partition_key"])
def test_M1_Q9_a_queue_of_several_brokers_gets_neither_barriers_nor_keys(key: str) -> None:
    admin = Mesh(queues=[{"name": "orders", "message_type": "json"}]).at["b"].admin()
    with pytest.raises(ConfigError, match=f"{key}: .* needs one broker, but the queue has several"):
        admin.define({"name": "orders", key: "/b = 1" if key == "barrier_expression" else "/b"})
    assert admin.describe("orders")["definition"].get(key) is None
