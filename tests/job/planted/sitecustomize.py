"""Makes the engine's workers keep few messages of a queue in memory, so that few are enough to
spill some.

Python imports this from the folder in `PYTHONPATH`.
"""

from __future__ import annotations

import sys

LIVE_ROWS, SEGMENT_ROWS = 1_000, 128


def _keep_few_rows() -> None:
    from lakequeue.state.limits import Limits
    from lakequeue.streaming.loop.loop_driver import LoopDriver

    few = Limits(live_rows=LIVE_ROWS, segment_rows=SEGMENT_ROWS)
    LoopDriver.__init__.__defaults__ = (few, *(LoopDriver.__init__.__defaults__ or ())[1:])


if any("worker_daemon" in argument for argument in sys.orig_argv):
    _keep_few_rows()
