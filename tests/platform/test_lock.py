"""`requirements.lock`: every package that is shipped, each in one version, with hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SHIPPED = ("demo", "monitor", "sql")


def locked() -> dict[str, tuple[str, int]]:
    """Version and number of hashes, by name."""
    text = (ROOT / "requirements.lock").read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if one := re.match(r"([A-Za-z0-9._-]+)==([^ ;]+)", line):
            hashes = len(re.findall(r"--hash=sha256:[0-9a-f]{64}", line))
            found[canonicalize_name(one[1])] = one[2], hashes
        else:
            assert not line.strip() or line.strip().startswith("#"), line  # no addresses
    return found


def test_all_that_is_shipped_is_pinned_with_hashes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(one for extra in SHIPPED for one in extras[extra])]
    there = locked()
    for text in wanted:
        requirement = Requirement(text)
        version, _ = there[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{text}: {version} is locked; make lock"
    assert all(hashes for _, hashes in there.values())


def test_the_makefile_locks_what_is_shipped() -> None:
    (line,) = re.findall(r"^SHIPPED := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert tuple(line.split()) == SHIPPED


def test_an_audit_that_learns_nothing_fails() -> None:
    """A package index that does not have the list of vulnerabilities is no clean bill of health."""
    (line,) = (x for x in (ROOT / "Makefile").read_text().splitlines() if "/pip-audit " in x)
    assert "--strict" in line
    assert "--require-hashes" in line
