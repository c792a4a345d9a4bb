"""Brokers that read one topic, each at its own pace from its beginning, as on Kafka."""

from __future__ import annotations

from random import Random
from typing import Any

from lakequeue.protocol import commands
from lakequeue.protocol.messages import Records
from lakequeue.state import Batch

from .slow import SlowEngine

PARTITIONS = 7
TOPIC = "radar"


class OwnPace:
    """written: by partition what stands there; at: of a broker and a partition the next offset."""

    engine: SlowEngine
    client: Any
    random: Random

    def __init__(self) -> None:
        self.written: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.at: dict[tuple[str, int], int] = {}
        self.answers: list[Any] = []
        self.keeper = 0  # the number of who keeps the directory

    def read(self, name: str, partition: int, most: int) -> None:
        first = self.at.get((name, partition), 0)
        values = self.written[partition][first : first + most]
        n = len(values)
        if not n:
            return
        self.at[name, partition] = first + n
        records = Records(
            [TOPIC] * n, [partition] * n, list(range(first, first + n)), [self.engine.now] * n,
            [None] * n, list(values), [None] * n, [None] * n,
        )  # fmt: skip
        self.engine._step(self.engine.broker(name), Batch(publishes=records))

    def names(self) -> list[str]:
        return [broker.home.name for broker in self.engine.brokers]

    def instruct(self, to: str, command: commands.Command) -> None:
        self.engine.instruct("default", commands.encode_command(command), to)

    def ask(self, command: commands.Command) -> Any:
        """What the keeper answers; where that is another by now, None: it is asked the next
        time."""
        self.client.ask(command, self.answers.append, self.keeper)
        self.client.attend()
        answer = self.answers.pop()
        if isinstance(answer["result"], dict) and "keeper" in answer["result"]:
            self.keeper = answer["result"]["keeper"]
            return None
        return answer
