"""`lakequeue define`, `delete` and `shutdown`: the queues themselves (Q7, Q9, S7, H5)."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import click

from ..monitor.formatting import counted
from ..protocol.errors import ConfigError, LakequeueError
from .command_options import EngineCall, call_options, option
from .group import standard
from .printing import note, say, say_json

if TYPE_CHECKING:
    from ..definitions import Configuration

# Matches other systems' keys, too, such as x-message-ttl: the refusal names lakequeue's key.
PAIR = re.compile(r"([A-Za-z][\w.-]*)=(.*)", re.DOTALL)


@click.command()
@click.argument("what", nargs=-1, required=True, metavar="FILE|KEY=VALUE...")
@call_options
def define(what: tuple[str, ...], call: EngineCall) -> None:
    """Define queues, or change their definitions, while the engine runs.

    FILE: a configuration as for `lakequeue up --config`, or - for standard input. KEY=VALUE: one
    queue; if it exists, omitted keys keep their values, and KEY= restores a default.

    If a definition is wrong, all problems are listed and nothing is defined. The next start of the
    engine applies its own --config file again.

    \b
    Examples:
      lakequeue define name=orders message_type=json lease_period=30s max_deliveries=5
      lakequeue define name=orders max_deliveries=10
      lakequeue define name=dear message_type=json 'filter=/price > 100'
      lakequeue define queues.yaml
    """
    pairs: dict[str, str] = {}
    if any(map(PAIR.fullmatch, what)):
        pairs = key_values(what, "name files, or the keys of one queue, such as name=orders")
        wanted = [_definition(pairs)]
    else:
        wanted = [queue for file in what for queue in _of_file(file, call.vpn)]
    with call.admin("define") as admin:
        there = {queue["name"]: queue for queue in admin.queues()}
        for definition in wanted:
            admin.define(definition, replace=not pairs)
    _report([definition["name"] for definition in wanted], set(there), call)


def key_values(arguments: tuple[str, ...], wanted: str) -> dict[str, str]:
    """Parse KEY=VALUE arguments. wanted: the advice if one of them has another form."""
    pairs: dict[str, str] = {}
    for text in arguments:
        if (found := PAIR.fullmatch(text)) is None:
            raise click.UsageError(f"{text!r} is not KEY=VALUE: {wanted}")
        if found[1] in pairs:
            raise click.UsageError(f"{found[1]!r} is given twice: name each key once")
        pairs[found[1]] = found[2]
    return pairs


def _definition(given: dict[str, str]) -> dict[str, Any]:
    """Build a definition from KEY=VALUE arguments."""
    name = given.get("name") or given.get("topic")
    if not name:
        raise click.UsageError("the queue's name is missing: add name=NAME")
    return {**values_of(given), "name": name}


def values_of(given: dict[str, str]) -> dict[str, Any]:
    """Parse values as YAML. Values of text keys, and texts and dates of other keys, stay as
    written; an empty value means the default."""
    import yaml

    from ..definitions.definition import TEXT_KEYS

    out: dict[str, Any] = {}
    for key, text in given.items():
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = text
        plain = isinstance(value, bool | int | float | list | dict) and key not in TEXT_KEYS
        out[key] = value if plain else (text or None)
    out.pop("topic", None)
    return out


def _of_file(file: str, vpn: str) -> list[dict[str, Any]]:
    """The queues in a file. Those without a VPN belong to the connection's."""
    from ..conf import load, load_configuration_text
    from ..definitions import DEFAULT_VPN, to_wire

    if file == "-":
        configuration = load_configuration_text(standard(sys.stdin, "input").read())
    else:
        configuration = load(file)
    if not configuration.queues:
        raise ConfigError(f"{file}: defines no queue – add one under `queues:`")
    _pass_over(file, configuration)
    out = []
    for queue in configuration.queues:
        definition = to_wire(queue)
        if queue.vpn == DEFAULT_VPN:
            definition.pop("vpn", None)
        elif queue.vpn != vpn:
            raise LakequeueError(
                f"{file}: queue {queue.name!r} is in VPN {queue.vpn!r}; add --vpn {queue.vpn}"
            )
        out.append(definition)
    return out


def _pass_over(file: str, configuration: Configuration) -> None:
    """Note which sections of the file are ignored here."""
    from ..definitions import SystemLimits, VpnLimits

    ours = [("system", configuration.system != SystemLimits())]
    ours.append(("vpns", any(v != VpnLimits() for v in configuration.vpns.values())))
    sections = " and ".join(name for name, said in ours if said)
    if sections:
        note(f"{file}: only its queues are defined; {sections} is read when the engine starts")


def _report(names: list[str], there: set[str], call: EngineCall) -> None:
    if call.as_json:
        again = [name for name in names if name in there]
        say_json({"defined": names, "again": again})
        return
    for name in names:
        say(f"{name} defined{' again' if name in there else ''}")


@click.command()
@click.argument("queue")
@option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@call_options
def delete(queue: str, yes: bool, call: EngineCall) -> None:
    """Delete QUEUE with its messages, which are not delivered. Asks first.

    If the engine's --config file still names it, the next start defines it again.

    \b
    Examples:
      lakequeue delete orders
      lakequeue delete orders-dmq --yes
    """
    with call.admin("delete") as admin:
        found = admin.describe(queue)
        depth, consumers = found["depth"], len(found["consumers"])
        if not yes:
            held, bound = counted(depth, "message"), counted(consumers, "consumer")
            call.confirm(f"{queue} holds {held} and has {bound}. Delete it?")
        admin.delete(queue)
    text = f"{queue} deleted with {counted(depth, 'message')}"
    call.answer({"queue": queue, "deleted": True, "messages": depth}, text)


@click.command()
@click.argument("queue")
@option("--ingress/--open-ingress", default=None, help="Stop accepting messages, or start again.")
@option("--egress/--open-egress", default=None, help="Stop delivering, or start again.")
@call_options
def shutdown(queue: str, ingress: bool | None, egress: bool | None, call: EngineCall) -> None:
    """Shut down or open QUEUE's ingress or egress.

    With ingress shut down, messages are discarded, or refused if the queue has
    reject_msg_to_sender_on_discard: including-when-shutdown. With egress shut down, consumers get
    no new messages, but may settle those that they have.

    \b
    Examples:
      lakequeue shutdown orders --ingress
      lakequeue shutdown orders --open-ingress --egress
    """
    if ingress is None and egress is None:
        raise click.UsageError("name one of --ingress, --egress, --open-ingress, --open-egress")
    with call.admin("shutdown") as admin:
        found = admin.describe(queue)
        closed = {
            "ingress": not found["ingress"] if ingress is None else ingress,
            "egress": not found["egress"] if egress is None else egress,
        }
        admin.shutdown(queue, **closed)
    states = (f"{side} {'shut down' if shut else 'open'}" for side, shut in closed.items())
    call.answer({"queue": queue, "shut_down": closed}, f"{queue}: {', '.join(states)}")
