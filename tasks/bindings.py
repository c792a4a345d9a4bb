"""Exchanges and routing keys as topics: the engine routes, so no client keeps a routing table.

A message for exchange `shop` with the key `order.new` is published to `exchanges/shop/order/new`.
The exchange's type only decides what a queue subscribes to.

| binding | subscription |
|---|---|
| direct, `order.new` | `exchanges/shop/order/new` |
| fanout | `exchanges/shop/>` |
| topic, `order.*` | `exchanges/shop/order/*` |
| topic, `#` | `exchanges/shop/>` |
| topic, `order.#` | the regular expression `exchanges/shop/order(/[^/]+)*` |
"""

from __future__ import annotations

import re
from urllib.parse import quote

ROOT = "exchanges"
EMPTY = "%"  # no level of a topic is empty; `quote` gives no percent sign alone
TYPES = ("direct", "fanout", "topic")


def _level(word: str) -> str:
    return quote(word, safe="@:") or EMPTY


def topic_of(exchange: str, routing_key: str) -> str:
    """The topic of a message for an exchange."""
    return "/".join([ROOT, _level(exchange), *(_level(word) for word in routing_key.split("."))])


def subscription_of(exchange: str, kind: str, routing_key: str) -> str:
    """The topic subscription of a queue that is bound to an exchange of this type. Raises
    ValueError."""
    if kind not in TYPES:
        raise ValueError(f"exchange {exchange!r}: type {kind!r} – allowed are {', '.join(TYPES)}")
    words = routing_key.split(".")
    if kind == "fanout" or (kind == "topic" and words == ["#"]):
        return f"{ROOT}/{_level(exchange)}/>"
    if kind == "direct" or "#" not in words:
        levels = ["*" if w == "*" and kind == "topic" else _level(w) for w in words]
        return "/".join([ROOT, _level(exchange), *levels])
    any_word = {"*": "/[^/]+", "#": "(/[^/]+)*"}
    expression = (any_word.get(word) or "/" + re.escape(_level(word)) for word in words)
    return re.escape(f"{ROOT}/{_level(exchange)}") + "".join(expression)
