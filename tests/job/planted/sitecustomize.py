"""A mistake in the core of the engine's workers: at a message with a certain payload a step fails.

Python imports this where `PYTHONPATH` names its folder.
"""

from __future__ import annotations

import sys
from typing import Any


def _fail_for_a_message() -> None:
    from lakequeue.state.phases import admission

    judge = admission.check_messages

    def judging(broker: Any, vpn: str, matches: Any, messages: Any) -> Any:
        if any(payload == b"fails alone" for payload in messages.payloads):
            matches[0].queue.header.depth += 7
            raise OverflowError("planted")
        return judge(broker, vpn, matches, messages)

    admission.check_messages = judging


if any("worker_daemon" in argument for argument in sys.orig_argv):
    _fail_for_a_message()
