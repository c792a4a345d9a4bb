"""The demo's accounts: the fate of every message, from the Delta tables.

Per queue, the distinct messages spooled must equal the distinct messages acknowledged, expired or
otherwise removed, plus those still in the queue. They must also equal the engine's counters and the
messages sent. The order of barriers is checked by the steps that the journal names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...lake import read_columns

DELIVERED = ("delivered", "redelivered", "barrier_delivered")
ENDED = ("acknowledged", "expired", "purged", "deleted", "consumer_rejected")


@dataclass(frozen=True, slots=True)
class Account:
    """One queue, from the journal: distinct messages; delivered, redelivered: deliveries."""

    queue: str
    sent: int
    spooled: int
    delivered: int
    redelivered: int
    acknowledged: int
    expired: int
    left: int
    problems: tuple[str, ...]


def read_journal(tables: Path) -> pd.DataFrame:
    """The journal's columns that accounts need."""
    journal = read_columns(tables / "journal", ["step", "queue", "event", "message_id"])
    return journal.to_pandas()


def count_messages(tables: Path) -> int:
    """Rows of the table `messages`."""
    return len(read_columns(tables / "messages", ["topic"]))


def complete(tables: Path, described: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the journal in Delta has all the acknowledgments that the engine counts."""
    journal = read_journal(tables)
    if journal.empty:
        return False
    counts = journal[journal["event"] == "acknowledged"].groupby("queue").size()
    return all(
        int(counts.get(queue, 0)) >= look["counters"]["acknowledged"]
        for queue, look in described.items()
    )


def balance(
    journal: pd.DataFrame, expected: Mapping[str, int], described: Mapping[str, Mapping[str, Any]]
) -> list[Account]:
    return [
        _account(journal[journal["queue"] == queue], queue, sent, described[queue])
        for queue, sent in expected.items()
    ]


def _account(journal: pd.DataFrame, queue: str, sent: int, look: Mapping[str, Any]) -> Account:
    def ids(*events: str) -> set[Any]:
        return set(journal.loc[journal["event"].isin(events), "message_id"])

    def rows(*events: str) -> int:
        return int(journal["event"].isin(events).sum())

    counters, left = look["counters"], int(look["depth"])
    spooled, ended = ids("spooled"), ids(*ENDED)
    problems: list[str] = []

    def same(what: str, one: int, other: int, against: str) -> None:
        if one != other:
            problems.append(f"{what}: {one:,} in Delta, {other:,} {against}")

    same("spooled", len(spooled), sent, "sent")
    same("spooled", len(spooled), len(ended) + left, "acknowledged, expired or still there")
    if ended - spooled:
        problems.append(f"{len(ended - spooled):,} messages ended that never entered")
    if ids(*DELIVERED) - spooled:
        problems.append("messages were delivered that never entered")
    same("spooled events", rows("spooled"), counters["spooled"], "by the engine's counter")
    same("deliveries", rows(*DELIVERED), counters["delivered"], "by the engine's counter")
    same("acknowledged", rows("acknowledged"), counters["acknowledged"], "by the counter")
    same("redelivered", rows("redelivered"), counters["redelivered"], "by the engine's counter")
    return Account(
        queue=queue,
        sent=sent,
        spooled=len(spooled),
        delivered=rows(*DELIVERED),
        redelivered=rows("redelivered"),
        acknowledged=len(ids("acknowledged")),
        expired=len(ids("expired")),
        left=left,
        problems=tuple(problems),
    )


@dataclass(frozen=True, slots=True)
class Barriers:
    """delivered: barriers of a queue that were delivered. wrong: those that were out of order."""

    delivered: int
    wrong: int


def check_barriers(journal: pd.DataFrame, queue: str) -> Barriers:
    """Check O3: when a barrier is delivered, all messages before it have left, and none after it
    was delivered.

    Ids rise in the order of entry. Within a step the journal does not show the order.
    """
    mine = journal[(journal["queue"] == queue) & journal["message_id"].notna()]
    mine = mine.assign(message_id=mine["message_id"].astype("uint64"))
    barriers = mine[mine["event"] == "barrier_delivered"].groupby("message_id")["step"].min()
    left = mine[mine["event"].isin(ENDED)].groupby("message_id")["step"].max().sort_index()
    first = mine[mine["event"].isin(DELIVERED)].groupby("message_id")["step"].min().sort_index()
    before = _running(left.to_numpy(), np.maximum)
    after = _running(first.to_numpy()[::-1], np.minimum)[::-1]
    wrong = 0
    for barrier, step in barriers.items():
        at = int(left.index.searchsorted(barrier))
        behind = int(first.index.searchsorted(barrier, side="right"))
        late = at > 0 and before[at - 1] > step
        early = behind < len(after) and after[behind] < step
        wrong += bool(late or early)
    return Barriers(len(barriers), wrong)


def _running(values: np.ndarray, how: np.ufunc) -> np.ndarray:
    return how.accumulate(values) if len(values) else values
