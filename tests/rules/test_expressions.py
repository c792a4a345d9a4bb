"""Q6, O2, O3: the expression language, its three-valued logic, and its tolerance of any payload."""

from __future__ import annotations

import itertools
import json
import pickle
import random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lakequeue.expressions import runtime
from lakequeue.expressions.language import (
    PRIORITY_MAX,
    ExpressionError,
    as_priority,
    compile_program,
    is_true,
)
from rules.harness import Bench, drain, ids

PAYLOAD: dict[str, Any] = {
    "a": 5, "b": {"c": [1, {"d": "x"}]}, "s": "abc", "n": None, "t": True, "f": False, "o": {},
    "z": 0, "x-y": 3, "x.y": 4, "größe": 7, 'q"\\': 8, "big": 10**30,
}  # fmt: skip


def value(text: str, payload: Any = PAYLOAD, priority: int = 4, key: bytes | None = b"k") -> Any:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return compile_program((text,)).run(body, priority, key)[0]


VALUES: list[tuple[Any, list[str]]] = [
    (True, [
        "/big * 1e300 * 1e300 > 0", "/a = 5", "/a == 5.0", "/a != 4", "4 < /a", "/s >= 'abc'",
        "/t = TRUE", "/o is not null", "/n IS NULL", "/missing IS NULL",
        "/a between 1 and 5 And /t", "/s LIKE 'a%'", "/s LIKE '_b_'", "/s NOT LIKE '%z%'",
        "'a%' LIKE 'a!%' ESCAPE '!'", "/s LIKE /s", "/a IN (1, 5)", "/a IN (5, NULL)",
        "/s IN ('abc', 'x')", "/a IN (/a, 3)",
    ]),
    (False, [
        "/a <> 5", "/o IS NULL", "NOT /n IS NULL", "/a NOT BETWEEN 1 AND 5",
        "/a BETWEEN /n AND 4", "'ab' LIKE 'a!%' ESCAPE '!'", "/a IN (1, 2)",
    ]),
    (None, [
        "/b/c/7", "/a/b", "/missing", "/a / 0", "/a % 0", "/s + 1", "/t + 1", "/n + 1",
        "/big * 1e308 - /big * 1e308", "/a = '5'", "/t = 1", "/o = /o", "/o",
        "/n BETWEEN 1 AND 5", "/a LIKE '5'", "/s LIKE NULL", "/a IN (1, NULL)",
        "/a NOT IN (1, NULL)", "/n IN (1, 2)", "/a IN (1, 'x')", "/a IN (/n, 3)", "/t IN (1)",
    ]),
    (5, ["/a", "- -/a"]), (-5, ["-/a"]), (1, ["/b/c/0"]), (4, ["/x-y + 1", "/x.y", "/@priority"]),
    (7, ["/größe"]), (3, ['/"x-y"']), (8, ['/"q""\\"']), (-4, ["1 - 2 - 3"]),
    (14, ["2 + 3 * 4"]), (20, ["(2 + 3) * 4"]), (2.5, ["10 / 4", "/a / 2"]), (-2, ["-5 % 3"]),
    ("x", ["/b/c/1/d"]), ("k", ["@key", "/@key"]), ("it's", ["'it''s'"]),
    ('say "hi"', ['"say ""hi"""']),
]  # fmt: skip
VALUE_OF = [(text, expected) for expected, texts in VALUES for text in texts]


@pytest.mark.parametrize(("text", "expected"), VALUE_OF)
def test_Q6_the_value_of_an_expression(text: str, expected: object) -> None:
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


TRUTHS = {"TRUE": True, "FALSE": False, "NULL": None}


@pytest.mark.parametrize("pair", list(itertools.product(TRUTHS, repeat=2)))
@pytest.mark.parametrize("fields", [False, True])
def test_Q6_three_valued_logic(pair: tuple[str, str], fields: bool) -> None:
    left, right = TRUTHS[pair[0]], TRUTHS[pair[1]]
    payload = {"l": left, "r": right}
    first, second = ("/l", "/r") if fields else pair
    both = False if False in (left, right) else None if None in (left, right) else True
    one = True if True in (left, right) else None if None in (left, right) else False
    assert value(f"{first} AND {second}", payload) is both
    assert value(f"{first} OR {second}", payload) is one
    assert value(f"NOT {first}", payload) is (None if left is None else not left)
    equal = None if None in (left, right) else left == right
    assert value(f"{first} = {second}", payload) is equal


