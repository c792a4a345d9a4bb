"""The views over `messages` and `journal`: one definition for Spark and DuckDB (R1, R6).

All views follow from `changes`: each row of the journal that changed a message's state in a queue,
with the new state and the time of the next change. The engine's own transition table tells which
events change a state. If an event leads to *ready* or *delayed*, the row has the end of the delay.
A message that returned to a queue (a redrive) has several *stays* there, each starting with
`spooled`. Each broker numbers its own steps, so a message of a distributed queue has its changes at
each broker that had it.

Spark and DuckDB both understand the SQL. `DIALECTS` has the differences.
"""

from __future__ import annotations

from collections.abc import Callable

from ..state.queue.table import NAMES, TABLE
from ..state.rules.dead import DEAD_OF
from ..state.storage.row import DELAYED, GONE, LEASED, READY

# Functions with different names: a timestamp as epoch ms; the last value that is not null.
DIALECTS: dict[str, dict[str, str]] = {
    "duckdb": {"ms": "epoch_ms", "newest": "last_value({} IGNORE NULLS)"},
    "spark": {"ms": "unix_millis", "newest": "last_value({}, true)"},
}
SPOOLED = "spooled"  # the event of a message that enters a queue
ORDER = "step, part, line"


def states_after() -> dict[str, frozenset[int]]:
    """For each event of the journal that changes a state: the states that it may lead to."""
    after: dict[str, set[int]] = {}
    for transition in TABLE.values():
        name = SPOOLED if GONE in transition.before else transition.journal[-1]
        after.setdefault(name, set()).add(transition.to)
    return {name: frozenset(states) for name, states in after.items()}


def _names(events: list[str]) -> str:
    return ", ".join(f"'{event}'" for event in sorted(events))


def _state() -> str:
    """An SQL expression for the state after an event."""
    by_states: dict[frozenset[int], list[str]] = {}
    for event, states in states_after().items():
        by_states.setdefault(states, []).append(event)
    cases = []
    for states, events in sorted(by_states.items(), key=lambda item: sorted(item[1])):
        if states == {READY, DELAYED}:
            name = f"CASE WHEN until IS NULL THEN '{NAMES[READY]}' ELSE '{NAMES[DELAYED]}' END"
        else:
            (state,) = states
            name = f"'{NAMES[state]}'"
        cases.append(f"WHEN event IN ({_names(events)}) THEN {name}")
    return f"CASE {' '.join(cases)} END"


_SPOOLED = f"CASE WHEN event = '{SPOOLED}' THEN {{}} END"

_CHANGES = f"""
SELECT broker, vpn, queue, message_id, step, part, line, time, event, {_state()} AS state,
  subscription, reason, deliveries, until,
  CAST(sum({_SPOOLED.format(1)}) OVER w AS INT) AS stay,
  {{newest:{_SPOOLED.format("time")}}} OVER w AS entered_at,
  {{newest:{_SPOOLED.format("reason")}}} OVER w AS entered_by,
  {{newest:{_SPOOLED.format("step")}}} OVER w AS entered_step,
  lead(time) OVER w AS next_time, lead(event) OVER w AS next_event, lead(step) OVER w AS next_step
FROM journal
WHERE message_id IS NOT NULL AND event IN ({_names(list(states_after()))})
WINDOW w AS (PARTITION BY broker, vpn, queue, message_id ORDER BY {ORDER})
"""

_DETAILS = "substring(reason, length(subscription) + length('subscription=') + 1)"
_CONSUMERS = f"""
SELECT vpn, queue, subscription,
  coalesce(nullif(regexp_extract({_DETAILS}, ', consumer=(.*)$', 1), ''), subscription)
    AS consumer,
  time AS subscribed_at,
  CASE WHEN next_event = 'unsubscribed' THEN next_time END AS unsubscribed_at,
  CASE WHEN next_event = 'unsubscribed' THEN next_why END AS why
FROM (
  SELECT *, lead(event) OVER w AS next_event, lead(time) OVER w AS next_time,
    lead(regexp_extract({_DETAILS}, ', why=(.*)$', 1)) OVER w AS next_why
  FROM journal
  WHERE message_id IS NULL AND subscription <> '' AND event IN ('subscribed', 'unsubscribed')
  WINDOW w AS (PARTITION BY broker, vpn, queue, subscription ORDER BY {ORDER})
) AS theirs
WHERE event = 'subscribed'
"""

