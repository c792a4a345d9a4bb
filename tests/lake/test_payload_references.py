"""R1: a snapshot references a block of payloads only if `messages` has it, byte for byte."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lake.history import message_rows, said_to_journal
from lake.on_files import MESSAGES
from lake.references_in_memory import places_of, references_to
from lake.test_past import Lived, lived
from lakequeue.sources.step_batch import goes_first


@pytest.fixture(scope="module")
def walk() -> Any:
    return lived(2)


@pytest.fixture(scope="module")
def stored(walk: Lived) -> pa.Table:
    there = [m for messages in walk.world.topics.values() for m in messages]
    rows = [row for m in there if not goes_first(m.topic_) for row in message_rows(m)]
    return places_of(pa.Table.from_pylist(rows, MESSAGES))


@pytest.fixture(scope="module")
def journal(walk: Lived) -> pa.Table:
    return said_to_journal(walk.world)


def blocks_of_state(walk: Lived) -> dict[str, bytes]:
    pages = walk.saved[-1][1].pages
    return {page: value for page, value in pages.items() if page.startswith("b/")}


def named(walk: Lived, journal: pa.Table, stored: pa.Table) -> Any:
    return references_to(blocks_of_state(walk), journal, stored)


def test_blocks_found_in_messages_are_referenced(
    walk: Lived, journal: pa.Table, stored: pa.Table
) -> None:
    """Consecutive rows of it become one reference."""
    found = named(walk, journal, stored)
    assert len(found) > 3
    assert any(len(refs) > 1 for refs in found.values()), "no block spans several partitions"
    assert any(one["last"] > one["first"] for refs in found.values() for one in refs)


def test_blocks_not_yet_in_messages_are_kept(
    walk: Lived, journal: pa.Table, stored: pa.Table
) -> None:
    found = named(walk, journal, stored)
    assert named(walk, journal, stored.slice(0, 0)) == {}
    assert named(walk, journal.slice(0, 0), stored) == {}
    for page, refs in list(found.items())[:5]:
        place, partition, offset = refs[0]["topic"], refs[0]["partition"], refs[0]["last"]
        lost = pc.and_(pc.equal(stored["topic"], place), pc.and_(
            pc.equal(stored["partition"], partition), pc.equal(stored["offset"], offset)
        ))  # fmt: skip
        # A message with the same content would do as well.
        lost = pc.is_in(stored["digest"], stored.filter(lost)["digest"].combine_chunks())
        left = named(walk, journal, stored.filter(pc.invert(lost)))
        assert page not in left
        assert {p: r for p, r in left.items() if refs == r} == {}


def test_blocks_with_other_contents_are_kept(
    walk: Lived, journal: pa.Table, stored: pa.Table
) -> None:
    """Edited since, or the record of another message."""
    at, other = stored.schema.get_field_index("digest"), pc.add(stored["digest"], 1)
    assert named(walk, journal, stored.set_column(at, "digest", other)) == {}


def test_blocks_found_twice_are_kept(walk: Lived, journal: pa.Table, stored: pa.Table) -> None:
    """A topic was deleted and recreated, and nobody knows which of the two is meant."""
    assert named(walk, journal, pa.concat_tables([stored, stored])) == {}
