"""`deploy/kubernetes.yaml` against Kubernetes' schemas, strictly, and against the code."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from docs.deployed import PINNED, engine_options, spark_jar
from docs.printed import ROOT

VERSIONS = ("1.30", "1.37")  # the oldest and the newest version to check
BACKEND = "org/apache/spark/scheduler/cluster/k8s/KubernetesExecutorBackend"
TEXT = (ROOT / "deploy/kubernetes.yaml").read_text()
MANIFEST: list[dict[str, Any]] = list(yaml.safe_load_all(TEXT))
OF_KIND = {one["kind"]: one for one in MANIFEST}
FILES: dict[str, str] = OF_KIND["ConfigMap"]["data"]
EXECUTORS = yaml.safe_load(FILES["executor.yaml"])
TEMPLATE = OF_KIND["Deployment"]["spec"]["template"]
POD = TEMPLATE["spec"]
ENGINE = POD["containers"][0]
OPTIONS = engine_options(ENGINE["args"])
SETTINGS: dict[str, str] = OPTIONS["settings"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifest_matches_kubernetes_schemas(version: str) -> None:
    executors = yaml.safe_load(FILES["executor.yaml"])
    executors["spec"]["containers"][0]["image"] = "spark-sets-it:1.0.0"
    for one in [*MANIFEST, executors]:
        kubernetes_validate.validate(one, version, strict=True)


def test_a_mistake_in_the_manifest_is_found() -> None:
    wrong = {**OF_KIND["Deployment"], "spec": {"replicaz": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_everything_is_in_its_namespace() -> None:
    assert len(OF_KIND) == len(MANIFEST)
    name = OF_KIND["Namespace"]["metadata"]["name"]
    others = [one for one in MANIFEST if one["kind"] != "Namespace"]
    assert {one["metadata"]["namespace"] for one in others} == {name}


def test_images_are_pinned_and_executors_have_the_engines() -> None:
    for container in POD["containers"]:
        assert PINNED.fullmatch(container["image"]), container["image"]
    assert SETTINGS["spark.kubernetes.container.image"] == ENGINE["image"]
    compose = (ROOT / "docker-compose.yml").read_text()
    assert f"image: {POD['containers'][1]['image']}\n" in compose


@pytest.mark.parametrize("spec", [POD, EXECUTORS["spec"]], ids=["engine", "executors"])
def test_nobody_is_root(spec: dict[str, Any]) -> None:
    """As the namespace requires, with the image's user."""
    (user,) = re.findall(r"^USER (\d+):", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] == int(user)
    for container in spec["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_executors_find_the_driver() -> None:
    service = OF_KIND["Service"]
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    assert SETTINGS["spark.driver.host"] == f"{name}.{namespace}.svc"
    assert SETTINGS["spark.kubernetes.namespace"] == namespace
    ports = {str(port["port"]) for port in service["spec"]["ports"]}
    assert {SETTINGS["spark.driver.port"], SETTINGS["spark.driver.blockManager.port"]} <= ports
    assert ports == {str(p["containerPort"]) for c in POD["containers"] for p in c["ports"]}
    assert service["spec"]["selector"].items() <= TEMPLATE["metadata"]["labels"].items()


def test_the_home_is_the_same_for_driver_and_executors() -> None:
    claim = OF_KIND["PersistentVolumeClaim"]
    volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.home"
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert SETTINGS[f"{volume}.options.claimName"] == claim["metadata"]["name"]
    mounts = {m["name"]: m["mountPath"] for m in ENGINE["volumeMounts"]}
    assert SETTINGS[f"{volume}.mount.path"] == mounts["home"]
    assert OPTIONS["home"].is_relative_to(mounts["home"])
    assert OPTIONS["config"].parent == Path(mounts["queues"])
    template = Path(SETTINGS["spark.kubernetes.executor.podTemplateFile"])
    assert template.parent == Path(mounts["executor-pods"])
    assert template.name in FILES
    volumes = {volume["name"] for volume in POD["volumes"]}
    assert {m["name"] for c in POD["containers"] for m in c["volumeMounts"]} == volumes


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe"])
def test_the_probes_ask_where_the_metrics_are(probe: str) -> None:
    where = f"127.0.0.1:{SETTINGS['lakequeue.metrics_port']}"
    code = ENGINE[probe]["exec"]["command"][2]
    compile(code, probe, "exec")
    assert f"{where}/metrics" in code
    assert where in (ROOT / "conf/prometheus.yml").read_text()


def test_config_maps_are_made_of_existing_files() -> None:
    files = re.findall(r"--from-file=(\S+)", TEXT)
    assert len(files) == 3
    assert all((ROOT / file).is_file() for file in files)
    made = set(re.findall(r"create configmap (\S+)", TEXT)) | {"lakequeue-executors"}
    assert {v["configMap"]["name"] for v in POD["volumes"] if "configMap" in v} == made


def test_sparks_settings_exist() -> None:
    """Each is in Spark's own classes; of a volume and an owner only the beginning."""
    wanted = {s for s in SETTINGS if s.startswith("spark.kubernetes.")}
    begins = {re.sub(r"(volumes\.).*", r"\1", s) for s in wanted}
    archive = spark_jar("spark-kubernetes")
    known = b"".join(archive.read(n) for n in archive.namelist() if "/k8s/Config" in n)
    missing = {s for s in begins if s.encode() not in known}
    assert missing <= {"spark.kubernetes.authenticate.serviceAccountName"}


def test_an_executor_is_started_as_spark_requires() -> None:
    """The entry point, with a `java` that prints its arguments."""
    environment = {
        "SPARK_HOME": "/spark", "SPARK_EXECUTOR_MEMORY": "2g", "SPARK_DRIVER_URL": "spark://d:7078",
        "SPARK_EXECUTOR_ID": "3", "SPARK_EXECUTOR_CORES": "2", "SPARK_APPLICATION_ID": "app-1",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.1", "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "exec-3", "SPARK_JAVA_OPT_10": "-Dlast=1",
        "SPARK_JAVA_OPT_2": "-Dfirst=a b",
    }  # fmt: skip
    said = entry(environment, "executor")
    assert said[:4] == ["-Dfirst=a b", "-Dlast=1", "-Xms2g", "-Xmx2g"]
    assert said[6] == BACKEND.replace("/", ".")
    given = dict(zip(said[7::2], said[8::2], strict=True))
    known = spark_jar("spark-kubernetes").read(f"{BACKEND}$.class")
    assert [option for option in given if option.encode() not in known] == []
    assert given["--podName"] == "exec-3"
    assert entry(environment, "java", "anything else") == ["anything else"]


def entry(environment: dict[str, str], *words: str) -> list[str]:
    """The arguments of `java` from the image's entry point."""
    script = (ROOT / "deploy/entrypoint.sh").read_text()
    shown = script.replace("exec java", "exec printf '%s\\n'").replace(
        'exec "$@"', 'shift; exec printf "%s\\n" "$@"'
    )
    done = subprocess.run(
        ["sh", "-c", shown, "entrypoint", *words], capture_output=True, text=True, timeout=20,
        env={"PATH": "/usr/bin:/bin", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
