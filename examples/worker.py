"""A worker: handles the messages of a queue until SIGTERM or Ctrl-C.

    python examples/worker.py kafka://127.0.0.1:9092 orders

- Handled: the message is acknowledged and leaves the queue.
- `TryAgain`: the message is delivered again after 30 s, at most `max_deliveries` times.
- Any other exception: the message goes to the dead message queue, with the reason.

After a crash a message is delivered again, so handling it twice must do no harm. Start as many
workers as you like: each message goes to one of them.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from typing import Any

import lakequeue


class TryAgain(Exception):
    """The order cannot be handled now, but may be later."""


def handle(order: dict[str, Any]) -> None:
    """Your work goes here."""
    print(f"an order at {order['price']}", flush=True)


def work(connection: lakequeue.Connection, queue: str, stop: threading.Event) -> None:
    """Handle messages one after the other. The backlog of 10 keeps the next ones ready."""
    with connection.consumer(queue, ack_mode="individual", max_backlog=10) as consumer:
        while not stop.is_set():
            message = consumer.receive(timeout=0.5)
            if message is None:
                continue
            try:
                settle(message)
            except lakequeue.LeaseLost:
                print(f"message {message.id} took longer than its lease; it is delivered again")


def settle(message: lakequeue.Message) -> None:
    """Handle one message and settle it by the outcome."""
    try:
        handle(json.loads(message.payload))
    except TryAgain:
        message.cancel(delay="30s")
    except Exception as error:  # `handle` is the application's code and may raise any
        print(f"message {message.id} goes to the dead message queue: {error!r}", file=sys.stderr)
        message.reject(error)
    else:
        message.ack()


def main(url: str, queue: str) -> None:
    """Work until a signal; unfinished messages return to the queue."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with lakequeue.connect(url, client_name="order-worker") as connection:
        work(connection, queue, stop)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/worker.py URL QUEUE")
    try:
        main(*sys.argv[1:])
    except lakequeue.LakequeueError as error:  # such as a queue that does not exist
        sys.exit(str(error))
