"""A tenant that floods its VPN, beside another tenant's steady traffic.

The flood has four kinds of commands, each with new names or ids: bytes that are not a command, acks
for unknown ids, subscriptions, and heartbeats of sessions. The engine reads partitions in turn, so
another VPN's records do not wait behind the flood. The bench compares the traffic's 99th percentile
during the flood with that before it.

Sending a flood needs processor time, in the sender and in Kafka. On a small machine that alone
slows everything. So a control runs first: the same process writes the same records to a topic
without readers. The engine delays useless commands (`sources.input_pace`) and handles them after
all are sent. The bench shows both times; compare the first with the control.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..client import connect
from ..client.kafka import open_kafka
from ..protocol import commands as c
from ..protocol import topics
from ..protocol.errors import Timeout
from ..streaming.kafka.topics_admin import ensure_topics
from .harness import Say, in_a_process, running, url, wait_for
from .os_processes import PeakMemory
from .steady import Traffic
from .subcommands import count

OPTIONS = (
    count("--commands", 1_000_000, "Commands of the flood."),
    count("--rate", 100, "Messages a second in the other VPN."),
)
STEADY, VPN, QUEUE, UNREAD = "steady", "flood", "flooded", "unread"
WARM_UP_S, USUAL_S, PAUSE_S = 20.0, 20.0, 3.0  # Java compiles new code for as long
FLUSH_S, FLOOD_S_MAX = 60.0, 1_800.0
QUEUES: list[dict[str, Any]] = [
    {"name": STEADY, "message_type": "binary", "max_per_subscription_backlog": 5_000},
    {"name": QUEUE, "vpn": VPN, "message_type": "binary"},
]
_INBOX = c.Inbox(f"{VPN}.deliveries")
KINDS: dict[str, Callable[[int], bytes]] = {
    "garbage": lambda n: b"{%d" % n,
    "acks": lambda n: c.encode_command(c.Ack(queue=QUEUE, ids=str(10**12 + 2 * n))),
    "subscriptions": lambda n: c.encode_command(
        c.Subscribe(queue=QUEUE, subscription=f"s{n}", inbox=_INBOX, session="one")
    ),
    "sessions": lambda n: c.encode_command(c.Heartbeat(session=f"session-{n}")),
}


def run(commands: int, rate: int, say: Say) -> list[dict[str, Any]]:
    """other_p99_ratio: of another VPN's messages, during the flood over before it;
    control_p99_ratio: the same while the flood's records went to a topic without readers; of the
    flood, sending_p99_ms: while it was sent, and waiting_p99_ms: from then on until the engine had
    handled it; after_p99_ms: without it again; worker_peak_mb; refused: the flood's commands that
    the engine counted as refused."""
    with (
        running(say, queues=QUEUES) as engine,
        PeakMemory() as memory,
        Traffic(url(engine), [STEADY], rate) as flow,
        connect(url(engine), vpn=VPN, client_name="bench") as connection,
    ):
        address, each = url(engine).removeprefix("kafka://"), commands // len(KINDS)
        ensure_topics(address, [], [UNREAD])
        say("the other VPN alone")
        time.sleep(WARM_UP_S)
        begin = time.time()
        time.sleep(USUAL_S)
        usual = begin, time.time()
        say(f"{commands:,} commands to a topic without readers")
        control = _sent(address, UNREAD, each)
        time.sleep(PAUSE_S)
        say(f"{commands:,} commands")
        begin, sent = _sent(address, topics.topic(VPN, topics.COMMANDS), each)
        admin, answers = connection.admin(), []

        def is_through() -> bool:
            with suppress(Timeout):  # this tenant's own commands wait behind the flood
                answers.append(admin.usage())
            return bool(answers)

        wait_for(is_through, FLOOD_S_MAX, "an answer behind the flood")
        end = time.time()
        say("the other VPN alone again")
        time.sleep(USUAL_S)
        flow.check()
    usual_ms, control_ms, flooded_ms = flow.p99(*usual), flow.p99(*control), flow.p99(begin, end)
    return [
        {
            "commands": commands,
            "other_p99_ratio": flooded_ms / usual_ms,
            "control_p99_ratio": control_ms / usual_ms,
            "usual_p99_ms": usual_ms,
            "control_p99_ms": control_ms,
            "flooded_p99_ms": flooded_ms,
            "sending_p99_ms": flow.p99(begin, sent),
            "waiting_p99_ms": flow.p99(sent, end) if flow.between(sent, end) else None,
            "after_p99_ms": flow.p99(end, end + USUAL_S),
            "control_s": control[1] - control[0],
            "sent_s": sent - begin,
            "through_s": end - begin,
            "worker_peak_mb": memory.peak_mb,
            "refused": sum(answers[0]["vpn"]["refused"].values()),
        }
    ]


def _sent(address: str, topic: str, each: int) -> tuple[float, float]:
    """Send this many of each kind from another process; returns when that began and ended."""
    begin = time.time()
    in_a_process(_flood, address, topic, each, timeout_s=FLOOD_S_MAX)
    return begin, time.time()


def _flood(address: str, topic: str, each: int) -> None:
    """Send this many of each kind. Runs in its own process."""
    transport = open_kafka(address, "bench-flood")
    try:
        for make in KINDS.values():
            for n in range(each):
                transport.command(topic, b"flood", make(n))
        transport.flush(FLUSH_S)
    finally:
        transport.close()
