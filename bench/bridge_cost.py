"""The CPU time of a message over a bridge between two homes, without Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..mesh.mesh import Mesh
from ..protocol import commands as c
from ..protocol import home_bridges, wire
from ..protocol.messages import PublishHeader, Records, encode_publish_header
from ..protocol.outputs import HomeRecord, Output
from ..replica.replica import Replica
from ..state import Batch, DictStore, Home, Limits
from .core import PAYLOAD, commands, records
from .subcommands import count, messages

OPTIONS = (messages(50_000), count("--batch", 50), count("--destinations", 1))
FAR = "kafka://far:9092"
_WARM = 20  # warm-up rounds, for look-ups that happen once


def run(
    messages: int, batch: int, destinations: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """µs of CPU per message at each end, from the publish to the receipt at the near end."""
    batch = min(batch, messages)
    _transfer(min(_WARM * batch, messages), batch, destinations)
    given = {"messages": messages, "batch": batch, "destinations": destinations}
    return [given | _transfer(messages, batch, destinations)]


def _broker() -> Replica:
    return Replica(Home(), DictStore(), Limits(), Mesh.load)


class _Ends:
    """Both ends of a bridge."""

    def __init__(self) -> None:
        self._near, self._far = _broker(), _broker()
        self._offset = 0
        self.spent = [0.0, 0.0]
        bridge = {"name": "out", "subscriptions": ["a/>"]}
        there = c.Bridge(definition=bridge | {"from": FAR, "to": "broker-0"})
        queue = {"name": "q", "message_type": "binary", "subscriptions": ["a/>"]}
        self._far.take(Batch(commands(there, c.Define(definition=queue))), 1)
        self._near.take(Batch(commands(c.Bridge(definition=bridge | {"to": FAR}))), 1)
        opened = home_bridges.encode(home_bridges.CopierState("open", ""))
        self._near.take(Batch(mesh=self._heard("broker-0.mesh", [opened])), 1)

    def round(self, records: Records, now: int) -> int:
        """Publish messages, transfer them, and answer them; returns the number of answers."""
        said = self._take(0, records, Records(), now)
        answers = 0
        while said:
            brought = self._take(1, Records(), self._heard("default.bridge-in", said), now)
            answers += len(brought)
            said = self._take(0, Records(), self._heard("broker-0.mesh", brought), now)
        return answers

    def _take(self, end: int, records: Records, said: Records, now: int) -> list[bytes]:
        """Run a step of one end; returns its messages to the other."""
        begun = time.process_time()
        outputs = (self._near, self._far)[end].take(Batch(publishes=records, mesh=said), now)
        sent: list[Output] = [o for o in outputs if isinstance(o, HomeRecord)]
        values = [record.value or b"" for record in wire.encode(sent)]
        self.spent[end] += time.process_time() - begun
        return values

    def _heard(self, topic: str, values: list[bytes]) -> Records:
        self._offset += len(values)
        key = home_bridges.bridge_key("default", "out")
        return records(topic, values, self._offset - len(values), key)


def _publishes(first: int, n: int, destinations: int) -> Records:
    """Records of one producer, to each destination in turn."""
    headers = (
        encode_publish_header(
            PublishHeader(to=f"a/{at * destinations // n}", producer="bench", seq=first + at)
        )
        for at in range(n)
    )
    return records("default.publish", [PAYLOAD] * n, first, headers=headers)


def _transfer(messages: int, batch: int, destinations: int) -> dict[str, float]:
    ends = _Ends()
    for start in range(1, messages + 1, batch):
        n = min(batch, messages + 1 - start)
        answers = ends.round(_publishes(start, n, destinations), start + 1)
        assert answers, "nothing went over"
    near, far = (spent / messages * 1e6 for spent in ends.spent)
    return {"near_us": near, "far_us": far, "bridge_us": near + far}
