"""Where reading continues in a partition: decided by the topic's id, its beginning and its end."""

from __future__ import annotations

import pytest
from lakequeue.sources.same_topic import Found, Start, go_on


@pytest.mark.parametrize(
    ("following", "known", "found", "start"),
    [
        (5, "a", Found("a", 0, 9), Start(5, "a")),
        (9, "a", Found("a", 0, 9), Start(9, "a")),
        (0, "", Found("a", 0, 0), Start(0, "a")),
        (5, "a", Found("b", 0, 9), Start(0, "b", "anew", 9)),
        (5, "a", Found("b", 2, 9), Start(2, "b", "anew", 7)),
        (5, "a", Found("b", 0, 3), Start(0, "b", "anew", 3)),
        (5, "", Found("b", 0, 3), Start(0, "b", "anew", 3)),
        (5, "", Found("", 0, 3), Start(0, "", "anew", 3)),
        (5, "a", Found("a", 0, 3), Start(3, "a", "back", 2)),
        (5, "a", Found("", 0, 3), Start(3, "a", "back", 2)),
        (5, "a", Found("a", 7, 9), Start(7, "a", "lost", 2)),
        (5, "", Found("a", 7, 9), Start(7, "a", "lost", 2)),
        (4, "a", Found("a", 10, 10), Start(10, "a", "lost", 6)),
        (5, "a", Found("b", 0, 5), Start(0, "b", "anew", 5)),
    ],
)
def test_the_position_after_a_topic_changed(
    following: int, known: str, found: Found, start: Start
) -> None:
    assert go_on(following, known, found) == start


def test_records_removed_before_the_first_read_are_no_loss() -> None:
    gone = Found("a", 7, 9)
    assert go_on(0, "", gone) == Start(7, "a")
    assert go_on(0, "a", gone) == Start(7, "a", "lost", 7)
