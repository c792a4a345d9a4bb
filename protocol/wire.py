"""Encodes outputs as Kafka records, and decodes delivery records. `docs/reference/protocol.md`
describes the format.

A delivery has one of two framings. *single*: a record per message; the value is the payload,
everything else is in ``lq-`` headers. *batch*: one record for many messages of a subscription: a
4-byte length, a msgpack map of columns, then the payloads. The record key is the subscription in
both, so that several can share an inbox.
"""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, assert_never

import msgspec

from . import home_bridges, mesh_messages, topics
from .journal import Journal, JournalSegment
from .outputs import (
    Alert,
    BridgeEntry,
    Capture,
    Deadline,
    Deliveries,
    DirectoryEntry,
    HomeRecord,
    InVain,
    MeshRecord,
    Output,
    Receipts,
    RejectedRecord,
    Reply,
)

BATCH_BYTES = 512_000
JOURNAL_ROWS = 200_000
JOURNAL_BYTES = 6_000_000  # per record, before compression
RECEIPT_NACKS = 5_000  # in one record; a refusal has at most about a kilobyte
ERROR_CHARACTERS_MAX = 2_000
REJECTED_BYTES = 8_000_000  # a larger rejected record is truncated, with its length in a header
REJECTED_KEY_BYTES = 1_000_000
FRAMING = "lq-framing"
STEP = "lq-step"
OURS, REPLAYED = "lq-", "lq-replay-"  # prefixes of the engine's headers, and of those of a replay

_pack = msgspec.msgpack.encode
_unpack = msgspec.msgpack.decode
_json = msgspec.json.encode


class WireRecord(msgspec.Struct):
    """A Kafka record to write. headers: JSON ``[{"key", "value": base64}, …]`` or None. instead_of:
    in a record for ``<vpn>.rejected``, the record whose partition does not exist."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: str | None = None
    instead_of: WireRecord | None = None


def headers_json(headers: list[tuple[str, bytes]]) -> str | None:
    """Kafka headers as JSON, the form in which they pass through the engine."""
    if not headers:
        return None
    return _json(
        [{"key": k, "value": base64.b64encode(v).decode("ascii")} for k, v in headers]
    ).decode()


def headers_list(text: str | bytes | None) -> list[tuple[str, bytes]]:
    """The Kafka headers in the JSON of `headers_json`."""
    if not text:
        return []
    return [(h["key"], base64.b64decode(h.get("value") or "")) for h in msgspec.json.decode(text)]


def application_headers(text: str | bytes | None) -> list[tuple[str, bytes]]:
    """A message's own headers, without names reserved for the engine, so no publisher can fake a
    message's origin or death. `dead_headers` adds those of a dead message."""
    pairs = headers_list(text)
    return [(k, v) for k, v in pairs if not k.startswith(OURS) or k.startswith(REPLAYED)]


def encode(outputs: list[Output], partitions: dict[str, int] | None = None) -> list[WireRecord]:
    """Encode a step's outputs as records, in order. Deadlines and other outputs that are not
    written give no record.

    partitions: the number of partitions of each existing topic, as of some seconds ago. If a client
    named a partition that does not exist, its record goes to ``<vpn>.rejected`` with the reason.
    Records for brokers are always sent, since the broker may just have been added.
    """
    records: list[WireRecord] = []
    for output in outputs:
        for record in _records(output):
            if partitions is None or _is_there(record, partitions):
                records.append(record)
                continue
            vpn = record.topic.rpartition(".")[0]
            home = topics.topic(vpn, topics.REJECTED)
            if home not in partitions:
                home = next(t for t in sorted(partitions) if t.endswith(f".{topics.REJECTED}"))
            why = f"there is no partition {record.partition} of a topic {record.topic!r}"
            headers = [("lq-error", why.encode()), ("lq-topic", record.topic.encode())]
            told = headers_json(headers)
            records.append(WireRecord(home, None, record.key, record.value, told, record))
    return records


def _is_there(record: WireRecord, partitions: dict[str, int]) -> bool:
    at = record.partition
    exists = at is None or 0 <= at < partitions.get(record.topic, 0)
    return exists or topics.kind(record.topic) == topics.MESH


