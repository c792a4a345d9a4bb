"""Several embedded Kafka nodes on this machine, for tests in which a node dies.

Every node is broker and controller (KRaft) and keeps a copy of every record. Kafka answers a
producer with `acks=all` once all nodes but one have the record (`min.insync.replicas`). So one of
three nodes may die under traffic: acknowledged records survive, and Kafka accepts new ones.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lakequeue.streaming.kafka.embedded_kafka import EmbeddedKafka, cluster_id, free_port


class Node(EmbeddedKafka):
    """One node. number: from 1. controller_ports: of all nodes. cluster: the id with which all are
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
            "metadata.max.idle.interval.ms": 500,  # they show that the leader lives
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
    """Nodes with their files below ``home``; a context manager that starts and stops them.

    nodes: how many; with three, one may die. heap: of each node's Java process.
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
        """The cluster's id and its controllers' ports. They never change, because each node has
        them in its configuration."""
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
        """All nodes' addresses, known from the first start on."""
        return ",".join(node.bootstrap_servers for node in self.nodes)

    def start(self) -> EmbeddedCluster:
        """Start the nodes that are not running, all at once: a single one has no majority."""
        try:
            with ThreadPoolExecutor(len(self.nodes)) as pool:
                list(pool.map(EmbeddedKafka.start, self.nodes))
        except BaseException:
            for node in self.nodes:
                node.kill()
            raise
        return self

    def stop(self) -> None:
        """Stop all nodes at once: the last one alone could not hand over its partitions."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: node.stop(5.0), self.nodes))

    def __enter__(self) -> EmbeddedCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
