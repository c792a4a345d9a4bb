"""Generated parts are up to date; hand-written tables agree with the code."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import lakequeue
import msgspec
import pytest
from client.threaded import connect
from docs.printed import ROOT, table
from lakequeue.client.consumer import settling
from lakequeue.definitions import bridge, configuration, definition, parse_configuration
from lakequeue.definitions.definition_values import keys_of
from lakequeue.definitions.foreign_words import WORDS
from lakequeue.docs import generate
from lakequeue.lake import create_views
from lakequeue.lake.views import VIEWS
from lakequeue.memory import MemoryEngine
from lakequeue.protocol import Reason, table_format, units, wire
from lakequeue.protocol.journal_encoding import SCHEMA
from lakequeue.protocol.outputs import Deliveries
from lakequeue.state import Limits
from lakequeue.state.queue.table import NAMES, TABLE, Event
from lakequeue.state.storage.row import GONE
from lakequeue.streaming.kafka.topics_admin import PARTITIONS

DOCS = ROOT / "docs"
PROTOCOL = (DOCS / "reference/protocol.md").read_text()


@pytest.mark.parametrize("name", generate.PARTS)
def test_generated_parts_are_up_to_date(name: str) -> None:
    page, make = generate.PARTS[name]
    shown = generate.between((DOCS / page).read_text(), name)
    assert shown == make(), "run: python -m lakequeue.docs.generate"


@pytest.mark.parametrize("place", [ROOT, DOCS, ROOT.parent], ids=["root", "docs", "elsewhere"])
def test_pages_are_generated_from_any_directory(place: Path) -> None:
    """With `-m`, Python looks for modules in the working directory first."""
    asked = "from lakequeue.docs import generate; print(generate.failures())"
    done = subprocess.run([sys.executable, "-c", asked], cwd=place, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (generate.failures(), "")


def test_every_transition_is_in_a_row() -> None:
    rows = [re.split(r" *\| *", line.strip("| ")) for line in generate.lifecycle().splitlines()[2:]]
    names = {**NAMES, GONE: "new"}
    for event, what in TABLE.items():
        (row,) = [row for row in rows if row[1] == event.value]
        assert set(row[0].split(", ")) == {names[state] for state in what.before}
        assert [row[2], row[4]] == [NAMES[what.to], what.rules]
    assert len(rows) == len(TABLE) == len(Event)


def test_states_have_names() -> None:
    used = [{*what.before, what.to} for what in TABLE.values()]
    assert set().union(*used) == set(NAMES)


def test_every_word_of_another_system_is_shown_once() -> None:
    named = [name for systems in generate.SYSTEMS.values() for name in systems]
    assert sorted(named) == sorted({word.of for word in WORDS})
    text = (DOCS / "reference/keys-of-other-systems.md").read_text()
    assert [word for word in WORDS if text.count(f"`{word.theirs}`") != 1] == []


def test_every_topic_is_described() -> None:
    for kind, count in PARTITIONS.items():  # the brokers' own have their section
        assert re.search(rf"\| `default\.{kind}` \| {count} \|", PROTOCOL), kind


def test_reasons() -> None:
    assert set(table("reference/reasons-and-events.md", "reasons")) == set(Reason)


# Keys with defaults that depend on others.
DEPENDS = {"topic", "underlying_topic", "default_publish_target", "fairness_model"}
QUEUE = {key: attribute for key, (attribute, _) in definition._READERS.items()}
SYSTEM = {key: attribute for key, (attribute, _) in keys_of(configuration.SystemLimits).items()}
VPNS = {key: attribute for key, (attribute, _) in keys_of(configuration.VpnLimits).items()}


@pytest.mark.parametrize(
    ("name", "attributes", "kind"),
    [
        ("queue", QUEUE, definition.QueueDefinition),
        ("system", SYSTEM, configuration.SystemLimits),
        ("vpns", VPNS, configuration.VpnLimits),
    ],
)
def test_keys_and_their_defaults(name: str, attributes: dict[str, str], kind: Any) -> None:
    shown = table("reference/configuration.md", name)
    assert set(shown) == set(attributes)
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    wanted = {key: written(fields[attributes[key]]) for key in set(attributes) - DEPENDS}
    assert {key: shown[key][0].strip("`") for key in wanted} == wanted


def test_keys_of_a_bridge() -> None:
    shown = table("reference/configuration.md", "bridges")
    assert set(shown) == set(bridge._KEYS)
    assert shown["lanes"][0].strip("`") == bridge.PER_DESTINATION


def written(field: msgspec.structs.FieldInfo) -> str:
    """A default in the documentation's form."""
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


@pytest.mark.parametrize("name", ["messages", "journal", "commands"])
def test_columns_of_tables(name: str) -> None:
    columns = re.split(r", (?![^<]*>)", table_format.COLUMNS[name].replace("`", ""))
    shown = table("reference/delta-tables.md", name)
    assert [[key, row[0]] for key, row in shown.items()] == [c.split(maxsplit=1) for c in columns]


