"""The loops of a worker: what it knows of a broker outlives a batch in this module.

Spark gives the next batch to the same worker as long as it lives (each broker's query has an entry
of its own in the workers' environment), and a cache counts only if the state says so.
"""

from __future__ import annotations

import pandas as pd

from .figures import rows
from .loop import Loop, _decode
from .loop_options import Options
from .priority import share_out
from .state_store import StatePages
from .worker_memory import give_back

_loops: dict[str, Loop] = {}  # of this worker, by broker


def batch_rows(options: Options, state: StatePages) -> pd.DataFrame:
    """One batch of one broker; what it says of itself, as rows of the query."""
    loop = _loop(options, state)
    if loop.saved >= 0:  # until its first mark Java has an engine to start
        share_out(options.alone)
    figures, notes = loop.batch(state)
    give_back()
    return pd.DataFrame(rows(figures, notes))


def _loop(options: Options, state: StatePages) -> Loop:
    """The loop of this worker, if the state is what it saved last; else a new one."""
    loop = _loops.get(options.broker)
    if loop is not None:
        saved = state.load()
        same = saved is not None and _decode(saved).step == loop.saved
        if same and not loop.failed and loop.options == options:
            return loop
        loop.close()
    loop = _loops[options.broker] = Loop(options)
    return loop
