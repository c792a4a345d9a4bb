"""The figures of a loop's batch, as columns that Spark observes for each broker.

Spark's own counts are useless, since the tick source has one row per batch. These figures are
observed metrics in Spark's progress, from which Prometheus gets them (`sinks.metrics`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

NOTE = "note"


@dataclass(slots=True)
class Figures:
    """A batch in numbers.

    records_in, records_out: Kafka records; wait: from a message's Kafka time to its step, for the
    oldest message of each step; gap_ms: time without steps, for a snapshot or because no batch
    runs; replayed: repeated steps, which took replay_ms, and replayed_life_ms the first time;
    step_max_ms: the longest step, from its input to its outputs; busy_ms: time not spent waiting
    for input; step_ms: the core's part; lag_records: records in Kafka that no step has read, as of
    the last look for topics; slow_partitions: of commands, see `sources.input_pace`; state_*:
    pages written to the state.
    """

    steps: int = 0
    records_in: int = 0
    bytes_in: int = 0
    records_out: int = 0
    refused: int = 0
    replayed: int = 0
    replay_ms: int = 0
    replayed_life_ms: int = 0
    wait_p50_ms: int = 0
    wait_p99_ms: int = 0
    gap_ms: int = 0
    busy_ms: int = 0
    step_ms: int = 0
    step_max_ms: int = 0
    save_ms: int = 0
    lag_records: int = 0
    slow_partitions: int = 0
    cache_pages_read: int = 0
    cache_bytes: int = 0
    state_pages: int = 0
    state_bytes: int = 0

    def waited(self, ages_ms: list[int]) -> None:
        """Set the percentiles of the waiting times."""
        if ages_ms:
            ages = sorted(ages_ms)
            self.wait_p50_ms = ages[len(ages) // 2]
            self.wait_p99_ms = ages[min(len(ages) * 99 // 100, len(ages) - 1)]


NAMES = tuple(f.name for f in fields(Figures))
SCHEMA = f"{NOTE} STRING, " + ", ".join(f"{name} LONG" for name in NAMES)


def rows(figures: Figures, notes: list[str]) -> dict[str, list]:
    """The operator's output: a row of figures, and a row for each note."""
    columns: dict[str, list] = {NOTE: [None, *notes]}
    for name, value in asdict(figures).items():
        columns[name] = [value] + [0] * len(notes)
    return columns
