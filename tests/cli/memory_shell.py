"""An engine in memory, and the command line on it."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import lakequeue
from click.testing import CliRunner, Result
from lakequeue.cli import main

_names = count()


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    """Run the command line with these arguments."""
    return CliRunner().invoke(main, list(arguments), input=stdin, catch_exceptions=False)


class Engine:
    """An engine of its own; `run` passes its address to commands."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        self.url = f"memory://shell-{next(_names)}"
        self.connection = lakequeue.connect(self.url, config=config or {"queues": []})
        self.admin = self.connection.admin()

    def run(self, *arguments: str, stdin: str | bytes | None = None) -> Result:
        return run(*arguments, "--url", self.url, stdin=stdin)

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)

    def send(self, queue: str, *payloads: bytes) -> None:
        producer = self.connection.producer()
        for payload in payloads:
            producer.send(queue, payload)

    def depth(self, queue: str) -> int:
        return int(self.admin.describe(queue)["depth"])
