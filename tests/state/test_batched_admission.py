"""Messages that are taken in together fare as they would one by one (S1, S3, P1)."""

import random
from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.journal import Journal
from lakequeue.protocol.messages import PublishHeader, Records, encode_publish_header
from lakequeue.protocol.outputs import Deliveries
from lakequeue.replica.replica import Replica
from lakequeue.state import Batch, DictStore, Home, Limits, check
from lakequeue.state.phases import admission

HEADERS = '[{"key":"h","value":"YWI="}]'
QUEUES: list[dict[str, Any]] = [
    {"name": "few", "message_type": "binary", "max_spool_messages": 9},
    {"name": "bytes", "message_type": "binary", "max_spool_usage": 900},
    {"name": "json", "message_type": "json", "on_invalid": "nack"},
    {"name": "lanes", "message_type": "json", "partition_key": "/k"},
    {"name": "short", "message_type": "binary", "expiration": 2},
]


def _records(values: list[bytes], metas: list[bytes] | None, at: int, rnd: Any) -> Records:
    n = len(values)
    topic = "default.commands" if metas is None else "default.publish"
    keys = [rnd.choice([None, None, b"", b"key"]) if metas else None for _ in values]
    headers = [rnd.choice([None, None, HEADERS]) if metas else None for _ in values]
    return Records(
        [topic] * n, [0] * n, list(range(at, at + n)), [at] * n, keys, [*values],
        [None] * n if metas is None else [*metas], headers,
    )  # fmt: skip


def _said(seed: int) -> list[Any]:
    rnd = random.Random(seed)
    replica = Replica(Home(), DictStore(), Limits(live_rows=rnd.choice([8, 8_192])))
    commands: list[Any] = [c.Define(definition=one) for one in QUEUES]
    commands += [
        c.Subscribe(
            queue=one["name"], subscription=f"of {one['name']}", max_backlog=rnd.choice([3, 50]),
            inbox=c.Inbox("default.deliveries"),
        )
        for one in QUEUES
    ]  # fmt: skip
    said: list[Any] = []
    at, given, seq = 1, 1, {"": 0, "a": 0, "b": 0}
    for now in range(1_000, 1_030):
        values, metas = [], []
        for _ in range(rnd.choice([1, 2, 5])):
            producer, to = rnd.choice(["", "a", "b"]), rnd.choice(QUEUES)["name"]
            ttl, size = rnd.choice([None, None, 700]), rnd.choice([5, 60, 200])
            for _ in range(rnd.choice([1, 2, 8])):
                if producer:
                    seq[producer] += rnd.choice([1, 1, 1, 1, 1, 1, 2, 0])
                number = max(seq[producer], 1) if producer else 0
                header = PublishHeader(to=to, producer=producer, seq=number, ttl_ms=ttl)
                metas.append(encode_publish_header(header))
                k = rnd.randrange(3)
                values.append(b'{"k":%d}' % k if rnd.random() < 0.8 else b"x" * size)
        records = _records(values, metas, at, rnd)
        done = _records([c.encode_command(one) for one in commands], None, given, rnd)
        at, given, commands = at + len(values), given + len(commands), []
        outputs = replica.take(Batch(done, records), now)
        check(replica.broker)
        assert len(replica.broker.names) == len(QUEUES)
        for one in outputs:
            if isinstance(one, Deliveries) and rnd.random() < 0.7:
                ids = ",".join(map(str, one.ids))
                commands.append(c.Ack(queue=one.queue, subscription=one.subscription, ids=ids))
        said += [one.rows() if isinstance(one, Journal) else one for one in outputs]
    return said


@pytest.mark.parametrize("seed", range(6))
def test_together_as_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    together = _said(seed)
    joined: list[int] = []
    alike = admission.alike

    def counted(records: Records, at: int, header: PublishHeader) -> int:
        joined.append(alike(records, at, header) - at)
        return at + 1

    monkeypatch.setattr(admission, "alike", counted)
    assert _said(seed) == together
    assert max(joined) > 5, "nothing was taken in together"
    assert any(isinstance(one, Deliveries) for one in together)
