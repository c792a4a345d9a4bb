"""Links have targets, examples run, and no page names a developer's machine."""

import re
from pathlib import Path

import pytest
from docs.printed import FENCE, ROOT, fenced, name_of
from lakequeue.conf import load_configuration_text

FRONT = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
PAGES = sorted([*(ROOT / name for name in FRONT), *(ROOT / "docs").rglob("*.md")])
README_LINES = 120
# The limit of words in all of docs/.
ALL_WORDS = 45_000
# The limit of words of a page: a longer one is two pages, or its design is too complicated.
WORDS = {
    "CHANGELOG.md": 2500, "CONTRIBUTING.md": 700, "docs/concepts/": 700,
    "docs/internals/where-do-i-change.md": 900,
    "docs/glossary.md": 700, "docs/coming-from.md": 1150,
    "docs/how-to/": 500, "docs/reference/": 3500,
}  # fmt: skip
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


def fences(page: Path, kind: str) -> list[str]:
    """The code blocks of a kind in a page."""
    return [text for found, text in fenced(page) if found == kind]


def with_code(kind: str) -> pytest.MarkDecorator:
    """Each page with code of this kind."""
    return pytest.mark.parametrize("page", [p for p in PAGES if fences(p, kind)], ids=name_of)


def links(page: Path) -> list[str]:
    return LINK.findall(FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@each_page
def test_links_have_targets(page: Path) -> None:
    for link in links(page):
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
        (page.parent / link.partition("#")[0]).resolve() for page in PAGES for link in links(page)
    }
    pages = {page for page in PAGES if page.name not in ("README.md", "CHANGELOG.md")}
    assert pages - linked == set()


def test_every_example_is_linked_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    programs = [p.name for p in (ROOT / "examples").glob("*.py") if p.name != "__init__.py"]
    assert [name for name in programs if f"(examples/{name})" not in text] == []


def words(page: Path) -> int:
    return len(page.read_text().split())


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


@each_page
def test_no_page_is_too_long(page: Path) -> None:
    limits = [most for start, most in WORDS.items() if name_of(page).startswith(start)]
    assert all(words(page) <= most for most in limits)


@each_page
def test_a_concept_has_one_picture_at_most(page: Path) -> None:
    text = page.read_text()
    if name_of(page).startswith("docs/concepts/"):
        assert text.count("```mermaid") + text.count("![") <= 1


def test_all_pages_together_are_not_too_long() -> None:
    assert sum(map(words, (ROOT / "docs").rglob("*.md"))) <= ALL_WORDS


@each_page
def test_no_page_names_a_developers_machine(page: Path) -> None:
    text = page.read_text()
    assert str(ROOT) not in text
    assert str(Path.home()) not in text
    assert not re.search(r"(?<![\w.])/(?:home|Users|work|root)/", text)


@with_code("python memory")
def test_examples_run_on_memory(page: Path) -> None:
    """The examples of a page run one after the other, in one namespace."""
    names: dict[str, object] = {}
    for code in fences(page, "python memory"):
        exec(compile(code, str(page), "exec"), names)
    assert names, "no example ran"


@each_page
def test_python_compiles(page: Path) -> None:
    for code in fences(page, "python"):
        assert compile(code, str(page), "exec")


@with_code("yaml")
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
        text = page.read_text()
        assert page.name in listed
        for heading in ("**Context.**", "**Decision.**", "**Consequences.**"):
            assert heading in text, page.name
        assert not text.rstrip().endswith("**"), f"{page.name}: nothing after a heading"
        assert words(page) <= 400, page.name
