"""R1, R3: moments of all kinds of queues are reconstructed, and a home of them is rebuilt.

Like `test_past.py` and `test_rebuilding.py`, whose walks have one plain queue.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from lake.all_kinds import NAMES, lived, looked_at
from lake.history import write_history
from lake.test_past import _as_the_world as _as_the_world
from lake.test_past import state_behind
from lake.test_rebuilding import New
from lakequeue.lake import open_lake
from lakequeue.lake.past import as_of
from lakequeue.lake.rebuilding import rebuild
from loop.memory import HOME

SEEDS = range(2)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("refer", [False, True])
def test_R1_every_moment_of_all_kinds_of_queues(seed: int, refer: bool, tmp_path: Path) -> None:
    walk = lived(seed)
    last, marks = walk.driver.step, {own.step for own, _ in walk.saved}
    assert len(marks) > 2
    home = write_history(walk.world, tmp_path, walk.saved, refer=refer)
    said, taken = dict(walk.world.said), Counter()
    for _, record in walk.world.logged():
        taken[record.step] += sum(r.count for r in record.ranges)
    with open_lake(home) as lake:
        for step in sorted({*random.Random(seed).sample(range(1, last + 1), 6), last}):
            found = as_of(lake, home, HOME.name, step=step)
            assert (found.store.pages, found.now) == state_behind(walk, step)
            assert found.notes == []
            if step not in marks:  # a moment at a snapshot needs no replay
                assert found.last_outputs == said.get(step, [])
                assert len(found.last_inputs) == taken[step]


@pytest.mark.parametrize("seed", SEEDS)
def test_R3_a_home_with_all_kinds_of_queues_is_rebuilt(seed: int, tmp_path: Path) -> None:
    """Nothing is lost, leased messages are ready, and delayed ones are delayed."""
    walk = lived(seed)
    before = looked_at(walk)
    assert len({name for name, _ in before}) > 4
    old = write_history(walk.world, tmp_path / "old", walk.saved)
    (done,) = rebuild(old, tmp_path / "new")
    assert (done.lost, done.notes, done.messages) == (0, [], len(before))
    new = New(tmp_path / "new", walk)
    assert looked_at(new) == before
    for name in NAMES:  # nothing is delivered, so no delivery hides a lease
        new.world.command(command="shutdown", queue=name, egress=True)
    new.settle()
    new.world.instruct(command="begin", epoch=HOME.epoch)
    for name in NAMES:
        new.world.instruct(command="begin_again", queue=name)
    new.settle()
    ready = {"leased": "ready"}
    assert looked_at(new) == {
        at: (payload, ready.get(state, state), 0, headers)
        for at, (payload, state, _, headers) in before.items()
    }
