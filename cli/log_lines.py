"""The engine's log: an event a line, for people, or for programs (`lakequeue.log_format=json`).

Levels mean what somebody has to do: ERROR, something does not go on by itself; WARNING, it does,
and you want to know; INFO, it is as it should be. What an event is of stands in fields of its own
(`broker`, `vpn`, `queue`, `message_id`, …), which whoever logs gives as `extra={"fields": …}`, so
a message's or a queue's lines are found by equality and not by words.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

TEXT, JSON = "text", "json"


class PlainLines(logging.Formatter):
    """`12:00:00 what happened`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%H:%M:%S")


class JsonLines(logging.Formatter):
    """One JSON object a line, a traceback among it; times are UTC."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields: dict[str, Any] = getattr(record, "fields", {})
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **fields,
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def line_format(name: str) -> logging.Formatter:
    """The format of this name."""
    return JsonLines() if name == JSON else PlainLines()
