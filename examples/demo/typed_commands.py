"""Commands of `lakequeue` in a story: run as a user types them, and shown with what they print.

They run in the story's own process, and by the words of the story alone: what the environment says
of VPN, address or output is put aside.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...protocol.errors import LakequeueError

if TYPE_CHECKING:
    from rich.console import Console


class TypedCommands:
    """Of one home. console: where they are shown; None: they are not."""

    def __init__(self, home: Path, console: Console | None) -> None:
        self._home, self._console = home, console

    def ask(self, *words: str) -> list[dict[str, Any]]:
        """Show a question and what it prints; its answer."""
        if self._console is not None:
            self._show(words, self._run(*words))
        return self.rows(*words)

    def do(self, *words: str) -> None:
        """Run a command that changes something, once, and show what it prints."""
        said = self._run(*words)
        if self._console is not None:
            self._show(words, said)

    def rows(self, *words: str) -> list[dict[str, Any]]:
        """The answer to a question that is not shown."""
        return _parsed(self._run(*words, "--json"))

    def _show(self, words: tuple[str, ...], said: str) -> None:
        assert self._console is not None
        typed = " ".join(_quoted(word) for word in words)
        for text, style in ((f"$ lakequeue {typed}", "bold"), (said, None)):
            self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def _run(self, *words: str) -> str:
        """What a command prints. Raises LakequeueError with what it says when it fails."""
        from ...cli import main

        printed, said = io.StringIO(), io.StringIO()
        given = [*words, "--home", str(self._home)]
        with _bare(), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
            status = main.main(given, standalone_mode=False)
        if status:
            raise LakequeueError(f"lakequeue {words[0]}: {said.getvalue().strip()}")
        return printed.getvalue().rstrip()


@contextlib.contextmanager
def _bare() -> Iterator[None]:
    """Without the settings of commands that stand in the environment."""
    there = {name: os.environ.pop(name) for name in list(os.environ) if name[:10] == "LAKEQUEUE_"}
    try:
        yield
    finally:
        os.environ.update(there)


def _quoted(word: str) -> str:
    """A word as it is typed in a shell."""
    inner = word.replace('"', '\\"')
    return f'"{inner}"' if set(word) & set(" \n(") else word


def _parsed(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.splitlines() if line]
