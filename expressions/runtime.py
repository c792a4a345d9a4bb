"""The functions that generated expression code calls: three-valued operators and payload decoding
(Q6).

Every operator accepts any value and returns NULL (None) where SQL does: if an operand is NULL, has
the wrong type, or cannot be compared with the other. None of them raises. A fast decoder reads the
payload; a careful one reads it only if the fast one fails. A constant (`DEPTH_MAX`) bounds the
depth of nesting, not the caller's stack, so a payload has the same value wherever it is read.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec
import numpy as np

DEPTH_MAX = 200  # levels of brackets in a payload
NUMBERS = frozenset({int, float})
COMPARABLE = frozenset({bool, int, float, str})


def comparer(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool | None]:
    """Build a comparison that is NULL for different types and for values that are not scalars."""

    def compared(left: Any, right: Any) -> bool | None:
        if type(left) is type(right):
            return compare(left, right) if type(left) in COMPARABLE else None
        if type(left) in NUMBERS and type(right) in NUMBERS:
            return compare(left, right)
        return None

    return compared


def calculator(calculate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Build an arithmetic operator that is NULL if an operand is not a number, or if there is no
    result."""

    def calculated(left: Any, right: Any) -> Any:
        if type(left) not in NUMBERS or type(right) not in NUMBERS:
            return None
        try:
            result = calculate(left, right)
        except (ArithmeticError, ValueError):  # division by zero, an int too large for a float
            return None
        return result if result == result else None  # NaN is NULL

    return calculated


def remainder(left: Any, right: Any) -> Any:
    """The remainder, with the sign of the dividend as in SQL."""
    if type(left) is int and type(right) is int:
        rest = abs(left) % abs(right)
        return -rest if left < 0 else rest
    return math.fmod(left, right)


def negate(value: Any) -> Any:
    """Unary minus."""
    return -value if type(value) in NUMBERS else None


def keep(value: Any) -> Any:
    """Unary plus: a number stays, anything else is NULL."""
    return value if type(value) in NUMBERS else None


def dig(value: Any, steps: tuple[tuple[str, int], ...]) -> Any:
    """Follow a path through objects and arrays; NULL if it does not exist."""
    for name, index in steps:
        if type(value) is dict:
            value = value.get(name)
        elif type(value) is list and 0 <= index < len(value):
            value = value[index]
        else:
            return None
    return value


Finder = Callable[[str, int], int]  # the first position of a part in a text, from one on; or -1


