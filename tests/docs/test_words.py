"""One word, one meaning: names and phrases that were given up do not come back.

A module or a class is named with the field's words. Left is what it was called once, right what it
is called now; who adds a name of that kind finds the better one here.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from docs.printed import PAGES, ROOT, name_of

CODE = re.compile(r"`([^`]+)`")
ROOMS = sorted(one.parent for one in ROOT.glob("*/__init__.py"))

#: No module has these names, in whatever room.
MODULES = {
    "after_rebuild": "a part of leases", "again": "replay_inputs", "answering": "answers",
    "asked_again": "replay", "awaited": "asyncio_client", "beginning_again": "a part of leases",
    "beyond": "mesh_interface", "bridge_description": "a part of bridge_commands",
    "bridge_intake": "far_end", "bridged": "bridged_broker", "broker_section": "brokers",
    "carried_out": "the name of the command", "causes": "error_causes",
    "columns_said": "a field's name", "deferred": "after_entry", "describing": "queue_details",
    "door": "far_end", "doors": "auth", "each_broker": "broker_status",
    "elsewhere": "a part of mesh/", "entering": "entry_checks", "every": "duties",
    "everywhere": "all_hosts", "far_address": "a part of bridge", "few": "a constant",
    "following": "moved_messages", "gathering": "batching", "handed_over": "handover",
    "handing_over": "producer_buffer", "held_lanes": "a part of endpoint",
    "holds": "a part of endpoint", "identity": "permissions", "judging": "admission_checks",
    "known_places": "a part of mesh/directory",
    "lanes": "stand_ins; a lane is of one partition key", "last_value": "after_entry",
    "later": "in_transit_commands", "lifetime": "a part of entry_checks",
    "looking": "filter_matching", "looks": "queries_at", "mesh_words": "mesh_messages",
    "met_brokers": "bridged_broker", "moved": "move_at_rest", "neighbours": "bridged_broker",
    "outgoing": "broker_channel", "placed": "queue_placement", "places": "a part of mesh/directory",
    "reader": "stdout_reader", "reading": "reading_positions",
    "recovery_points": "a part of entry_checks", "recreated_topics": "a part of steplog",
    "redriving": "a part of moving", "referring": "block_references",
    "rejected_records": "a part of answers", "rejoining": "channel", "returning": "returned_leases",
    "rooms": "credit", "saying": "what is said: broker_requests", "serving": "callbacks",
    "shown": "a part of bridge_commands", "sight": "snapshot", "smaller": "record_splitting",
    "speaking": "broker_requests", "taken": "entered ids, a part of header", "taken_in": "far_end",
    "task": "the name of the command", "topics_anew": "recreated_topics",
    "turns": "multi_step_commands", "unanswered": "window", "waits": "why_waited",
    "whereabouts": "queue_directory", "which": "command_targets",
    "wishes": "broker_change_requests", "words": "formatting",
}  # fmt: skip

#: No class, and no alias of a type, has these names.
CLASSES = {
    "AskedAgain": "replay", "Beyond": "MeshInterface", "Bridged": "Mesh", "CarriedOut": "a noun",
    "Doors": "Auth", "Ear": "a noun of what is heard", "Few": "a constant",
    "Following": "MovedMessages", "Gathering": "Batcher", "Given": "DecodedCommand",
    "GoneTo": "ForwardedTo", "HandingOver": "ProducerBuffer", "Hold": "HeldLane",
    "Judged": "CheckedMessages", "Known": "a noun of what is known", "Outgoing": "BrokerChannel",
    "Place": "RecordPosition, ContentLocation, PartitionId, QueueKey", "Placed": "QueuePlacement",
    "ReadAgain": "ReplayInputs", "Referring": "BlockReferences", "Said": "MeshMessage",
    "Sight": "VpnMonitor", "Speaking": "BrokerRequests", "Takes": "a noun", "Unanswered": "Window",
    "Waits": "WaitReasons", "Way": "CopyAttempt, BrokerChannel", "Whereabouts": "QueueDirectory",
    "Wish": "ChangeRequest", "Wishes": "ChangeRequests",
}  # fmt: skip

#: No function, parameter or variable has these names.
NAMES = {
    "carried_out": "the name of the command", "became": "late_answer",
    "few": "a count, or `is_small`", "gone_to": "forwarded_to",
    "hold": "lease, or the verb that it does", "humbly": "at_low_priority", "judged": "checked",
    "last_words": "last_records", "said_topics": "peer_topics", "say_arrived": "report_arrived",
    "say_held": "send_held_receipts", "settle_arrival": "apply_early_ack",
    "takes": "forward_command, or a question with is_ or has_", "turn_away": "refuse_plain",
    "way": "path, connection, or TRANSIT", "way_in": "match_stored", "ways": "paths",
    "wish": "request, change",
}  # fmt: skip

#: No page says it so.
PHRASES = {
    r"\bA broker more\b": "Add a broker",
    r"\bstands still meanwhile\b": "waits meanwhile",
    r"\bis told who waits\b": "names the waiting consumers",
    r"\bMended:": "Fixed:",
    r"\bthen all is done\b": "returns True",
    r"\bdecides from now on\b": "is the leader from now on",
    r"(?:^|[.:;] |- )Who (?!\w+[^.]*\?)\w+s\b": "name the actor: a client that ...",
    r"(?:^|[.] |- )What (?:is|was|cannot|came|comes|goes) (?![^.]*\?)": "messages that ...",
}


GIVEN_UP = {"module": MODULES, "class": CLASSES, "name": NAMES}


@cache
def modules() -> list[Path]:
    """Those of the package."""
    return [*ROOT.glob("*.py"), *(file for room in ROOMS for file in room.rglob("*.py"))]


@cache
def defined() -> list[tuple[str, str, str, int]]:
    """What the modules define: kind, name without the leading underscore, file and line. A class
    may be an alias of a type; a name is of a function, a parameter or a variable."""
    found = []
    for file in modules():
        found.append(("module", file.stem, name_of(file), 1))
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                names = [("class", node.name)]
            elif isinstance(node, ast.FunctionDef):
                names = [("name", node.name)]
            elif isinstance(node, ast.arg):
                names = [("name", node.arg)]
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names = [("name", node.id), ("class", node.id)]
            else:
                continue
            found += [(kind, name.lstrip("_"), name_of(file), node.lineno) for kind, name in names]
    return found


@pytest.mark.parametrize("kind", GIVEN_UP)
def test_no_name_that_was_given_up_comes_back(kind: str) -> None:
    found = [
        f"{file}:{line}: {name!r} is not used; rather: {GIVEN_UP[kind][name]}"
        for of, name, file, line in defined()
        if of == kind
        and name in GIVEN_UP[kind]
        and (name, Path(file).name) != ("way", "bridge_facts.py")  # stored in pages
    ]
    assert not found, "\n".join(found)


def test_no_comment_begins_without_an_actor() -> None:
    found = [
        f"{name_of(file)}:{number}: {line.strip()}: name the actor: a client that ..."
        for file in modules()
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if re.search(r"""(?:\"\"\"|# |[.:;] )(?:Whoever|Who \w+s) """, line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_uses_them(page: Path) -> None:
    """In code a module is ours where its room, or `.py`, stands beside it."""
    rooms = "|".join({file.parent.name for file in modules()} - {ROOT.name})
    names = "|".join(MODULES)
    module = re.compile(rf"\b(?:{rooms})[./]({names})(?:\.py)?\b|^({names})\.py$")
    one_of_ours = re.compile(rf"^_?({'|'.join(CLASSES)})(?:\.\w+)?$")
    found = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        for code in CODE.findall(line):
            found += [f"{number}: {code}: {MODULES[m[1] or m[2]]}" for m in module.finditer(code)]
            found += [f"{number}: {code}: {CLASSES[m[1]]}" for m in one_of_ours.finditer(code)]
        found += [f"{number}: {m[0]}: {PHRASES[p]}" for p in PHRASES for m in re.finditer(p, line)]
    assert not found, "\n".join(found)
