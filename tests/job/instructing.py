"""The engine's own door, for tests: what no client may say."""

from __future__ import annotations

from typing import Any

import lakequeue
import msgspec
from lakequeue.protocol import commands


def instruct(
    connection: lakequeue.Connection, command: commands.Command, broker: str = "broker-0"
) -> None:
    """Say it, and wait until it is carried out."""
    answers: list[dict[str, Any]] = []
    request = connection.new_name("instruction")
    connection._asked[request] = answers.append
    reply = commands.ReplyTo(connection.inbox.topic, connection.inbox.partition, request)
    value = commands.encode_command(msgspec.structs.replace(command, reply=reply))
    connection._transport.command(f"{broker}.instructions", connection.vpn.encode(), value)
    assert connection.wait(lambda: bool(answers), 30)
    assert answers[0]["error"] is None, answers
