"""A kombu message as one JSON object, the payload, and options for the broker.

A text body is kept as it is, so that expressions, SQL and the monitor page can read it:
`/headers/task` is the task's name. Bytes are base64.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

from kombu.utils.json import dumps, loads

from ..client import Message

PRIORITY_MAX = 255
# AMQP's, and kombu's own. As on RabbitMQ, others are dropped: they may not fit into JSON.
PROPERTIES = (
    "app_id", "cluster_id", "correlation_id", "delivery_mode", "expiration", "message_id",
    "priority", "reply_to", "timestamp", "type", "user_id", "delivery_info", "delivery_tag",
)  # fmt: skip
FIELDS = ("body", "content-type", "content-encoding", "headers", "properties")


def encode(message: dict[str, Any]) -> str:
    """The payload of a message as `prepare_message` gives it. Modifies ``message``."""
    body, given = message["body"], message["properties"]
    properties = message["properties"] = {k: given[k] for k in PROPERTIES if k in given}
    if isinstance(body, bytes):
        message["body"] = base64.b64encode(body).decode()
        properties["body_encoding"] = "base64"
    else:
        properties["body_encoding"] = "utf-8"
    return dumps(message)


def decode(message: Message) -> dict[str, Any]:
    """The message that `encode` was given, as `kombu.transport.virtual.Message` takes it. A payload
    of another program becomes the body, with the record's headers."""
    try:
        found = loads(message.payload)
        _check(found)
        headers, properties = found["headers"], found["properties"]
        properties["delivery_info"]["priority"] = properties.get("priority", 0)
    except (ValueError, RecursionError):
        headers = message.headers
        properties = {"delivery_info": {"exchange": "", "routing_key": message.queue}}
        found = {
            "body": message.payload.decode("utf-8", "replace"), "headers": headers,
            "content-type": "application/json", "content-encoding": "utf-8",
            "properties": {**properties, "body_encoding": "utf-8"},
        }  # fmt: skip
    # The broker has already waited. A worker that saw the time would wait again, by its own clock,
    # and raise its prefetch meanwhile.
    if headers.get("eta"):
        headers["eta"] = None
    found["properties"]["delivery_info"]["redelivered"] = message.redelivered
    return found


def _check(found: Any) -> None:
    """Raise ValueError for a payload that `encode` cannot have made: kombu would fail with it, and
    so would each worker that gets it."""
    if not isinstance(found, dict) or set(found) != set(FIELDS):
        raise ValueError("other fields")
    body, properties = found["body"], found["properties"]
    if not (isinstance(body, str) and isinstance(found["headers"], dict)):
        raise ValueError("body or headers")
    if not isinstance(properties, dict) or not isinstance(properties.get("delivery_info"), dict):
        raise ValueError("properties")
    encoding = properties.get("body_encoding")
    if encoding == "base64":
        base64.b64decode(body)
    elif encoding != "utf-8":
        raise ValueError("body_encoding")


def options_of(message: dict[str, Any]) -> dict[str, Any]:
    """The options for the broker: `priority`, `delay` and `ttl` of `Producer.send`."""
    properties = message["properties"]
    options: dict[str, Any] = {"priority": _priority(properties.get("priority"))}
    delay_s = _delay_s(message["headers"].get("eta"))
    if delay_s > 0:
        options["delay"] = delay_s
    expiration = properties.get("expiration")
    ttl_s = 0.0 if expiration is None else float(expiration) / 1000
    # A task that expires before it is due still goes to a worker, since Celery's worker records in
    # the result backend that the task was revoked.
    if ttl_s > max(delay_s, 0):
        options["ttl"] = ttl_s
    return options


def _priority(value: object) -> int:
    """As on RabbitMQ, higher goes first; a message without a priority goes last."""
    try:
        return min(max(int(value), 0), PRIORITY_MAX)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        return 0


def _delay_s(eta: object) -> float:
    """Seconds from now; 0 without a time, or if it has no zone, since only the worker knows its
    meaning then."""
    if not isinstance(eta, str):
        return 0.0
    try:
        at = datetime.fromisoformat(eta)
    except ValueError:
        return 0.0
    return 0.0 if at.tzinfo is None else (at - datetime.now(UTC)).total_seconds()
