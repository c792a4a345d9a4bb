"""`lakequeue purge`, `move`, `edit`, `redrive` and `replay`: change messages of a queue (R4,
R6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from ..client.admin import Changed
from ..expressions import predicate
from ..lake.replaying import Replayed, ToReplay
from ..monitor.formatting import clock, counted, number
from ..protocol import commands
from ..protocol.checked import checked
from ..protocol.errors import ConfigError
from ..protocol.ids import parse_ranges
from ..state.commands.moving import check_headers
from .command_options import (
    DEFAULT_HOME,
    EngineCall,
    Number,
    call_options,
    gathered,
    nearest_home,
    option,
    pairs,
    where_option,
)
from .printing import note, payload_fields, say, say_json


@dataclass(frozen=True, slots=True)
class Selection:
    """The messages that a command changes, and whether it asks first."""

    where: str | None
    ids: str | None
    everything: bool
    dry_run: bool
    yes: bool
    why: str

    def messages(self) -> dict[str, Any]:
        """The chosen messages, as arguments for `Admin`. Choosing all messages needs --all."""
        if self.everything == (self.where is not None or self.ids is not None):
            both = "; --all excludes the others" if self.everything else ""
            wanted = "--where EXPRESSION, --ids RANGES or --all"
            raise click.UsageError(f"choose messages: {wanted}{both}")
        return {"where": self.where, "ids": self.ids}

    def ask_first(self, count: int, question: str, call: EngineCall) -> None:
        """Ask for confirmation, unless --yes is given or nothing would change."""
        if not self.yes and count:
            call.confirm(question.format(counted(count, "message")))

    def change(self, do: Callable[..., Any], question: str, call: EngineCall) -> Any:
        """Call `do` after a confirmation, or for a dry run; returns its result. do: gets
        ``dry_run`` and ``why``."""
        done = do(**self.messages(), dry_run=True, why=self.why)
        if not self.dry_run:
            self.ask_first(done.count, question, call)
            done = do(**self.messages(), why=self.why)
        return done

    def report(self, where: dict[str, str], done: Changed, did: str, call: EngineCall) -> None:
        """Print how many messages changed, and why the others did not."""
        if call.as_json:
            say_json({**where, "dry_run": self.dry_run, **asdict(done)})
            return
        be, stay = ("would be ", "would stay") if self.dry_run else ("", "stayed")
        say(f"{done.count:,} {be}{did}")
        if done.stayed:
            say(f"{done.stayed:,} {stay}: {left(done.why)}")


def check(command: commands.Browse | commands.Change | commands.Redrive) -> None:
    """Refuse wrong values before connecting to Kafka, which may be unreachable."""
    checked(command)
    ids = None if isinstance(command, commands.Browse) else command.ids
    try:
        if ids is not None:
            parse_ranges(ids)
        if command.where is not None:
            predicate("where", command.where)
    except ValueError as error:
        raise ConfigError(str(error)) from error


IDS = option("--ids", metavar="RANGES", help="Messages with these ids: '17,20-25'.")
YES = option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
which_options = gathered(
    Selection, "chosen", where_option, IDS,
    option("--all", "everything", is_flag=True, help="All messages."),
    option("--dry-run", is_flag=True, help="Change nothing; print how many messages would change."),
    YES,
    option("--why", default="", metavar="TEXT", help="A reason, for the journal."),
)  # fmt: skip


def left(why: dict[str, int]) -> str:
    """The reasons why messages stayed, as text."""
    return ", ".join(f"{number(n)} {reason}" for reason, n in sorted(why.items()))


@click.command()
@click.argument("queue")
@which_options
@call_options
def purge(queue: str, chosen: Selection, call: EngineCall) -> None:
    """Remove messages from QUEUE for good, also leased ones. Asks first.

    \b
    Examples:
      lakequeue purge orders --where "/state = 'test'"
      lakequeue purge orders --ids 17,20-25 --dry-run
      lakequeue purge orders-dmq --all --yes
    """
    messages = chosen.messages()
    check(commands.Purge(queue=queue, why=chosen.why, **messages))
    with call.admin("purge") as admin:
        if chosen.dry_run or not chosen.yes:  # counting is as slow as removing: not for --yes
            removed = admin.purge(queue, **messages, dry_run=True)
        if not chosen.dry_run:
            if not chosen.yes:
                chosen.ask_first(removed, f"Remove {{}} from {queue} for good?", call)
            removed = admin.purge(queue, **messages, why=chosen.why)
    key, did = ("would_remove", "would be removed") if chosen.dry_run else ("removed", "removed")
    call.answer({"queue": queue, key: removed}, f"{removed:,} {did} from {queue}")


@click.command()
@click.argument("queue")
@click.argument("to")
@which_options
@call_options
def move(queue: str, to: str, chosen: Selection, call: EngineCall) -> None:
    """Move messages from QUEUE to the queue TO. Asks first.

    They keep their ids, payloads and headers, and go to the end of TO. Leased messages and messages
    that TO refuses stay; the command prints how many and why.

    \b
    Examples:
      lakequeue move orders orders-2 --where "/region = 'west'" --dry-run
      lakequeue move orders orders-2 --ids 17,20-25 --yes --why "wrong address"
    """
    check(commands.Move(queue=queue, to=to, why=chosen.why, **chosen.messages()))
    with call.admin("move") as admin:
        done = chosen.change(
            partial(admin.move, queue, to), f"Move {{}} from {queue} to {to}?", call
        )
    chosen.report({"queue": queue, "to": to}, done, f"moved to {to}", call)


@click.command()
@click.argument("queue")
@option("--header", "-H", "headers", multiple=True, metavar="NAME=TEXT", help="Set this header.")
@option("--remove", multiple=True, metavar="NAME", help="Remove this header.")
@which_options
@call_options
def edit(
    queue: str,
    headers: tuple[str, ...],
    remove: tuple[str, ...],
    chosen: Selection,
    call: EngineCall,
) -> None:
    """Change headers of messages of QUEUE. Asks first.

    The same message in another queue does not change. A consumer that has leased a message gets the
    change with the next delivery.

    \b
    Examples:
      lakequeue edit orders --header checked=yes --where '/price > 10' --dry-run
      lakequeue edit orders --remove trace --ids 17-23 --yes
    """
    if both := sorted(pairs(headers, "--header").keys() & {*remove}):
        raise click.UsageError(f"--header and --remove: both name {', '.join(both)}")
    new: dict[str, str | None] = {**pairs(headers, "--header"), **dict.fromkeys(remove)}
    if not new:
        raise click.UsageError("name a change: --header NAME=TEXT, or --remove NAME")
    check_headers(new)
    check(commands.Edit(queue=queue, headers=new, why=chosen.why, **chosen.messages()))
    with call.admin("edit") as admin:
        done = chosen.change(
            partial(admin.edit, queue, new), f"Change the headers of {{}} of {queue}?", call
        )
    chosen.report({"queue": queue}, done, f"edited in {queue}", call)


@click.command()
@click.argument("queue")
@where_option
@IDS
@call_options
def redrive(queue: str, where: str | None, ids: str | None, call: EngineCall) -> None:
    """Send the dead messages of QUEUE back to the queues they died in.

    They keep their ids, payloads and headers. A message that cannot go back (its queue is gone,
    full or shut down) stays; then the command prints why, and the exit status is 1.

    \b
    Examples:
      lakequeue redrive orders-dmq
      lakequeue redrive orders-dmq --where "/price > 10"
      lakequeue browse orders-dmq --json | jq -r .id | head -3
      lakequeue redrive orders-dmq --ids 17,20-25
    """
    check(commands.Redrive(queue=queue, where=where, ids=ids))
    with call.admin("redrive") as admin:
        done = admin.redrive(queue, where=where, ids=ids)
    if call.as_json:
        answer = {"moved": done.moved, "stayed": done.stayed, "queues": done.queues}
        say_json({"queue": queue, **answer, "why": done.why})
    else:
        to = ", ".join(f"{n:,} to {name}" for name, n in sorted(done.queues.items()))
        say(f"{done.moved:,} moved{f': {to}' if to else ''}")
        if done.stayed:
            say(f"{done.stayed:,} stayed in {queue}: {left(done.why)}")
    if done.stayed:
        click.get_current_context().exit(1)


PREVIEW_MAX = 80


@click.command()
@click.argument("queue")
@option(
    "--since",
    metavar="TIME",
    help="Messages published from this time or message id on.",
)
@option("--until", metavar="TIME", help="Messages published until this time.")
@where_option
@IDS
@option("--rate", type=Number(min=0, min_open=True), metavar="N",
        help="At most this many messages per second.")  # fmt: skip
@option("--dry-run", is_flag=True, help="Publish nothing; print how many, and some of them.")
@YES
@call_options
def replay(
    queue: str,
    since: str | None,
    until: str | None,
    where: str | None,
    ids: str | None,
    rate: float | None,
    dry_run: bool,
    yes: bool,
    call: EngineCall,
) -> None:
    """Publish past messages again, to QUEUE only. Asks first.

    Chooses among messages that arrived for the queue and are no longer in it: acknowledged,
    expired, discarded, purged. They are read from the Delta tables of --home, and get new ids and
    the headers lq-replay-of, lq-replay-time and lq-replay-by.

    \b
    Examples:
      lakequeue replay orders --since 2026-11-21T12:00:00Z --until 2026-11-21T18:00:00Z --dry-run
      lakequeue replay orders --since 4711 --where "/region = 'west'" --rate 100 --yes
    """
    if since is None and until is None and where is None and ids is None:
        raise click.UsageError("choose messages: --since, --until, --where or --ids")
    ToReplay(call.vpn, queue, since, until, where, ids)  # refuses wrong values
    tables = nearest_home(call.home) or Path(DEFAULT_HOME)
    chosen = {"since": since, "until": until, "where": where, "ids": ids, "home": tables}
    with call.admin("replay") as admin:
        done = admin.replay(queue, **chosen, dry_run=True)
        if not call.as_json:
            _print_preview(done)
        if not dry_run:
            if not yes and done.count:
                call.confirm(f"Publish {counted(done.count, 'message')} to {queue} again?")
            done = admin.replay(
                queue, **chosen, rate=rate, progress=lambda n: note(f"{n:,} published")
            )
    if call.as_json:
        examples = [{**one, **payload_fields(one["payload"])} for one in done.examples]
        say_json({"queue": queue, "dry_run": dry_run, **asdict(done), "examples": examples})
    elif not dry_run:
        say(f"{done.count:,} published to {queue}")
        for reason, count in sorted(done.refused.items()):
            say(f"{count:,} refused: {reason}")


def _print_preview(found: Replayed) -> None:
    """Print how many messages would be replayed, and some of them."""
    if found.left:
        note(found.left)
    reach = "have no message" if found.begins is None else f"begin {clock(found.begins, 'minutes')}"
    say(f"{counted(found.count, 'message')} to publish again; the tables {reach}")
    for one in found.examples:
        text = payload_fields(one["payload"])["payload"][:PREVIEW_MAX]
        say(f"  {one['id'] or '–':>6}  {clock(one['time'])}  {one['event']}  {text}")
    if more := found.count - len(found.examples):
        say(f"  and {number(more)} more")
