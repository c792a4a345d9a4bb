"""Commands, snippets and tables of the pages, found without special marks.

A block of commands is indented by four or fenced as `sh`, and its first word is one of `WORDS`. A
command may continue over lines, with a backslash or a here-document.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from lakequeue.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
WORDS = ("lakequeue", ".venv/bin/lakequeue", "make", "python", "docker", "spark-submit", "echo",
         "cat", "pip", ".")  # fmt: skip
SHELLS = ("sh", "bash", "shell", "console")
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:(?<=\n\n)|^)((?: {4,}[^\n]*\n|\n(?= {4}))+)", re.MULTILINE)
_HERE = re.compile(r"<<-?\s*'?(\w+)'?")


@dataclass(frozen=True)
class Printed:
    """One command of a page."""

    page: str
    text: str


def name_of(page: Path) -> str:
    """A page's name in messages."""
    return str(page.relative_to(ROOT))


def table(page: str, name: str) -> dict[str, list[str]]:
    """A marked table of a page: first column, without backquotes → the other columns."""
    text = (ROOT / "docs" / page).read_text()
    found = re.search(rf"<!-- table: {name} -->\n(.*?)\n<!-- end of table -->", text, re.DOTALL)
    assert found, f"{page}: no table {name!r}"
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")]
            for line in found[1].splitlines()[2:]]  # fmt: skip
    keys = [row[0].strip("`") for row in rows]
    assert len(keys) == len(set(keys)), f"{page}: a row of {name!r} stands twice"
    return {key: row[1:] for key, row in zip(keys, rows, strict=True)}


def fenced(page: Path) -> Iterator[tuple[str, str]]:
    """Each fenced block: its kind, and its text without the indentation."""
    for indent, kind, text in FENCE.findall(page.read_text()):
        yield kind.strip(), re.sub(f"^{indent}", "", text, flags=re.MULTILINE)


def commands(page: Path) -> list[Printed]:
    """Every command of a page, in order."""
    blocks = [text for kind, text in fenced(page) if kind in SHELLS]
    blocks += _INDENTED.findall(FENCE.sub("", page.read_text()) + "\n")
    found = []
    for block in blocks:
        lines = [line.strip() for line in block.splitlines()]
        first = next((line for line in lines if line and not line.startswith("#")), "")
        if first.split(" ")[0] in WORDS:
            found += [Printed(name_of(page), text) for text in _logical(lines)]
    return found


def _logical(lines: list[str]) -> Iterator[str]:
    """Whole commands: continued lines and here-documents are joined."""
    rest = iter(lines)
    for line in rest:
        while line.endswith("\\"):
            line = f"{line[:-1].rstrip()} {next(rest, '')}"
        if here := _HERE.search(line):
            for more in rest:
                line += f"\n{more}"
                if more == here[1]:
                    break
        if line and not line.startswith("#"):
            yield line


def examples_of_help() -> list[Printed]:
    """The examples of every command's help."""
    context = click.Context(main)
    commands = {f" {name}": main.get_command(context, name) for name in main.list_commands(context)}
    found = []
    for name, command in {"": main, **commands}.items():
        assert command is not None, name
        text = command.get_help(click.Context(command, terminal_width=100, max_content_width=100))
        for part in re.findall(r"(?:Examples?|Start here):\n((?:    [^\n]*\n)+)", text + "\n"):
            lines = _logical(part.split("\n"))
            found += [Printed(f"lakequeue{name} --help", line.strip()) for line in lines]
    return found


def calls(text: str) -> Iterator[list[str]]:
    """The arguments of each `lakequeue` in a command."""
    tokens = shlex.shlex(text, posix=True, punctuation_chars="|;&")
    tokens.whitespace_split = True
    words: list[str] = []
    for token in [*tokens, ";"]:
        if set(token) <= set("|;&"):
            if words and words[0].endswith("lakequeue"):
                yield words[1:]
            words = []
        else:
            words.append(token)
