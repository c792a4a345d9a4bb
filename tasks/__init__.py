"""Task queues on lakequeue: a transport for kombu, the library through which Celery uses its
broker, and a broker for Dramatiq (`dramatiq_broker`).

    app = Celery(broker="lakequeue+kafka://host:9092/vpn")

`kombu_transport` and `kombu_channel` are what kombu calls; `flow` is one consumer of one queue;
`engine_link` is the connection to the engine, which all kombu connections of a process share.
`transient` deletes queues that nobody uses any more. `bindings` says which topic an exchange and a
routing key are, `envelope` how a task travels, `alias` makes the name known.
"""

try:
    from .alias import register
except ModuleNotFoundError as error:
    if str(error.name).partition(".")[0] != "kombu":  # Dramatiq does without
        raise
else:
    register()
