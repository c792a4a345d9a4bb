"""One word, one meaning: names and phrases that were given up do not come back.

Modules, classes, functions and variables have the field's names (`docs/glossary.md`).
"""

import ast
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from docs.printed import PAGES, ROOT, name_of

CODE = re.compile(r"`([^`]+)`")
ROOMS = sorted(one.parent for one in ROOT.glob("*/__init__.py"))

#: No module has these names, in whatever room.
MODULES = """
after_rebuild again answering asked_again awaited beginning_again beyond bridge_description
bridge_intake bridged broker_section carried_out causes columns_said deferred describing door doors
each_broker elsewhere entering every everywhere far_address few following gathering handed_over
handing_over held_lanes holds identity judging known_places lanes last_value later lifetime looking
looks mesh_words met_brokers moved neighbours outgoing placed places reader reading recovery_points
recreated_topics redriving referring rejected_records rejoining returning rooms saying serving shown
sight smaller speaking taken taken_in task topics_anew turns unanswered waits whereabouts which
wishes words
"""
#: No class, and no alias of a type, has these names.
CLASSES = """
AskedAgain Beyond Bridged CarriedOut Doors Ear Few Following Gathering Given GoneTo HandingOver Hold
Judged Known Outgoing Place Placed ReadAgain Referring Said SaidEntry SaidTopic Sight Speaking Takes
Unanswered Waits Way Whereabouts Wish Wishes
"""
#: No function, parameter or variable has these names.
NAMES = """
became carried_out few gone_to hold humbly judged last_words said_topics say_arrived say_held
say_home settle_arrival takes turn_away way way_in ways wish
"""
GIVEN_UP = {"module": MODULES.split(), "class": CLASSES.split(), "name": NAMES.split()}

# No page has these phrases.
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

#: No docstring or comment begins a sentence with a clause without an actor: "What is left …" or
#: "Who waits …". Questions may.
BEGIN = re.compile(r"\A|(?<=[.:;!?])\s+|\n\s*\n|^\s*- ", re.MULTILINE)  # of a sentence
HEADLESS = re.compile(r"(?:What|Whatever|Which|Who|Whoever|Whose)\b(?!.*\?\s*\Z)", re.DOTALL)


@cache
def modules() -> list[Path]:
    """The package's modules."""
    return [*ROOT.glob("*.py"), *(file for room in ROOMS for file in room.rglob("*.py"))]


@cache
def defined() -> list[tuple[str, str, str, int]]:
    """The definitions of the modules: kind, name without the leading underscore, file and line. A
    class may be an alias of a type; a name is of a function, a parameter or a variable."""
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
        f"{file}:{line}: {name!r} is not used; docs/glossary.md has the field's words"
        for of, name, file, line in defined()
        if of == kind
        and name in GIVEN_UP[kind]
        and (name, Path(file).name) != ("way", "bridge_facts.py")  # stored in pages
    ]
    assert not found, "\n".join(found)


def texts_of(file: Path) -> Iterator[tuple[int, str]]:
    """The docstrings and comments of a module, each with its first line. Comments on consecutive
    lines are one text."""
    for node in ast.walk(ast.parse(file.read_text())):
        value = getattr(node.value, "value", None) if isinstance(node, ast.Expr) else None
        if isinstance(value, str):
            yield node.lineno, value
    begin, lines = 0, list[str]()
    with file.open("rb") as source:
        found = [t for t in tokenize.tokenize(source.readline) if t.type == tokenize.COMMENT]
    for token in found:
        if lines and (token.start[0] != begin + len(lines) or token.line.lstrip()[0] != "#"):
            yield begin, "\n".join(lines)
            lines = []
        begin = begin if lines else token.start[0]
        lines.append(token.string.lstrip("#: "))
    if lines:
        yield begin, "\n".join(lines)


def headless(text: str) -> list[tuple[int, str]]:
    """The sentences without an actor in a text, each with its line from 0."""
    begins = [begin.end() for begin in BEGIN.finditer(text)]
    sentences = [text[a:b] for a, b in pairwise([*begins, len(text)])]
    return [
        (text[:at].count("\n"), " ".join(sentence.split()))
        for at, sentence in zip(begins, sentences, strict=True)
        if HEADLESS.match(sentence)
    ]


@pytest.mark.parametrize("room", [*ROOMS, ROOT / "tests"], ids=lambda room: room.name)
def test_no_sentence_begins_without_an_actor(room: Path) -> None:
    found = [
        f"{name_of(file)}:{number + line}: {sentence!r}: name the actor or the thing"
        for file in sorted(room.rglob("*.py"))
        for number, text in texts_of(file)
        for line, sentence in headless(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("What a sender keeps of it.", 1),
        ("Keeps it.\n\nWho waits is named. Which of them\nleft, too.", 2),
        ("tables: What they lack", 1),
        ("- Whoever reads it", 1),
        ("What is in the file `a.py`?", 0),
        ("Returns what it found, for whoever asks.", 0),
    ],
)
def test_sentences_without_an_actor_are_found(text: str, count: int) -> None:
    assert len(headless(text)) == count


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_uses_a_name_given_up(page: Path) -> None:
    """In code a module is ours if its room or `.py` is beside it."""
    rooms = "|".join({file.parent.name for file in modules()} - {ROOT.name})
    names = "|".join(GIVEN_UP["module"])
    wrong = (
        re.compile(rf"\b(?:{rooms})[./](?:{names})(?:\.py)?\b|^(?:{names})\.py$"),
        re.compile(rf"^_?(?:{'|'.join(GIVEN_UP['class'])})(?:\.\w+)?$"),
    )
    found = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        codes = [code for code in CODE.findall(line) if any(one.search(code) for one in wrong)]
        found += [f"{number}: {code}: a name that was given up" for code in codes]
        found += [f"{number}: {m[0]}: {PHRASES[p]}" for p in PHRASES for m in re.finditer(p, line)]
    assert not found, "\n".join(found)
