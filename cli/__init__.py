"""The command `lakequeue`.

A command's module is imported when the command is called. `lakequeue --help` reads only the table
below, so it answers at once.
"""

from __future__ import annotations

from .group import LazyGroup, version_option

# Name → its module and attribute, and its line in `lakequeue --help`.
COMMANDS = {
    "demo": ("lakequeue.examples.demo.demo:demo", "Two stories on queues, on real data."),
    "up": ("lakequeue.cli.start_engine:up", "Start an embedded Kafka and the engine."),
    "run": ("lakequeue.cli.start_engine:run", "Start the engine on your Kafka and Spark."),
    "submit": ("lakequeue.cli.submit:submit", "Start the engine through spark-submit."),
    "publish": ("lakequeue.cli.publish:publish", "Send files, lines or standard input."),
    "consume": ("lakequeue.cli.consume:consume", "Receive messages: print them, or run a command."),
    "queues": ("lakequeue.cli.queues:queues", "Show queues and their consumers."),
    "define": ("lakequeue.cli.define:define", "Define queues, or change them."),
    "delete": ("lakequeue.cli.define:delete", "Delete a queue with its messages."),
    "shutdown": ("lakequeue.cli.define:shutdown", "Shut down or open ingress or egress."),
    "events": ("lakequeue.cli.queues:events", "Show alerts and other events."),
    "usage": ("lakequeue.cli.queues:usage", "Show usage of the limits of VPN and broker."),
    "brokers": ("lakequeue.cli.broker_commands:brokers", "Show, add or remove brokers."),
    "bridges": ("lakequeue.cli.broker_commands:bridges", "Show, define or delete bridges."),
    "move-queue": ("lakequeue.cli.broker_commands:move_queue", "Move a queue to another broker."),
    "browse": ("lakequeue.cli.browse:browse", "Show messages without consuming them."),
    "purge": ("lakequeue.cli.change_messages:purge", "Remove messages from a queue."),
    "move": ("lakequeue.cli.change_messages:move", "Move messages to another queue."),
    "edit": ("lakequeue.cli.change_messages:edit", "Change headers of messages."),
    "replay": ("lakequeue.cli.change_messages:replay", "Publish past messages again."),
    "redrive": (
        "lakequeue.cli.change_messages:redrive",
        "Send dead messages back.",
    ),
    "sql": ("lakequeue.cli.sql:sql", "Query the Delta tables in SQL."),
    "trace": ("lakequeue.cli.sql:trace", "Show the life of a message."),
    "at": ("lakequeue.cli.browse:at", "Show the queues as they were at any time."),
    "tables": ("lakequeue.cli.repair_tables:tables", "Check and repair the Delta tables."),
    "rebuild": ("lakequeue.cli.repair_tables:rebuild", "Build a home from the Delta tables."),
    "monitor": ("lakequeue.cli.monitor:monitor", "Show the queues on a web page."),
    "top": ("lakequeue.cli.monitor:top", "Show the queues in this terminal."),
    "doctor": ("lakequeue.cli.doctor:doctor", "Check that nothing is missing."),
    "bench": ("lakequeue.bench:command", "Measure latency, throughput and more."),
}

# Names of these commands in other systems, and in `admin`.
OTHER_NAMES = {
    "describe": "queues QUEUE",
    "list": "queues",
    "status": "queues",
    "create": "define",
    "declare": "define",
    "send": "publish",
    "get": "consume",
    "receive": "consume",
    "subscribe": "consume",
    "peek": "browse",
    "start": "up",
}

main = LazyGroup(
    "lakequeue",
    COMMANDS,
    OTHER_NAMES,
    context_settings={"auto_envvar_prefix": "LAKEQUEUE", "help_option_names": ["-h", "--help"]},
    params=[version_option()],
    help="""Guaranteed message queues on Kafka, Spark and Delta Lake.

    \b
    Start here:
      lakequeue doctor                      # check Java, Kafka and the rest
      lakequeue up &                        # Kafka and the engine, in .lakequeue/
      echo '{"n": 1}' | lakequeue publish orders
      lakequeue consume orders --count 1

    Every option has an environment variable; `lakequeue COMMAND --help` names it.

    Exit status: 0 done; 1 it failed, or a message was refused; 2 the command line or the
    configuration is wrong; 3 something that it needs is missing: Kafka, the engine, Java, a port,
    a disk; 141 the reader of its output has ended. LAKEQUEUE_DEBUG=1 shows where an error came
    from.
    """,
)

__all__ = ["COMMANDS", "main"]
