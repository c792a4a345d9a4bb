"""`deploy/kubernetes.yaml` against Kubernetes' schemas, strictly, and against the code."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pyspark
import pytest
import yaml
from deployed import PINNED, ROOT, engine_options

VERSIONS = ("1.30", "1.37")  # the oldest that is looked at, and the newest that is known
BACKEND = "org/apache/spark/scheduler/cluster/k8s/KubernetesExecutorBackend"


@pytest.fixture(scope="module")
def manifest() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "deploy/kubernetes.yaml").read_text()))


def named(manifest: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = (one for one in manifest if one["kind"] == kind)
    return found


@pytest.fixture(scope="module")
def pod(manifest: list[dict[str, Any]]) -> dict[str, Any]:
    return named(manifest, "Deployment")["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def options(pod: dict[str, Any]) -> dict[str, Any]:
    return engine_options(pod["containers"][0]["args"])


def check_valid(manifest: dict[str, Any], version: str) -> None:
    """Raises for what Kubernetes would refuse."""
    kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_understands_it(manifest: list[dict[str, Any]], version: str) -> None:
    executors = yaml.safe_load(named(manifest, "ConfigMap")["data"]["executor.yaml"])
    executors["spec"]["containers"][0]["image"] = "spark-sets-it:1.0.0"
    for one in [*manifest, executors]:
        check_valid(one, version)


def test_a_mistake_is_found(manifest: list[dict[str, Any]]) -> None:
    wrong = {**named(manifest, "Deployment"), "spec": {"replicaz": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_everything_is_in_its_namespace(manifest: list[dict[str, Any]]) -> None:
    name = named(manifest, "Namespace")["metadata"]["name"]
    others = [one for one in manifest if one["kind"] != "Namespace"]
    assert {one["metadata"]["namespace"] for one in others} == {name}


def test_images_are_pinned_and_executors_have_the_engines(
    pod: dict[str, Any], options: dict[str, Any]
) -> None:
    for container in pod["containers"]:
        assert PINNED.fullmatch(container["image"]), container["image"]
    engine = pod["containers"][0]["image"]
    assert options["settings"]["spark.kubernetes.container.image"] == engine
    compose = (ROOT / "docker-compose.yml").read_text()
    assert f"image: {pod['containers'][1]['image']}\n" in compose


def test_nobody_is_root(manifest: list[dict[str, Any]], pod: dict[str, Any]) -> None:
    """As the namespace demands, of the user that the image has."""
    executors = yaml.safe_load(named(manifest, "ConfigMap")["data"]["executor.yaml"])["spec"]
    (user,) = re.findall(r"^USER (\d+):", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for spec in (pod, executors):
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["runAsUser"] == int(user)
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_executors_find_the_driver(
    manifest: list[dict[str, Any]], pod: dict[str, Any], options: dict[str, Any]
) -> None:
    service, settings = named(manifest, "Service"), options["settings"]
    where = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert settings["spark.driver.host"] == where
    assert settings["spark.kubernetes.namespace"] == service["metadata"]["namespace"]
    ports = {str(port["port"]) for port in service["spec"]["ports"]}
    assert {settings["spark.driver.port"], settings["spark.driver.blockManager.port"]} <= ports
    served = {str(p["containerPort"]) for c in pod["containers"] for p in c["ports"]}
    assert ports == served
    labels = named(manifest, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def test_the_home_is_the_same_for_driver_and_executors(
    manifest: list[dict[str, Any]], pod: dict[str, Any], options: dict[str, Any]
) -> None:
    claim, settings = named(manifest, "PersistentVolumeClaim"), options["settings"]
    volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.home"
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert settings[f"{volume}.options.claimName"] == claim["metadata"]["name"]
    mounts = {m["name"]: m["mountPath"] for m in pod["containers"][0]["volumeMounts"]}
    assert settings[f"{volume}.mount.path"] == mounts["home"]
    assert options["home"].is_relative_to(mounts["home"])
    assert options["config"].parent == Path(mounts["queues"])
    template = Path(settings["spark.kubernetes.executor.podTemplateFile"])
    assert template.parent == Path(mounts["executor-pods"])
    assert template.name in named(manifest, "ConfigMap")["data"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {m["name"] for c in pod["containers"] for m in c["volumeMounts"]} == volumes


def test_the_probes_ask_where_the_metrics_are(pod: dict[str, Any], options: dict[str, Any]) -> None:
    port = options["settings"]["lakequeue.metrics_port"]
    for probe in ("startupProbe", "livenessProbe"):
        words = pod["containers"][0][probe]["exec"]["command"]
        compile(words[2], probe, "exec")
        assert f"127.0.0.1:{port}/metrics" in words[2]
    assert f"127.0.0.1:{port}" in (ROOT / "conf/prometheus.yml").read_text()


def test_maps_of_files_are_made_of_files_that_are_there(pod: dict[str, Any]) -> None:
    text = (ROOT / "deploy/kubernetes.yaml").read_text()
    files = re.findall(r"--from-file=(\S+)", text)
    assert len(files) == 3
    assert all((ROOT / file).is_file() for file in files)
    made = set(re.findall(r"create configmap (\S+)", text)) | {"lakequeue-executors"}
    assert {v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v} == made


def test_sparks_settings_are_sparks(options: dict[str, Any]) -> None:
    """Each stands in Spark's own classes; of a volume and an owner only the beginning does."""
    wanted = {s for s in options["settings"] if s.startswith("spark.kubernetes.")}
    begins = {re.sub(r"(volumes\.).*", r"\1", s) for s in wanted}
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-kubernetes_*.jar")
    archive = zipfile.ZipFile(jar)
    known = b"".join(archive.read(n) for n in archive.namelist() if "/k8s/Config" in n)
    assert {s for s in begins if s.encode() not in known} <= {
        "spark.kubernetes.authenticate.serviceAccountName"
    }


def test_an_executor_is_started_as_spark_asks() -> None:
    """The entry point, with a `java` that prints what it is given."""
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
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-kubernetes_*.jar")
    known = zipfile.ZipFile(jar).read(f"{BACKEND}$.class")
    assert [option for option in given if option.encode() not in known] == []
    assert given["--podName"] == "exec-3"
    assert entry(environment, "java", "anything else") == ["anything else"]


def entry(environment: dict[str, str], *words: str) -> list[str]:
    """What `java` is given by the image's entry point."""
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
