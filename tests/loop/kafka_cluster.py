"""Several embedded Kafka nodes on this machine, for tests of a node's death.

Every node is broker and controller (KRaft) and keeps a copy of every record. A producer with
`acks=all` is answered when all but one node have the record (`min.insync.replicas`). So one of
three nodes may die under traffic: acknowledged records are kept, and new ones are taken.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lakequeue.streaming.kafka.embedded_kafka import EmbeddedKafka, cluster_id, free_port


class Node(EmbeddedKafka):
    """A node. number: from 1. controller_ports: of every node. cluster: the id with which all are
    formatted."""

    def __init__(
        self, home: Path, heap: str, number: int, controller_ports: tuple[int, ...], cluster: str
    ) -> None:
        super().__init__(home, heap=heap)
        self._number, self._ports, self._cluster = number, controller_ports, cluster

    def _cluster_id(self) -> str:
        return self._cluster

    def _properties(self, controller_port: int) -> str:
        voters = (f"{i}@127.0.0.1:{port}" for i, port in enumerate(self._ports, 1))
        copies = len(self._ports)
        changed: dict[str, object] = {
            "node.id": self._number,
            "controller.quorum.voters": ",".join(voters),
            "metadata.max.idle.interval.ms": 500,  # by these records followers see a leader's life
        }
        internal = ("transaction.state.log", "share.coordinator.state.topic")
        for topics in ("default", "offsets.topic", *internal):
            changed[f"{topics}.replication.factor"] = copies
        for name in ("min.insync.replicas", *(f"{topics}.min.isr" for topics in internal)):
            changed[name] = copies - 1
        lines = super()._properties(self._ports[self._number - 1]).splitlines()
        known = {line.partition("=")[0] for line in lines}
        assert set(changed) <= known
        return "".join(
            f"{name}={changed.get(name, value)}\n" if equals else f"{line}\n"
            for line in lines
            for name, equals, value in [line.partition("=")]
        )


class EmbeddedCluster:
    """Nodes below ``home``; a context manager, started on entry and stopped on exit.

    nodes: how many; three is the least that outlives the death of one.
    heap: of each node's Java process.
    """

    def __init__(self, home: Path | str, nodes: int = 3, heap: str = "256m") -> None:
        self.home = Path(home).expanduser().absolute()
        about = self._about(nodes)
        ports = tuple(about["controller_ports"])
        self.nodes = [
            Node(self.home / f"node-{i}", heap, i, ports, about["cluster"])
            for i in range(1, len(ports) + 1)
        ]

    def _about(self, nodes: int) -> dict:
        """The cluster's id and its controllers' ports: they stay, because each node knows them."""
        file = self.home / "cluster.json"
        if not file.exists():
            ports: list[int] = []
            while len(ports) < nodes:
                port = free_port()
                if port not in ports:
                    ports.append(port)
            self.home.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({"cluster": cluster_id(), "controller_ports": ports}))
        return json.loads(file.read_text())

    @property
    def bootstrap_servers(self) -> str:
        """All nodes' addresses; known from the first start on."""
        return ",".join(node.bootstrap_servers for node in self.nodes)

    def start(self) -> EmbeddedCluster:
        """Start those nodes that do not run, all at once: one alone has no majority."""
        try:
            with ThreadPoolExecutor(len(self.nodes)) as pool:
                list(pool.map(EmbeddedKafka.start, self.nodes))
        except BaseException:
            for node in self.nodes:
                node.kill()
            raise
        return self

    def stop(self) -> None:
        """End all nodes at once: the last one alone could not hand over its partitions."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: node.stop(5.0), self.nodes))

    def __enter__(self) -> EmbeddedCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