def _records(output: Output) -> Iterable[WireRecord]:
    match output:
        case Deliveries():
            return batches(output) if output.framing == "batch" else _singles(output)
        case Receipts():
            return _receipts(output)
        case Reply():
            return [_reply(output)]
        case RejectedRecord():
            return [_rejected(output)]
        case Journal():
            return _journal(output)
        case MeshRecord():
            return [_mesh(output)]
        case DirectoryEntry():
            return [_entry(output)]
        case HomeRecord():
            value = home_bridges.encode(output.message)
            return [WireRecord(output.topic, output.partition, output.key, value)]
        case BridgeEntry():
            return [_bridge_entry(output)]
        case Deadline() | InVain() | Capture() | Alert():
            return []
        case _:
            assert_never(output)


# ---------------------------------------------------------------- deliveries

_BATCH = headers_json([(FRAMING, b"batch")])
_REPLY = headers_json([(FRAMING, b"reply")])


def batches(d: Deliveries, most: int = BATCH_BYTES) -> list[WireRecord]:
    """Records of framing *batch* with at most ``most`` bytes of messages, or one message."""
    lengths = list(map(len, d.payloads))
    sizes = lengths
    if any(d.keys) or any(d.headers):
        columns = zip(lengths, d.keys, d.headers, strict=True)
        sizes = [n + len(key or b"") + len(own or b"") for n, key, own in columns]
    if sum(sizes) <= most:  # the usual case
        return [_batch(d, lengths)]
    ends, records = list(accumulate(sizes)), []
    start, total = 0, len(d.ids)
    while start < total:
        begun = ends[start - 1] if start else 0
        stop = max(bisect_right(ends, begun + most, start), start + 1)
        records.append(_batch(_part(d, start, stop), lengths[start:stop]))
        start = stop
    return records


def _part(d: Deliveries, start: int, stop: int) -> Deliveries:
    """Consecutive messages of a delivery."""
    columns = ("ids", "numbers", "counts", "priorities", "expires", "times", "payloads", "keys")
    return msgspec.structs.replace(
        d, **{name: getattr(d, name)[start:stop] for name in (*columns, "headers")},
        dead={at - start: dead for at, dead in d.dead.items() if start <= at < stop},
        flow=d.flow and (d.flow[0], d.flow[1] + start),
    )  # fmt: skip


def _batch(d: Deliveries, lengths: list[int]) -> WireRecord:
    """A delivery as one record."""
    n = len(d.ids)
    meta: dict[str, Any] = {
        "queue": d.queue,
        "subscription": d.subscription,
        "epoch": d.epoch,
        "lease_ms": d.lease_ms,
        "barrier": d.barrier,
        "n": n,
        "ids": _run(d.ids),
        "numbers": _run(d.numbers),
        "counts": _column(d.counts, n),
        "priorities": _column(d.priorities, n),
        "expires": _column(d.expires, n),
        "times": _column(d.times, n),
        "lengths": _column(lengths, n),
        "keys": _column(d.keys, n),
        "headers": _column(d.headers, n),
    }
    if d.dead:
        meta["dead"] = d.dead
    if d.flow:
        meta["flow"] = d.flow
    if d.again:
        meta["again"] = True
    packed = _pack(meta)
    value = b"".join((len(packed).to_bytes(4, "big"), packed, *d.payloads))
    return WireRecord(d.topic, d.partition, d.subscription.encode(), value, _BATCH)


def _column(values: list[Any], n: int) -> Any:
    """A column; equal values are written once, in a map, so that a decoder can tell the two forms
    apart."""
    return {"all": values[0]} if values.count(values[0]) == n else values


def _spread(column: Any, n: int) -> list[Any]:
    return [column["all"]] * n if isinstance(column, dict) else column


def _run(values: list[int]) -> Any:
    """A column of numbers; if they are consecutive, only the first one, in a map."""
    first, n = values[0], len(values)
    if values[-1] - first == n - 1 and (n < 3 or values == list(range(first, first + n))):
        return {"from": first}
    return values


def _sequence(column: Any, n: int) -> list[int]:
    if isinstance(column, dict):
        return list(range(column["from"], column["from"] + n))
    return list(column)


