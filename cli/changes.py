"""What `purge`, `move` and `edit` share: which messages, and the question before."""

from __future__ import annotations

from typing import Any

import click

from .common import counted, number, one_line, option


def which_options(command: Any) -> Any:
    """Add --where, --ids, --all, --dry-run, --yes and --why."""
    for add in (
        option("--why", default="", metavar="TEXT", help="For the journal, beside who you are."),
        option("--yes", "-y", is_flag=True, help="Do not ask."),
        option("--dry-run", is_flag=True, help="Change nothing; say how many it would be."),
        option("--all", "everything", is_flag=True, help="Every message."),
        option("--ids", metavar="RANGES", help="These messages: '17,20-25'."),
        option("--where", metavar="EXPRESSION", help="Such messages: '/price > 10'."),
    ):
        command = add(command)
    return command


def which(where: str | None, ids: str | None, everything: bool) -> dict[str, Any]:
    """Which messages are meant, as `Admin` takes it; everything must be said."""
    if everything == (where is not None or ids is not None):
        raise click.UsageError("say which messages: --where EXPRESSION, --ids RANGES or --all")
    return {"where": where, "ids": ids}


def asked_first(count: int, question: str, yes: bool, as_json: bool) -> None:
    """Ask, unless --yes is given or nothing would happen."""
    if not yes and count:
        click.confirm(one_line(question.format(counted(count, "message"))), abort=True, err=as_json)


def left(why: dict[str, int]) -> str:
    """Why others were left, for people."""
    return ", ".join(f"{number(n)} {reason}" for reason, n in sorted(why.items()))
