"""No input from outside stops a step, and all input is accounted for.

`LAKEQUEUE_FUZZ=40` takes 300,000 mutated commands and records instead of 7,500.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fuzz.mutations import INBOX, Incoming, Mutator, encode
from fuzz.runner import Fuzz, without_accounts
from lakequeue.protocol.outputs import RejectedRecord, Reply
from lakequeue.sinks.kafka_records import records_of
from lakequeue.sinks.table_batch import TableBatch
from loop.memory import Message

TIMES = int(os.environ.get("LAKEQUEUE_FUZZ", "1"))
RECORDS_PER_SEED = 2_500
REPLY = {**INBOX, "request": "one"}


@pytest.mark.parametrize("seed", range(3 * TIMES))
def test_S1_no_record_stops_a_step(seed: int) -> None:
    """Each is carried out, answered with an error, or among the rejected; the state stays
    consistent."""
    fuzz = Fuzz(seed)
    fuzz.run(RECORDS_PER_SEED)
    counts = fuzz.counts
    assert counts["records"] == RECORDS_PER_SEED
    # The figures mean something: neither is everything refused, nor everything carried out.
    for outcome in ("rejected", "answered with an error", "carried out", "receipts"):
        assert counts[outcome] > RECORDS_PER_SEED // 40, (outcome, counts)


@pytest.mark.parametrize("seed", range(TIMES))
def test_R1_no_record_stops_the_tables(seed: int, tmp_path: Path) -> None:
    """They have each record, also those that claim to be runs."""
    mutator = Mutator(seed)
    for history, make in ((False, mutator.message), (True, mutator.command)):
        records = []
        for n in range(RECORDS_PER_SEED):
            r = make()
            meta = (r.meta or b"").replace(b"{", b'{"count":2,', 1)
            records.append(Message(r.topic, 0, n, r.timestamp or 0, None, r.value, [("lq", meta)]))
        work = TableBatch(str(tmp_path), 1.0, history=history)
        written = [json.loads(said) for _, said in work.write([records_of(records, {})])]
        assert written[-1][0] == RECORDS_PER_SEED
        rows = sum(json.loads(file["stats"])["numRecords"] for file in written[:-1])
        assert rows >= RECORDS_PER_SEED


@pytest.mark.parametrize("seed", range(TIMES))
def test_S1_a_wrong_command_changes_nothing(seed: int) -> None:
    """Two copies of one state, two refused commands: the states stay equal."""
    fuzz = Fuzz(100_000 + seed)
    fuzz.run(400)
    compared = 0
    for _ in range(600):
        before = fuzz.pages()
        given = fuzz.mutator.command()
        out = fuzz.hand_over([given])
        why = outcome_of(out)
        if why is None:
            continue
        compared += 1
        changed = fuzz.pages()
        fuzz.load(before)
        fuzz.offsets -= 1
        assert outcome_of(fuzz.hand_over([KNOWN[why]])) == why
        one, other = without_accounts(changed), without_accounts(fuzz.pages())
        differ = [key for key in sorted({*one, *other}) if one.get(key) != other.get(key)]
        assert not differ, f"{differ}: {given.value!r:.800}"
    assert compared > 100


def outcome_of(out: list[Any]) -> str | None:
    """The reason for which a command was refused; None where it was not."""
    if any(isinstance(o, RejectedRecord) for o in out):
        return "rejected"
    wrong = any(isinstance(o, Reply) and o.error is not None for o in out)
    return "answered" if wrong else None


def command(**value: Any) -> Incoming:
    return Incoming("default.commands", encode({**value, "reply": REPLY}), request="one")


# A command that is refused for the same reason, and certainly changes nothing.
KNOWN = {
    "rejected": command(command="tick", x=1),
    "answered": command(command="ack", queue="nobody", ids="1"),
}


@pytest.mark.parametrize("topic", ["", ".", "default.commands", "other.deliveries", "x" * 300])
def test_S1_an_answer_goes_only_to_its_client(topic: str) -> None:
    """A tenant cannot have anything written to topics other than its own inboxes."""
    fuzz = Fuzz(0)
    value = {"command": "queues", "reply": {"topic": topic, "request": "one"}}
    out = fuzz.hand_over([Incoming("default.commands", encode(value))])
    assert not [o for o in out if isinstance(o, Reply) and o.topic == topic]
