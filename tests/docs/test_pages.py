"""Links lead somewhere, examples run, and nothing of this machine stands in a page."""

import re
from pathlib import Path

import pytest
from lakequeue.conf import load_configuration_text

ROOT = Path(__file__).resolve().parents[2]
FRONT = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
PAGES = sorted([*(ROOT / name for name in FRONT), *(ROOT / "docs").rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
README_LINES = 120
#: How many words all of docs/ may have.
ALL_WORDS = 45_000
#: How many words a page may have: more are two pages, or a design that is too complicated.
WORDS = {
    "CHANGELOG.md": 2500, "CONTRIBUTING.md": 700, "docs/concepts/": 700,
    "docs/internals/where-do-i-change.md": 900,
    "docs/glossary.md": 700, "docs/coming-from.md": 1150,
    "docs/how-to/": 500, "docs/reference/": 3500,
}  # fmt: skip
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def fences(page: Path, kind: str) -> list[str]:
    """The code of a kind in a page, without its indentation."""
    return [
        re.sub(f"^{indent}", "", code, flags=re.MULTILINE)
        for indent, found, code in FENCE.findall(page.read_text())
        if found.strip() == kind
    ]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        assert target.is_relative_to(ROOT), f"{link} leads out of the repository"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"


def test_every_page_is_linked() -> None:
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in LINK.findall(FENCE.sub("", page.read_text()))
    }
    assert [
        p for p in PAGES if p not in linked and p.name not in ("README.md", "CHANGELOG.md")
    ] == []


def test_every_example_is_linked_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    programs = [p.name for p in (ROOT / "examples").glob("*.py") if p.name != "__init__.py"]
    assert [name for name in programs if f"(examples/{name})" not in text] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_no_page_is_too_long(page: Path) -> None:
    name = str(page.relative_to(ROOT))
    for start, most in WORDS.items():
        if name.startswith(start):
            assert len(page.read_text().split()) <= most


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "concepts").glob("*.md")), ids=lambda page: page.name
)
def test_a_concept_has_one_picture_at_most(page: Path) -> None:
    text = page.read_text()
    assert text.count("```mermaid") + text.count("![") <= 1


def test_all_pages_together_are_not_too_long() -> None:
    words = sum(len(page.read_text().split()) for page in (ROOT / "docs").rglob("*.md"))
    assert words <= ALL_WORDS


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_no_page_names_this_machine(page: Path) -> None:
    text = page.read_text()
    assert str(ROOT) not in text
    assert str(Path.home()) not in text
    assert not re.search(r"(?<![\w.])/(?:home|Users|work|root)/", text)


@pytest.mark.parametrize("page", [p for p in PAGES if fences(p, "python memory")], ids=str)
def test_examples_run_on_memory(page: Path) -> None:
    """The examples of a page run one after the other, in one namespace."""
    names: dict[str, object] = {}
    for code in fences(page, "python memory"):
        exec(compile(code, str(page), "exec"), names)
    assert names, "no example ran"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_python_compiles(page: Path) -> None:
    for code in fences(page, "python"):
        assert compile(code, str(page), "exec")


@pytest.mark.parametrize("page", [p for p in PAGES if fences(p, "yaml")], ids=str)
def test_configurations_load(page: Path) -> None:
    for code in fences(page, "yaml"):
        assert load_configuration_text(code, page.name).queues


def test_the_example_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text()
    found = re.search(r"<!-- example -->\n```python\n(.*?)```", text, re.DOTALL)
    assert found
    assert len(found[1].splitlines()) <= 16
    exec(compile(found[1], "README.md", "exec"), {})
    said = capsys.readouterr().out.splitlines()
    assert said == ['2 {"price": 80}', '3 {"price": 12}', '1 {"price": 5}']


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    numbered = sorted(folder.glob("[0-9]*.md"))
    assert [int(page.name[:4]) for page in numbered] == list(range(1, len(numbered) + 1))
    listed = (folder / "README.md").read_text()
    for page in numbered:
        assert page.name in listed
        for heading in ("**Context.**", "**Decision.**", "**Consequences.**"):
            assert heading in page.read_text(), page.name
        assert not page.read_text().rstrip().endswith("**"), f"{page.name}: nothing after a heading"
        assert len(page.read_text().split()) <= 400, page.name
