"""The embedded broker's `server.properties`: Kafka as applications meet it, small and quiet.

One node by default; or one of several, each broker and controller at once, which keep a copy of
every record each and take one only when all but one have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MESSAGE_BYTES_MAX = 12 * 1024 * 1024  # 10 MiB of payload (10,485,760), and room for headers


@dataclass(frozen=True, slots=True)
class Member:
    """A node's part in a cluster: its number from 1, every node's controller port, and the
    cluster's id, which all of them are formatted with."""

    node: int
    controller_ports: tuple[int, ...]
    cluster: str


def properties(
    host: str, port: int, controller_port: int, data: Path, member: Member | None
) -> str:
    """The file's text."""
    ports = member.controller_ports if member else (controller_port,)
    nodes = len(ports)
    return _PROPERTIES.format(
        node=member.node if member else 1,
        voters=",".join(f"{i}@127.0.0.1:{p}" for i, p in enumerate(ports, 1)),
        host=host,
        port=port,
        controller_port=controller_port,
        data=str(data).replace("\\", "\\\\"),
        message_bytes_max=MESSAGE_BYTES_MAX,
        copies=nodes,
        copies_min=max(1, nodes - 1),
        # A cluster needs the empty records: followers see by them that the leader lives.
        idle_ms=0 if nodes == 1 else 500,
    )


_PROPERTIES = """\
# Written by lakequeue at every start; changes here are lost.
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
# A misspelt topic must be an error, not a new topic.
auto.create.topics.enable=false
# 10 MiB payloads.
message.max.bytes={message_bytes_max}
replica.fetch.max.bytes={message_bytes_max}
replica.fetch.response.max.bytes={message_bytes_max}
# Few internal partitions: the first consumer starts sooner.
default.replication.factor={copies}
min.insync.replicas={copies_min}
offsets.topic.replication.factor={copies}
offsets.topic.num.partitions=4
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={copies_min}
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={copies_min}
share.coordinator.state.topic.num.partitions=4
group.initial.rebalance.delay.ms=0
# An idle broker should be idle: no empty metadata record every half second.
metadata.max.idle.interval.ms={idle_ms}
# After a crash the controller waits this long before it admits the broker again, so it is the
# price of every restart after `kill -9` (default 9 s). With one node nothing else hangs on it:
# a broker that was fenced after a long pause is back with its next heartbeat.
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=1000
num.network.threads=2
num.io.threads=4
background.threads=2
num.recovery.threads.per.data.dir=2
# 128 MB of the heap by default.
log.cleaner.dedupe.buffer.size=16777216
"""
