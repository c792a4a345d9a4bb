"""A naive evaluator of queue expressions (rule Q6), for the reference model only.

It reads the text with a cursor and computes the value as it goes: no tree, no cache, only JSON's
types. NULL is None; logic is three-valued.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
    r"|(?P<string>'(?:[^']|'')*'|\"[^\"]*\")"
    r"|(?P<field>/[A-Za-z_@][\w@]*(?:/[\w@]+)*)"
    r"|(?P<word>@?[A-Za-z_]\w*)"
    r"|(?P<sign><=|>=|<>|!=|==|[-+*/%<>=(),]))"
)


class BadExpressionError(ValueError):
    """The text is not an expression."""


def evaluate(text: str, lookup: Callable[[str], Any]) -> Any:
    """The value of `text`; `lookup` returns the value of a field such as `/a/b`."""
    cursor = Cursor(text, lookup)
    value = cursor.disjunction()
    if cursor.kind != "end":
        raise BadExpressionError(f"{text!r}: {cursor.token!r} was not expected")
    return value


def fields_of(document: Any) -> Callable[[str], Any]:
    """A lookup of `/a/b` in a JSON document; missing fields are NULL."""

    def lookup(path: str) -> Any:
        value = document
        for step in path.strip("/").split("/"):
            if not isinstance(value, Mapping) or step not in value:
                return None
            value = value[step]
        return value

    return lookup


class Cursor:
    """The position in the text."""

    def __init__(self, text: str, lookup: Callable[[str], Any]) -> None:
        self.text, self.lookup, self.position = text, lookup, 0
        self.kind, self.token = "", ""
        self.step()

    def step(self) -> None:
        rest = self.text[self.position :]
        if not rest.strip():
            self.kind, self.token = "end", ""
            return
        match = TOKEN.match(rest)
        if match is None:
            raise BadExpressionError(f"{self.text!r}: {rest!r} was not understood")
        self.kind, self.token = str(match.lastgroup), match.group(str(match.lastgroup))
        self.position += match.end()

    def take(self, *tokens: str) -> str | None:
        found = self.token.upper()
        if self.kind in ("word", "sign") and found in tokens:
            self.step()
            return found
        return None

    def need(self, token: str) -> None:
        if self.take(token) is None:
            raise BadExpressionError(f"{self.text!r}: {token} expected, found {self.token!r}")

    def disjunction(self) -> Any:
        value = self.conjunction()
        while self.take("OR"):
            value = any_true(value, self.conjunction())
        return value

    def conjunction(self) -> Any:
        value = self.negation()
        while self.take("AND"):
            value = negate(any_true(negate(value), negate(self.negation())))
        return value

    def negation(self) -> Any:
        if self.take("NOT"):
            return negate(self.negation())
        return self.comparison()

    def comparison(self) -> Any:
        left = self.total()
        sign = self.take("=", "==", "!=", "<>", "<", "<=", ">", ">=")
        if sign:
            return compare(sign, left, self.total())
        if self.take("IS"):
            refuted = self.take("NOT")
            self.need("NULL")
            return (left is None) != bool(refuted)
        refuted = self.take("NOT")
        if self.take("LIKE"):
            value = like(left, self.total())
        elif self.take("IN"):
            value = member(left, self.members())
        elif refuted:
            raise BadExpressionError(f"{self.text!r}: LIKE or IN expected")
        else:
            return left
        return negate(value) if refuted else value

    def members(self) -> list[Any]:
        self.need("(")
        values = [self.total()]
        while self.take(","):
            values.append(self.total())
        self.need(")")
        return values

    def total(self) -> Any:
        value = self.product()
        while sign := self.take("+", "-"):
            value = calculate(sign, value, self.product())
        return value

    def product(self) -> Any:
        value = self.atom()
        while sign := self.take("*", "/", "%"):
            value = calculate(sign, value, self.atom())
        return value

    def atom(self) -> Any:
        kind, token = self.kind, self.token
        if self.take("("):
            value = self.disjunction()
            self.need(")")
            return value
        if self.take("-"):
            return calculate("-", 0, self.atom())
        if word := self.take("NULL", "TRUE", "FALSE"):
            return {"NULL": None, "TRUE": True, "FALSE": False}[word]
        self.step()
        if kind == "number":
            return float(token) if re.search(r"[.eE]", token) else int(token)
        if kind == "string":
            return token[1:-1].replace("''", "'")
        if kind == "field" or token == "@key":
            return self.lookup(token)
        raise BadExpressionError(f"{self.text!r}: a value expected, found {token!r}")


def negate(value: Any) -> bool | None:
    return None if value is None else not value


def any_true(left: Any, right: Any) -> bool | None:
    if left or right:
        return True
    return None if left is None or right is None else False


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def compare(sign: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    if sign in ("=", "=="):
        return bool(left == right)
    if sign in ("!=", "<>"):
        return bool(left != right)
    if is_number(left) != is_number(right):
        return None
    order = (left > right) - (left < right)
    return {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[sign]


def calculate(sign: str, left: Any, right: Any) -> Any:
    if not (is_number(left) and is_number(right)):
        return None
    if sign in "/%" and right == 0:
        return None
    match sign:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
        case _:
            return left % right


def like(value: Any, pattern: Any) -> bool | None:
    if not isinstance(value, str) or not isinstance(pattern, str):
        return None
    parts = (".*" if c == "%" else "." if c == "_" else re.escape(c) for c in pattern)
    return re.fullmatch("".join(parts), value, re.DOTALL) is not None


def member(value: Any, candidates: list[Any]) -> bool | None:
    found: bool | None = False
    for candidate in candidates:
        found = any_true(found, compare("=", value, candidate))
    return found
