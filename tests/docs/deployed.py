"""What deployments have in common: images, the engine's command line, and where Docker is."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from lakequeue.cli.start_engine import run

ROOT = Path(__file__).resolve().parents[2]
PINNED = re.compile(r"[\w./-]+:v?\d+\.\d+\.\d+(-[\w.-]+)?")


def engine_options(words: list[str]) -> dict[str, Any]:
    """The options of `lakequeue run …`, as the command itself reads them."""
    assert words[:2] == ["lakequeue", "run"]
    context = run.make_context("run", list(words[2:]), help_option_names=["-h", "--help"])
    given = dict(pair.split("=", 1) for pair in context.params["settings"])
    return {**context.params, "settings": given}


@cache
def docker_answers() -> bool:
    """Whether containers can be run here."""
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, timeout=60).returncode == 0
