"""A worker of the loop without Spark, as a process that tests kill: real Kafka, state in a file.

    python worker.py BOOTSTRAP FOLDER GENERATION [accept-other-kafka]

At the end of a batch it writes the whole file, unless a later worker was started: Spark's driver,
too, commits only the newest attempt of a task.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from lakequeue.sources.live import kafka_client
from lakequeue.sources.live_reader import InputLimits
from lakequeue.streaming.loop.loop import Loop
from lakequeue.streaming.loop.loop_options import Options

BROKER = "broker-0"


class FileState:
    """Pages and the snapshot, as of the last committed batch."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.pages: dict[str, bytes] = {}
        self.snapshot: bytes | None = None
        if file.exists():
            self.pages, self.snapshot = pickle.loads(file.read_bytes())

    def get(self, key: str) -> bytes | None:
        return self.pages.get(key)

    def put(self, key: str, value: bytes) -> None:
        self.pages[key] = value

    def delete(self, key: str) -> None:
        self.pages.pop(key, None)

    def keys(self) -> set[str]:
        return set(self.pages)

    def load(self) -> bytes | None:
        return self.snapshot

    def save(self, snapshot: bytes) -> None:
        self.snapshot = snapshot

    def commit(self) -> None:
        draft = self.file.with_suffix(".draft")
        draft.write_bytes(pickle.dumps((self.pages, self.snapshot)))
        draft.replace(self.file)


def options(bootstrap: str, run: str, accepts: bool) -> Options:
    return Options(
        kafka_client(bootstrap, "worker"), BROKER, 0, 7, ["default"], "test", run,
        keep=3, batch_s=1.5, cache_bytes=100_000, limits=InputLimits(200, 100_000),
        accepts_other_kafka=accepts,
    )  # fmt: skip


def main(bootstrap: str, folder: str, generation: str, accepts: str = "") -> None:
    newest = Path(folder) / "generation"
    loop = Loop(options(bootstrap, generation, bool(accepts)))
    while True:
        state = FileState(Path(folder) / "state")
        figures, notes = loop.batch(state)
        if newest.read_text() != generation:
            return
        state.commit()
        print(figures.steps, figures.replayed, *notes, flush=True)
        if f"stopped:{BROKER}" in notes:  # its snapshot is the last write
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