@pytest.mark.parametrize(("text", "position", "says"), [
    ("priority", 0, "/priority"), ("/a >", 4, "found the end, expected a value"),
    ("/a > 1 )", 7, "expected the end"), ("(/a", 3, "')'"), ("/a && /b", 3, "write AND"),
    ("length(/a) > 1", 0, "found 'length', expected a value such as /price, 10 or 'text' (the"),
    ("/b = lower (/a)", 5, r"(there are no functions)"), ("/@foo", 0, '/"@foo"'),
    ("/a = 'x", 5, "quote is not closed"), ("/a IN ()", 7, "expected a value"),
    ("/a NOT 5", 7, "IN, LIKE or BETWEEN"), ("/a IS 5", 6, "NULL"),
    ("/a LIKE 'x' ESCAPE 'xy'", 19, "single character"), ("1e999", 0, "out of range"),
    ("10abc", 0, "10abc"), ("", 0, "found the end"), ("-" * 300 + "/a", 0, "nests deeper"),
    ("/a" * 6000, 10_000, "at most 10000"), ("/\ud800", 1, "surrogate"),
])  # fmt: skip
def test_Q7_the_error_of_a_bad_expression_has_the_position(
    text: str, position: int, says: str
) -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_program((text,))
    assert caught.value.position == position
    assert says in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("payload", [
    b"", b"null", b"[1]", b"5", b"{", b'{"a": 5} x', b"\xff\xfe", b'\xef\xbb\xbf{"a":5}',
    b'{"a": 5, "b": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"[" * 100_000,
], ids=range(10))  # fmt: skip
def test_Q6_all_fields_of_a_payload_that_is_no_json_object_are_null(payload: bytes) -> None:
    run = compile_program(("/a", "/a IS NULL", None, "/@priority")).run
    assert run(payload, 7, None) == (None, True, None, 7)


@pytest.mark.parametrize("strange", [b"1e999", b"9" * 5000, b'"\xff"'], ids=range(3))
def test_Q6_only_an_unrepresentable_value_is_null(
    strange: bytes,
) -> None:
    payload = b'{"a":5,"e":' + strange + b"}"
    assert compile_program(("/a",)).run(payload, 4, None) == (5,)
    assert compile_program(("/a", "/e")).run(payload, 4, None) == (5, None)


def test_Q6_nesting_has_a_limit_of_its_own() -> None:
    def nested(depth: int) -> bytes:
        return b'{"a":5,"s":"[[[{{{","b":' + b"[" * depth + b"]" * depth + b"}"

    assert value("/a", nested(199)) == 5
    assert value("/a", nested(200)) is None
    assert value("/a", b'{"a":5,"b":[' + b"[[1]]," * 1000 + b"[]]}") == 5
    assert value("/a", json.dumps({"a": 5, "s": '[{"' * 1000}).encode()) == 5


def test_Q6_several_expressions_share_one_program() -> None:
    program = compile_program(("/a > 1", None, "/b/c/0", "/a"))
    assert program.needs_payload
    assert not compile_program(("/@priority", None)).needs_payload
    assert program.run(json.dumps(PAYLOAD).encode(), 4, None) == (True, None, 1, 5)
    assert compile_program(("/a > 1", None, "/b/c/0", "/a")) is program
    assert pickle.loads(pickle.dumps(program)) is program


def test_O4_binary_record_keys_are_distinguished() -> None:
    assert value("@key", key=None) is None
    assert value("@key", key=b"\xff") != value("@key", key=b"\xfe")


def test_O4_a_key_may_be_a_number_of_any_length(empty: Bench) -> None:
    """Python writes integers of more than 4,300 digits in decimal only if it is told to."""
    empty.define(partition_key="/a * 10", max_per_subscription_backlog=9)
    for number in (10**4299, 10**4299, -(10**4299), 10**4299 + 1):
        empty.send({"a": number})
    assert ids(drain(empty.consumer())) == ["1", "3", "4"]


def test_Q6_only_true_admits_a_message() -> None:
    assert is_true(True)
    assert not any(is_true(other) for other in (False, None, 1, 1.0, "true"))


@pytest.mark.parametrize(("given_value", "priority"), [
    (None, 0), (-1, 0), (-0.5, 0), ("7", 0), (True, 0), (float("nan"), 0), (float("-inf"), 0),
    (7, 7), (7.9, 7),
    (2**64, PRIORITY_MAX), (10**40, PRIORITY_MAX), (1e30, PRIORITY_MAX),
    (float("inf"), PRIORITY_MAX),
])  # fmt: skip
def test_O2_the_priority_of_a_value(given_value: Any, priority: int) -> None:
    assert as_priority(given_value) == priority


