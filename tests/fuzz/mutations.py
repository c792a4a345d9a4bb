"""Commands and records that no honest client writes: valid ones, changed in one or more places.

Everything is made from one `random.Random`, so a seed determines a whole run. A value is a plain
Python value; `encode` writes by hand the JSON that no library would write (NaN, double keys, lone
surrogates, numbers of 400 digits, nesting of 5,000).
"""

import json
import random
from dataclasses import dataclass
from typing import Any

INBOX = {"topic": "default.deliveries"}
QUEUES = ("orders", "copies", "dead", "plain", "keyed")
EXPRESSIONS = (
    "/k = 1", "/p", "/p > 3", "/a/b/c IS NULL", "/t LIKE '%x_'", "/p / 0", "/p % /k", "-/p",
    "/@priority", "@key = 'a'", "/k IN (1, 2, NULL)", "/p * /p * /p * /p * /p * /p", "1e308 * 10",
    "9" * 400, "(" * 400 + "1" + ")" * 400, "NOT " * 900 + "/k = 1", "/k = 'it''s'", "", "(", "'",
    "/k = \ud800", "/" + "a" * 3000, " OR ".join(["/k = 1"] * 2000), "/k LIKE '" + "%" * 30 + "x'",
    "-" * 5000 + "1", "/k = 1e999999", "0x10", "/k = 1; DROP", "\x00", "SELECT 1",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 3, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**32, 2**48, 2**53 + 1, 2**62,
    2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**31), -(2**63), -(2**63) - 1, 10**19, 10**30, 10**400,
    9_504_000_000_000_000_000, 1_000_000, 10_000_000_000,
)  # fmt: skip
FLOATS = (0.5, -0.0, 1e308, 1e-320, "@NaN", "@Infinity", "@-Infinity", "@1e999", "@-1e999", "@1E5")
TEXTS = (
    "", " ", "\x00", "\ud800", "\udfff\ud800", "a" * 300, "x" * 70_000, "é" * 40_000, "\u202e", "/",
    ".", "..", "default", "default.commands", "other.commands", "*", "a>", "^(a+)+$", "[", "\\",
    "\r\n", "1-2", "null", "true", "NaN", "110000000000d", "-5s", "1e9s", "0ms", "5GB", "-1KB",
    "99999999999999999999GB", "💥" * 50, "%s%n", "{}", "[]", '"',
)  # fmt: skip
IDS = (
    "1", "0", "1-5", "1-18446744073709551615", "18446744073709551615", "18446744073709551616",
    "0-0", "5-1", "", ",", "1,,2", "1-2-3", "-", "-1", "1-", "١-٣", "0001", " 1 , 2 ", "1.5", "1e3",
    "281474976710657", "281474976710655-281474976710657", "1-3,2-9,4", "9" * 30, "1;2", "\ud800",
    "1-99999999", "3,2,1,1,1", "1000000-1000100", "\x00", "0-18446744073709551615",
    "18446744073709551614-18446744073709551615", "1-281474976710656",
)  # fmt: skip
TOPICS = (
    "default.deliveries", "default.deliveries.mine", "default.commands", "default.publish",
    "default.receipts", "default.journal", "default.rejected", "other.deliveries", "other.commands",
    "deliveries", "", ".", "broker-0.steps", "default.deliveries.", "orders", "x" * 300,
    "default.deliveries.\ud800", "DEFAULT.deliveries",
)  # fmt: skip
DURATIONS = ("1ms", "5s", "30s", "1h", "110000000000d", "99999999d", "0s", "-1s", "1.5s", "", "1y")


