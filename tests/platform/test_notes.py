"""What a step tells the driver: captured topics, how many records were malformed."""

from pathlib import Path

from lakequeue.definitions import Configuration
from lakequeue.protocol.messages import Records
from lakequeue.replica.replica import Replica, sort_outputs
from lakequeue.state import Batch, DictStore, Home, Limits
from lakequeue.streaming import Engine


def malformed(*topics: str) -> Records:
    n = len(topics)
    return Records(
        list(topics), [0] * n, list(range(n)), [0] * n, [None] * n, [b"{"] * n, [None] * n,
        [None] * n,
    )  # fmt: skip


def test_malformed_records_are_counted_by_vpn(tmp_path: Path) -> None:
    """Also those of a VPN that the engine does not know, or not any more."""
    records = malformed("default.commands", "gone.commands", "default.commands")
    broker = Replica(Home(), DictStore(), Limits())
    notes = sort_outputs(broker.take(Batch(commands=records), 1)).notes
    assert notes == ["malformed:default:2", "malformed:gone:1"]
    engine = Engine("127.0.0.1:1", tmp_path, Configuration())
    for note in [*notes, *notes]:
        engine._notes("broker-0", note)
    sample = engine.metrics.registry.get_sample_value
    assert sample("lakequeue_malformed_records_total", {"vpn": "default"}) == 4
    assert sample("lakequeue_malformed_records_total", {"vpn": "gone"}) == 2
