"""Records that Kafka deleted before they were read are events of the queues and VPNs concerned."""

from pathlib import Path
from typing import Any

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.definitions.configuration import configure_commands
from lakequeue.protocol import NotConnected
from lakequeue.protocol import commands as c
from lakequeue.protocol.journal import Journal
from lakequeue.state import Batch
from lakequeue.state.commands.administration import OF_TOPICS
from lakequeue.streaming import Engine
from lakequeue.streaming.watch.batch_notes import Loss
from rules.steps import Steps, define, of, started

QUEUES: list[dict[str, Any]] = [
    {"name": "orders", "message_type": "json"},
    {"name": "flights", "message_type": "json", "underlying_topic": "radar"},
    {"name": "seen", "vpn": "east", "message_type": "json", "underlying_topic": "rad.*",
     "default_publish_target": "radar"},
    {"name": "other", "vpn": "east", "message_type": "json"},
]  # fmt: skip
CONFIGURATION = parse_configuration({"vpns": {"default": {}, "east": {}}, "queues": QUEUES})


class Told:
    """Passes an engine's commands to a step."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, bytes, bytes]] = []

    def command(self, topic: str, key: bytes, value: bytes, partition: int = 0) -> None:
        self.commands.append((topic, key, value))


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    made = Engine("127.0.0.1:1", tmp_path, CONFIGURATION)
    made._transport = Told()  # type: ignore[assignment]
    return made


def events_after(engine: Engine) -> list[dict[str, Any]]:
    """The losses in the journal, once the step has taken the engine's commands."""
    steps = Steps()
    given = configure_commands(CONFIGURATION)
    steps.step_alone(Batch(steps.instructions(given)))
    sent = engine._transport.commands  # type: ignore[attr-defined]
    assert {topic for topic, _, _ in sent} == {"broker-0.instructions"}
    records = steps.instructions([(key.decode(), value) for _, key, value in sent])
    out = steps.step_alone(Batch(records))
    rows = [row for o in of(Journal, out) for row in o.rows()]
    return [row for row in rows if row["event"] in OF_TOPICS]


def counted(engine: Engine, topic: str) -> float | None:
    name = "lakequeue_lost_records_total"
    value: float | None = engine.metrics.registry.get_sample_value(name, {"topic": topic})
    return value


def test_a_loss_in_a_vpns_topic_is_its_event(engine: Engine) -> None:
    engine._notes("broker-0", "lost:east.publish:17")
    (row,) = events_after(engine)
    assert (row["vpn"], row["queue"]) == ("east", "")
    assert row["reason"] == "topic=east.publish, records=17, reader=engine"


def test_a_loss_in_a_captured_topic_is_an_event_of_each_queue(engine: Engine) -> None:
    engine._notes("broker-0", "lost:radar:3")
    found = [(row["vpn"], row["queue"]) for row in events_after(engine)]
    assert found == [("default", "flights"), ("east", "seen")]


@pytest.mark.parametrize(
    ("note", "event"), [("anew", "topic_made_anew"), ("back", "kafka_went_back")]
)
def test_a_recreated_or_rewound_topic_is_an_event_of_each_queue(
    engine: Engine, note: str, event: str
) -> None:
    engine._notes("broker-0", f"{note}:radar:3")
    found = [(row["event"], row["vpn"], row["queue"]) for row in events_after(engine)]
    assert found == [(event, "default", "flights"), (event, "east", "seen")]
    assert counted(engine, "radar") is None


def test_records_lost_after_the_tables_read_them_end_no_session(
    engine: Engine,
) -> None:
    engine.application._on_back("lakequeue-history", "default.commands", 3)
    (row,) = events_after(engine)
    assert (row["event"], row["reason"]) == (
        "kafka_went_back", "topic=default.commands, records=3, reader=tables",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("query", "reader"), [("lakequeue", "engine"), ("lakequeue-tables", "tables")]
)
def test_a_loss_found_by_sparks_source_names_its_reader(
    engine: Engine, query: str, reader: str
) -> None:
    engine._losses._on_loss(Loss("default.publish", 0, 5, 25, query))
    (row,) = events_after(engine)
    assert row["reason"] == f"topic=default.publish, records=20, reader={reader}"
    assert counted(engine, "default.publish") == 20


def test_the_events_command_shows_a_loss_only_to_its_tenant() -> None:
    topics = ("default.publish", "east.publish", "orders", "nowhere")
    steps = started(define(), *[c.RecordsLost(topic=topic, records=2) for topic in topics])
    losses = steps.events("records_lost")
    shown = [(e["vpn"], e["queue"], e["topic"], e["records"], e["reader"]) for e in losses]
    assert shown == [
        ("default", "", "default.publish", 2, "engine"),
        ("default", "orders", "orders", 2, "engine"),
    ]


def test_kafka_away_loses_only_the_event(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    def away(*_: Any) -> None:
        raise NotConnected("nobody is there")

    engine._transport.command = away  # type: ignore[method-assign]
    engine._notes("broker-0", "lost:default.publish:17")
    assert "no event reports the loss: nobody is there" in caplog.text
