"""The log of Spark's Java process: its configuration, read by Java itself, writes what it says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyspark
import pytest
from lakequeue.streaming.jars import java_executable
from lakequeue.streaming.spark.spark_session import spark_settings
from py4j.java_gateway import JavaGateway, launch_gateway

NOISE = "org.apache.hadoop.util.NativeCodeLoader"


def said(log_format: str, file: Path) -> list[str]:
    """What Java writes: a warning that nobody can act on, one that matters, and what is fine."""
    settings = spark_settings(master=None, jars=[], log_level="WARN", log_format=log_format)
    java = settings["spark.driver.extraJavaOptions"].split()
    options = [word for word in java if word.startswith("-D")]
    path = f"{Path(pyspark.__file__).parent / 'jars'}/*"
    with file.open("w") as errors:
        port = launch_gateway(
            classpath=path, javaopts=["-Xmx128m", *options], die_on_exit=True,
            java_path=str(java_executable()), redirect_stderr=errors,
            redirect_stdout=subprocess.DEVNULL,
        )  # fmt: skip
        gateway = JavaGateway()
        gateway = JavaGateway(gateway_parameters=type(gateway.gateway_parameters)(port=port))
        manager = gateway.jvm.org.apache.logging.log4j.LogManager
        manager.getLogger(NOISE).warn("no native library")
        manager.getLogger("org.apache.spark.Anything").warn("the disk is full\nindeed")
        manager.getLogger("org.apache.spark.Anything").info("fine")
        gateway.shutdown()
    return file.read_text().splitlines()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_one_line_an_event_and_no_noise(log_format: str, tmp_path: Path) -> None:
    lines = said(log_format, tmp_path / "spark.log")
    if log_format == "json":
        (line,) = map(json.loads, lines)
        assert line["message"] == "the disk is full\nindeed"
        assert line["log.level"] == "WARN"
        assert line["log.logger"] == "org.apache.spark.Anything"
    else:
        assert lines[0].endswith("WARN  the disk is full")
        assert "no native library" not in str(lines)
