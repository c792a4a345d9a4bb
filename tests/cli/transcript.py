"""Runs transcripts of the command line: commands and their expected output.

The first word of a line is one of those below; any other is a step of `rules/scenario.py`, on the
same engine. In expected output, `…` stands for any text within a line, and alone for any lines.

    engine {"brokers": ["a", "b"]}    the configuration; first, where the engine has one
    file queues.yaml                  a file in the current folder, with the lines `>` below it
    > queues:
    $ define queues.yaml              a command
    < {"n": 1}                        a line of its standard input
    | orders defined                  a line of its standard output: list all of them
    ! …is given twice…                a line of its standard error: list all of them
    = {"depth": 2}                    its output as JSON; several such lines: one value a line
    ~ {"depth": 2}                    the same, but non-empty objects may have more keys
    ? 2                               its exit status (default: 0)
    defined orders max_backlog=7      these keys of the queue's definition
    nothing home                      there is no such file or folder
    tables                            writes the history so far as the tables of the home `home`
    lose messages                     deletes the files of a table
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import Result
from lake.on_files import Recorded
from memory_shell import Engine, run
from rules.scenario import Line, Runner, options, parse

FOLDER = Path(__file__).parent / "transcripts"
OF_THE_LINE_ABOVE = "><|!=~?"
# commands that take no address
WITHOUT_ADDRESS = ("queues --home", "run", "sql", "submit", "tables", "trace", "up")


@dataclass
class Step:
    """A line, and those below it that belong to it, by their first character."""

    place: str
    text: str
    below: dict[str, list[str]] = field(default_factory=dict)


def load() -> dict[str, list[Step]]:
    """All transcripts of all files, by name."""
    found: dict[str, list[Step]] = {}
    for path in sorted(FOLDER.glob("*.txt")):
        for number, raw in enumerate(path.read_text().splitlines(), 1):
            line = raw.strip()
            if line.startswith("transcript "):
                steps = found.setdefault(line.split()[1], [])
                assert not steps, f"{path.name}:{number}: the name is taken"
            elif line[:1] and line[0] in OF_THE_LINE_ABOVE:
                steps[-1].below.setdefault(line[0], []).append(line[2:])
            elif line and line[0] != "#":
                steps.append(Step(f"{path.name}:{number}", line))
    return found


class Transcript(Runner):
    """A run on an engine of its own. folder: the current one."""

    def __init__(self, steps: list[Step], folder: Path) -> None:
        self.steps, self.folder = steps, folder
        kind, _, config = steps[0].text.partition(" ")
        self.shell = Engine(json.loads(config) if kind == "engine" else None)
        super().__init__(self.shell.connection)
        if any(step.text == "tables" for step in steps):
            self.recorded = Recorded(self.connection.engine)

    def play(self) -> None:
        for step in self.steps:
            try:
                self._step(step)
            except Exception as error:
                error.add_note(f"{step.place}: {step.text}")
                raise
        self.connection.close()

    def _step(self, step: Step) -> None:
        kind, _, rest = step.text.partition(" ")
        if kind == "$":
            self._command(rest, step.below)
        elif kind == "file":
            file = self.folder / rest
            file.parent.mkdir(exist_ok=True)
            file.write_text("".join(f"{line}\n" for line in step.below[">"]))
        elif kind != "engine":
            (scenario,) = parse(f"scenario one\n{step.text}")
            (line,) = scenario.lines
            getattr(self, f"do_{kind}")(line)

    def _command(self, words: str, below: dict[str, list[str]]) -> None:
        given = "".join(f"{line}\n" for line in below.get("<", ()))
        is_elsewhere = (
            words.startswith(WITHOUT_ADDRESS) or " --url" in words or "queues --home" in words
        )
        done = (run if is_elsewhere else self.shell.run)(*shlex.split(words), stdin=given)
        status = int(below.get("?", ["0"])[0])
        assert done.exit_code == status, f"{done.exit_code}\n{done.output}"
        for mark, text in (("|", done.stdout), ("!", done.stderr)):
            if mark in below:
                assert_reads(text, below[mark])
        self._values(done, below)

    def _values(self, done: Result, below: dict[str, list[str]]) -> None:
        wanted = [json.loads(line) for mark in "=~" for line in below.get(mark, ())]
        if not wanted:
            return
        assert not {"=", "~"} <= below.keys(), "one or the other"
        lines = done.stdout.splitlines() if len(wanted) > 1 else [done.stdout]
        found = [json.loads(line) for line in lines]
        if "~" in below:
            found = [narrowed(one, to) for one, to in zip(found, wanted, strict=True)]
        assert found == wanted

    def do_defined(self, line: Line) -> None:
        wanted = options(line.words[2:])
        found = self.admin.describe(line.words[1])["definition"]
        assert narrowed(found, wanted) == wanted

    def do_nothing(self, line: Line) -> None:
        assert not (self.folder / line.words[1]).exists()

    def do_tables(self, _: Line) -> None:
        self.recorded.write(self.folder / "home")

    def do_lose(self, line: Line) -> None:
        for file in (self.folder / "home" / "tables" / line.words[1]).rglob("part*.parquet"):
            file.unlink()


def assert_reads(text: str, lines: list[str]) -> None:
    """Check a text against these lines."""
    found = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    pattern = "".join("(?:.*\n)*" if line == "…" else f"{pattern_of(line)}\n" for line in lines)
    assert re.fullmatch(pattern, found or "\n"), f"wanted {lines}, found:\n{found}"


def pattern_of(text: str) -> str:
    return ".*".join(map(re.escape, text.split("…")))


def narrowed(found: Any, wanted: Any) -> Any:
    """A found value, in objects only with the wanted keys, and with the wanted text in place of one
    that matches it."""
    if isinstance(found, str) and isinstance(wanted, str):
        return wanted if re.fullmatch(pattern_of(wanted), found) else found
    if isinstance(found, dict) and isinstance(wanted, dict) and wanted:
        return {key: narrowed(found[key], wanted[key]) for key in wanted if key in found}
    if isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        return [narrowed(*both) for both in zip(found, wanted, strict=True)]
    return found
