"""A publisher that gets the outcome of each message: each line of standard input is one.

    python examples/publisher.py kafka://127.0.0.1:9092 orders < orders.jsonl

It does not wait for one receipt before it sends the next message, so it is fast. A receipt means
that the engine has stored the message. Refused messages are printed with the reason; the exit
status is then 1.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable

import lakequeue

WINDOW = 1_000  # messages without a receipt; then send_async waits


def publish(connection: lakequeue.Connection, destination: str, lines: Iterable[str]) -> int:
    """Send every line; returns the number of stored messages. Raises Timeout if receipts are
    missing after a minute: those messages may or may not have been stored."""
    stored = 0
    waiting: deque = deque()
    with connection.producer(window=WINDOW) as producer:
        for line in lines:
            waiting.append((line, producer.send_async(destination, line)))
            while waiting and waiting[0][1].done():  # receipts arrive in the order of sending
                stored += is_stored(*waiting.popleft())
        producer.flush(timeout=60)
        return stored + sum(is_stored(line, future) for line, future in waiting)


def is_stored(line: str, future: object) -> bool:
    """Check one receipt."""
    try:
        receipt = future.result()  # type: ignore[attr-defined]
    except lakequeue.Rejected as error:
        print(f"refused: {line!r}: {error}", file=sys.stderr)
        return False
    if receipt.discarded:
        print(f"discarded by {receipt.queue}: {line!r}: {receipt.reason}", file=sys.stderr)
        return False
    return True


def main(url: str, destination: str) -> int:
    """Publish standard input; returns the exit status."""
    lines = [line.rstrip("\n") for line in sys.stdin if line.strip()]
    with lakequeue.connect(url, client_name="order-publisher") as connection:
        stored = publish(connection, destination, lines)
    print(f"{stored:,} of {len(lines):,} stored")
    return 0 if stored == len(lines) else 1


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/publisher.py URL QUEUE < FILE")
    try:
        sys.exit(main(*sys.argv[1:]))
    except lakequeue.LakequeueError as error:  # such as a Kafka that does not answer
        sys.exit(str(error))
