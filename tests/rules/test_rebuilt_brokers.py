"""What is on its way between brokers when all are made again from what was written down arrives
as if nothing had happened (R3)."""

from __future__ import annotations

from lakequeue.definitions import parse_configuration
from lakequeue.protocol import commands as c

from .kept import KeptEngine
from .spread import BROKERS, local


def test_R3_what_a_bridge_brings_for_a_queue_that_leaves_comes_after_it() -> None:
    """It was published before the rebuild, and is for the bridge to bring: its far end refuses it,
    as it does without a rebuild, and takes it when the queue has left."""
    bridge = {"name": "a-b", "from": "a", "to": "b", "subscriptions": ["t/1"]}
    engine = KeptEngine(
        parse_configuration(
            {"brokers": list(BROKERS), "queues": [local("q", "b", "t/1")], "bridges": [bridge]}
        )
    )
    engine.checking = True
    near = engine.connect("a", "app")
    engine.connect("b", "far").producer().send("q", b"1")
    producer = near.producer()
    engine.slow()
    move = c.encode_command(c.MoveQueue(queue="q", broker="c"))
    engine.command("default.commands", b"", move)
    for to, by in ("ba", "cb", "bc"):  # it leaves, until c says what it has
        engine.let(to=to, by=by)
    sent = producer.send_async("t/1", b"2")
    engine.let_in()
    assert engine.lose(dict.fromkeys(BROKERS, 0)) == 0
    engine.let(to="b", by="a")
    engine.haste()
    assert sent.result(0).message_id
    engine.advance("5s")
    assert [m.payload for m in near.admin().browse("q")] == [b"1", b"2"]
