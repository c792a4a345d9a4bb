"""Takes the pictures of the page in `docs/images/`: `.venv/bin/python tests/monitor/pictures.py`.

For two minutes it keeps engines in memory busy or blocked, so that charts and ages have something
to show. Check each picture before you commit it: other load on the machine is visible in it.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import lakequeue
import pyarrow as pa
from lakequeue.monitor.engine_figures import EngineFigures
from lakequeue.monitor.server import PageServer
from lakequeue.monitor.snapshot import VpnMonitor
from lakequeue.monitor.web import Page, make_app
from lakequeue.protocol import journal_encoding
from lakequeue.sinks.metrics import Metrics
from lakequeue.sinks.queue_figures import Look
from monitor.browser import Browser
from monitor.cases import prepared, send
from prometheus_client import generate_latest

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
BUSY_S = 75
BLOCKED_S = 20  # long enough for a line in the charts
WAITED_S = 200  # of the blocked engine's own clock
QUEUE = {"message_type": "json", "max_per_subscription_backlog": 50}


class Busy:
    """An engine with queues that move, and its metrics."""

    def __init__(self) -> None:
        names = {"orders": {"dead_message_queue": "orders-dead"}, "orders-dead": {}, "invoices": {},
                 "payments": {"partition_key": "/customer"}, "mail": {}}  # fmt: skip
        queues = [QUEUE | {"name": name} | keys for name, keys in names.items()]
        self.url = "memory://busy"
        self.connection = lakequeue.connect(self.url, config={"queues": queues})
        self.metrics, self.over, self._heard = Metrics(), threading.Event(), 0
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        chance, last = random.Random(7), time.monotonic()
        consumers = [
            lakequeue.connect(self.url, client_name=f"worker-{n}").consumer(
                queue, max_backlog=20, ack_mode="individual"
            )
            for n, queue in enumerate(("orders", "orders", "invoices", "payments"), 1)
        ]
        while not self.over.is_set():
            wave = 1 + 0.7 * chance.random()
            for queue, rate in (("orders", 9), ("invoices", 4), ("payments", 5), ("mail", 1)):
                for _ in range(int(rate * wave * chance.random())):
                    body = {"customer": f"c-{chance.randrange(9)}", "price": chance.randrange(200)}
                    send(self.connection, queue, body)
            for consumer in consumers:
                for _ in range(chance.randrange(1, 6)):
                    message = consumer.receive(timeout=0)
                    if message is None:
                        break
                    if chance.random() < 0.01:
                        message.reject("price is missing")
                    else:
                        message.ack()
            now = time.monotonic()
            self.connection.advance(now - last)
            last = now
            self._tell()
            time.sleep(0.1)

    def _tell(self) -> None:
        rows = self.connection.engine.journal()
        new = [row | {"message_id": int(row["message_id"] or 0) or None, "until": None}
               for row in rows[self._heard :]]  # fmt: skip
        self._heard = len(rows)
        self.metrics.times.journal(
            "broker-0", pa.Table.from_pylist(new, schema=journal_encoding.SCHEMA)
        )
        admin = self.connection.admin()
        self.metrics.queues.seen(Look(admin.queues(), [admin.usage()], 0.01, time.time()))

    def text(self) -> str:
        return generate_latest(self.metrics.registry).decode()


def served(url: str, **options: Any) -> PageServer:
    vpn_monitor = VpnMonitor(lambda: lakequeue.connect(url, client_name="monitor"), every_s=1)
    server = PageServer(make_app(Page({"default": vpn_monitor}, **options)), "127.0.0.1", 0)
    server.start()
    return server


def wait(blocked: Any) -> None:
    """Let the engine's clock run, at the end as fast as the viewer's."""
    blocked.advance(WAITED_S - BLOCKED_S)
    for _ in range(BLOCKED_S):
        time.sleep(1)
        blocked.advance(1)


def main() -> None:
    """Take all pictures."""
    IMAGES.mkdir(exist_ok=True)
    busy = Busy()
    blocked = prepared("memory://blocked")
    empty = lakequeue.connect("memory://empty", config={"queues": []})
    page = served(busy.url, figures=EngineFigures(busy.text)).address
    stuck, nothing = served("memory://blocked").address, served("memory://empty").address
    with Browser() as browser:
        browser.looks(1100, 820)
        browser.open(f"{page}queue?name=orders")
        time.sleep(BUSY_S)
        browser.picture(IMAGES / "monitor-queue-busy.png")
        browser.open(page)
        browser.picture(IMAGES / "monitor-busy.png")
        browser.looks(1100, 820, dark=True)
        browser.open(page)
        browser.picture(IMAGES / "monitor-busy-dark.png")
        browser.open(stuck)
        wait(blocked)
        browser.looks(1100, 700, dark=True)
        browser.open(f"{stuck}queue?name=barrier")
        browser.picture(IMAGES / "monitor-blocked-dark.png")
        browser.looks(1100, 900)
        browser.open(stuck)
        browser.picture(IMAGES / "monitor-blocked.png")
        browser.looks(390, 844)
        browser.open(f"{stuck}queue?name=key_busy")
        browser.picture(IMAGES / "monitor-blocked-phone.png")
        browser.looks(1100, 560)
        browser.open(nothing)
        browser.picture(IMAGES / "monitor-empty.png")
    busy.over.set()
    busy.thread.join(10)
    for connection in (busy.connection, blocked, empty):
        connection.close()


if __name__ == "__main__":
    main()
