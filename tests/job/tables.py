"""The Delta tables, held beside Kafka and what clients know: each thing once (R1)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from job.processes import until
from kafka import KafkaConsumer, TopicPartition
from lakequeue.lake import read_columns


def in_kafka(bootstrap: str, topic: str) -> dict[tuple[str, int], int]:
    """How many records each partition has."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    try:
        numbers = consumer.partitions_for_topic(topic) or set()
        ends = consumer.end_offsets([TopicPartition(topic, n) for n in numbers])
        return {(p.topic, p.partition): offset for p, offset in ends.items()}
    finally:
        consumer.close()


def check_tables(
    tables: Path, bootstrap: str, ids: set[str], vpns: tuple[str, ...] = ("default",)
) -> None:
    """Each message once in `messages`, spooled once and acknowledged once in `journal`."""

    def journal(event: str) -> Counter[str]:
        rows = read_columns(tables / "journal", ["event", "queue", "message_id"]).to_pylist()
        found = [r for r in rows if r["event"] == event and r["queue"] == "orders"]
        return Counter(r["message_id"] for r in found)

    def offsets() -> set[tuple[str, int, int]]:
        """Records of the table."""
        names = ["topic", "partition", "offset", "item"]
        rows = read_columns(tables / "messages", names).to_pylist()
        whole = Counter(tuple(r[name] for name in names) for r in rows)
        assert set(whole.values()) <= {1}, "a message stands twice in `messages`"
        return {where[:3] for where in whole}

    ends = {w: end for vpn in vpns for w, end in in_kafka(bootstrap, f"{vpn}.publish").items()}
    wanted = {(*where, i) for where, end in ends.items() for i in range(end)}
    until(lambda: ids <= set(journal("acknowledged")), 60, "the journal's acknowledgments")
    until(lambda: wanted <= offsets(), 60, "the table `messages`")
    for event in ("spooled", "acknowledged"):
        counted = journal(event)
        missing, more = len(ids - set(counted)), len(set(counted) - ids)
        assert not missing + more, f"{event}: {missing} are missing, {more} too many"
        assert set(counted.values()) == {1}, f"{event} more than once"
    assert offsets() == wanted
