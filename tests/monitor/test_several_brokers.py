"""Page and terminal of an engine with several brokers: queues on any broker, queues with several
hosts added up with each host's share, and brokers that do not answer (Q5, H4)."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import lakequeue
import pytest
from lakequeue.monitor import terminal
from lakequeue.monitor.engine_figures import EngineFigures
from lakequeue.monitor.snapshot import VpnMonitor
from lakequeue.monitor.terminal import Screen
from monitor.cases import send
from monitor.test_page import METRICS, Served
from rich.console import Console

_names = itertools.count()
QUEUE = {"message_type": "json"}
CONFIG = {
    "brokers": ["east", "west"],
    "queues": [
        QUEUE | {"name": "near", "type": "LocalQueue", "broker": "east"},
        QUEUE | {"name": "far", "type": "LocalQueue", "broker": "west"},
        QUEUE | {"name": "both"},
    ],
}


@pytest.fixture
def mesh() -> Iterator[Any]:
    """A connection to the first broker; `.west` is one to the second."""
    url = f"memory://mesh-page-{next(_names)}"
    east = lakequeue.connect(url, config=CONFIG)
    east.case_url = url
    east.west = lakequeue.connect(url, broker="west")
    send(east, "near", {"n": 1})
    send(east, "far", *({"n": n} for n in range(2)))
    send(east, "both", *({"n": n} for n in range(3)))
    send(east.west, "both", *({"n": n} for n in range(4)))
    yield east
    east.west.close()
    east.close()


@pytest.fixture
def vpn_monitor(mesh: Any) -> Iterator[VpnMonitor]:
    """Its snapshots take no time, so each request makes a new one."""
    one = VpnMonitor(lambda: lakequeue.connect(mesh.case_url), every_s=0, clock=lambda: 1.0)
    yield one
    one.close()


def cells(text: str, row: str) -> list[str]:
    """A table row's cells, without markup."""
    found = re.search(rf'<tr>\s*<th scope="row">(?:<a[^>]*>)?{row}\b.*?</tr>', text, re.S)
    assert found, row
    parts = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", found[0], re.S)
    return [" ".join(unescape(re.sub("<[^>]+>", "", part)).split()) for part in parts]


def test_queues_of_all_brokers_are_shown(mesh: Any, vpn_monitor: VpnMonitor) -> None:
    seen = vpn_monitor.look()
    depths = {queue["name"]: queue["depth"] for queue in seen.queues}
    assert depths == {"near": 1, "far": 2, "both": 7}
    assert {name: len(look.queues) for name, look in seen.brokers.items()} == {"east": 2, "west": 2}
    assert vpn_monitor.past()[-1].depth == 10
    assert {event["queue"] for event in seen.events if event["event"] == "defined"} == set(depths)
    assert seen.events == sorted(seen.events, key=lambda event: event["time"])


def test_the_page_shows_each_brokers_share(mesh: Any) -> None:
    page = Served(mesh.case_url)
    text = page.get("/")
    assert cells(text, "both")[1] == "7"
    assert cells(text, "east")[:5] == ["east", "running", "–", "2", "4"]
    assert cells(text, "west")[:5] == ["west", "running", "–", "2", "6"]
    assert "each</small>" in text  # limits hold for each broker
    text = page.get("/queue?name=both")
    assert cells(text, "east")[1:3] == ["3", "3"]
    assert cells(text, "west")[1:3] == ["4", "4"]
    assert "east, west: No consumer is subscribed" not in text  # each has its own number
    assert "east: No consumer is subscribed: 3 messages wait" in text
    assert "It is on broker west." in page.get("/queue?name=far")
    assert cells(page.get("/engine"), "west")[1] == "running"
    page.close()


def test_messages_wait_for_consumers_elsewhere(mesh: Any, vpn_monitor: VpnMonitor) -> None:
    """A host without consumers gives its messages to others' (H4): those consumers are full."""
    consumer = mesh.west.consumer("both", max_backlog=1, ack_mode="individual", name="worker")
    queue, messages = vpn_monitor.queue("both")
    texts = [reason["text"] for reason in queue["why"]]
    full = "The backlog of every consumer is full: worker holds 1 of 1. An ack makes room."
    assert texts == [f"east, west: {full}"]
    assert [m.state for m in messages].count("leased") == 1
    consumer.close()


def test_a_stopped_broker_hides_no_other(mesh: Any, vpn_monitor: VpnMonitor) -> None:
    vpn_monitor.look()
    mesh.engine.brokers[1].is_stopped = True
    send(mesh, "near", {"n": 2})
    seen = vpn_monitor.look()
    assert {q["name"]: q["depth"] for q in seen.queues} == {"near": 2, "far": 2, "both": 7}
    said = "Broker west is failed: the last answer is shown."
    assert (seen.problem, seen.silent) == ("", said)
    assert vpn_monitor.queue("both")[0]["depth"] == 3  # messages of the other hosts
    with pytest.raises(lakequeue.LakequeueError, match=r"'far'; broker west is failed"):
        vpn_monitor.queue("far")
    page = Served(mesh.case_url)
    text = page.get("/")
    assert said in text
    assert '<span class="badge bad">failed</span>' in text
    assert "far" not in text.partition("<tbody>")[2].partition("both")[2]  # it never reported
    page.close()
    mesh.engine.brokers[0].is_stopped = True
    assert vpn_monitor.look().problem == "Broker east is failed; Broker west is failed"
    for broker in mesh.engine.brokers:
        broker.is_stopped = False


def test_the_terminal_shows_all_brokers(mesh: Any, vpn_monitor: VpnMonitor) -> None:
    def shown(view: Screen) -> str:
        console = Console(width=160, height=40, file=io.StringIO(), record=True)
        console.print(terminal.screen(vpn_monitor, view, 40))
        return console.export_text()

    text = shown(Screen())
    assert "east running" in text
    assert "west running" in text
    assert re.search(r"both +7 ", text)
    assert re.search(r"far +2 ", text)
    text = shown(Screen("both", open=True))
    assert "on east: depth 3, ready 3" in text
    assert "on west: depth 4, ready 4" in text
    mesh.engine.brokers[1].is_stopped = True
    assert "Broker west is failed" in shown(Screen())
    mesh.engine.brokers[1].is_stopped = False


def test_waiting_times_combine_all_hosts(mesh: Any) -> None:
    """Cumulative counts of two brokers are added, not read as one growing series."""
    two = METRICS + "".join(
        line.replace('broker="b"', 'broker="c"').replace(" 10\n", " 30\n")
        for line in METRICS.splitlines(keepends=True)[-3:]
    )
    figures = EngineFigures(lambda: two)
    assert figures.times("default", "orders")["waiting"] == [
        pytest.approx(0.3),
        pytest.approx(0.496),
    ]