def decode_batch(value: bytes) -> Deliveries:
    """Decode a delivery record of framing *batch*."""
    size = int.from_bytes(value[:4], "big")
    meta = _unpack(value[4 : 4 + size], strict=False)
    n = meta["n"]
    payloads = []
    at = 4 + size
    for length in _spread(meta["lengths"], n):
        payloads.append(value[at : at + length])
        at += length
    return Deliveries(
        queue=meta["queue"], subscription=meta["subscription"], topic="", partition=0,
        framing="batch", lease_ms=meta["lease_ms"], epoch=meta["epoch"], barrier=meta["barrier"],
        ids=_sequence(meta["ids"], n), numbers=_sequence(meta["numbers"], n),
        counts=_spread(meta["counts"], n), priorities=_spread(meta["priorities"], n),
        expires=_spread(meta["expires"], n), times=_spread(meta["times"], n),
        payloads=payloads, keys=_spread(meta["keys"], n), headers=_spread(meta["headers"], n),
        dead=meta.get("dead") or {}, flow=meta.get("flow"), again=meta.get("again", False),
    )  # fmt: skip


def dead_headers(dead: dict[str, Any] | None) -> list[tuple[str, bytes]]:
    """The headers with the data of a dead message (X5)."""
    if not dead:
        return []
    first = dead.get("first") or {}
    texts = {f"lq-dead-{k}": v for k, v in dead.items() if k != "first"}
    texts |= {f"lq-first-dead-{k}": v for k, v in first.items()}
    joined = {k: ",".join(v) if isinstance(v, list) else v for k, v in texts.items()}
    return [(k, str(v).encode()) for k, v in joined.items() if v not in ("", None)]


def _singles(d: Deliveries) -> Iterator[WireRecord]:
    key = d.subscription.encode()
    for i, number in enumerate(d.ids):
        text = {
            "lq-id": number,
            "lq-queue": d.queue,
            "lq-subscription": d.subscription,
            "lq-delivery": d.numbers[i],
            "lq-epoch": d.epoch,
            "lq-delivery-count": d.counts[i],
            "lq-redelivered": "true" if d.counts[i] > 1 else "false",
            "lq-priority": d.priorities[i],
            "lq-time": d.times[i],
        }
        if d.expires[i]:
            text["lq-expires-at"] = d.expires[i]
        if d.lease_ms:
            text["lq-lease-ms"] = d.lease_ms
        if d.barrier:
            text["lq-barrier"] = "true"
        if d.flow:
            text["lq-flow-base"], text["lq-flow"] = d.flow[0], d.flow[1] + i
        headers = [(k, str(v).encode()) for k, v in text.items()]
        own = d.keys[i]
        if own is not None:
            headers.append(("lq-key", own))
        headers += dead_headers(d.dead.get(i))
        headers += application_headers(d.headers[i])
        yield WireRecord(d.topic, d.partition, key, d.payloads[i], headers_json(headers))


# ---------------------------------------------------------------- the rest


def _receipts(r: Receipts) -> list[WireRecord]:
    """Build one record, or several if there are many nacks. A record's ``up_to`` ends before the
    first nack of a later record."""
    nacks = sorted(r.nacks)
    if len(nacks) <= RECEIPT_NACKS:  # the usual case
        return [_receipt(r, r.up_to, nacks, True)]
    records = []
    for start in range(0, len(nacks), RECEIPT_NACKS):
        part = nacks[start : start + RECEIPT_NACKS]
        later = nacks[start + RECEIPT_NACKS : start + RECEIPT_NACKS + 1]
        up_to = min([r.up_to, *(seq - 1 for seq, *_ in later)])
        records.append(_receipt(r, up_to, part, start == 0))
    return records


def _receipt(
    r: Receipts, up_to: int, nacks: list[tuple[int, str, str, str]], first: bool
) -> WireRecord:
    """Build one record. first: it is the first or only one, which also has all other fields."""
    value: dict[str, Any] = {"broker": r.broker} if r.broker else {}
    value["producer"] = r.producer
    value["up_to"] = up_to
    value["runs"] = [[seq, n, str(number)] for seq, n, number in r.runs] if first else []
    value["nacks"] = [
        {"seq": seq, "reason": reason, "queue": queue, "detail": detail}
        for seq, reason, queue, detail in nacks
    ] if nacks else []  # fmt: skip
    value["discarded"] = [
        {"seq": seq, "reason": reason, "queue": queue} for seq, reason, queue in r.discarded
    ] if first and r.discarded else []  # fmt: skip
    if r.repeated and first:
        value["repeated"] = r.repeated
    if r.start:
        value["start"], value["base"] = r.start, r.base
    return WireRecord(
        topics.topic(r.vpn, topics.RECEIPTS), r.partition, r.producer.encode(), _json(value)
    )


