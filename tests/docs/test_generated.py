"""Generated parts are up to date; hand-written tables say what the code says."""

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import duckdb
import lakequeue
import msgspec
import pytest
from lakequeue.definitions import bridge, configuration, definition, units
from lakequeue.definitions.foreign_words import WORDS
from lakequeue.lake import create_views
from lakequeue.lake.views import VIEWS
from lakequeue.protocol import Reason, commands, table_format, wire
from lakequeue.protocol.journal import SCHEMA
from lakequeue.protocol.messages import Records
from lakequeue.protocol.outputs import Deliveries
from lakequeue.sinks.metric_table import SAMPLES
from lakequeue.state import Batch, Limits, step
from lakequeue.streaming.topics_admin import PARTITIONS
from rules.spread import Spread
from rules.test_moving_slowly import Slow

Table = Callable[[str, str], dict[str, list[str]]]
PARTS = (
    "failures", "publish-header", "commands", "inbox", "command-line", "metrics",
    "words-rabbitmq", "words-sqs", "words-jms", "words-celery", "words-kafka",
)  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_generated_parts_are_up_to_date(name: str, generate: ModuleType, root: Path) -> None:
    page, make = generate.PARTS[name]
    shown = generate.between((root / "docs" / page).read_text(), name)
    assert shown == make(), "run: python docs/generate.py"


def test_every_generated_part_is_tested(generate: ModuleType) -> None:
    assert set(generate.PARTS) == {*PARTS, "lifecycle"}


def test_every_word_of_another_system_is_shown_once(root: Path, generate: ModuleType) -> None:
    named = [name for systems in generate.SYSTEMS.values() for name in systems]
    assert sorted(named) == sorted({word.of for word in WORDS})
    text = (root / "docs/coming-from.md").read_text()
    for word in WORDS:
        assert len(re.findall(rf"^\| `{re.escape(word.theirs)}`", text, re.MULTILINE)) == 1


def test_every_command_is_described(root: Path) -> None:
    text = (root / "docs/reference/protocol.md").read_text()
    for kind in get_args(commands.AnyCommand):
        assert f"#### `{kind.__struct_config__.tag}`" in text


def test_every_topic_is_described(root: Path) -> None:
    text = (root / "docs/reference/protocol.md").read_text()
    for kind in PARTITIONS:  # the brokers' own have their section
        assert re.search(rf"\| `default\.{kind}` \| {PARTITIONS[kind]} \|", text), kind


def test_reasons(table: Table) -> None:
    assert set(table("reference/reasons-and-events.md", "reasons")) == set(Reason)


def test_keys_of_a_definition(table: Table) -> None:
    shown = table("reference/configuration.md", "queue")
    assert set(shown) == set(definition.KEYS)
    fields = {field.name: field for field in msgspec.structs.fields(definition.QueueDefinition)}
    depends = {"topic", "underlying_topic", "default_publish_target", "fairness_model"}
    for key, attribute in definition._ATTRIBUTE_OF.items():
        if key not in depends:
            assert shown[key][0].strip("`") == written(fields[attribute]), key


@pytest.mark.parametrize(
    ("name", "keys", "kind"),
    [
        ("system", configuration._SYSTEM_KEYS, configuration.SystemLimits),
        ("vpns", configuration._VPN_KEYS, configuration.VpnLimits),
    ],
)
def test_keys_of_limits(name: str, keys: dict[str, Any], kind: Any, table: Table) -> None:
    shown = table("reference/configuration.md", name)
    assert set(shown) == set(keys)
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for key, (attribute, _) in keys.items():
        assert shown[key][0].strip("`") == written(fields[attribute]), key


def test_keys_of_a_bridge(table: Table) -> None:
    shown = table("reference/configuration.md", "bridges")
    assert set(shown) == set(bridge._KEYS)
    assert shown["lanes"][0].strip("`") == bridge.PER_DESTINATION


