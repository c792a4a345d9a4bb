"""What is asked for at length comes in parts, and the client asks for the next one."""

from client.threaded import connect
from lakequeue.definitions import parse_configuration
from lakequeue.memory import MemoryEngine
from lakequeue.state import Limits

NAMES = [f"queue-{n}" for n in range(7)]


def small() -> MemoryEngine:
    """An engine that gives three messages or two queues at a time."""
    queues = [{"name": name, "message_type": "json"} for name in NAMES]
    limits = Limits(browse_rows=3, queues_listed=2)
    return MemoryEngine(parse_configuration({"queues": queues}), limits)


def test_R6_all_queues_and_as_many_messages_as_were_asked_for_come() -> None:
    connection, wire = connect(small())
    producer, admin = connection.producer(), connection.admin()
    assert [q["name"] for q in admin.queues()] == NAMES
    assert len(wire.said("queues")) > 1
    for n in range(10):
        producer.send(NAMES[0], b"%d" % n)
    assert [m.payload for m in admin.browse(NAMES[0], limit=100)] == [b"%d" % n for n in range(10)]
    assert len(wire.said("browse")) > 1
    for options in ({}, {"where": "/a IS NULL"}):
        assert [m.id for m in admin.browse(NAMES[0], limit=7, **options)] == list("1234567")
