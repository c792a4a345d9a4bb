"""The command `lakequeue`.

Each command has a file of its own, imported when it is called: `lakequeue --help` reads the table
below and nothing else, so that it answers at once.
"""

from __future__ import annotations

from .group import LazyGroup

# Name → where it is, and the line that `lakequeue --help` shows.
COMMANDS = {
    "demo": ("lakequeue.examples.demo:demo", "Four stories on queues, then the accounts."),
    "up": ("lakequeue.cli.up:up", "Start everything here: embedded Kafka and the engine."),
    "run": ("lakequeue.cli.run:run", "Start the engine on a Kafka and a Spark that are there."),
    "submit": ("lakequeue.cli.submit:submit", "The engine through spark-submit."),
    "publish": ("lakequeue.cli.publish:publish", "Send files, lines or standard input."),
    "consume": ("lakequeue.cli.consume:consume", "Receive messages: print them, or run a command."),
    "queues": ("lakequeue.cli.queues:queues", "What is in the queues and who consumes them."),
    "define": ("lakequeue.cli.define:define", "Define queues, or change them."),
    "delete": ("lakequeue.cli.delete:delete", "Delete a queue with all that is in it."),
    "shutdown": ("lakequeue.cli.shutdown:shutdown", "Close a queue's ingress or egress, or open."),
    "events": ("lakequeue.cli.events:events", "Alerts and what else happened to queues."),
    "usage": ("lakequeue.cli.usage:usage", "What is used of the limits of VPN and broker."),
    "brokers": ("lakequeue.cli.brokers:brokers", "Which brokers there are, and their load."),
    "bridges": ("lakequeue.cli.bridge_list:bridges", "Bridges: what waits, and what holds them."),
    "move-queue": ("lakequeue.cli.move_queue:move_queue", "A queue to another broker."),
    "browse": ("lakequeue.cli.browse:browse", "Look at messages without taking them."),
    "purge": ("lakequeue.cli.purge:purge", "Remove messages from a queue."),
    "move": ("lakequeue.cli.move:move", "Put messages into another queue."),
    "edit": ("lakequeue.cli.edit:edit", "Change headers of messages."),
    "replay": ("lakequeue.cli.replay:replay", "Messages of the past once more, into one queue."),
    "redrive": ("lakequeue.cli.redrive:redrive", "Send dead messages back where they came from."),
    "sql": ("lakequeue.cli.sql:sql", "Ask the Delta tables in SQL."),
    "trace": ("lakequeue.cli.trace:trace", "The life of a message, and why it waited."),
    "at": ("lakequeue.cli.at:at", "The queues as they were at any time, or behind any step."),
    "tables": ("lakequeue.cli.whole_tables:tables", "Are the Delta tables whole? Mend them."),
    "rebuild": ("lakequeue.cli.rebuild:rebuild", "A working home from the Delta tables."),
    "monitor": ("lakequeue.cli.monitor:monitor", "The queues on a web page, and why they wait."),
    "top": ("lakequeue.cli.top:top", "The queues in this terminal, and why they wait."),
    "doctor": ("lakequeue.cli.checks:doctor", "Is everything here that lakequeue needs?"),
    "bench": ("lakequeue.bench:command", "Measure this machine: latency, throughput and more."),
}

main = LazyGroup(
    "lakequeue",
    COMMANDS,
    help="""Guaranteed message queues on Kafka, Spark and Delta Lake.

    \b
    Start here:
      lakequeue doctor                      # is Java there, and the rest?
      lakequeue up &                        # Kafka and the engine, in .lakequeue/
      echo '{"n": 1}' | lakequeue publish orders
      lakequeue consume orders --count 1

    Every option has an environment variable; `lakequeue COMMAND --help` names it.

    Exit status: 0 done; 1 it failed, or a message was refused; 2 the command line or the
    configuration is wrong; 3 something around it is missing: Kafka, the engine, Java, a port, a
    disk; 141 nobody reads its output any more. LAKEQUEUE_DEBUG=1 shows where an error came from.
    """,
)

__all__ = ["COMMANDS", "main"]
