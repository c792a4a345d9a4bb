"""Request and reply over queues: a server answers, a client waits for its answer.

    lakequeue define name=prices message_type=text max_per_subscription_backlog=100
    python examples/request_reply.py serve kafka://127.0.0.1:9092
    python examples/request_reply.py ask kafka://127.0.0.1:9092 apples

Every client has its own queue for replies, named in the header `reply-to`. The header
`correlation-id` links a reply to its request. The server acknowledges a request after its reply is
stored, so no request is lost if the server dies; a client may get a reply twice.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable

import lakequeue

REQUESTS = "prices"
PRICES = {"apples": "1.20", "pears": "1.60"}


def look_up(request: str) -> str:
    """Your work goes here."""
    return PRICES.get(request, "unknown")


def serve(
    connection: lakequeue.Connection,
    answer: Callable[[str], str] = look_up,
    timeout: float | None = None,
) -> int:
    """Answer requests until none arrives for ``timeout`` seconds (None: for ever); returns the
    number of answers."""
    answered = 0
    with (
        connection.producer(ttl="1m") as producer,  # after that no client waits for the reply
        connection.consumer(REQUESTS, ack_mode="individual", max_backlog=100) as consumer,
    ):
        while (message := consumer.receive(timeout)) is not None:
            reply_to = message.headers.get("reply-to")
            if reply_to is None:
                message.reject("no client waits for a reply: the header reply-to is missing")
                continue
            headers = {"correlation-id": message.headers.get("correlation-id", "")}
            try:
                producer.send(reply_to, answer(message.payload.decode()), headers=headers)
            except lakequeue.Rejected as error:  # the client has ended and deleted its queue
                message.reject(error)
                continue
            message.ack()
            answered += 1
    return answered


class Requester:
    """Sends requests and waits for replies. Use it in a ``with`` statement."""

    def __init__(self, connection: lakequeue.Connection) -> None:
        self._admin = connection.admin()
        self._replies = f"replies-{uuid.uuid4().hex}"
        self._admin.define(
            {"name": self._replies, "message_type": "text", "max_per_subscription_backlog": 100}
        )
        self._producer = connection.producer()
        self._consumer = connection.consumer(self._replies, ack_mode="auto", max_backlog=100)

    def send(self, request: str) -> str:
        """Send a request; returns its correlation id."""
        correlation = uuid.uuid4().hex
        headers = {"reply-to": self._replies, "correlation-id": correlation}
        self._producer.send(REQUESTS, request, headers=headers, ttl="1m")
        return correlation

    def receive(self, correlation: str, timeout: float = 10.0) -> str:
        """The reply to a request; ignores replies that are late or repeated. Raises
        TimeoutError."""
        until = time.monotonic() + timeout
        while (left := until - time.monotonic()) > 0:
            message = self._consumer.receive(left)
            if message is None:
                break
            if message.headers.get("correlation-id") == correlation:
                return message.payload.decode()
        raise TimeoutError(f"no reply within {timeout} s; does a server run?")

    def __enter__(self) -> Requester:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
        self._producer.close()
        self._admin.delete(self._replies)


def main(role: str, url: str, *requests: str) -> None:
    """Serve, or ask each request."""
    with lakequeue.connect(url, client_name=f"prices-{role}") as connection:
        if role == "serve":
            serve(connection)
        with Requester(connection) as requester:
            for request in requests:
                print(request, requester.receive(requester.send(request)))


if __name__ == "__main__":
    words = {"serve": 3, "ask": 4}
    if len(sys.argv) < words.get("".join(sys.argv[1:2]), sys.maxsize):
        sys.exit("usage: python examples/request_reply.py serve URL | ask URL REQUEST …")
    try:
        main(*sys.argv[1:])
    except (lakequeue.LakequeueError, TimeoutError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:  # ends the server; a leased request is delivered again
        sys.exit(130)