_NAMES_OF_CONSUMERS = (
    "(SELECT vpn, queue, subscription, max(consumer) AS consumer FROM consumers "
    "GROUP BY vpn, queue, subscription)"
)

_QUEUED = f"""
SELECT c.vpn, c.queue, c.message_id, c.state,
  nullif(regexp_extract(c.entered_by, '(^|{DEAD_OF})([a-z_]+)$', 2), '') AS dead_reason,
  c.entered_at, c.time AS since, c.deliveries,
  CASE WHEN c.state = '{NAMES[LEASED]}' THEN coalesce(n.consumer, c.subscription) END AS consumer,
  CASE WHEN c.state = '{NAMES[LEASED]}' THEN c.until END AS leased_until,
  CASE WHEN c.state = '{NAMES[DELAYED]}' THEN c.until END AS delayed_until
FROM changes AS c
LEFT JOIN {_NAMES_OF_CONSUMERS} AS n
  ON c.vpn = n.vpn AND c.queue = n.queue AND c.subscription = n.subscription
WHERE c.next_event IS NULL AND c.state <> '{NAMES[GONE]}'
"""


def _spent(state: int) -> str:
    return (
        f"CAST(coalesce(sum(CASE WHEN state = '{NAMES[state]}' THEN "
        "{ms}(next_time) - {ms}(time) END), 0) AS BIGINT)"
    )


def _time_of(event: str) -> str:
    return f"max(CASE WHEN event = '{event}' THEN time END)"


_GIVEN = f"""(state = '{NAMES[LEASED]}' OR event = 'barrier_delivered')"""

# The last event at a broker. A transferred message continues at another broker, with its count.
_LAST = "next_event IS NULL AND event <> 'transferred'"

_LIFECYCLE = f"""
SELECT l.vpn, l.queue, l.message_id, p.published_at, l.entered_at, l.first_delivered_at,
  l.acknowledged_at, l.expired_at, l.dead_lettered_at, l.deliveries, l.consumers, l.waiting_ms,
  l.processing_ms, l.delayed_ms, l.state, l.ended, l.stays
FROM (
  SELECT vpn, queue, message_id,
    min(entered_at) AS entered_at,
    min(CASE WHEN {_GIVEN} THEN time END) AS first_delivered_at,
    {_time_of("acknowledged")} AS acknowledged_at,
    {_time_of("expired")} AS expired_at,
    {_time_of("dead_lettered")} AS dead_lettered_at,
    CAST(sum(CASE WHEN event = 'barrier_delivered' THEN 1
      WHEN state IS NOT NULL AND event <> 'transferred'
        AND (next_event IS NULL OR next_event = '{SPOOLED}') THEN deliveries
      ELSE 0 END) AS BIGINT) AS deliveries,
    CASE WHEN count(CASE WHEN {_GIVEN} THEN 1 END) > 0
      THEN array_sort(array_agg(DISTINCT consumer) FILTER (WHERE {_GIVEN})) END AS consumers,
    {_spent(READY)} AS waiting_ms, {_spent(LEASED)} AS processing_ms,
    {_spent(DELAYED)} AS delayed_ms,
    max(CASE WHEN state IS NOT NULL AND {_LAST} THEN state END) AS state,
    max(CASE WHEN state = '{NAMES[GONE]}' AND {_LAST} THEN event END) AS ended,
    max(stay) AS stays
  FROM (
    SELECT a.*, coalesce(n.consumer, a.subscription) AS consumer
    FROM (
      SELECT vpn, queue, message_id, event, time, state, subscription, deliveries, entered_at,
        stay, next_time, next_event
      FROM changes
      UNION ALL
      SELECT vpn, queue, message_id, event, time, NULL, subscription, deliveries, NULL, NULL, NULL,
        NULL
      FROM journal
      WHERE message_id IS NOT NULL AND event IN ('dead_lettered', 'barrier_delivered')
    ) AS a
    LEFT JOIN {_NAMES_OF_CONSUMERS} AS n
      ON a.vpn = n.vpn AND a.queue = n.queue AND a.subscription = n.subscription
  ) AS named
  GROUP BY vpn, queue, message_id
) AS l
LEFT JOIN (
  -- a recreated topic has two records at one offset: use the newest of that time
  SELECT j.message_id,
    coalesce(max(m.time) FILTER (WHERE m.time <= j.time), min(m.time)) AS published_at
  FROM journal AS j JOIN messages AS m
    ON j.topic = m.topic AND j.partition = m.partition AND j.offset = m.offset AND j.item = m.item
  WHERE j.event = '{SPOOLED}' AND j.message_id IS NOT NULL
  GROUP BY j.message_id
) AS p ON l.message_id = p.message_id
"""

