"""Spark's Python daemon of ours: all is imported before it forks, and what it forks works."""

from __future__ import annotations

import subprocess
import sys

import pytest

FORKS = """
import os, sys, threading
from lakequeue.streaming.loop.worker_daemon import load
load()
before = set(sys.modules)
assert threading.active_count() == 1, threading.enumerate()
for _ in range(6):
    child = os.fork()
    if child == 0:
        import numpy, pandas, pyarrow
        from lakequeue.sources.live import kafka_client
        from confluent_kafka import Producer
        numpy.ones((300, 300)) @ numpy.ones((300, 300))
        frame = pandas.DataFrame({"a": range(100_000)})
        assert pyarrow.Table.from_pandas(frame).to_pandas().a.sum() == 4_999_950_000
        Producer(kafka_client("127.0.0.1:1", "forked")).flush(0.01)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
assert "lakequeue.streaming.loop.loop" in before and "pyspark.worker" in before
print("done")
"""


def test_what_is_forked_after_the_imports_works() -> None:
    """Threads of libraries are not forked: numpy's, Arrow's and Kafka's must begin theirs anew."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "done\n", done.stderr


LETS_GO = """
import psutil
from lakequeue.streaming.loop.worker_daemon import load
from lakequeue.streaming.loop.worker_process import return_free_memory
load()
before = psutil.Process().memory_info().rss
kept = []
for _ in range(3):
    blocks = []
    for n in range(100):  # less than may be free at the heap's end
        blocks.append(b"x" * 1_000_000)
        kept.append(b"y" * (600 + n))  # what comes to stand between them
    del blocks
return_free_memory()
kept_mb = (psutil.Process().memory_info().rss - before) // 1_000_000
return_free_memory(0.0)
print(kept_mb, (psutil.Process().memory_info().rss - before) // 1_000_000)
"""


def test_memory_that_is_let_go_is_used_again_and_then_given_back() -> None:
    """Not at once, for it costs to get it anew; once a minute."""
    done = subprocess.run(
        [sys.executable, "-c", LETS_GO], capture_output=True, text=True, timeout=60, check=False
    )
    kept, stays = map(int, done.stdout.split() or (0, 999))
    assert kept >= 80, f"{kept} MB are kept; {done.stderr}"
    assert stays < 20, f"{stays} MB stay; {done.stderr}"


WHAT_STATE = """
import sys
import pyspark.sql.streaming.transform_with_state_driver_worker
from lakequeue.streaming.loop.realtime import LoopProcessor
heavy = {"pandas", "numpy", "pyarrow", "confluent_kafka", "lakequeue.client", "lakequeue.state"}
print(sorted(heavy & set(sys.modules)))
"""


def test_who_is_asked_which_state_there_is_imports_little() -> None:
    """A query's start waits for that process."""
    done = subprocess.run(
        [sys.executable, "-c", WHAT_STATE], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_the_public_names_are_there_when_asked_for() -> None:
    import lakequeue

    assert set(lakequeue.__all__) <= set(dir(lakequeue))
    assert all(getattr(lakequeue, name).__name__ == name for name in lakequeue.__all__)
    with pytest.raises(AttributeError, match="'lakequeue' has no attribute 'nothing'"):
        _ = lakequeue.nothing
