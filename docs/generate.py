"""Writes the parts of the documentation that are made from the code.

`python -m lakequeue.docs.generate` rewrites them, in any directory; `tests/docs/` compares them. A
generated part stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`.
"""

from __future__ import annotations

import copy
import functools
import re
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
import msgspec
from lakequeue.cli import main as command_line
from lakequeue.definitions.foreign_words import WORDS
from lakequeue.protocol import commands, messages
from lakequeue.sinks.metric_table import TABLE as METRICS
from lakequeue.state.queue.table import NAMES, TABLE
from lakequeue.state.storage.row import GONE

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
# `failures` uses the tests' package `client`. If the root is the working directory, its own
# `client` would hide that one.
sys.path[:] = [str(ROOT / "tests"), *(path for path in sys.path if Path(path).resolve() != ROOT)]


def lifecycle() -> str:
    """The life of a message as a table, from the `TABLE` that the engine uses."""
    rows = ["| before | what happens | after | in the journal | rule |", "|---|---|---|---|---|"]
    for event, what in TABLE.items():
        states = [NAMES[state] for state in sorted(what.before) if state != GONE]
        before, journal = ", ".join(states) or "new", what.journal or what.counts
        names = ", ".join(f"`{name}`" for name in journal)
        rows.append(f"| {before} | {event.value} | {NAMES[what.to]} | {names} | {what.rules} |")
    return "\n".join(rows)


def client_commands() -> str:
    """Every command that a client may send, with its JSON fields."""
    rows = ["| command | fields | |", "|---|---|---|"]
    for kind in get_args(commands.AnyCommand):
        if kind not in commands.OF_ENGINE:
            tag, doc = kind.__struct_config__.tag, _one_paragraph(kind.__doc__)
            rows.append(f"| `{tag}` | {_signature(kind, ('reply',))} | {doc} |")
    return "\n".join(rows)


def engine_commands() -> str:
    """The names of the commands that only the engine may send."""
    return ", ".join(f"`{kind.__struct_config__.tag}`" for kind in commands.OF_ENGINE)


def inbox() -> str:
    """The fields of `inbox` and `reply`."""
    return (
        f"- `inbox`: {_signature(commands.Inbox)}. {_one_paragraph(commands.Inbox.__doc__)}\n"
        f"- `reply`: {_signature(commands.ReplyTo)}. {_one_paragraph(commands.ReplyTo.__doc__)}"
    )


def publish_header() -> str:
    """The fields of the header `lq`."""
    return _signature(messages.PublishHeader)


def _one_paragraph(text: str | None) -> str:
    return " ".join((text or "").replace("``", "`").split())


def _signature(kind: type[msgspec.Struct], without: tuple[str, ...] = ()) -> str:
    """The fields with their defaults. Types of text are omitted, and types that a default shows."""
    shown = []
    for field in msgspec.structs.fields(kind):
        if field.name in without:
            continue
        name, text = _type_name(field.type), field.name
        if field.required:
            text += "" if name == "text" else f": {name}"
        else:
            value = field.default
            if value is msgspec.NODEFAULT:
                value = field.default_factory()
            text += f": {name.removesuffix(' or null')}" if value is None else ""
            text += f"={msgspec.json.encode(value).decode()}"
        shown.append(text)
    return f"`{', '.join(shown)}`" if shown else "–"


_TYPES = {int: "number", str: "text", bool: "true or false", type(None): "null"}


def _type_name(kind: Any) -> str:
    if hasattr(kind, "__metadata__"):
        kind = kind.__origin__
    if kind in _TYPES:
        return _TYPES[kind]
    if kind is commands.Inbox:
        return "inbox"
    if get_origin(kind) is Literal:
        return " or ".join(f'"{value}"' for value in get_args(kind))
    if getattr(kind, "__origin__", None) is dict:
        return "object"
    return " or ".join(_type_name(k) for k in get_args(kind))


def command_line_help() -> str:
    """The help of every command, without its examples. Options of many commands come once."""
    parts = [_shared_options(), _help(command_line, "lakequeue")]
    parts += [_help(command, f"lakequeue {name}") for name, command in _commands().items()]
    return "\n\n".join(parts)


@functools.cache
def _commands() -> dict[str, click.Command]:
    context = click.Context(command_line)
    found = {
        name: command_line.get_command(context, name)
        for name in command_line.list_commands(context)
    }
    return {name: command for name, command in found.items() if command is not None}


def _options(name: str) -> dict[str, click.Option]:
    params = _commands()[name].params
    return {one.opts[0]: one for one in params if isinstance(one, click.Option)}


@functools.cache
def _shared() -> dict[tuple[str, str | None], tuple[click.Option, list[str]]]:
    """The options that at least three commands have, by name and help, each with these commands."""
    found: dict[tuple[str, str | None], tuple[click.Option, list[str]]] = {}
    for name in _commands():
        for option, one in _options(name).items():
            found.setdefault((option, one.help), (one, []))[1].append(name)
    return {key: shared for key, shared in found.items() if len(shared[1]) >= 3}


def _shared_options() -> str:
    rows = ["## Options of many commands", "", "| option | commands | |", "|---|---|---|"]
    for one, names in sorted(_shared().values(), key=lambda shared: -len(shared[1])):
        kinds = f"`{'`, `'.join(one.type.choices)}`: " if isinstance(one.type, click.Choice) else ""
        of = "most" if len(names) > 6 else ", ".join(f"`{name}`" for name in names)
        default = f" Default: {one.default}." if one.show_default is True else ""
        rows.append(f"| `{'`, `'.join(reversed(one.opts))}` | {of} | {kinds}{one.help}{default} |")
    return "\n".join(rows)