def _reply(r: Reply) -> WireRecord:
    value = {
        "request": r.request, "result": r.result, "error": r.error, "kind": r.kind,
        "problems": r.problems, "more": r.more, **({"epoch": r.epoch} if r.epoch else {}),
    }  # fmt: skip
    text = _json(value)
    if len(text) > REJECTED_BYTES:
        error = f"the answer has {len(text)} bytes, at most {REJECTED_BYTES} allowed: ask for less"
        text = _json({**value, "result": None, "error": error, "kind": "LakequeueError"})
    return WireRecord(r.topic, r.partition, r.request.encode(), text, _REPLY)


def _rejected(r: RejectedRecord) -> WireRecord:
    headers = [
        ("lq-error", r.error[:ERROR_CHARACTERS_MAX].encode("utf-8", "backslashreplace")),
        ("lq-topic", r.topic.encode()),
        ("lq-partition", str(r.partition).encode()),
        ("lq-offset", str(r.offset).encode()),
    ]
    value = r.value
    if value is not None and len(value) > REJECTED_BYTES:
        headers.append(("lq-truncated", str(len(value)).encode()))
        value = value[:REJECTED_BYTES]
    key = r.key if r.key is None or len(r.key) <= REJECTED_KEY_BYTES else None
    return WireRecord(topics.topic(r.vpn, topics.REJECTED), None, key, value, headers_json(headers))


def _mesh(m: MeshRecord) -> WireRecord:
    """One record: senders split messages (`slices`) before they get a number."""
    value = mesh_messages.encode(m.sender, m.name, m.epoch, m.number, m.body, m.confirms)
    return WireRecord(topics.topic(m.to, topics.MESH), 0, m.name.encode(), value)


def _entry(entry: DirectoryEntry) -> WireRecord:
    """Readers use the newest record of a key. A record without a value means that the queue was
    deleted."""
    value = {
        "hosts": entry.hosts, "type": entry.type, "state": entry.state,
        "epoch": entry.epoch, "edition": entry.edition,
    }  # fmt: skip
    key = f"{topics.DIRECTORY_QUEUE}{entry.queue}".encode()
    text = _json(value) if entry.hosts else None
    return WireRecord(topics.topic(entry.vpn, topics.DIRECTORY), 0, key, text)


def _bridge_entry(entry: BridgeEntry) -> WireRecord:
    """Like `_entry`, for an end of a bridge between homes."""
    value = {"broker": entry.number, "definition": entry.definition}
    key = home_bridges.end_key(entry.broker, entry.bridge)
    text = None if entry.definition is None else _json(value)
    at = home_bridges.encode_written(entry.epoch, *entry.at)
    headers = headers_json([(home_bridges.WRITTEN, at)])
    return WireRecord(topics.topic(entry.vpn, topics.DIRECTORY), 0, key, text, headers)


def _journal(journal: Journal) -> Iterator[WireRecord]:
    """Yield a record per VPN, and per 200,000 rows or 6 MB. The header ``lq-step`` has the step of
    its last row, and the number of the part.

    Both only grow, so the tables show which records they already contain.
    """
    from .journal_encoding import encode as encode_journal  # loads Arrow, which clients do without

    by_vpn: dict[str, list[list[JournalSegment]]] = {}
    filled: dict[str, tuple[int, int]] = {}  # rows and bytes of the last part
    for segment in journal.segments:
        parts = by_vpn.setdefault(segment.vpn, [[]])
        rows, size = filled.get(segment.vpn, (0, 0))
        if rows >= JOURNAL_ROWS or size >= JOURNAL_BYTES:
            parts.append([])
            rows, size = 0, 0
        parts[-1].append(segment)
        n = max(len(segment.ids), 1)
        texts = len(segment.reason) + len(segment.topic) + len(segment.subscription)
        filled[segment.vpn] = rows + n, size + 20 * n + 4 * texts
    for vpn, parts in by_vpn.items():
        for number, segments in enumerate(parts):
            part = Journal(journal.broker, journal.step, journal.time, segments)
            yield WireRecord(
                topics.topic(vpn, topics.JOURNAL),
                0,
                journal.broker.encode(),
                encode_journal(part),
                headers_json([(STEP, f"{segments[-1].step or journal.step}.{number}".encode())]),
            )
