"""Which connections share an engine in the process, and how long it lives."""

import gc

import lakequeue
import pytest
from lakequeue.protocol import ConfigError

ORDERS = {"name": "orders", "message_type": "json"}


def test_connections_to_one_name_share_an_engine() -> None:
    with lakequeue.connect("memory://shared") as one, lakequeue.connect("memory://shared") as two:
        one.admin().define(ORDERS)
        one.producer().send("orders", b"{}")
        assert two.admin().describe("orders")["depth"] == 1


def test_the_last_close_ends_it() -> None:
    one, two = lakequeue.connect("memory://ends"), lakequeue.connect("memory://ends")
    one.admin().define(ORDERS)
    one.close()
    one.close()
    assert [q["name"] for q in two.admin().queues()] == ["orders"]
    two.close()
    with lakequeue.connect("memory://ends") as again:
        assert again.admin().queues() == []


def test_so_does_forgetting_the_last() -> None:
    forgotten = lakequeue.connect("memory://forgotten")
    forgotten.admin().define(ORDERS)
    forgotten.producer().send("orders", b"{}")
    del forgotten
    gc.collect()
    with lakequeue.connect("memory://forgotten") as again:
        assert again.admin().queues() == []


def test_unless_it_is_kept() -> None:
    with lakequeue.connect("memory://kept?keep=true") as one:
        one.admin().define(ORDERS)
    with lakequeue.connect("memory://kept") as two:
        assert [q["name"] for q in two.admin().queues()] == ["orders"]


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("memory://x?keep=yes", "keep: 'yes' – allowed are true and false"),
        ("memory://?keep=true", "keep: 'true' – allowed are .*, for an engine with a name"),
        ("memory://x?kepe=true", "url: 'kepe' – allowed in a memory:// url are 'config' and 'kee"),
        ("amqp://x", "url: 'amqp://x' – allowed are 'kafka://HOST:PORT' and 'memory://NAME'"),
    ],
)
def test_a_wrong_address_is_named(url: str, found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        lakequeue.connect(url)


def test_what_only_memory_can_do_says_so_elsewhere() -> None:
    from client.threaded import connect, engine

    connection, _ = connect(engine(ORDERS))
    consumer = connection.consumer("orders")
    for call in (
        lambda: connection.advance("1s"),
        lambda: connection.publish_raw("orders", b"{}"),
        consumer.kill,
    ):
        with pytest.raises(ConfigError, match="works on memory:// only"):
            call()
    connection.close()
