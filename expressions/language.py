"""The expression language of filters, priorities and barriers (Q6, O2, O3, O4, F5).

An LALR parser over `grammar.lark` reads an expression once, into a small tree. All expressions for
the same message are compiled into one Python function. It decodes the payload once, and only the
top-level fields that the expressions use. A value is NULL (None), a bool, a number or a text. A
JSON object or array is not NULL but compares with nothing. Logic is SQL's, with three values: a
comparison with NULL, or of a text with a number, is NULL; AND and OR treat NULL as "unknown". A
bool is not a number.

Rules: Q6 the language; in a payload that is not a JSON object every field is NULL. O2
`as_priority`. A program never raises, and its result depends only on its arguments.
"""

from __future__ import annotations

import functools
import importlib.resources
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import lark

from . import runtime

Value = bool | int | float | str | None

TEXT_CHARACTERS_MAX = runtime.PATTERN_CHARACTERS_MAX
DEPTH_MAX = 200  # levels of an expression's tree
# Compiling takes 1 ms, and a queue may evaluate 10,000 filters on a message (`Limits`). 8 KB each.
PROGRAMS_KEPT = 10_240
PRIORITY_MAX = 2**64 - 1
ATTRIBUTES = ("priority", "key")

_SCALARS = frozenset({type(None), bool, int, float, str})


SHOWN_MAX = 200  # characters of an expression that is refused


class ExpressionError(ValueError):
    """An expression cannot be parsed. The message names the unexpected part and what is expected
    (Q7).

    position: of the fault in the expression, counted from 0.
    """

    def __init__(self, position: int, sentence: str) -> None:
        super().__init__(position, sentence)
        self.position = position
        self.sentence = sentence

    def __str__(self) -> str:
        return f"at character {self.position + 1}: {self.sentence}"


