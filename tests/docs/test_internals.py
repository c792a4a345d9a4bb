"""Files, folders, functions, classes and fields named on the pages for developers exist in the
code.

A reader who finds one wrong name stops trusting the page.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from docs.printed import FENCE, ROOT

PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs/internals").glob("*.md"))]
CODE = re.compile(r"`([^`\n]+)`")
WORD = r"[A-Za-z_]\w*"
DOTTED = re.compile(rf"{WORD}(?:\.{WORD})+")
# Names from elsewhere: a function of Spark's SQL, files, settings of a test.
FOREIGN = {"current_timestamp", "CHANGELOG.md", "lakequeue.json", "LAKEQUEUE_CHAOS_DEATHS",
           "LAKEQUEUE_CHAOS_SEED"}  # fmt: skip


def modules() -> Iterator[Path]:
    """The package's modules, without installed files; of the tests the simulated home and the
    network that is cut, which a page describes."""
    yield from ROOT.glob("*.py")
    yield ROOT / "tests/job/hosts.py"
    for folder in [*(one.parent for one in ROOT.glob("*/__init__.py")), ROOT / "tests/sim"]:
        yield from folder.rglob("*.py")


# The attribute of a node that is a name.
NAME_OF = {ast.FunctionDef: "name", ast.ClassDef: "name", ast.alias: "name", ast.arg: "arg",
           ast.Attribute: "attr", ast.Name: "id"}  # fmt: skip


def collect(node: ast.AST, owners: list[set[str]], found: dict[str, set[str]]) -> None:
    """Add each name in a piece of code, also those in strings (words on the wire), to its module
    and its classes."""
    if isinstance(node, ast.ClassDef):
        owners = [*owners, found.setdefault(node.name, set())]
    name = getattr(node, NAME_OF.get(type(node), "value"), None)
    if isinstance(name, str) and re.fullmatch(WORD, name):
        for names in owners:
            names.add(name)
    for child in ast.iter_child_nodes(node):
        collect(child, owners, found)


@cache
def code() -> dict[str, set[str]]:
    """The names in each module, package and class, by its name."""
    found: dict[str, set[str]] = {}
    for file in modules():
        tree = ast.parse(file.read_text())
        stem = file.parent.name if file.stem == "__init__" else file.stem
        collect(tree, [found.setdefault(stem, set())], found)
        if file.parent != ROOT:
            own = {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
            found.setdefault(file.parent.name, set()).update({file.stem}, own)
    return found


@cache
def all_names() -> set[str]:
    return set().union(*code().values(), code(), ["tests"])


def marked(text: str) -> list[str]:
    """Texts in back quotes, without the arguments of a call."""
    return [re.sub(r"\(.*\).*$", "", name) for name in CODE.findall(text)]


def is_path(name: str) -> bool:
    return bool(re.fullmatch(r"[\w./-]+(?:\.py|/)", name))


def missing(page: str) -> list[str]:
    """Names on a page that the code does not have."""
    known = all_names()
    prose = FENCE.sub("", page)
    names = marked(prose)
    paths = [name for name in names if is_path(name)]
    folders = [ROOT, *(ROOT / p if p.endswith("/") else (ROOT / p).parent for p in paths)]
    wrong = [name for name in paths if not any((folder / name).exists() for folder in folders)]
    drawn = [text for _, kind, text in FENCE.findall(page) if kind == "mermaid"]
    dotted = [name for name in names if DOTTED.fullmatch(name)]
    dotted += [name for text in drawn for name in DOTTED.findall(text)]
    for name in dotted:
        owner, last = name.split(".")[-2:]
        names_of_owner = known if owner == "self" else code().get(owner, ())
        if name not in FOREIGN and not is_path(name) and last not in names_of_owner:
            wrong.append(name)
    plain = {name for name in names if re.fullmatch(WORD, name)}
    return wrong + sorted(plain - known - FOREIGN) + files_of_tables(prose)


def files_of_tables(prose: str) -> list[str]:
    """Names in a column `files of <folder>` that the folder does not have."""
    wrong = []
    for table in re.findall(r"(?:^\|.*\n)+", prose, re.MULTILINE):
        head, _, *rows = [line.strip("|\n ").split("|") for line in table.splitlines()]
        for at, title in enumerate(head):
            if folder := re.search(r"(?:files?|room) of `(\w+/)`", title):
                for name in (name for row in rows for name in marked(row[at])):
                    tried = [ROOT / where / name for where in (folder[1], "")]
                    if not any(one.is_dir() or one.with_suffix(".py").is_file() for one in tried):
                        wrong.append(f"{folder[1]}{name}")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_on_internal_pages_exist(page: Path) -> None:
    assert missing(page.read_text()) == []


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("See `state/gone.py`.", "state/gone.py"),
        ("In `mesh/`: `gone.py` does it.", "gone.py"),
        ("`Broker.gone` does it.", "Broker.gone"),
        ("`gone_for_ever()` does it.", "gone_for_ever"),
        ("```mermaid\nA[change.gone]\n```\n", "change.gone"),
        ("| file of `streaming/` | |\n|---|---|\n| `channel` | |\n", "streaming/channel"),
    ],
)
def test_an_unknown_name_on_a_page_is_found(page: str, name: str) -> None:
    assert missing(page) == [name]
