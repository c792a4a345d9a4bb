"""`lakequeue brokers`, `move-queue` and `bridges`: brokers of a home, and links to others (H2)."""

from __future__ import annotations

from typing import Any

import click
from rich.text import Text

from ..monitor.formatting import bridge_waits, counted, number, one_line
from .command_options import EngineCall, call_options, option
from .define import key_values, values_of
from .printing import cell, console, note, say_json, table_of


@click.command()
@option("--add", metavar="NAME", help="Add a broker of this name to the running engine.")
@option("--remove", metavar="NAME", help="Remove this broker; its local queues move away.")
@option(
    "--to",
    metavar="NAME",
    help="Move them all to this broker.  [default: spread as new ones]",
)
@option("--group", metavar="GROUP", help="The group of the added broker.  [default: none]")
@call_options
def brokers(
    add: str | None, remove: str | None, to: str | None, group: str | None,
    call: EngineCall
) -> None:  # fmt: skip
    """Show every broker: number, state, worker, steps, load.

    States: starting, running, restarting, failed (with the reason; it is not restarted). Steps and
    load (the share of time spent working) are up to half a minute old.

    --add and --remove pause the home for some seconds; clients wait.

    \b
    Examples:
      lakequeue brokers
      lakequeue brokers --add west-2 --group west
      lakequeue brokers --remove west-2
      lakequeue brokers --remove west-2 --to west
      lakequeue brokers --json | jq '.[] | select(.state != "running")'
    """
    if add is not None and remove is not None:
        raise click.UsageError("give either --add or --remove: each is a change of its own")
    if group is not None and add is None:
        raise click.UsageError(f"--group {group}: only with --add, for the added broker")
    if to is not None and remove is None:
        raise click.UsageError(
            f"--to {to}: only with --remove, for the queues of the removed broker"
        )
    with call.admin("brokers") as admin:
        if add is not None:
            admin.add_broker(add, group)
        if remove is not None:
            for one in admin.remove_broker(remove, to):
                text = f"queue {one['queue']!r} of VPN {one['vpn']!r} is on {one['broker']!r} now"
                note(text)
        found = admin.brokers()
    if call.as_json:
        say_json(found)
        return
    console().print(_broker_table(found) if found else "No broker was started here yet.")


def _broker_table(found: list[dict[str, Any]]) -> Any:
    grouped = any(one["group"] for one in found)
    group = ["group"] if grouped else []
    table = table_of("broker", ">number", *group, "state", "worker", ">steps", ">load", "why")
    for one in found:
        load = one["load"]
        table.add_row(
            cell(one["name"]), number(one["number"]),
            *([cell(one["group"] or "–")] if grouped else []), one["state"],
            cell(one["worker"] or "–"), number(one["steps"]),
            "–" if load is None else f"{100 * load:.0f} %", cell(one["why"]),
        )  # fmt: skip
    return table


@click.command("move-queue")
@click.argument("queue")
@click.argument("broker")
@option(
    "--pause", is_flag=True, help="Pause the whole home for some seconds while the queue moves."
)
@call_options
def move_queue(queue: str, broker: str, pause: bool, call: EngineCall) -> None:
    """Move QUEUE, a LocalQueue, with its messages to BROKER, while it is in use.

    Clients follow automatically; leased messages return to the queue. The command returns when
    the queue has moved. To cancel a move to a broker that does not start, move the queue to the
    broker that it is on. A queue that captures plain Kafka topics needs --pause.

    \b
    Examples:
      lakequeue move-queue orders broker-1
      lakequeue queues --json | jq '.[] | {name, broker}'
    """
    with call.admin("move-queue") as admin:
        admin.move_queue(queue, broker, pause)
        depth = admin.describe(queue)["depth"]
    text = f"{queue} is on {broker} now, with {counted(depth, 'message')}"
    call.answer({"queue": queue, "broker": broker, "messages": depth}, text)


@click.command()
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE...]")
@option("--delete", metavar="NAME", help="Delete this bridge and the messages waiting for it.")
@option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@call_options
def bridges(
    pairs: tuple[str, ...], delete: str | None, yes: bool, call: EngineCall
) -> None:  # fmt: skip
    """Show every bridge of the VPN: messages that wait or are in transit, endpoints that block it.

    KEY=VALUE: define a bridge first; if it exists, omitted keys keep their values.

    States: open; blocked (an endpoint at the far end refuses messages); waiting (the other home
    cannot be reached, or has not answered yet).

    \b
    Examples:
      lakequeue bridges
      lakequeue bridges name=west-east from=west to=east 'subscriptions=[a/>, d/e/f]'
      lakequeue bridges name=out to=kafka://far:9092 credentials=far 'subscriptions=a/>'
      lakequeue bridges --delete west-east
      lakequeue bridges --json | jq '.[] | select(.state != "open")'
    """
    given = key_values(pairs, "give the keys of one bridge, or nothing to see them all")
    if given and delete is not None:
        raise click.UsageError("give either KEY=VALUE arguments of one bridge, or --delete NAME")
    with call.admin("bridges") as admin:
        if delete is not None:
            _delete(admin, delete, yes, call)
            return
        if given:
            admin.bridge({**given, **values_of(given)})
        found = admin.bridges()
    if call.as_json:
        say_json(found)
        return
    console().print(_bridge_table(found) if found else f"VPN {call.vpn!r} has no bridges.")


def _delete(admin: Any, name: str, yes: bool, call: EngineCall) -> None:
    waiting = admin.describe_bridge(name).get("waiting", 0)
    if waiting and not yes:
        waiting_for = f"{counted(waiting, 'message')} waiting for {name}"
        call.confirm(f"{waiting_for}. Delete the bridge and them?")
    gone = admin.delete_bridge(name)
    text = f"{name} deleted with {counted(gone, 'message')}"
    call.answer({"bridge": name, "deleted": True, "messages": gone}, text)


def _bridge_table(found: list[dict[str, Any]]) -> Any:
    table = table_of("bridge", "from", "to", "state", ">waiting", ">on its way", ">taken", "why")
    for one in found:
        table.add_row(
            *(cell(one[key]) for key in ("name", "from", "to", "state")),
            number(one.get("waiting")), number(one.get("on_its_way")), number(one["taken"]),
            Text("\n".join(map(one_line, bridge_waits(one)))),
        )  # fmt: skip
    return table