# --- The tree -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Literal:
    """A text, number, TRUE, FALSE or NULL written in the expression."""

    value: Value


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the payload, by its path of names and array indexes."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Attribute:
    """`/@priority` or `@key`: an attribute of the record."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """An operator with its operands. `op`: see `_Writer.call`."""

    op: str
    operands: tuple[Node, ...]
    escape: str | None = None


Node = Literal | Field | Attribute | Call


def _number(token: str) -> Value:
    """The value of a number token. A whole number stays an int."""
    if token.isdecimal():
        return int(token) if len(token) <= 400 else None
    value = float(token)
    return value if math.isfinite(value) else None


@lark.v_args(inline=True)
class _TreeBuilder(lark.Transformer):
    """Builds nodes. The parser calls a method for each grammar rule."""

    def or_test(self, *nodes: Node) -> Node:
        return Call("OR", nodes)

    def and_test(self, *nodes: Node) -> Node:
        return Call("AND", nodes)

    def negation(self, node: Node) -> Node:
        return Call("NOT", (node,))

    def comparison(self, left: Node, op: lark.Token, right: Node) -> Node:
        return Call({"==": "=", "<>": "!="}.get(str(op), str(op)), (left, right))

    def like(self, left: Node, right: Node, escape: lark.Token | None = None) -> Node:
        if escape is None:
            return Call("LIKE", (left, right))
        text = _unquote(escape)
        if len(text) != 1:
            raise ExpressionError(escape.start_pos or 0, "expected ESCAPE with a single character")
        return Call("LIKE", (left, right), text)

    def not_like(self, left: Node, right: Node, escape: lark.Token | None = None) -> Node:
        return Call("NOT", (self.like(left, right, escape),))

    def isin(self, operand: Node, *options: Node) -> Node:
        return Call("IN", (operand, *options))

    def not_in(self, operand: Node, *options: Node) -> Node:
        return Call("NOT", (Call("IN", (operand, *options)),))

    def between(self, operand: Node, low: Node, high: Node) -> Node:
        return Call("AND", (Call(">=", (operand, low)), Call("<=", (operand, high))))

    def not_between(self, operand: Node, low: Node, high: Node) -> Node:
        return Call("NOT", (self.between(operand, low, high),))

    def is_null(self, operand: Node, _null: lark.Token) -> Node:
        return Call("IS NULL", (operand,))

    def is_not_null(self, operand: Node, _null: lark.Token) -> Node:
        return Call("IS NOT NULL", (operand,))

    def arithmetic(self, left: Node, op: lark.Token, right: Node) -> Node:
        return Call(str(op), (left, right))

    def signed(self, op: lark.Token, node: Node) -> Node:
        if isinstance(node, Literal) and type(node.value) in runtime.NUMBERS:
            return Literal(-node.value if op == "-" else node.value)  # type: ignore[operator]
        return Call("NEGATE" if op == "-" else "KEEP", (node,))

    def field(self, token: lark.Token) -> Node:
        steps = re.findall(r'/(?:"((?:[^"]|"")+)"|([^/"]+))', token)
        return Field(tuple(quoted.replace('""', '"') or plain for quoted, plain in steps))

    def attribute(self, token: lark.Token) -> Node:
        name = token.lstrip("/@")
        if name not in ATTRIBUTES:
            raise ExpressionError(
                token.start_pos or 0,
                f"found the attribute {str(token)!r}, expected /@priority or /@key "
                f'(a field of that name is written /"@{name}")',
            )
        return Attribute(name)

    def number(self, token: lark.Token) -> Node:
        value = _number(token)
        if value is None:
            raise ExpressionError(token.start_pos or 0, "the number is out of range")
        return Literal(value)

    def string(self, token: lark.Token) -> Node:
        return Literal(_unquote(token))

    def true(self, _token: lark.Token) -> Node:
        return Literal(True)

    def false(self, _token: lark.Token) -> Node:
        return Literal(False)

    def null(self, _token: lark.Token) -> Node:
        return Literal(None)


def _unquote(token: str) -> str:
    return token[1:-1].replace(token[0] * 2, token[0])


@functools.cache
def _parser() -> lark.Lark:
    # Read as a resource, because on an executor this package is a zip.
    grammar = importlib.resources.files(__package__).joinpath("grammar.lark").read_text()
    return lark.Lark(
        grammar,
        parser="lalr",
        transformer=_TreeBuilder(),
        maybe_placeholders=False,
    )


def parse(text: str) -> Node:
    """Parse one expression. Raises `ExpressionError`."""
    if len(text) > TEXT_CHARACTERS_MAX:
        sentence = f"it has {len(text)} characters, at most {TEXT_CHARACTERS_MAX} are allowed"
        raise ExpressionError(TEXT_CHARACTERS_MAX, sentence)
    strange = re.search("[\ud800-\udfff]", text)
    if strange:
        raise ExpressionError(strange.start(), "found an unpaired surrogate, expected text")
    try:
        node: Node = _parser().parse(text)  # type: ignore[assignment]
    except lark.exceptions.UnexpectedInput as error:
        _refuse(text, error)
    return node


_OPERAND = "a value such as /price, 10 or 'text'"
_EXPECTED = {
    "FIELD": _OPERAND,
    "COMPARE": "an operator such as =, <, +, AND, LIKE, IN or IS NULL",
    "NULL": "NULL",
    "_IN": "IN, LIKE or BETWEEN",
    "_AND": "AND",
    "_OR": "OR",
    "STRING": "a text in quotes",
    "LPAR": "'('",
    "COMMA": "','",
    "RPAR": "')'",
    "$END": "the end",
}
_INSTEAD = {"&": "AND", "|": "OR", "!": "NOT", "≠": "<>", "≤": "<=", "≥": ">="}


def _refuse(text: str, error: lark.exceptions.UnexpectedInput) -> NoReturn:
    """Raise an error that names where the parser stopped, what it found and expected, and a likely
    remedy."""
    at_end = isinstance(error, lark.exceptions.UnexpectedToken) and error.token.type == "$END"
    position = len(text) if at_end else int(error.pos_in_stream or 0)
    if isinstance(error, lark.exceptions.UnexpectedToken):
        allowed = set(error.accepts or error.expected)
    else:
        allowed = set(getattr(error, "allowed", None) or ())
    if {"FIELD", "STRING"} <= allowed:  # an operand is allowed: mention it once
        allowed -= {"STRING", "LPAR", "NULL"}
    if "COMPARE" in allowed:
        allowed -= {"_IN", "_AND", "_OR", "COMMA", "RPAR"}
    expected = [phrase for name, phrase in _EXPECTED.items() if name in allowed]
    found = re.compile(r"[^\W\d]\w*|[0-9][\w.]*|.", re.DOTALL).match(text, position)
    sentence = f"found {found.group()!r}" if found else "found the end"
    sentence += f", expected {' or '.join(expected)}" if expected else ""
    word = found.group() if found else ""
    if word in _INSTEAD:
        sentence += f" (write {_INSTEAD[word]})"
    elif word in ("'", '"'):
        sentence += " (a quote is not closed)"
    elif word.isidentifier() and text[position + len(word) :].lstrip().startswith("("):
        sentence += " (there are no functions)"
    elif word.isidentifier() and "FIELD" in allowed:
        sentence += f" (a field is written with a slash: /{word})"
    raise ExpressionError(position, sentence) from None


# --- Writing the function -------------------------------------------------------------------------


class _Writer:
    """Writes the statements of one function. Every node becomes a local variable.

    Statements are flat, one per operator, so that no tree is too deep for Python's parser. The
    function evaluates all operands: they have no side effects, and evaluating one costs less than a
    branch.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.tops: dict[str, str] = {}
        self.names: dict[Node, str] = {}
        self.written: dict[int, tuple[Node, str]] = {}  # by identity; keeps the node alive
        self.namespace: dict[str, Any] = {
            "numbers": runtime.NUMBERS,
            "scalars": _SCALARS,
            "dig": runtime.dig,
            "like": runtime.like,
            "is_in": runtime.is_in,
            "negate": runtime.negate,
            "keep": runtime.keep,
        }

    def assign(self, source: str) -> str:
        """Write one statement; returns the name that it binds."""
        name = f"t{len(self.lines)}"
        self.lines.append(f"    {name} = {source}")
        return name

    def constant(self, value: Any) -> str:
        """A name for a value that is the same in every run."""
        name = f"c{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def value(self, node: Node, depth: int = 0) -> str:
        """Write a node; returns the name of its value."""
        if depth > DEPTH_MAX:
            raise ExpressionError(0, f"it nests deeper than {DEPTH_MAX} levels")
        if isinstance(node, Field | Attribute):
            if node not in self.names:
                self.names[node] = self.reference(node)
            return self.names[node]
        if id(node) not in self.written:  # BETWEEN and IN use their operand more than once
            if isinstance(node, Literal):
                name = self.constant(node.value)
            else:
                name = self.call(node, depth + 1)
            self.written[id(node)] = node, name
        return self.written[id(node)][1]

    def reference(self, node: Field | Attribute) -> str:
        if isinstance(node, Attribute):
            if node.name == "priority":
                return "priority"
            return self.assign('None if key is None else key.decode("utf-8", "backslashreplace")')
        top = self.tops.setdefault(node.path[0], f"f{len(self.tops)}")
        if len(node.path) == 1:
            return top
        steps = tuple((step, _index(step)) for step in node.path[1:])
        return self.assign(f"dig({top}, {self.constant(steps)})")

    def call(self, node: Call, depth: int) -> str:
        """Write an operator after its operands."""
        op, operands = node.op, node.operands
        if op in runtime.OPERATORS:
            return self.compare(op, operands[0], operands[1], depth)
        if op == "IN" and all(isinstance(option, Literal) for option in operands[1:]):
            options = [option.value for option in operands[1:] if isinstance(option, Literal)]
            table = self.constant(runtime.tables(options))
            return self.assign(f"is_in({self.value(operands[0], depth)}, {table})")
        if op == "IN":
            pairs = [Call("=", (operands[0], option)) for option in operands[1:]]
            return self.call(Call("OR", tuple(pairs)), depth)
        if op == "LIKE":
            return self.like(node, depth)
        names = [self.value(operand, depth) for operand in operands]
        if op in ("AND", "OR"):
            return self.logic(op, names)
        if op in runtime.ARITHMETIC:
            function = self.constant(runtime.ARITHMETIC[op])
            return self.assign(f"{function}({names[0]}, {names[1]})")
        templates = {
            "NOT": "True if {0} is False else False if {0} is True else None",
            "IS NULL": "{0} is None",
            "IS NOT NULL": "{0} is not None",
            "NEGATE": "negate({0})",
            "KEEP": "keep({0})",
        }
        return self.assign(templates[op].format(names[0]))

    def logic(self, op: str, names: list[str]) -> str:
        """AND and OR over any number of operands. A value that is not a bool counts as unknown."""
        decisive, other = ("False", "True") if op == "AND" else ("True", "False")
        one = " or ".join(f"{name} is {decisive}" for name in names)
        every = " and ".join(f"{name} is {other}" for name in names)
        return self.assign(f"{decisive} if {one} else {other} if {every} else None")

    def compare(self, op: str, left: Node, right: Node, depth: int) -> str:
        """Write a comparison: inline if a literal tells the type, else as a function call."""
        first, second = self.value(left, depth), self.value(right, depth)
        for side, name in ((left, second), (right, first)):
            if isinstance(side, Literal) and side.value is not None:
                kind = type(side.value)
                test = f"type({name}) is {kind.__name__}"
                if kind in runtime.NUMBERS:
                    test = f"type({name}) in numbers"
                written = f"{first} {runtime.PYTHON_OPERATORS[op]} {second}"
                return self.assign(f"({written}) if {test} else None")
        return self.assign(f"{self.constant(runtime.COMPARERS[op])}({first}, {second})")

    def like(self, node: Call, depth: int) -> str:
        text, pattern = node.operands
        name = self.value(text, depth)
        if isinstance(pattern, Literal) and isinstance(pattern.value, str):
            matches = self.constant(runtime.like_matcher(pattern.value, node.escape))
            return self.assign(f"{matches}({name}) if type({name}) is str else None")
        other = self.value(pattern, depth)
        return self.assign(f"like({name}, {other}, {self.constant(node.escape)})")

    def scalar(self, node: Node) -> str:
        """The result of an expression: NULL for an object or array."""
        name = self.value(node)
        if isinstance(node, Field):
            return self.assign(f"{name} if type({name}) in scalars else None")
        return name

    def source(self, results: list[str]) -> str:
        """The source of the function, after all nodes were written."""
        head = ["def run(payload, priority, key):"]
        if self.tops:
            quick, patient = runtime.decoders(tuple(self.tops))
            self.namespace.update(quick=quick, patient=patient, shallow=runtime.shallow)
            self.namespace["unreadable"] = runtime.UNREADABLE
            head += [
                "    try:",
                f"        if len(payload) > {2 * runtime.DEPTH_MAX} and not shallow(payload):",
                "            raise ValueError",
                "        record = quick(payload)",
                "    except unreadable:",
                f"        {', '.join(self.tops.values())}, = patient(payload)",
                "    else:",
                *(f"        {name} = record.{name}" for name in self.tops.values()),
            ]
        return "\n".join([*head, *self.lines, f"    return ({' '.join(r + ',' for r in results)})"])


