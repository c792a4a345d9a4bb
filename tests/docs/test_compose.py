"""`docker-compose.yml` parses, has its services, and mounts files that exist. It is not run."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from lakequeue.cli.run import run

ROOT = Path(__file__).resolve().parents[2]
SERVICES = {"kafka", "spark-master", "spark-worker", "engine", "prometheus", "grafana"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_the_services_are_there(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == SERVICES
    assert compose["services"]["kafka"]["image"] == "apache/kafka:4.2.0"


def test_what_services_need_is_a_service(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert set(service.get("depends_on", ())) <= SERVICES - {name}
        assert "image" in service


def test_files_that_are_mounted_exist(compose: dict[str, Any]) -> None:
    mounted = 0
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                mounted += 1
                assert (ROOT / source).exists(), source
            else:
                assert source in compose["volumes"], source
    assert mounted >= 4


def test_the_image_has_every_room_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["setuptools"]["packages"]
    rooms = {name.split(".")[1] for name in packages if "." in name}
    copied = set(re.findall(r"^COPY (\w+) \1$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    assert copied == rooms
    listed = re.search(r"^ROOMS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed
    assert set(listed[1].split()) == rooms


def test_the_engine_and_the_workers_share_the_home(compose: dict[str, Any]) -> None:
    for name in ("engine", "spark-worker"):
        assert "engine-home:/data" in compose["services"][name]["volumes"]
    home = option(compose, "--home")
    assert home.startswith("/data/")


def option(compose: dict[str, Any], name: str) -> str:
    """An option of the engine's command line."""
    words = compose["services"]["engine"]["command"]
    return next(w.partition("=")[2] for w in words if w.startswith(f"{name}="))


def test_the_engines_command_line_is_understood(compose: dict[str, Any]) -> None:
    words = compose["services"]["engine"]["command"]
    assert words[:2] == ["lakequeue", "run"]
    context = run.make_context("run", list(words[2:]), help_option_names=["-h", "--help"])
    assert context.params["bootstrap"] == "kafka:9092"
    assert "lakequeue.metrics_port=9400" in context.params["settings"]


def test_prometheus_reads_the_engines_port(compose: dict[str, Any]) -> None:
    settings = yaml.safe_load((ROOT / "conf" / "prometheus.yml").read_text())
    targets = settings["scrape_configs"][0]["static_configs"][0]["targets"]
    assert targets == ["127.0.0.1:9400"]
    assert compose["services"]["prometheus"]["network_mode"] == "service:engine"


def test_grafana_finds_its_dashboard(compose: dict[str, Any]) -> None:
    folder = ROOT / "conf" / "grafana"
    providers = yaml.safe_load((folder / "provisioning/dashboards/lakequeue.yaml").read_text())[
        "providers"
    ]
    volumes = compose["services"]["grafana"]["volumes"]
    path = providers[0]["options"]["path"]
    assert f"./conf/grafana/dashboards:{path}:ro" in volumes
    sources = yaml.safe_load((folder / "provisioning/datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    dashboard = json.loads((folder / "dashboards/lakequeue.json").read_text())
    for panel in dashboard["panels"]:
        assert panel["datasource"]["uid"] == sources[0]["uid"]


def test_the_image_copies_every_package() -> None:
    text = (ROOT / "Dockerfile").read_text()
    copied = set(re.findall(r"^COPY (\w+) \1$", text, re.MULTILINE))
    packages = re.findall(r'"lakequeue\.(\w+)",', (ROOT / "pyproject.toml").read_text())
    assert copied == set(packages)
