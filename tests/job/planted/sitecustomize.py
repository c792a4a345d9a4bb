"""A mistake in the core of the engine's workers: at a message with a certain payload a step fails.
And they keep few messages of a queue in memory, so that few are enough to spill some.

Python imports this where `PYTHONPATH` names its folder.
"""

from __future__ import annotations

import sys
from typing import Any

LIVE_ROWS, SEGMENT_ROWS = 1_000, 128


def _fail_for_a_message() -> None:
    from lakequeue.state.phases import admission

    judge = admission.check_messages

    def judging(broker: Any, vpn: str, matches: Any, messages: Any) -> Any:
        if any(payload == b"fails alone" for payload in messages.payloads):
            matches[0].queue.header.depth += 7
            raise OverflowError("planted")
        return judge(broker, vpn, matches, messages)

    admission.check_messages = judging


def _keep_few_rows() -> None:
    from lakequeue.state.limits import Limits
    from lakequeue.streaming.loop.loop_driver import LoopDriver

    few = Limits(live_rows=LIVE_ROWS, segment_rows=SEGMENT_ROWS)
    LoopDriver.__init__.__defaults__ = (few, *(LoopDriver.__init__.__defaults__ or ())[1:])


if any("worker_daemon" in argument for argument in sys.orig_argv):
    _fail_for_a_message()
    _keep_few_rows()
