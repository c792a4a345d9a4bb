"""A bridge to another Kafka (H1): two VPNs of one Kafka stand for two homes, which are reached in
the same way. Whatever copies may end at any moment and begin again anywhere before."""

from __future__ import annotations

import time
from typing import Any

import lakequeue
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from job.conftest import FAR_VPN, Job, in_real_time
from job.processes import until
from lakequeue.protocol import topics
from lakequeue.streaming.bridges.home_copier import HomeCopier

pytestmark = [pytest.mark.job, in_real_time]

SUBSCRIPTIONS = ["between/>"]


def copier_of(job: Job) -> HomeCopier:
    return job.engine.bridges._copiers["default", "between"]


def begin_again(job: Job, from_the_first: bool) -> None:
    """What copies ends, and another one begins where that was, or at the very first record."""
    before = copier_of(job)
    before.stop()
    before.join(20)
    assert not before.is_alive()
    if from_the_first:
        group = f"lakequeue.bridge.{job.engine.epoch}.default.between"
        place = TopicPartition(topics.topic("broker-0", topics.BRIDGE_OUT), 0, 0, "{}")
        admin = AdminClient({"bootstrap.servers": job.kafka.bootstrap_servers})
        asked = ConsumerGroupTopicPartitions(group, [place])
        for done in admin.alter_consumer_group_offsets([asked]).values():
            done.result(20)
    after = HomeCopier(job.kafka.bootstrap_servers, job.engine.epoch, before.bridge)
    job.engine.bridges._copiers["default", "between"] = after
    after.start()


def test_h1_nothing_is_lost_or_doubled_over_a_bridge_to_another_kafka(
    job: Job, connection: lakequeue.Connection
) -> None:
    near = connection.admin()
    job.engine.bridges._trimmed_at = time.monotonic() + 3_600  # what was copied stays, to be again
    with lakequeue.connect(job.url, vpn=FAR_VPN, client_name="far") as far:
        bridge = {"name": "between", "subscriptions": SUBSCRIPTIONS}
        here = {**bridge, "to": f"{job.url}/{FAR_VPN}"}
        near.bridge(here)

        def seen() -> dict[str, Any]:
            return near.describe_bridge("between")

        until(lambda: "define bridge 'between' there" in seen()["why"], 40, "its sentence")
        far.admin().bridge({**bridge, "from": job.url, "to": "broker-0"})
        far.admin().define(
            {"name": "arrived", "message_type": "text", "subscriptions": SUBSCRIPTIONS}
        )
        until(lambda: seen()["state"] == "open", 60, "that it is open")
        with connection.producer(window=200) as producer:
            for n in range(300):
                producer.send(f"between/{n % 3}", str(n).encode())
                if n in (100, 200):
                    until(lambda: seen()["taken"] > 0, 30, "that something was copied")
                    begin_again(job, from_the_first=n == 200)
        got: list[int] = []
        with far.consumer("arrived", max_backlog=100) as consumer:
            deadline = time.monotonic() + 60
            while len(got) < 300 and time.monotonic() < deadline:
                message = consumer.receive(timeout=1)
                if message is not None:
                    got.append(int(message.payload))
                    message.ack()
            assert consumer.receive(timeout=1) is None
        assert sorted(got) == list(range(300))
        for rest in range(3):
            own = [n for n in got if n % 3 == rest]
            assert own == sorted(own)
        until(lambda: seen()["taken"] == 300, 30, "all answers")
        arrived = far.admin().describe_bridge("between")
        assert (arrived["taken"], arrived["state"]) == (300, "open")
        assert arrived["repeated"] > 0
        assert arrived["home"] == {"epoch": job.engine.epoch, "broker": "broker-0"}
        near.bridge({**here, "to": job.url})
        until(lambda: "is this home itself" in seen()["why"], 30, "that it is home")
        near.delete_bridge("between")
        far.admin().delete_bridge("between")
