"""The common parts of deployments: images, the engine's command line, and Spark's jars."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import pyspark
from lakequeue.cli.start_engine import run

PINNED = re.compile(r"[\w./-]+:v?\d+\.\d+\.\d+(-[\w.-]+)?")
SPARK = Path(pyspark.__file__).parent


def engine_options(words: list[str]) -> dict[str, Any]:
    """The options of `lakequeue run …`, as the command itself reads them."""
    assert words[:2] == ["lakequeue", "run"]
    context = run.make_context("run", list(words[2:]), help_option_names=["-h", "--help"])
    given = dict(pair.split("=", 1) for pair in context.params["settings"])
    return {**context.params, "settings": given}


def spark_jar(name: str) -> zipfile.ZipFile:
    """A jar of Spark's, found by the beginning of its name."""
    (jar,) = SPARK.glob(f"jars/{name}_*.jar")
    return zipfile.ZipFile(jar)