def test_columns_of_the_views() -> None:
    types = {"LONG": "BIGINT", "BINARY": "BLOB", "STRING": "VARCHAR", "TIMESTAMP": "TIMESTAMPTZ"}
    with duckdb.connect() as empty:
        for name in ("messages", "journal"):
            columns = [c.split() for c in table_format.COLUMNS[name].replace("`", "").split(",")]
            text = ", ".join(f'"{c}" {types.get(t, t)}' for c, t in columns)
            empty.execute(f"CREATE TABLE {name} ({text})")
        create_views(empty.execute, "duckdb")
        found = {name: [c[0] for c in empty.execute(f"FROM {name}").description] for name in VIEWS}
    views = table("reference/delta-tables.md", "views")
    assert {name: re.findall("`(.*?)`", row[-1]) for name, row in views.items()} == found


def test_columns_of_the_journal_record() -> None:
    section = PROTOCOL.partition("## Journal")[2].partition("\n## ")[0]
    assert [name for name in SCHEMA.names if f"`{name}`" not in section] == []


def test_headers_of_a_delivery() -> None:
    dead = {"reason": "expired", "queue": "q", "time": 1, "deliveries": 1, "detail": "d"}
    delivery = Deliveries(
        "q", "s", "t", 0, "single", 7, barrier=True, ids=[1], numbers=[1], counts=[1],
        priorities=[4], expires=[9], times=[5], payloads=[b"a"], keys=[b"k"], headers=[None],
        dead={0: dead},
    )  # fmt: skip
    (record,) = wire.encode([delivery])
    named = [name for name, _ in wire.headers_list(record.headers)]
    assert [name for name in named if f"`{name}`" not in PROTOCOL] == []


def test_the_example_of_the_batch_framing() -> None:
    delivery = Deliveries(
        "q", "s", "t", 0, "batch", 0, ids=[1, 2], numbers=[1, 2], counts=[1, 1], priorities=[4, 4],
        expires=[0, 0], times=[5, 5], payloads=[b"a", b"bc"], keys=[None, None],
        headers=[None, None],
    )  # fmt: skip
    (record,) = wire.encode([delivery])
    assert record.value is not None
    example = PROTOCOL.partition("published at 5 ms:")[2].partition("## Replies")[0]
    line = re.compile(r"^    ((?:[0-9a-f]{2} {1,2})*[0-9a-f]{2})(?: {2,}|$)", re.MULTILINE)
    parts = line.findall(example)
    assert len(parts) == 6
    assert all(bytes.fromhex(part) in record.value for part in parts), parts
    named = msgspec.msgpack.decode(record.value[4 : 4 + int.from_bytes(record.value[:4], "big")])
    assert [key for key in named if f"`{key}`" not in PROTOCOL] == []


def kinds(pages: dict[str, bytes]) -> set[str]:
    """Keys without their numbers."""
    return {"/".join(part for part in key.split("/") if not part.isdigit()) for key in pages}


def test_pages_of_the_state() -> None:
    """Brokers with all features have pages of exactly these kinds."""
    # Nearly everything is cold at once.
    small = Limits(live_rows=2, segment_rows=2, block_bytes=40, file_bytes=200)
    queues = [{"name": "orders", "message_type": "json"}, {"name": "audit", "message_type": "json"}]
    both = [queue | {"subscriptions": ["t"]} for queue in queues]
    engine = MemoryEngine(parse_configuration({"queues": both}), small)
    connection, _ = connect(engine)
    connection.consumer("audit")
    for _ in range(20):
        connection.producer().send("t", b'{"n": 1}')
        connection.producer().send("orders", b"{}", delay="1h")
    found = kinds(engine.store.pages)
    local = {"type": "LocalQueue", "message_type": "json"}
    far = {"name": "far", "broker": "b", **local}
    config = {"brokers": ["a", "b"], "queues": [far, *queues]}
    mesh = lakequeue.connect("memory://pages", config=config, broker="a")
    mesh.producer().send("far", b"{}")
    lakequeue.connect("memory://pages", broker="b").consumer("orders")
    mesh.admin().bridge({"name": "c", "to": "kafka://far:1", "subscriptions": ["x"]})
    mesh.producer().send("x", b"{}")
    for broker in mesh.engine.brokers:
        found |= kinds(broker.store.pages)
    shown = {re.sub(r"/<\w+>", "", key) for key in table("internals/state.md", "pages")}
    inner = {"c/i", "d/i"}  # listed with their runs
    assert found - inner == shown


def test_code_of_the_state_exists() -> None:
    files = [row[-1].strip("`") for row in table("internals/state.md", "pages").values()]
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_acknowledgement_modes() -> None:
    text = (DOCS / "concepts/acknowledgements.md").read_text()
    assert [mode for mode in settling.ACK_MODES if f"| `{mode}`" not in text] == []
