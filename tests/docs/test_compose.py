"""`docker-compose.yml` and the image: where Docker is they are started and a message goes through;
everywhere each thing that they say is held against the code: images, commands, options, ports,
environment, mounts."""

from __future__ import annotations

import json
import re
import time
import tomllib
import zipfile
from typing import Any

import lakequeue
import pyspark
import pytest
import yaml
from deployed import PINNED, ROOT, docker_answers, engine_options
from lakequeue.streaming.jars import ensure_jars

SERVICES = {"kafka", "spark-master", "spark-worker", "engine", "prometheus", "grafana"}
OURS = ("spark-master", "spark-worker", "engine")
SITE = "/usr/local/lib/python3.11/site-packages"
PUBLISHED = {"19092", "8080", "4040", "9090", "3000"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


@pytest.fixture(scope="module")
def image() -> str:
    return (ROOT / "Dockerfile").read_text()


def test_the_services_are_there(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == SERVICES
    assert compose["services"]["spark-worker"]["deploy"]["replicas"] == 2


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_is_pinned_watched_and_nobodys_root(compose: dict[str, Any], name: str) -> None:
    service = compose["services"][name]
    assert PINNED.fullmatch(service["image"]), service["image"]
    assert service["user"].partition(":")[0] not in ("0", "root")
    assert service["healthcheck"]["test"][0] == "CMD"
    needed = service.get("depends_on", {})
    assert set(needed) <= SERVICES - {name}
    assert all(one == {"condition": "service_healthy"} for one in needed.values())


def test_images_are_of_what_was_tested(compose: dict[str, Any], image: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {compose["services"][n]["image"] for n in OURS} == {f"lakequeue:{project['version']}"}
    (broker,) = re.findall(r'name="kafka_2.13" rev="([^"]+)"', (ROOT / "conf/jars.xml").read_text())
    assert compose["services"]["kafka"]["image"] == f"apache/kafka:{broker}"
    base = re.search(r"^FROM (.*)$", image, re.MULTILINE)
    assert base
    assert PINNED.fullmatch(base[1])
    assert base[1].startswith(f"python:{SITE.partition('python')[2].partition('/')[0]}.")


def test_files_that_are_mounted_exist(compose: dict[str, Any]) -> None:
    mounted = 0
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                mounted += 1
                assert (ROOT / source).exists(), source
                assert volume.endswith(":ro")
            else:
                assert source in compose["volumes"], source
    assert mounted == 5


def test_the_image_runs_as_nobody_in_particular(compose: dict[str, Any], image: str) -> None:
    """What it writes to before it runs stands before the user, what runs behind it."""
    user = re.search(r"^USER (\d+:\d+)$", image, re.MULTILINE)
    assert user
    assert {compose["services"][name]["user"] for name in OURS} == {user[1]}
    assert f"--uid {user[1].partition(':')[0]}" in image
    assert image.index("pip install") < user.start() < image.index("lakequeue.streaming.jars")
    assert "ENTRYPOINT [" in image[user.start() :]


def test_the_engine_and_the_workers_share_the_home(compose: dict[str, Any]) -> None:
    for name in ("engine", "spark-worker"):
        assert "engine-home:/data" in compose["services"][name]["volumes"]
    options = engine_options(compose["services"]["engine"]["command"])
    assert options["home"].is_relative_to("/data")


def test_the_engines_command_line_is_understood(compose: dict[str, Any]) -> None:
    options = engine_options(compose["services"]["engine"]["command"])
    listeners = compose["services"]["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert f"INTERNAL://{options['bootstrap']}," in listeners
    assert options["settings"]["spark.driver.host"] == compose["services"]["engine"]["hostname"]
    targets = [v.split(":")[1] for v in compose["services"]["engine"]["volumes"]]
    assert str(options["config"]) in targets
    port = options["settings"]["lakequeue.metrics_port"]
    assert f"127.0.0.1:{port}/metrics" in compose["services"]["engine"]["healthcheck"]["test"][-1]


def test_sparks_commands_are_those_of_pyspark(compose: dict[str, Any], image: str) -> None:
    """Classes, their options, and one address that master, workers and engine agree on."""
    (core,) = (p for p in _spark_jars() if p.name.startswith("spark-core_"))
    files = set(zipfile.ZipFile(core).namelist())
    master, worker = (compose["services"][n]["command"] for n in ("spark-master", "spark-worker"))
    for words, arguments in (
        (master, "master/MasterArguments"),
        (worker, "worker/WorkerArguments"),
    ):
        assert words[0] == f"{SITE}/pyspark/bin/spark-class"
        assert f"{words[1].replace('.', '/')}.class" in files
        known = zipfile.ZipFile(core).read(f"org/apache/spark/deploy/{arguments}.class")
        options = [w.partition("=")[0] for w in words[2:] if w.startswith("--")]
        assert [o for o in options if o.encode() not in known] == []
    assert f"SPARK_HOME={SITE}/pyspark" in image
    address = f"spark://{compose['services']['spark-master']['hostname']}:7077"
    assert "--port=7077" in master
    assert worker[-1] == address
    assert engine_options(compose["services"]["engine"]["command"])["master"] == address


def test_ports_that_are_published_are_served(compose: dict[str, Any]) -> None:
    services = compose["services"]
    ports = {p for s in services.values() for p in s.get("ports", ())}
    assert {p.split(":")[0] for p in ports} == PUBLISHED
    assert all(p.split(":")[0] == p.split(":")[1] for p in ports)
    assert "HOST://:19092" in services["kafka"]["environment"]["KAFKA_LISTENERS"]
    assert "--webui-port=8080" in services["spark-master"]["command"]
    assert "lakequeue.ui_port" not in str(services["engine"]["command"])  # 4040, the default
    assert ":9090/" in services["prometheus"]["healthcheck"]["test"][-1]
    assert ":3000/" in services["grafana"]["healthcheck"]["test"][-1]


def test_kafkas_environment_is_known_to_kafka(compose: dict[str, Any]) -> None:
    """`KAFKA_LOG_DIRS` is the setting `log.dirs`: each stands in a class of the broker's."""
    wanted = {
        name.removeprefix("KAFKA_").lower().replace("_", ".")
        for name in compose["services"]["kafka"]["environment"]
    }
    for jar in ensure_jars().broker:
        archive = zipfile.ZipFile(jar)
        for name in (n for n in archive.namelist() if n.endswith("Config.class")):
            known = archive.read(name)
            wanted -= {setting for setting in wanted if setting.encode() in known}
    assert {s for s in wanted if not s.startswith("listener.security")} == set()


def test_the_images_environment_is_read(image: str) -> None:
    names = set(re.findall(r"^(?:ENV|   ) (\w+)=", image, re.MULTILINE))
    code = (ROOT / "streaming/jars.py").read_text() + (
        ROOT / "streaming/spark/spark_session.py"
    ).read_text()
    scripts = (_spark_jars()[0].parents[1] / "sbin" / "spark-daemon.sh").read_text()
    assert {name for name in names if name not in code + scripts} == set()
    assert names >= {"LAKEQUEUE_CACHE", "SPARK_HOME", "PYSPARK_PYTHON"}


def test_prometheus_reads_the_engines_port(compose: dict[str, Any]) -> None:
    settings = yaml.safe_load((ROOT / "conf" / "prometheus.yml").read_text())
    targets = settings["scrape_configs"][0]["static_configs"][0]["targets"]
    port = engine_options(compose["services"]["engine"]["command"])["settings"][
        "lakequeue.metrics_port"
    ]
    assert targets == [f"127.0.0.1:{port}"]
    assert compose["services"]["prometheus"]["network_mode"] == "service:engine"


def test_grafana_finds_its_dashboards(compose: dict[str, Any]) -> None:
    folder = ROOT / "conf" / "grafana"
    providers = yaml.safe_load((folder / "provisioning/dashboards/lakequeue.yaml").read_text())[
        "providers"
    ]
    volumes = compose["services"]["grafana"]["volumes"]
    path = providers[0]["options"]["path"]
    assert f"./conf/grafana/dashboards:{path}:ro" in volumes
    (source,) = yaml.safe_load((folder / "provisioning/datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://engine:9090"  # Prometheus is in the engine's network
    dashboard = json.loads((folder / "dashboards/lakequeue.json").read_text())
    for panel in dashboard["panels"]:
        assert panel["datasource"]["uid"] == source["uid"]


if docker_answers():

    def test_it_starts_and_carries_a_message() -> None:
        """All of it, built from this checkout, until every service is healthy."""
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


def _spark_jars() -> list[Any]:
    from pathlib import Path

    return sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
