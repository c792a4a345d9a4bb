"""Everything that an application can import or call is typed and documented."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import lakequeue
import pytest
from lakequeue import aio

# A docstring may refer to another one: "Arguments as for `send`".
ELSEWHERE = re.compile(r"\b(as|as for|as set by|like|options of|[Ss]ee) `")


def public() -> Iterator[tuple[str, Any]]:
    """Every public name, and every public method and property of the public classes."""
    for module in (lakequeue, aio):
        for name in module.__all__:
            found = getattr(module, name)
            yield f"{module.__name__}.{name}", found
            if not inspect.isclass(found):
                continue
            for attribute, member in inspect.getmembers(found):
                own = any(
                    attribute in vars(c) for c in found.__mro__ if "lakequeue" in c.__module__
                )
                if own and not attribute.startswith("_"):
                    is_code = inspect.isfunction(member) or isinstance(member, property)
                    if is_code or isinstance(vars(found).get(attribute), classmethod):
                        yield f"{module.__name__}.{name}.{attribute}", member


NAMES = dict(public())


def arguments(found: Any) -> list[inspect.Parameter]:
    """The arguments of a caller."""
    called = found.__init__ if inspect.isclass(found) else found
    if not inspect.isfunction(inspect.unwrap(called)):
        return []
    parameters = inspect.signature(called).parameters.values()
    return [p for p in parameters if p.name not in ("self", "cls")]


def test_the_public_names_are_found() -> None:
    assert len(NAMES) > 120
    assert "lakequeue.Producer.send" in NAMES
    assert "lakequeue.aio.Consumer.receive" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_a_docstring(name: str) -> None:
    text = inspect.getdoc(NAMES[name]) or ""
    assert len(text.split()) >= 3, f"{name} has no docstring"
    assert not re.search(r"\b(TODO|FIXME)\b", text)


@pytest.mark.parametrize("name", [n for n, f in NAMES.items() if not isinstance(f, property)])
def test_arguments_are_typed(name: str) -> None:
    found = NAMES[name]
    untyped = [p.name for p in arguments(found) if p.annotation is p.empty]
    assert untyped == []
    if inspect.isfunction(found):
        assert inspect.signature(found).return_annotation is not inspect.Signature.empty


# Applications do not create these.
MADE_BY = {"Admin", "Message"}


@pytest.mark.parametrize("name", ["Producer", "Consumer", "Admin", "connect", "Message"])
def test_arguments_are_documented(name: str) -> None:
    """The docstring names each option, or the object whose options they are."""
    found = {name: getattr(lakequeue, name)} if name not in MADE_BY else {}
    prefix = f"lakequeue.{name}."
    found |= {full: member for full, member in NAMES.items() if full.startswith(prefix)}
    for which, member in found.items():
        text = inspect.getdoc(member) or ""
        internal = "Called by the" in text  # called by the session or the consumer
        if internal or ELSEWHERE.search(text) or isinstance(member, property):
            continue
        names = {p.name for p in arguments(member)} - {"queue", "name", "session"}
        unexplained = [n for n in sorted(names) if not re.search(rf"\b{n}\b", text)]
        assert unexplained == [], f"{which} does not explain them"