def like_matcher(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """Build a function that says whether a text matches a LIKE pattern.

    Each part between two `%` is taken at its first position: a later one could not help. So the
    time grows with the text, and hardly with the pattern.
    """
    parts, literal = [list[str]()], False  # "": any character
    for character in pattern:
        if not literal and character == escape:
            literal = True
        elif not literal and character == "%":
            parts.append([])
        else:
            parts[-1].append("" if character == "_" and not literal else character)
            literal = False
    if literal and escape:
        parts[-1].append(escape)
    first, last = _finder(parts[0]), _finder(parts[-1])
    start, rest = len(parts[0]), len(parts[-1])
    middle = [(len(part), _finder(part)) for part in parts[1:-1] if part]
    if len(parts) == 1:
        return lambda text: len(text) == start and not first(text, 0)

    def matches(text: str) -> bool:
        at, end = start, len(text) - rest
        if end < at or (at and first(text[:at], 0)) or (rest and last(text[end:], 0)):
            return False
        for length, find in middle:
            at = find(text, at)
            if at < 0:
                return False
            at += length
        return at <= end

    return matches


def _finder(characters: list[str]) -> Finder:
    part = "".join(characters)
    if "" not in characters:
        return lambda text, at: text.find(part, at)
    if part and len(characters) > COMPARED_MAX:
        return _long_finder(characters)
    found = re.compile("".join(re.escape(one) or "." for one in characters), re.DOTALL).search
    return lambda text, at: -1 if (match := found(text, at)) is None else match.start()


COMPARED_MAX = 64  # characters of a part with `_`: so many comparisons for each position


def _long_finder(characters: list[str]) -> Finder:
    """Find a long part with `_` in n log n steps.

    Each different letter of the part is a number p from 1 on; `_`, and a letter t of the text that
    the part has not, are 0. The part is where the sum of w·(p - t)², with w = 0 for `_` and 1
    otherwise, is 0. Fourier transforms compute the sums of a piece of the text. Their errors are
    far below 1/2, since a part has at most `PATTERN_CHARACTERS_MAX` letters.
    """
    letters = np.array(sorted({ord(one) for one in characters if one}), np.uint32)
    length, total = len(characters), 1 << (4 * len(characters)).bit_length()

    def numbers(text: str) -> Any:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        at = np.searchsorted(letters, codes).clip(max=len(letters) - 1)
        return np.where(letters[at] == codes, at + 1.0, 0.0)

    part = np.array([numbers(one)[0] if one else 0.0 for one in characters])
    weights = np.conj(np.fft.rfft(part > 0, total))
    doubled = np.conj(np.fft.rfft(2 * part, total))

    def find(text: str, at: int) -> int:
        while len(text) - at >= length:
            piece = numbers(text[at : at + total])
            squares, plain = np.fft.rfft(piece * piece, total), np.fft.rfft(piece, total)
            sums = np.fft.irfft(squares * weights - plain * doubled, total) + part @ part
            sums = sums[: len(piece) - length + 1]
            found = np.flatnonzero(sums < 0.5)
            if len(found):
                return at + int(found[0])
            at += len(sums)
        return -1

    return find


like_matcher_kept = functools.lru_cache(maxsize=256)(like_matcher)
PATTERN_CHARACTERS_MAX = 10_000  # as many as an expression may have


def like(value: Any, pattern: Any, escape: str | None) -> bool | None:
    """LIKE with a pattern that is not a literal. A pattern that no expression could have is
    NULL."""
    if type(value) is not str or type(pattern) is not str or len(pattern) > PATTERN_CHARACTERS_MAX:
        return None
    build = like_matcher_kept if len(pattern) <= 200 else like_matcher
    return build(pattern, escape)(value)


def is_in(value: Any, tables: dict[type, tuple[frozenset[Any], bool | None]]) -> bool | None:
    """Look up a value among the literals of its type. Literals of other types make "not found"
    unknown."""
    table = tables.get(type(value))
    if table is None:
        return None
    return True if value in table[0] else table[1]


def tables(options: list[Any]) -> dict[type, tuple[frozenset[Any], bool | None]]:
    """For each type: the literals of that type, and the result for a value that is not among
    them."""
    tables: dict[type, tuple[frozenset[Any], bool | None]] = {}
    for kinds in ((int, float), (str,), (bool,)):
        literals = frozenset(option for option in options if type(option) in kinds)
        has_others = any(type(option) not in kinds for option in options)
        tables.update(dict.fromkeys(kinds, (literals, None if has_others else False)))
    return tables


def shallow(payload: bytes) -> bool:
    """Whether the payload's brackets nest at most `DEPTH_MAX` deep."""
    if payload.count(b"[") + payload.count(b"{") <= DEPTH_MAX:
        return True
    bare = re.sub(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', b"", payload, flags=re.DOTALL)
    codes = np.frombuffer(bare, dtype=np.uint8)
    steps = ((codes == 91) | (codes == 123)).astype(np.int32)
    steps -= (codes == 93) | (codes == 125)
    return int(steps.cumsum().max(initial=0)) <= DEPTH_MAX


#: Errors of decoding a payload. Any other error, such as lack of memory, must not become NULL.
UNREADABLE = (ValueError, RecursionError)


def decoders(names: tuple[str, ...]) -> tuple[Callable[[Any], Any], Callable[[Any], list[Any]]]:
    """Two decoders of top-level fields of a JSON object: a quick one, and a patient one for
    payloads that the quick one refuses.

    The patient one reads field by field: a value that cannot be represented (1e999, invalid text)
    is NULL and does not affect the others.
    """
    attributes = [f"f{index}" for index in range(len(names))]
    rename = dict(zip(attributes, names, strict=True))
    raw: Any = dict[str, msgspec.Raw]
    quick: Callable[[Any], Any] = msgspec.json.Decoder(raw).decode
    plain = not any(re.search(r'["\\\x00-\x1f]', name) for name in names)
    if plain:  # msgspec cannot find a name that JSON must escape; then all keys are read
        fields = [(attribute, Any, None) for attribute in attributes]
        quick = msgspec.json.Decoder(msgspec.defstruct("Fields", fields, rename=rename)).decode
        unset = [(attribute, msgspec.Raw, msgspec.Raw(b"null")) for attribute in attributes]
        raw = msgspec.defstruct("RawFields", unset, rename=rename)
    find = msgspec.json.Decoder(raw).decode

    def patient(payload: Any) -> list[Any]:
        """Read each field on its own; fields that cannot be read are NULL (Q6)."""
        values: list[Any] = [None] * len(names)
        try:
            if not shallow(payload):
                return values
            found = find(payload)
        except UNREADABLE:  # not a JSON object: no field has a value
            return values
        for index, name in enumerate(names):
            piece = getattr(found, f"f{index}") if plain else found.get(name, b"null")
            try:
                values[index] = msgspec.json.decode(piece)
            except UNREADABLE:  # not JSON
                values[index] = None
        return values

    def never(_payload: Any) -> NoReturn:
        raise ValueError

    return (quick if plain else never), patient


OPERATORS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
PYTHON_OPERATORS = {**{op: op for op in OPERATORS}, "=": "=="}
COMPARERS = {op: comparer(compare) for op, compare in OPERATORS.items()}
ARITHMETIC = {
    "+": calculator(operator.add),
    "-": calculator(operator.sub),
    "*": calculator(operator.mul),
    "/": calculator(operator.truediv),
    "%": calculator(remainder),
}
