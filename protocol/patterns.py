"""Patterns of topic subscriptions: plain topics, wildcards, regular expressions (Q2, S7).

The kinds of patterns, in the order in which they are recognised:

- *topic*: it has no special character and names one topic;
- *wildcard*: its only special characters are ``*`` at the end of a level (``a/*/c`` any one level,
  ``a/re*`` a level that begins with ``re``) and ``>`` alone as the last level (``a/>`` one or more
  levels);
- *regex*: it has one of ``^$*+?()[]{}|\\`` and is not a wildcard. It matches the whole topic. A dot
  before a star (``orders.*``) always makes a pattern a regular expression.

Anything else, such as ``a*b/c`` or ``a/>/c``, is refused as a probable mistake. The parts between
slashes are the levels.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import re2

REGEX_CHARACTERS = frozenset("^$*+?()[]{}|\\")
PATTERN_CHARACTERS_MAX = 1000
LEVELS_MAX = 128
TOPIC, WILDCARD, REGEX = "topic", "wildcard", "regex"

ALLOWED = (
    "allowed are a topic, a topic with wildcards ('a/*/c', 'a/re*', 'a/>'), or a regular "
    "expression (with any of ^$+?()[]{}|\\ or '.*')"
)


def kind_of(pattern: str) -> str:
    """TOPIC, WILDCARD or REGEX. Raises ValueError with a sentence for anything else."""
    if not isinstance(pattern, str) or not pattern.strip():
        raise ValueError(f"topic: {pattern!r} – {ALLOWED}")
    shown = pattern[:200]
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise ValueError(f"topic: {shown!r}… – at most {PATTERN_CHARACTERS_MAX} characters")
    if re.search("[\x00-\x1f\x7f\ud800-\udfff]", pattern):
        raise ValueError(f"topic: {shown!r} – without control characters, in valid Unicode")
    special = REGEX_CHARACTERS.intersection(pattern)
    if special - {"*"} or ".*" in pattern:
        try:
            compiled(pattern)
        except ValueError as error:
            raise ValueError(f"topic: {shown!r} – {error}") from error
        return REGEX
    if not special and ">" not in pattern:
        return TOPIC
    _check_levels(pattern)
    return WILDCARD


def _check_levels(pattern: str) -> None:
    levels = pattern.split("/")
    if len(levels) > LEVELS_MAX:
        raise ValueError(f"topic: {pattern[:200]!r} – at most {LEVELS_MAX} levels")
    for at, level in enumerate(levels):
        last = at == len(levels) - 1
        if not level:
            why = "a level is empty"
        elif "*" in level[:-1]:
            why = "'*' is allowed only at the end of a level"
        elif ">" in level and not (last and level == ">"):
            why = "'>' is allowed only alone, as the last level"
        else:
            continue
        raise ValueError(f"topic: {pattern[:200]!r} – {why}; {ALLOWED}")


def wildcard_matches(pattern: list[str], topic: list[str]) -> bool:
    """Whether a wildcard pattern matches a topic, both split into levels."""
    n = len(pattern)
    if pattern[-1] == ">":
        n -= 1
        if len(topic) <= n:
            return False
    elif len(topic) != n:
        return False
    for at in range(n):
        level = pattern[at]
        if level[-1] == "*":
            if not topic[at].startswith(level[:-1]):
                return False
        elif level != topic[at]:
            return False
    return True


_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 1 << 20  # bytes of one compiled expression; a larger one is refused


@lru_cache(maxsize=10_000)
def compiled(pattern: str) -> Any:
    """A regular expression, compiled once per process; use `fullmatch(topic)`. Raises ValueError.

    The dialect is RE2's, whose time is proportional to the topic for any expression. It has no
    look-arounds and no back-references.
    """
    try:
        return re2.compile(pattern, _OPTIONS)
    except (re2.error, UnicodeError) as error:
        why = error.args[0] if error.args else error
        text = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise ValueError(f"not a regular expression (RE2): {text}") from error


def matches(pattern: str, topic: str) -> bool:
    """Whether a pattern of any kind matches a topic."""
    kind = kind_of(pattern)
    if kind == TOPIC:
        return pattern == topic
    if kind == WILDCARD:
        return wildcard_matches(pattern.split("/"), topic.split("/"))
    return compiled(pattern).fullmatch(topic) is not None
