"""Message ids and ranges of ids on the wire: ``"1-500,503"``.

A message id is a 64-bit number written as text: the broker's number in the top 16 bits, the
broker's counter below. Ranges are inclusive. Parsing never expands a range. Parsed ranges are
always ascending and without overlap: an id that is named twice counts once.
"""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter

COUNTER_BITS = 48
COUNTER_MASK = (1 << COUNTER_BITS) - 1
ID_MAX = (1 << 64) - 1
RANGES_MAX = 100_000
RANGES_A_COMMAND = 40_000  # a client's limit; with at most 42 characters each, within `bounds.Ids`
LONG = 10_000  # the last text with at least this many characters is cached

Ranges = list[tuple[int, int]]
_first = itemgetter(0)


def make_id(broker_number: int, counter: int) -> int:
    """The message id of a broker's ``counter``-th spooled message."""
    return broker_number << COUNTER_BITS | counter


def parse_ranges(text: str) -> Ranges:
    """Read ``"1-500,503"`` into ``[(1, 500), (503, 503)]``, ascending and without overlap.

    Raises ValueError naming the part that is wrong.
    """
    return list(_long_ranges(text)) if len(text) >= LONG else _ranges(text)


@functools.lru_cache(maxsize=1)
def _long_ranges(text: str) -> Ranges:
    """Cached, because a command with very many ids is parsed in each of its many steps."""
    return _ranges(text)


def _ranges(text: str) -> Ranges:
    ranges: Ranges = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if (
            not first.isascii()
            or not first.isdigit()
            or (dash and not (last.isascii() and last.isdigit()))
        ):
            raise ValueError(
                f"ids: {part.strip()[:60]!r} – allowed are message ids and ranges: '17', '1-500'"
            )
        is_long = len(first) > 20 or len(last) > 20  # Python refuses to parse very long numbers
        low, high = (ID_MAX + 1,) * 2 if is_long else (int(first), int(last or first))
        if low > ID_MAX or high > ID_MAX:
            raise ValueError(f"ids: {part.strip()[:60]!r} – a message id is at most {ID_MAX}")
        if low > high:
            raise ValueError(f"ids: {part.strip()!r} – the first id of a range is the lower one")
        ranges.append((low, high))
        if len(ranges) > RANGES_MAX:
            raise ValueError(f"ids: more than {RANGES_MAX} ranges in one command")
    if len(ranges) == 1 or all(one[1] < other[0] for one, other in itertools.pairwise(ranges)):
        return ranges
    return join_ranges(ranges)


def join_ranges(ranges: Ranges) -> Ranges:
    """Sort ranges and join those that overlap."""
    ranges = sorted(ranges)
    joined = ranges[:1]
    for low, high in ranges[1:]:
        if low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return joined


def count_ids(ranges: Iterable[Sequence[int]]) -> int:
    """How many ids ranges have that do not overlap."""
    return sum([high - low + 1 for low, high in ranges])


def within(number: int, ranges: Sequence[Sequence[int]]) -> bool:
    """Whether one of the ascending ranges contains the number."""
    at = bisect_right(ranges, number, key=_first)
    return at > 0 and number <= ranges[at - 1][1]


def format_ranges(ids: Iterable[int]) -> str:
    """Write ids, in any order, as ranges: ``[1, 2, 3, 7]`` → ``"1-3,7"``."""
    parts: list[str] = []
    first = last = None
    for number in sorted(ids):
        if last is not None and number <= last + 1:
            last = number
            continue
        if first is not None:
            parts.append(str(first) if first == last else f"{first}-{last}")
        first = last = number
    if first is not None:
        parts.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(parts)


def format_parts(ids: Iterable[int]) -> list[str]:
    """Like `format_ranges`, but split into texts that each fit into a command."""
    text = format_ranges(ids)
    if len(text) < LONG:
        return [text] if text else []
    ranges, most = text.split(","), RANGES_A_COMMAND
    return [",".join(ranges[at : at + most]) for at in range(0, len(ranges), most)]