@dataclass(frozen=True)
class Incoming:
    """One record, and the key of its outcome: a request or a producer's sequence."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    meta: bytes | None = None
    headers: str | None = None
    timestamp: int | None = None
    request: str = ""


class Raw(str):
    """A text that goes into the JSON unchanged."""

    __slots__ = ()


def encode(value: Any) -> bytes:
    """Encode as JSON, invalid where the value asks for it."""
    return _text(value).encode("utf-8", "surrogatepass")


def _text(value: Any) -> str:
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, str) and value.startswith("@") and value[1:2] in "NI-1":
        return value[1:]
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quoted(str(k))}:{_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class Mutator:
    """Makes records. `size` bounds long texts, so that many can be made."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.made = 0
        self.sequence = 0

    # Values

    def nasty(self) -> Any:
        """Anything at all."""
        r = self.random
        depth = r.choice((3, 50, 600, 5000))
        kinds: list[tuple[Any, ...]] = [
            *[NUMBERS] * 3, FLOATS, *[TEXTS] * 3, (*IDS, *TOPICS, *EXPRESSIONS),
            (None, True, False, [], {}, [[]], {"": None}, [None], [0] * 500),
            (Raw("[" * depth + "]" * depth),), (Raw('{"a":' * depth + "1" + "}" * depth),),
            tuple(map(Raw, ("", ",", "}", "{", "nul", "'x'", '"\\ud800"', '"\\x"', "01"))),
        ]  # fmt: skip
        return r.choice(r.choice(kinds))

    def ids(self) -> str:
        r = self.random
        if r.random() < 0.5:
            low = r.randrange(1, 3000)
            return f"{low}-{low + r.randrange(40)}"
        if r.random() < 0.02:
            return ",".join(str(n) for n in range(1, r.choice((3000, 20_000)), 2))
        return r.choice(IDS)

    def definition(self) -> dict[str, Any]:
        """A valid queue definition, apart from randomly broken keys."""
        r = self.random
        out: dict[str, Any] = {"name": r.choice(QUEUES), "message_type": "json"}
        periods = (
            "lease_period", "expiration", "deferred_ack_expiration", "redelivery_delay",
            "redelivery_delay_max",
        )  # fmt: skip
        numbers = (
            "max_backlog", "max_per_subscription_backlog", "max_deliveries", "max_cancels",
            "max_spool_messages", "max_delivered_unacked_per_flow", "reject_low_priority_msg_limit",
        )  # fmt: skip
        choices: dict[str, tuple[Any, ...]] = {
            **dict.fromkeys(periods, DURATIONS), **dict.fromkeys(numbers, NUMBERS),
            "filter": EXPRESSIONS, "priority": EXPRESSIONS,
            "barrier_expression": ("/k = 9", *EXPRESSIONS),
            "partition_key": ("/k", "@key", *EXPRESSIONS),
            "expiration_model": ("queue", "latest", "earliest", "default", "never"),
            "redelivery_delay_multiplier": (1, 2, 1e308, 0, -1, *NUMBERS, *FLOATS),
            "max_spool_usage": ("0", "200", "5GB", *NUMBERS, *TEXTS),
            "max_message_size": ("64KB", *NUMBERS), "target_queue_depth": (1000, *NUMBERS),
            "dead_message_queue": ("dead", "orders", *TEXTS),
            "underlying_topic": ("orders", "ord.*", "(", "[", "x" * 300, ".*", *TEXTS),
            "default_publish_target": ("orders", *TEXTS), "leasing": ("strict", "sublet"),
            "semantics": ("at-least-once", "at-most-once"),
            "fairness_model": ("fast", "round-robin", "proportional"),
            "reject_msg_to_sender_on_discard": ("never", "including-when-shutdown"),
            "subscriptions": (["a/b", "a/>"], ["("], ["a"] * 2000, "a", [None]),
            "spool_usage_high_percent": (50, 0, 100, 101, -1, *FLOATS),
            "type": ("Queue", "LocalQueue", "GroupLocalQueue"),
            "initial_owner": ("broker-0", "nobody"), "vpn": ("default", "other", *TEXTS),
            "recovery_point": ("epoch", "now", "2026-01-01T00:00:00Z", "9" * 99),
        }  # fmt: skip
        for key in r.sample(sorted(choices), r.randrange(5)):
            out[key] = r.choice(choices[key]) if r.random() < 0.8 else self.nasty()
        return out

    # Commands

    def right(self) -> dict[str, Any]:
        """A mostly valid command."""
        r = self.random
        queue = {"queue": r.choice(QUEUES)}
        own = queue | {"subscription": f"s{r.randrange(6)}"}
        where = r.choice(EXPRESSIONS)
        of_ids = own | {"ids": self.ids()}
        made: dict[str, dict[str, Any]] = {
            "configure": {
                "system": r.choice(({}, {"max_delivered_unacked": r.choice(NUMBERS)},
                                    {"heartbeat_timeout": r.choice(DURATIONS)}, {"x": 1})),
                "vpns": r.choice(({}, {"default": {"max_spool_usage": "5GB"}}, {"": {}})),
            },
            "define": {"definition": self.definition()},
            "delete": queue if r.random() < 0.05 else {"queue": "nobody"},
            "subscribe": own | {
                "inbox": INBOX if r.random() < 0.7 else {"topic": r.choice(TOPICS)},
                "max_backlog": r.choice((1, 5, 50)), "filter": r.choice((None, None, where)),
                "acks": r.choice(("explicit", "explicit", "none")),
                "framing": r.choice(("single", "batch")),
                "transport_acks": r.random() < 0.5, "session": f"t{r.randrange(4)}",
            },
            "set_backlog": own | {"max_backlog": r.choice((1, 3, 30))},
            "unsubscribe": own,
            "heartbeat": {"session": f"t{r.randrange(4)}"},
            "bye": {"session": f"t{r.randrange(4)}"},
            "ack": r.choice((of_ids, of_ids, own | {"up_to": self.ids()}, own | {"where": where})),
            "transport_ack": own | {"received": r.randrange(50)},
            "cancel": of_ids | {"delay_ms": r.choice((None, 0, 50, *NUMBERS))},
            "reject": of_ids | {"reason": r.choice(TEXTS)},
            "renew": of_ids | {"period_ms": r.choice((None, 0, 50, *NUMBERS))},
            "return": of_ids,
            "queues": {}, "usage": {}, "tick": {},
            "records_lost": {"topic": r.choice(TOPICS), "records": r.choice((3, *NUMBERS)),
                             "event": r.choice(("topic_made_anew", *TEXTS))},
            "stuck": {"why": r.choice(TEXTS)},
            "record_refused": {"topic": r.choice(TOPICS), "why": r.choice(TEXTS)},
            "undeliverable": queue | {"ids": self.ids(), "topic": r.choice(TOPICS),
                                      "reason": "message_too_large", "why": r.choice(TEXTS)},
            "describe": queue,
            "browse": queue | {"where": where, "state": r.choice(("ready", "leased", "x", None)),
                               "limit": r.choice((5, *NUMBERS)),
                               "start": r.choice((None, "0", "-18446744073709551615", *IDS))},
            "purge": queue | r.choice(({"where": where}, {"ids": self.ids()})),
            "move": queue | {"to": r.choice(QUEUES), "dry_run": r.random() < 0.2}
            | r.choice(({}, {"where": where}, {"ids": self.ids()})),
            "edit": queue
            | {"headers": {r.choice(("a", "lq-id", *TEXTS)): r.choice((None, *TEXTS))}}
            | r.choice(({}, {"where": where}, {"ids": self.ids()})),
            "begin_again": queue,
            "redrive": {"queue": "dead"} | r.choice(({}, {"where": where}, {"ids": self.ids()})),
            "shutdown": queue | {"ingress": r.random() < 0.1, "egress": r.random() < 0.1},
            "subscribe_topic": queue | {"topic": r.choice(("a/*", *TEXTS))},
            "unsubscribe_topic": queue | {"topic": r.choice(("a/*", *TEXTS))},
            "events": {"limit": r.choice((10, *NUMBERS))},
        }  # fmt: skip
        name = r.choice(sorted(made))
        return {"command": name, **made[name]}

    def command(self) -> Incoming:
        """A command, changed somewhere; most request an answer."""
        r = self.random
        self.made += 1
        request = f"r{self.made}"
        value = self.right()
        if r.random() < 0.9:
            value["reply"] = {**INBOX, "request": request}
        for _ in range(r.choice((0, 0, 0, 1, 1, 2, 4))):
            self._change(value)
        reply = value.get("reply")
        asked = isinstance(reply, dict) and reply.get("topic") == INBOX["topic"]
        data = encode(value)
        if r.random() < 0.15:
            data = self._spoil(data)
        return Incoming("default.commands", data, r.choice((b"k", None)),
                        request=request if asked else "")  # fmt: skip

    def _change(self, value: dict[str, Any]) -> None:
        r = self.random
        keys = [k for k in value if k != "command"]
        inner = value.get("definition")
        if isinstance(inner, dict) and r.random() < 0.5:
            return self._change(inner)
        match r.randrange(8):
            case 0:
                added = r.choice(("x", "", "epoch", "Queue", "command ", "ids", "where"))
                value[added] = self.nasty()
            case 1 if keys:
                del value[r.choice(keys)]
            case 2:
                value["command"] = r.choice(("nothing", "", "ACK", self.nasty()))
            case 3 if "reply" in value:
                value["reply"] = r.choice((
                    {"topic": r.choice(TOPICS)}, {**INBOX, "partition": r.choice(NUMBERS)},
                    {**INBOX, "request": r.choice(TEXTS)}, self.nasty(),
                ))  # fmt: skip
            case 4 if "inbox" in value:
                value["inbox"] = r.choice((
                    {"topic": r.choice(TOPICS)}, {**INBOX, "partition": r.choice(NUMBERS)},
                    self.nasty(),
                ))  # fmt: skip
            case _ if keys:
                key = r.choice(keys)
                if key != "reply":
                    value[key] = self.nasty()
        return None

    def _spoil(self, data: bytes) -> bytes:
        """Damage bytes, as if in transit."""
        r = self.random
        at = r.randrange(len(data) + 1)
        match r.randrange(7):
            case 0:
                return data[:at]
            case 1:
                return data[:at] + bytes([r.randrange(256)]) + data[at + 1 :]
            case 2:
                return data[:at] + r.randbytes(r.randrange(1, 9)) + data[at:]
            case 3:
                return data * 2
            case 4:
                return b"\xef\xbb\xbf" + data
            case 5:
                return r.randbytes(r.randrange(200))
            case _:
                return data[at:]

    # Messages

    def payload(self) -> bytes:
        r = self.random
        value = {"k": r.randrange(12), "p": r.randrange(10), "t": "xx", "a": {"b": {"c": 1}}}
        match r.randrange(10):
            case 0:
                value[r.choice("kpta")] = self.nasty()
            case 1:
                return encode(self.nasty())
            case 2:
                return self._spoil(encode(value))
            case 3:
                return b""
        return encode(value)

    def message(self) -> Incoming:
        """A record to publish, changed somewhere."""
        r = self.random
        self.made += 1
        self.sequence += 1
        header: dict[str, Any] = {
            "to": r.choice((*QUEUES, *QUEUES, "nowhere", *TEXTS)) if r.random() < 0.3 else "orders",
            "producer": r.choice(("", "p1", "p2", "p3")),
            "seq": self.sequence,
        }
        if not header["producer"]:
            header["seq"] = 0
        options = {
            "ttl_ms": (1, 5_000, *NUMBERS), "priority": (0, 4, 255, *NUMBERS),
            "deliver_at": (5, 1_700_000_005_000, *NUMBERS), "dmq": (True, False, 0),
            "reply": (0, 1, *NUMBERS), "count": (0, 1, 8, *NUMBERS), "x": (1,),
        }  # fmt: skip
        for key in options:
            if r.random() < 0.1:
                header[key] = r.choice(options[key])
        if r.random() < 0.1:
            header[r.choice(sorted(header))] = self.nasty()
        meta: bytes | None = encode(header)
        if r.random() < 0.05:
            meta = self._spoil(meta or b"")
        topic = "default.publish"
        if r.random() < 0.15:
            topic, meta = r.choice((*QUEUES, "a/b", "x" * 250, "other.publish")), None
        headers = None
        if r.random() < 0.1:
            headers = json.dumps([{"key": r.choice(TEXTS).encode("utf-8", "replace").decode(),
                                   "value": r.choice(("", None, "eHg=", "eHg="))}])  # fmt: skip
        time = None if r.random() < 0.9 else r.choice((-1, 0, 2**62, 2**63 - 1, 1_700_000_000_000))
        key = r.choice((None, None, b"", b"a", b"b", b"\xff\xfe", b"k" * 70_000))
        payload = self.payload() if r.random() < 0.97 else None
        return Incoming(topic, payload, key, meta, headers, time)