def _index(step: str) -> int:
    """The array index that a step of a path names, or -1."""
    return int(step) if step.isascii() and step.isdigit() and len(step) <= 9 else -1


# --- The public interface -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Program:
    """Several expressions that share one decoding of the payload.

    texts: as given; needs_payload: whether they read fields. `run(payload, priority, key)` returns
    one value per text (None for a text that is None). It accepts any payload and never raises.
    """

    texts: tuple[str | None, ...]
    needs_payload: bool
    run: Callable[[bytes, int, bytes | None], tuple[Value, ...]]

    def __reduce__(self) -> tuple[Any, ...]:
        return compile_program, (self.texts,)


@functools.lru_cache(maxsize=PROGRAMS_KEPT)
def compile_program(texts: tuple[str | None, ...]) -> Program:
    """Compile expressions for the same messages (Q6). Raises `ExpressionError`."""
    writer = _Writer()
    results: list[str] = []
    for text in texts:
        results.append("None" if text is None else writer.scalar(parse(text)))
    source = writer.source(results)
    exec(compile(source, "<expressions>", "exec"), writer.namespace)
    return Program(texts, bool(writer.tops), writer.namespace["run"])


def is_true(value: Value) -> bool:
    """Whether a filter's value accepts a message: only TRUE does; NULL and numbers do not (Q6)."""
    return value is True


def as_priority(value: Value) -> int:
    """A value as an unsigned 64-bit priority (O2). Anything but a number counts as 0."""
    if type(value) is int:
        return min(max(value, 0), PRIORITY_MAX)
    if type(value) is not float or not value > 0:  # also NaN
        return 0
    return PRIORITY_MAX if value >= PRIORITY_MAX else int(value)


def predicate(name: str, text: str) -> Program:
    """Compile the expression of an option. ValueError names the option and the expression."""
    try:
        return compile_program((text,))
    except ExpressionError as error:
        shown = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
        raise ValueError(f"{name}: {shown!r} – must be an expression: {error}") from error