def _own(params: list[click.Parameter]) -> list[click.Parameter]:
    """The parameters without those that are shown once, and without environment variables."""
    left = []
    for param in map(copy.copy, params):
        if isinstance(param, click.Option):
            if (param.opts[0], param.help) in _shared():
                continue
            param.show_envvar = False
        if isinstance(param.type, click.IntRange | click.FloatRange) and not param.metavar:
            param.metavar = "N"
        left.append(param)
    return left


#: Commands whose arguments, environment or states need more than the first paragraph of the help.
WHOLE = ("lakequeue", "lakequeue consume", "lakequeue define", "lakequeue at")


def _help(command: click.Command, name: str) -> str:
    """Usage as the heading, what the command does, and its own options."""
    command = copy.copy(command)
    command.params = _own(command.params)
    command.add_help_option = False
    context = click.Context(command, info_name=name, terminal_width=88, max_content_width=88)
    usage = " ".join(command.collect_usage_pieces(context)).removeprefix("[OPTIONS]").strip()
    text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    text = re.sub(r"\AUsage: .*(?:\n .*)*\n\n", "", text)
    text = re.sub(r"  (?:Examples?|Start here):.*\n(?:    .*\n?)*\n?", "", text)
    if name == "lakequeue":  # each command has its heading
        text = re.sub(r"\nCommands:\n(?:  .*\n?)*", "", text)
    about, options, rest = text.partition("\nOptions:\n" if "\nOptions:" in text else "\nCommands:")
    if name not in WHOLE:
        about = about.split("\n\n")[0].rstrip() + "\n"
    text = f"{about}{options}{rest}".rstrip()
    return f"## `{f'{name} {usage}'.strip()}`\n\n```text\n{text}\n```"


def failures() -> str:
    """By acknowledgement mode, the messages that the engine in memory delivers again."""
    from client.failures import table

    return table()


def metrics() -> str:
    """The metrics, by their labels."""
    groups: dict[str, list[str]] = {}
    for m in METRICS:
        labels = ", ".join(f"`{label}`" for label in m.labels) or "none"
        text = f"{m.text} (histogram)" if m.kind == "histogram" else m.text
        groups.setdefault(labels, []).append(f"- `{m.shown}`: {text}")
    return "\n\n".join(f"Labels: {name}\n\n" + "\n".join(rows) for name, rows in groups.items())


SYSTEMS = {
    "rabbitmq": ("RabbitMQ",),
    "sqs": ("SQS",),
    "jms": ("JMS", "ActiveMQ", "Artemis"),
    "celery": ("Celery",),
    "kafka": ("Kafka",),
}


def words_of(systems: tuple[str, ...]) -> str:
    """For each key of ours, the keys of other systems; then theirs that have no key here, and
    why."""
    ours: dict[str, list[str]] = {}
    without = []
    for word in (word for word in WORDS if word.of in systems):
        theirs = f"`{word.theirs}`" + (f" ({word.of})" if word.of != systems[0] else "")
        if word.ours:
            ours.setdefault(word.ours, []).append(theirs)
        else:
            without.append(f"- {theirs}: {word.note}")
    rows = [f"| `{key}` | {', '.join(theirs)} |" for key, theirs in ours.items()]
    head, more = ["| here | there |", "|---|---|"], ["", "Without a key:", ""]
    return "\n".join([*head, *rows, *more, *without])


PARTS = {
    "failures": ("concepts/failures.md", failures),
    "lifecycle": ("reference/message-states.md", lifecycle),
    "publish-header": ("reference/protocol.md", publish_header),
    "client-commands": ("reference/protocol.md", client_commands),
    "engine-commands": ("reference/protocol.md", engine_commands),
    "inbox": ("reference/protocol.md", inbox),
    "command-line": ("reference/command-line.md", command_line_help),
    "metrics": ("reference/metrics.md", metrics),
    **{
        f"words-{name}": (
            "reference/keys-of-other-systems.md",
            functools.partial(words_of, systems),
        )
        for name, systems in SYSTEMS.items()
    },
}


def _pattern(name: str) -> re.Pattern[str]:
    start, end = f"<!-- generated: {name} -->", f"<!-- end of {name} -->"
    return re.compile(f"({re.escape(start)}\n)(.*?)(\n?{re.escape(end)})", re.DOTALL)


def between(text: str, name: str) -> str:
    """The text between the markers of a part; raises ValueError if they are missing."""
    found = _pattern(name).search(text)
    if found is None:
        raise ValueError(f"the markers of {name!r} are missing")
    return found[2]


def replace(text: str, name: str, body: str) -> str:
    """The page with a new text for one part."""
    end = f"<!-- end of {name} -->"
    return _pattern(name).sub(lambda found: f"{found[1]}{body}\n{end}", text, count=1)


def main() -> int:
    """Rewrite every part; prints the changed ones."""
    for name, (page, make) in PARTS.items():
        path = DOCS / page
        before = path.read_text()
        between(before, name)
        after = replace(before, name, make())
        if after != before:
            path.write_text(after)
            print(f"{page}: {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
