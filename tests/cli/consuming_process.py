"""A process that consumes from an engine in memory: `python consuming_process.py COUNT ARGUMENT…`.

It first sends COUNT messages to the queue `orders`. At the end it writes a line of JSON to standard
error, with the command's exit status and the messages left in the queue.
"""

from __future__ import annotations

import json
import sys

import lakequeue
from lakequeue.cli import main

URL = "memory://consuming"


def run() -> None:
    orders = {"name": "orders", "message_type": "binary", "max_per_subscription_backlog": 100}
    with lakequeue.connect(URL, config={"queues": [orders]}) as connection:
        producer = connection.producer()
        for n in range(int(sys.argv[1])):
            producer.send("orders", b"%d" % n)
        arguments = ["consume", "orders", "--url", URL, *sys.argv[2:]]
        status = main(arguments, standalone_mode=False)
        left = connection.admin().describe("orders")
        counters = left["counters"]
        attempts = [m.delivery_count for m in connection.admin().browse("orders")]
    found = {"status": status or 0, "depth": left["depth"], "leased": left["leased"]}
    found |= {"acknowledged": counters["acknowledged"], "attempts": sum(attempts)}
    print(json.dumps(found), file=sys.stderr)


if __name__ == "__main__":
    run()
