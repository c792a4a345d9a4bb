"""What a broker is told when a topic was made anew: its offsets mean other records now.

The engine says up to which offset the Delta tables have a publish topic. What it said of the old
one says nothing of the new one, and what it will say of the new one comes later than the first
messages. So whoever takes a step tells the broker first: of this partition they have nothing. The
step's record says where topics were opened, so a step that is taken again is told the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from . import topics
from .commands import Tables, encode_command
from .messages import Records
from .steplog import Opened

NOWHERE = -1  # the offset of a command that stands in no topic


def told_of_anew(
    commands: Records, broker: str, opened: Iterable[Opened],
    offsets: Mapping[tuple[str, int], int], ids: Mapping[tuple[str, int], str],
) -> Records:  # fmt: skip
    """A step's commands, with what is told first. opened: by the step; offsets, ids: before it."""
    anew: dict[str, int] = {}
    for one in opened:
        place, own = (one.topic, one.partition), topics.split(one.topic)
        if own is None or own[1] != topics.PUBLISH or place not in offsets:
            continue
        known = ids.get(place, "")
        if one.at < offsets[place] or (known and known != one.topic_id):
            anew[f"{one.topic}/{one.partition}"] = 0
    if not anew:
        return commands
    value = encode_command(Tables(written=None, up_to=anew))
    return replace(
        commands,
        topics=[topics.topic(broker, topics.INSTRUCTIONS), *commands.topics],
        partitions=[0, *commands.partitions], offsets=[NOWHERE, *commands.offsets],
        timestamps=[0, *commands.timestamps], keys=[b"default", *commands.keys],
        values=[value, *commands.values], metas=[None, *commands.metas],
        headers=[None, *commands.headers],
    )  # fmt: skip