_NOTES = ("defined", "deleted", "definition", "shutdown", "subscribed", "unsubscribed")
# A queue exists from its first definition after its last deletion on. Each of its brokers has one.
_QUEUES = f"""
WITH numbered AS (
  SELECT vpn, queue, event, reason, time,
    row_number() OVER (PARTITION BY vpn, queue ORDER BY time, {ORDER}) AS n
  FROM journal WHERE message_id IS NULL AND queue <> '' AND event IN ({_names(list(_NOTES))})
), notes AS (
  SELECT *, coalesce(max(CASE WHEN event = 'deleted' THEN n END)
    OVER (PARTITION BY vpn, queue), 0) AS gone
  FROM numbered
), made AS (
  SELECT vpn, queue, min(CASE WHEN event = 'defined' AND reason = '' THEN n END) AS n
  FROM notes WHERE n > gone GROUP BY vpn, queue
), q AS (
  SELECT notes.vpn, notes.queue, min(notes.time) AS defined_at,
    max_by(reason, notes.n) FILTER (WHERE event = 'definition') AS definition,
    coalesce(max_by(reason, notes.n) FILTER (WHERE event = 'shutdown'), '') AS closed,
    count(CASE WHEN event = 'subscribed' THEN 1 END)
      - count(CASE WHEN event = 'unsubscribed' THEN 1 END) AS consumers
  FROM notes JOIN made ON notes.vpn = made.vpn AND notes.queue = made.queue
  WHERE notes.n > gone AND (notes.n >= made.n OR made.n IS NULL AND gone = 0)
  GROUP BY notes.vpn, notes.queue
), held AS (
  SELECT vpn, queue, count(*) AS depth, min(entered_at) AS oldest_at,
    count(CASE WHEN state = '{NAMES[READY]}' THEN 1 END) AS ready,
    count(CASE WHEN state = '{NAMES[LEASED]}' THEN 1 END) AS leased,
    count(CASE WHEN state = '{NAMES[DELAYED]}' THEN 1 END) AS delayed,
    count(dead_reason) AS dead
  FROM queued GROUP BY vpn, queue
)
SELECT q.vpn, q.queue, q.defined_at, coalesce(depth, 0) AS depth, coalesce(ready, 0) AS ready,
  coalesce(leased, 0) AS leased, coalesce(delayed, 0) AS delayed, coalesce(dead, 0) AS dead,
  oldest_at, consumers, closed NOT LIKE '%ingress=True%' AS ingress,
  closed NOT LIKE '%egress=True%' AS egress, definition
FROM q LEFT JOIN held ON q.vpn = held.vpn AND q.queue = held.queue
"""

# Name → query. A view may use those before it.
VIEWS = {
    "changes": _CHANGES,
    "consumers": _CONSUMERS,
    "queued": _QUEUED,
    "lifecycle": _LIFECYCLE,
    "queues": _QUEUES,
}


def view_texts(dialect: str) -> dict[str, str]:
    """The query of each view, for `duckdb` or `spark`."""
    words = DIALECTS[dialect]
    return {name: _spoken(text, words).strip() for name, text in VIEWS.items()}


def _spoken(text: str, words: dict[str, str]) -> str:
    text = text.replace("{ms}", words["ms"])
    before, *rest = text.split("{newest:")
    parts = (part.partition("}") for part in rest)
    return before + "".join(words["newest"].format(inner) + after for inner, _, after in parts)


def create_views(run: Callable[[str], object], dialect: str) -> None:
    """Create the views in a session that has `messages` and `journal`.

    run: runs a statement: `spark.sql`, or `execute` of a DuckDB connection.
    """
    for name, text in view_texts(dialect).items():
        run(f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {text}")
