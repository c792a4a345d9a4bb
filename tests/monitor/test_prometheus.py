"""The rules and dashboards in `conf/`: their metrics exist, and alerts fire when they should.

Debian's package `prometheus` brings `prometheus` and `promtool`; `make tools` installs it where it
is missing.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lakequeue
import pytest
import yaml
from lakequeue.sinks.metric_table import BY_NAME, SAMPLES, TABLE
from lakequeue.sinks.metrics import Metrics
from lakequeue.streaming.watch.queue_watch import QueueWatch
from monitor.cases import CASES, prepared

CONF = Path(__file__).resolve().parents[2] / "conf"
RULES = CONF / "prometheus-rules.yml"
BOARDS = sorted((CONF / "grafana/dashboards").glob("*.json"))
OURS = {"job", "instance", "le", "alertname", "alertstate"}  # labels that Prometheus adds
URL = "memory://prometheus"


def program(name: str) -> str:
    """The program's path."""
    found = shutil.which(name)
    assert found, f"no {name}: apt-get install prometheus (Debian)"
    return found


def promtool(*arguments: str) -> str:
    done = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> list[tuple[str, str, str]]:
    """Every expression: its place, its text, and the text that shows its labels."""
    found = [
        (rule["alert"], rule["expr"], " ".join(rule["annotations"].values())) for rule in rules()
    ]
    for board in BOARDS:
        shown = json.loads(board.read_text())
        for panel in shown["panels"]:
            for target in panel["targets"]:
                found.append((panel["title"], target["expr"], target["legendFormat"]))
        for variable in shown["templating"]["list"]:
            found.append((variable["name"], variable["query"], ""))
    return found


@pytest.mark.parametrize(("place", "expression", "text"), expressions())
def test_metrics_and_labels_are_there(place: str, expression: str, text: str) -> None:
    names = set(re.findall(r"\blakequeue_\w+", expression))
    assert names or expression.startswith("up{"), place
    assert names <= SAMPLES, place
    labels = {label for m in TABLE if names & set(m.samples) for label in m.labels} | OURS
    used = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", expression))
    for by in re.findall(r"by \(([^)]*)\)", expression):
        used |= {name.strip() for name in by.split(",")}
    used |= set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text)) - {"end"}
    used |= set(re.findall(r"\$labels\.(\w+)", text))
    assert used <= labels, place


def test_every_metric_of_the_queues_is_on_a_dashboard() -> None:
    text = "".join(board.read_text() for board in BOARDS)
    named = {name for name in SAMPLES if name in text}
    missing = {m.name for m in TABLE if not named & set(m.samples) and m.source == "queue"}
    assert missing == set()


def test_promtool_accepts_the_configuration() -> None:
    said = promtool("check", "config", str(CONF / "prometheus.yml"))
    assert f"{len(rules())} rules found" in said


def test_rules_fire_when_they_should(tmp_path: Path) -> None:
    cases = Path(__file__).with_name("rules_test.yml").read_text().replace("RULES", str(RULES))
    (tmp_path / "cases.yml").write_text(cases)
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "cases.yml"))


# ------------------------------------------------------------ a real Prometheus


class Prometheus:
    """A Prometheus that scrapes an engine in memory every half second and evaluates our rules at
    once."""

    def __init__(self, folder: Path, target: str) -> None:
        hurried = re.sub(r"for: \w+", "for: 1s", RULES.read_text())
        (folder / RULES.name).write_text(hurried)
        config = yaml.safe_load((CONF / "prometheus.yml").read_text())
        config["global"] = {
            "scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms",
        }  # fmt: skip
        config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._process = subprocess.Popen(
            [program("prometheus"), f"--config.file={folder}/prometheus.yml",
             f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{self._port}"],
            stdout=subprocess.DEVNULL, stderr=(folder / "log").open("wb"),
        )  # fmt: skip

    def ask(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/{path}") as answer:
                return json.load(answer)["data"]
        except OSError:  # it is starting
            return {}

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus on the engine of the prepared cases."""
    engine, metrics = prepared(URL), Metrics()

    def connect(vpn: str) -> Any:
        return lakequeue.connect(URL)

    watch = QueueWatch("", ["default"], metrics.queues, connect, 0.2)
    metrics.wanted = watch.wanted
    target = metrics.serve(0).removeprefix("http://").removesuffix("/metrics")
    one = Prometheus(tmp_path_factory.mktemp("prometheus"), target)
    yield one
    one.stop()
    metrics.stop()
    watch.stop()
    if watch._thread is not None:
        watch._thread.join(30)  # it may be inspecting the engine
    engine.close()


def check_until(what: Any, wanted: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not wanted <= (found := what()):
        assert time.monotonic() < end, (wanted, found)
        time.sleep(0.2)


def test_a_real_prometheus_reads_what_the_engine_serves(prometheus: Prometheus) -> None:
    served = {
        name for m in TABLE if m.source in ("queue", "broker usage") for name in m.samples
    } - set(BY_NAME["queue_refused_messages"].samples)
    check_until(lambda: set(prometheus.ask("label/__name__/values") or ()), served)


def test_an_alert_fires_when_a_queue_is_stuck(prometheus: Prometheus) -> None:
    def stuck() -> set[str]:
        alerts = prometheus.ask("alerts").get("alerts", ()) if prometheus.ask("alerts") else ()
        return {
            alert["labels"]["queue"] for alert in alerts
            if alert["labels"]["alertname"] == "LakequeueQueueStuck" and alert["state"] == "firing"
        }  # fmt: skip

    without = {
        "egress",
        "no_consumer",
        "delayed",
        "held",
    }  # no consumer gets any, or none is ready
    wanted = {case.code for case in CASES} - without
    check_until(stuck, wanted)
    assert stuck() == wanted
