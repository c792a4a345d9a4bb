"""An engine in memory, and the command line on it."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import lakequeue
from click.testing import CliRunner, Result
from lakequeue.cli import main

_names = count()


class Engine:
    """An engine of its own; `run` gives commands its address."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        self.url = f"memory://shell-{next(_names)}"
        self.connection = lakequeue.connect(self.url, config=config or {"queues": []})
        self.admin = self.connection.admin()

    def run(self, *arguments: str, stdin: str | bytes | None = None) -> Result:
        command = [*arguments, "--url", self.url]
        return CliRunner().invoke(main, command, input=stdin, catch_exceptions=False)

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)

    def send(self, queue: str, *payloads: bytes) -> None:
        producer = self.connection.producer()
        for payload in payloads:
            producer.send(queue, payload)

    def depth(self, queue: str) -> int:
        return int(self.admin.describe(queue)["depth"])
