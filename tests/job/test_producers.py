"""P: what producers are told, by the real job. (The text scenarios have no step for these.)"""

from __future__ import annotations

import json
import zlib

import lakequeue
import pytest
from job.conftest import Job, in_real_time
from kafka import KafkaProducer
from lakequeue.protocol.errors import Rejected

pytestmark = [pytest.mark.job, in_real_time]


def test_P1_a_retransmitted_message_is_stored_once(
    job: Job, connection: lakequeue.Connection
) -> None:
    """The same sequence again, as another copy of the producer would send it: the same id."""
    before = connection.admin().describe("producers")["spooled"]
    name = connection.new_name("P1")
    first = connection.producer(producer_id=name)
    receipt = first.send("producers", b'{"n": 1}')
    first.close()
    again = connection.producer(producer_id=name, first_sequence=1)
    repeated = again.send("producers", b'{"n": 1}')
    assert (repeated.message_id, repeated.duplicate) == (receipt.message_id, True)
    header = {"to": "producers", "producer": name, "seq": 1}
    plain = KafkaProducer(bootstrap_servers=job.kafka.bootstrap_servers)
    partition = zlib.crc32(name.encode()) % connection.publish_partitions
    lq = [("lq", json.dumps(header).encode())]
    plain.send("default.publish", b'{"n": 1}', headers=lq, partition=partition).get(30)
    plain.close()
    assert again.send("producers", b'{"n": 2}').message_id != receipt.message_id
    assert connection.admin().describe("producers")["spooled"] == before + 2
    connection.admin().purge("producers")


def test_P1_the_next_start_of_a_program_goes_on(connection: lakequeue.Connection) -> None:
    """Behind what the engine knows, over Kafka; the one before hears that it is superseded."""
    name = connection.new_name("P1")
    first, then = (connection.producer(producer_id=name) for _ in range(2))
    sent = [one.send("producers", b"{}") for one in (first, first, then)]
    assert [receipt.sequence for receipt in sent] == [1, 2, 3]
    assert len({receipt.message_id for receipt in sent}) == 3
    assert not any(receipt.duplicate for receipt in sent)
    with pytest.raises(Rejected, match="superseded"):
        first.send("producers", b"{}")
    connection.admin().purge("producers")


def test_P3_a_nack_names_its_message(connection: lakequeue.Connection) -> None:
    producer = connection.producer()
    bodies = [b"{}", b"x" * 101, b"{}", b"x" * 101, b"{}"]
    futures = [producer.send_async("producers", body) for body in bodies]
    nowhere = producer.send_async("no such queue", b"{}")
    for future, body in zip(futures, bodies, strict=True):
        if len(body) > 100:
            with pytest.raises(Rejected) as nack:
                future.result(60)
            assert (nack.value.reason, nack.value.queue) == ("message_too_large", "producers")
        else:
            assert future.result(60).message_id
    with pytest.raises(Rejected) as nack:
        nowhere.result(60)
    assert nack.value.reason == "no_matching_destination"
    connection.admin().purge("producers")


def test_P5_no_more_than_the_window_is_on_its_way(connection: lakequeue.Connection) -> None:
    producer = connection.producer(window=3)
    for _ in range(10):
        producer.send_async("producers", b"{}")
        assert len(producer.unacknowledged()) <= 3
    producer.flush(60)
    assert producer.unacknowledged() == []
    connection.admin().purge("producers")