def written(field: msgspec.structs.FieldInfo) -> str:
    """A default as the documentation writes it."""
    if field.required:
        return "required"
    value = field.default
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if field.name.endswith("_ms"):
        return units.format_duration(value)
    if field.name in ("max_spool_usage", "max_message_size"):
        return units.format_size(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize(
    ("name", "schema"), table_format.COLUMNS.items(), ids=list(table_format.COLUMNS)
)
def test_columns_of_tables(name: str, schema: str, table: Table) -> None:
    columns = [
        column.replace("`", "").split(maxsplit=1) for column in re.split(r", (?![^<]*>)", schema)
    ]
    shown = table("reference/delta-tables.md", name)
    assert [[key, row[0]] for key, row in shown.items()] == columns


def test_columns_of_the_views(table: Table) -> None:
    types = {"LONG": "BIGINT", "BINARY": "BLOB", "STRING": "VARCHAR", "TIMESTAMP": "TIMESTAMPTZ"}
    with duckdb.connect() as empty:
        schemas = {name: table_format.COLUMNS[name] for name in ("messages", "journal")}
        for name, schema in schemas.items():
            columns = [column.replace("`", "").split() for column in schema.split(",")]
            text = ", ".join(f'"{c}" {types.get(t, t)}' for c, t in columns)
            empty.execute(f"CREATE TABLE {name} ({text})")
        create_views(empty.execute, "duckdb")
        found = {name: [c[0] for c in empty.execute(f"FROM {name}").description] for name in VIEWS}
    shown = {name: re.findall("`(.*?)`", row[-1]) for name, row in
             table("how-to/sql.md", "views").items()}  # fmt: skip
    assert shown == found


def test_columns_of_the_journal_record(root: Path) -> None:
    text = (root / "docs/reference/protocol.md").read_text()
    section = text.partition("## Journal")[2].partition("\n## ")[0]
    assert [name for name in SCHEMA.names if f"`{name}`" not in section] == []


def test_headers_of_a_delivery(root: Path) -> None:
    dead = {"reason": "expired", "queue": "q", "time": 1, "deliveries": 1, "detail": "d"}
    delivery = Deliveries(
        "q", "s", "t", 0, "single", 7, barrier=True, ids=[1], numbers=[1], counts=[1],
        priorities=[4], expires=[9], times=[5], payloads=[b"a"], keys=[b"k"], headers=[None],
        dead={0: dead},
    )  # fmt: skip
    (record,) = wire.encode([delivery])
    text = (root / "docs/reference/protocol.md").read_text()
    for name, _ in wire.headers_list(record.headers):
        assert f"`{name}`" in text, name


def test_the_example_of_the_batch_framing(root: Path) -> None:
    delivery = Deliveries(
        "q", "s", "t", 0, "batch", 0, ids=[1, 2], numbers=[1, 2], counts=[1, 1], priorities=[4, 4],
        expires=[0, 0], times=[5, 5], payloads=[b"a", b"bc"], keys=[None, None],
        headers=[None, None],
    )  # fmt: skip
    (record,) = wire.encode([delivery])
    assert record.value is not None
    text = (root / "docs/reference/protocol.md").read_text()
    example = text.partition("published at 5 ms:")[2].partition("## Replies")[0]
    line = re.compile(r"^    ((?:[0-9a-f]{2} {1,2})*[0-9a-f]{2})(?: {2,}|$)", re.MULTILINE)
    parts = line.findall(example)
    assert len(parts) == 6
    assert all(bytes.fromhex(part) in record.value for part in parts), parts
    named = msgspec.msgpack.decode(record.value[4 : 4 + int.from_bytes(record.value[:4], "big")])
    assert [key for key in named if f"`{key}`" not in text] == []


def pages_of_offers(queue: dict[str, str]) -> set[str]:
    """What a broker keeps of publishes that another one has not said anything about."""
    queues = [queue | {"name": name, "broker": name, "subscriptions": [">"]} for name in "abc"]
    mesh = lakequeue.connect("memory://", config={"brokers": ["a", "b", "c"], "queues": queues})
    mesh.engine.brokers[2].is_stopped = True
    for partition in (0, 8):
        header = [("lq", b'{"to": "t"}')]
        mesh.engine.publish("default.publish", b"{}", None, header, partition=partition)
    return {key.partition("/")[0] for key in mesh.engine.store.pages}


def test_pages_of_the_state(table: Table) -> None:
    """An engine in which everything happens has pages of exactly these kinds."""
    brokers = ["broker-0", "broker-1"]
    connection = lakequeue.connect("memory://", config={"brokers": brokers})
    admin = connection.admin()
    admin.bridge({"name": "b", "to": "broker-1", "subscriptions": ["b/>"]})
    admin.bridge({"name": "c", "from": "kafka://far:1", "to": "broker-0", "subscriptions": [">"]})
    admin.define({"name": "orders", "message_type": "json"})
    admin.define(
        {
            "name": "all",
            "message_type": "json",
            "underlying_topic": "ord.*",
            "default_publish_target": "orders",
        }
    )
    admin.define({"name": "keyed", "message_type": "json", "partition_key": "/n"})
    connection.producer().send("keyed", b'{"n": 1}')
    admin.subscribe_topic("orders", "a/>")
    connection.producer().send("orders", b"{}", ttl="1h")
    connection.consumer("orders")
    for _ in range(3):
        connection.producer().send("orders", b'{"n": 1}')
    connection.consumer("orders", filter="/n = 1")  # takes one; the others wait in its index
    admin.define({"name": "urgent", "message_type": "json", "priority": "/n"})
    connection.consumer("urgent", filter="/n > 0")
    for n in (1, 2):  # the second comes before where the filter has looked to, and nobody has room
        connection.producer().send("urgent", b'{"n": %d}' % n)
    admin.define({"name": "fenced", "message_type": "json", "barrier_expression": "/n = 1"})
    connection.producer().send("fenced", b'{"n": 1}')
    engine = connection.engine
    engine.instruct("default", commands.encode_command(commands.Tables()))
    connection.producer(durability="delta").send_async("urgent", b'{"n": 3}')
    engine.command("default.commands", b"", b"not a command")
    early = commands.encode_command(commands.Ack(queue="orders", ids="1000"))
    engine.command("default.commands", b"", early)
    purge = commands.encode_command(commands.Purge(queue="orders"))
    topic = ["default.commands"]
    records = Records(topic, [0], [9], [0], [None], [purge], [None], [None])
    limits = Limits(command_rows=1, bulk_rows=1)
    step(engine.store, Batch(commands=records), engine.now, limits=limits)
    found = {key.partition("/")[0] for key in engine.store.pages}
    local = {"name": "here", "type": "LocalQueue", "message_type": "json"}
    orders = {"name": "orders", "message_type": "json", "barrier_expression": "/b = 1"}
    queues = [orders, local | {"dead_message_queue": "orders"}]
    queues += [local | {"name": "dies", "broker": "a", "dead_message_queue": "far"}]
    queues += [local | {"name": "far", "broker": "b"}, local | {"name": "near", "broker": "a"}]
    queues += [local | {"name": "back", "broker": "b", "dead_message_queue": "near"}]
    mesh = lakequeue.connect("memory://", config={"brokers": ["a", "b"], "queues": queues})
    consumer = mesh.consumer("orders")  # of `a`; it gets what `b` took in, and the barrier waits
    for payload in (b"{}", b'{"b": 1}'):
        header = [("lq", b'{"to": "orders"}')]
        mesh.engine.publish("default.publish", payload, None, header, partition=8)
    assert consumer.receive() is not None
    for name in ("dies", "back"):
        mesh.producer().send(name, b"{}", ttl="1s")
    mesh.advance("1s")
    mesh.engine.brokers[1].is_stopped = True  # what it is to carry out stays open
    mesh.ask(commands.Define(definition=local | {"name": "there", "broker": "b"}), lambda _: None)
    mesh.ask(commands.Redrive(queue="near"), lambda _: None)
    found |= {key.partition("/")[0] for key in mesh.engine.store.pages}
    found |= pages_of_offers(local)
    moves = Slow()
    moves.set_out()
    moves.leave()
    found |= {key.partition("/")[0] for key in moves.engine.broker("b").store.pages}
    found |= pages_while_the_directory_changes_hands(local)
    shown = table("internals/state.md", "pages")
    assert found == {key.partition("/")[0] for key in shown}


def pages_while_the_directory_changes_hands(queue: dict[str, str]) -> set[str]:
    spread = Spread()
    spread.engine.cut("c")
    asked = [commands.RemoveBroker(broker="a"), commands.Define(definition=queue)]
    for command in asked:
        spread.at["b"].ask(command, lambda _: None)
    return {key.partition("/")[0] for key in spread.engine.broker("b").store.pages}


def test_code_of_the_state_exists(table: Table, root: Path) -> None:
    for row in table("internals/state.md", "pages").values():
        assert (root / row[-1].strip("`")).is_file(), row


def test_metrics_of_the_dashboard(root: Path) -> None:
    text = (root / "conf/grafana/dashboards/lakequeue.json").read_text()
    used = set(re.findall(r"lakequeue_\w+", text))
    assert used
    assert used <= SAMPLES


@pytest.mark.parametrize("mode", ["auto", "client", "individual", "dups_ok", "pre_ack", "no_ack"])
def test_acknowledgement_modes(mode: str, root: Path) -> None:
    from lakequeue.client.acking import ACK_MODES

    assert mode in ACK_MODES
    assert len(ACK_MODES) == 6
    assert f"| `{mode}`" in (root / "docs/concepts/acknowledgements.md").read_text()
