"""Which ids have entered a queue, as ascending ranges: the latest ones (L9).

An ack for an id that has never been here may be early; for one that has, it is late.
"""

from __future__ import annotations

TAKEN_MAX = 1_000  # ranges that are remembered


def was_taken(taken: list[list[int]], number: int) -> bool:
    """Whether an id has entered, as far as is known."""
    return any(first <= number <= last for first, last in reversed(taken))


def note_taken(taken: list[list[int]], first: int, last: int) -> None:
    """Ids enter, the ones from first to last."""
    if taken and taken[-1][1] == first - 1:
        taken[-1][1] = last
        return
    for number in range(first, last + 1):
        _insert(taken, number)
    del taken[:-TAKEN_MAX]


def has_entered(taken: list[list[int]], number: int) -> bool:
    """Whether an id has ever been here; of what is no longer remembered: yes."""
    forgotten = len(taken) >= TAKEN_MAX and number < taken[0][0]
    return forgotten or was_taken(taken, number)


def _insert(ranges: list[list[int]], number: int) -> None:
    """Put an id into ascending ranges, from the end."""
    at = len(ranges)
    while at and ranges[at - 1][0] > number:
        at -= 1
    if at and ranges[at - 1][1] >= number:
        return
    ranges.insert(at, [number, number])
    if at + 1 < len(ranges) and ranges[at + 1][0] == number + 1:
        ranges[at][1] = ranges.pop(at + 1)[1]
    if at and ranges[at - 1][1] == number - 1:
        ranges[at - 1][1] = ranges.pop(at)[1]
