"""`docker-compose.yml` and the image. Where Docker runs, they are started and carry a message;
everywhere their images, commands, options, ports, environment and mounts are compared with the
code."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import tomllib
import zipfile
from typing import Any

import lakequeue
import pytest
import yaml
from docs.deployed import PINNED, SPARK, engine_options, spark_jar
from docs.printed import ROOT
from lakequeue.streaming.jars import ensure_jars

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
NAMES = {"kafka", "spark-master", "spark-worker", "engine", "prometheus", "grafana"}
OURS = ("spark-master", "spark-worker", "engine")
ENGINE = engine_options(SERVICES["engine"]["command"])
PORT = ENGINE["settings"]["lakequeue.metrics_port"]
IMAGE = (ROOT / "Dockerfile").read_text()
SITE = "/usr/local/lib/python3.11/site-packages"
PUBLISHED = {"19092", "8080", "4040", "9090", "3000"}


def test_the_compose_file_has_all_services() -> None:
    assert set(SERVICES) == NAMES
    assert SERVICES["spark-worker"]["deploy"]["replicas"] == 2


@pytest.mark.parametrize("name", sorted(NAMES))
def test_services_are_pinned_watched_and_not_root(name: str) -> None:
    service = SERVICES[name]
    assert PINNED.fullmatch(service["image"]), service["image"]
    assert service["user"].partition(":")[0] not in ("0", "root")
    assert service["healthcheck"]["test"][0] == "CMD"
    needed = service.get("depends_on", {})
    assert set(needed) <= NAMES - {name}
    assert all(one == {"condition": "service_healthy"} for one in needed.values())


def test_images_have_the_tested_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {SERVICES[n]["image"] for n in OURS} == {f"lakequeue:{project['version']}"}
    (broker,) = re.findall(r'name="kafka_2.13" rev="([^"]+)"', (ROOT / "conf/jars.xml").read_text())
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{broker}"
    (base,) = re.findall(r"^FROM (.*)$", IMAGE, re.MULTILINE)
    assert PINNED.fullmatch(base)
    assert base.startswith(f"python:{SITE.partition('python')[2].partition('/')[0]}.")


def test_mounted_files_exist() -> None:
    volumes = [v for service in SERVICES.values() for v in service.get("volumes", ())]
    mounted = [volume for volume in volumes if volume.startswith(".")]
    assert len(mounted) == 5
    assert all(volume.endswith(":ro") for volume in mounted)
    assert [v for v in mounted if not (ROOT / v.split(":")[0]).exists()] == []
    assert {v.split(":")[0] for v in set(volumes) - set(mounted)} <= set(COMPOSE["volumes"])


def test_the_image_runs_as_an_ordinary_user() -> None:
    """Steps that need root come before the user in the file, commands that run come after."""
    user = re.search(r"^USER (\d+:\d+)$", IMAGE, re.MULTILINE)
    assert user
    assert {SERVICES[name]["user"] for name in OURS} == {user[1]}
    assert f"--uid {user[1].partition(':')[0]}" in IMAGE
    assert IMAGE.index("pip install") < user.start() < IMAGE.index("lakequeue.streaming.jars")
    assert "ENTRYPOINT [" in IMAGE[user.start() :]


def test_the_engine_and_the_workers_share_the_home() -> None:
    for name in ("engine", "spark-worker"):
        assert "engine-home:/data" in SERVICES[name]["volumes"]
    assert ENGINE["home"].is_relative_to("/data")


def test_the_engines_command_line_is_understood() -> None:
    engine = SERVICES["engine"]
    listeners = SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert f"INTERNAL://{ENGINE['bootstrap']}," in listeners
    assert ENGINE["settings"]["spark.driver.host"] == engine["hostname"]
    assert str(ENGINE["config"]) in [v.split(":")[1] for v in engine["volumes"]]
    assert f"127.0.0.1:{PORT}/metrics" in engine["healthcheck"]["test"][-1]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("spark-master", "master/MasterArguments"), ("spark-worker", "worker/WorkerArguments")],
)
def test_sparks_commands_are_those_of_pyspark(name: str, arguments: str) -> None:
    """Their classes and options."""
    words, core = SERVICES[name]["command"], spark_jar("spark-core")
    assert words[0] == f"{SITE}/pyspark/bin/spark-class"
    assert f"{words[1].replace('.', '/')}.class" in core.namelist()
    known = core.read(f"org/apache/spark/deploy/{arguments}.class")
    options = [w.partition("=")[0] for w in words[2:] if w.startswith("--")]
    assert [o for o in options if o.encode() not in known] == []
    assert f"SPARK_HOME={SITE}/pyspark" in IMAGE


def test_master_workers_and_engine_agree_on_an_address() -> None:
    address = f"spark://{SERVICES['spark-master']['hostname']}:7077"
    assert "--port=7077" in SERVICES["spark-master"]["command"]
    assert SERVICES["spark-worker"]["command"][-1] == ENGINE["master"] == address


def test_published_ports_are_served() -> None:
    ports = [p.split(":") for s in SERVICES.values() for p in s.get("ports", ())]
    assert {outside for outside, _ in ports} == PUBLISHED
    assert all(outside == inside for outside, inside in ports)
    assert "HOST://:19092" in SERVICES["kafka"]["environment"]["KAFKA_LISTENERS"]
    assert "--webui-port=8080" in SERVICES["spark-master"]["command"]
    assert "lakequeue.ui_port" not in str(SERVICES["engine"]["command"])  # 4040, the default
    assert ":9090/" in SERVICES["prometheus"]["healthcheck"]["test"][-1]
    assert ":3000/" in SERVICES["grafana"]["healthcheck"]["test"][-1]


def test_kafkas_environment_is_known_to_kafka() -> None:
    """`KAFKA_LOG_DIRS` is the setting `log.dirs`: each is in a class of the broker's."""
    names = [name.removeprefix("KAFKA_") for name in SERVICES["kafka"]["environment"]]
    wanted = {name.lower().replace("_", ".") for name in names}
    for jar in ensure_jars().broker:
        archive = zipfile.ZipFile(jar)
        for name in (n for n in archive.namelist() if n.endswith("Config.class")):
            known = archive.read(name)
            wanted -= {setting for setting in wanted if setting.encode() in known}
    assert {s for s in wanted if not s.startswith("listener.security")} == set()


