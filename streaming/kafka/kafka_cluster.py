"""Several embedded Kafka nodes on this machine, for tests of a node's death.

Every node is broker and controller (KRaft) and keeps a copy of every record. A producer with
`acks=all` is answered when all but one node have the record (`min.insync.replicas`). So one of
three nodes may die under traffic: acknowledged records are kept, and new ones are taken.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .embedded_kafka import EmbeddedKafka, Member, cluster_id, free_port


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
            EmbeddedKafka(
                self.home / f"node-{i}", heap=heap, member=Member(i, ports, about["cluster"])
            )
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