def naive_like(text: str, pattern: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(naive_like(text[start:], pattern[1:]) for start in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and naive_like(text[1:], pattern[1:])


@given(st.text("ab.\n", max_size=8), st.text("ab.%_\n", max_size=7))
@settings(max_examples=300)
def test_Q6_like_agrees_with_a_naive_matcher(text: str, pattern: str) -> None:
    expected = naive_like(text, pattern)
    assert value(f"/s LIKE '{pattern}'", {"s": text}) is expected
    assert value("/s LIKE /p", {"s": text, "p": pattern}) is expected
    with patch.object(runtime, "COMPARED_MAX", 0):  # parts with `_` count as long
        assert runtime.like_matcher(pattern, None)(text) is expected


def test_Q6_like_finds_a_long_part_anywhere_in_a_text() -> None:
    """Its letters and `_` may be any characters, and the text is searched in several pieces."""
    rng = random.Random(7)
    letters = [chr(n) for n in (*range(1, 300), 0x1F600, 0x10FFFF, 0xD800)]
    for at in (0, 1, 400, 5_000, 70_000):
        part = [rng.choice(letters) for _ in range(200)]
        pattern = "".join(rng.choice(("_", one, one)) if one not in "%_" else "_" for one in part)
        text = "".join(rng.choice(letters) for _ in range(at)) + "".join(part) + "end"
        matches = runtime.like_matcher(f"%{pattern}%", None)
        assert matches(text)
        assert not matches(text[: at + 199] + chr(2_000))


def test_Q6_like_takes_time_for_the_text_alone() -> None:
    """It would take minutes if each position of the text cost as much as the pattern is long."""
    assert value("/s LIKE '" + "%a" * 30 + "%b'", {"s": "a" * 20_000}) is False
    long = "a" * 9_000
    for pattern in (f"%{long}b", f"%{long}b%", f"%{long}b%_", f"%{long[1:]}_b%"):
        assert value(f"/s LIKE '{pattern}'", {"s": "a" * 3_000_000}) is False
        assert value("/s LIKE /p", {"s": "a" * 3_000_000, "p": pattern}) is False


def test_Q6_a_pattern_of_a_payload_is_as_long_as_that_of_an_expression() -> None:
    assert value("/s LIKE /s", {"s": "a" * 10_000}) is True
    assert value("/s LIKE /s", {"s": "a" * 10_001}) is None


ALL_OPERATORS = (
    "/a > 1 AND /b/c/0 < 'x' OR NOT /c LIKE '%a_'", "(/a + /b) * 2 - /c / /a % 3",
    "/a IN (1, 'x', NULL, TRUE)", "/a IN (/b, /c)", "/a BETWEEN /b AND /c", "-/a = +/b",
    "/a IS NULL", "/a LIKE /b", "@key = 'k' AND /@priority > 3",
)  # fmt: skip


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda b: b'{"a":' + b + b"}"))
@settings(max_examples=300)
def test_Q6_any_bytes_are_a_payload(payload: bytes) -> None:
    program = compile_program(ALL_OPERATORS)
    assert program.run(payload, 4, payload) == program.run(payload, 4, payload)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.fixed_dictionaries(dict.fromkeys("abc", JSON_VALUES)))
@settings(max_examples=300)
def test_Q6_any_json_object_is_a_payload(fields: dict[str, Any]) -> None:
    payload = json.dumps(fields).encode()
    values = compile_program(ALL_OPERATORS).run(payload, 4, None)
    assert all(type(one) in (type(None), bool, int, float, str) for one in values)
    for text, one in zip(ALL_OPERATORS, values, strict=True):
        alone = compile_program((text,)).run(payload, 4, None)[0]
        assert alone == one


# fmt: off
TOKENS = [
    "/a", "/b/0", "@key", "/@priority", "1", "2.5", "'x'", '"y"', "(", ")", ",", "+", "-", "*",
    "/", "%", "=", "<>", "<", "<=", "AND", "or", "NOT", "LIKE", "IN", "IS", "NULL", "TRUE",
    "BETWEEN", "ESCAPE", "foo", "'", '"', "&", "[",
]
# fmt: on


@given(st.text(max_size=40) | st.lists(st.sampled_from(TOKENS), max_size=12).map(" ".join))
@settings(max_examples=200)
def test_Q7_any_text_compiles_or_is_refused_in_a_sentence(text: str) -> None:
    try:
        program = compile_program((text,))
    except ExpressionError as error:
        position, sentence = error.position, str(error)
    else:
        program.run(b'{"a":1,"b":[2]}', 4, b"k")
        program.run(b"{", 4, None)
        return
    assert 0 <= position <= len(text)
    assert "found" in sentence or "it " in sentence or "expected" in sentence


def test_Q6_a_repeated_operand_is_compiled_once() -> None:
    text = "/a"
    for _ in range(60):
        text = f"({text} BETWEEN /b AND /c)"
    assert compile_program((text,)).run(b"{}", 4, None) == (None,)


def test_Q6_lack_of_memory_is_an_error_and_not_null(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lack of memory would give NULL in one step, and a value in the step's replay."""

    def no_memory(_payload: bytes) -> bool:
        raise MemoryError

    program = compile_program(("/a",))
    assert program.run(b"{", 4, None) == (None,)
    monkeypatch.setattr(runtime, "shallow", no_memory)
    with pytest.raises(MemoryError):
        compile_program(("/a",)).run(b"{", 4, None)