def test_the_images_environment_variables_are_used() -> None:
    names = set(re.findall(r"^(?:ENV|   ) (\w+)=", IMAGE, re.MULTILINE))
    readers = (ROOT / "streaming/jars.py", ROOT / "streaming/spark/spark_session.py",
               SPARK / "sbin/spark-daemon.sh")  # fmt: skip
    code = "".join(file.read_text() for file in readers)
    assert {name for name in names if name not in code} == set()
    assert names >= {"LAKEQUEUE_CACHE", "SPARK_HOME", "PYSPARK_PYTHON"}


def test_prometheus_reads_the_engines_port() -> None:
    settings = yaml.safe_load((ROOT / "conf/prometheus.yml").read_text())
    (target,) = settings["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target == f"127.0.0.1:{PORT}"
    assert SERVICES["prometheus"]["network_mode"] == "service:engine"


def test_grafana_finds_its_dashboards() -> None:
    folder = ROOT / "conf" / "grafana"

    def provisioned(name: str) -> Any:
        return yaml.safe_load((folder / "provisioning" / name).read_text())

    path = provisioned("dashboards/lakequeue.yaml")["providers"][0]["options"]["path"]
    assert f"./conf/grafana/dashboards:{path}:ro" in SERVICES["grafana"]["volumes"]
    (source,) = provisioned("datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://engine:9090"  # Prometheus is in the engine's network
    dashboard = json.loads((folder / "dashboards/lakequeue.json").read_text())
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {source["uid"]}


def docker_answers() -> bool:
    """Whether containers can be run here."""
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, timeout=60).returncode == 0


if docker_answers():

    def test_the_services_start_and_carry_a_message() -> None:
        """All services, built from this checkout, until each is healthy."""
        from testcontainers.compose import DockerCompose

        with DockerCompose(ROOT, build=True, wait=True) as running:
            running.get_service_host_and_port("kafka", 19092)
            with lakequeue.connect("kafka://localhost:19092") as connection:
                connection.producer().send("orders", b'{"n": 1}')
                with connection.consumer("orders") as consumer:
                    until = time.monotonic() + 60
                    message = None
                    while message is None and time.monotonic() < until:
                        message = consumer.receive(timeout=5)
                    assert message.payload == b'{"n": 1}'
                    message.ack()
