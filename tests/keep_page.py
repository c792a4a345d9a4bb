"""The commands of `docs/how-to/keep.md`, as they are printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "how-to" / "keep.md"


def shell(code: str, cwd: Path | None = None) -> None:
    """Run a command of the page, with the commands of this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", code], env={**os.environ, "PATH": path}, cwd=cwd,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def command(start: str) -> str:
    """The one command of the page that begins so."""
    found = set(re.findall(rf"(?<![\w-]){re.escape(start)} [^`\n]+", PAGE.read_text()))
    assert len(found) == 1, found
    return found.pop()
