"""Configuration files: YAML text becomes a checked `Configuration` (Q7).

A file is read as plain data (text, numbers, lists, mappings; times stay text), which `definitions`
checks. If the file itself is wrong (missing, empty, not YAML, a repeated key), the error is one
sentence with file and line.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from ..definitions import Configuration, parse_configuration
from ..protocol import ConfigError

FILE_BYTES_MAX = 10_000_000

__all__ = ["load", "load_configuration_text"]


class _Plain:
    """Builds plain data: times stay text, and a repeated key in a mapping is refused."""

    yaml_implicit_resolvers = {  # noqa: RUF012 – PyYAML's own class attribute, narrowed
        first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Refuse a repeated key; PyYAML would silently keep the last one."""
        seen: set[object] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.value == "<<":
                continue
            if key_node.value in seen:
                problem = f"the key {key_node.value!r} is written twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key_node.value)
        found: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)  # type: ignore[misc]
        return found


class _Loader(_Plain, yaml.SafeLoader):
    """PyYAML's own parser, which has the clearest messages."""


# If PyYAML was built with libyaml, it reads 10,000 queues in 0.7 s instead of 3.5 s.
_FAST = type("_FastLoader", (_Plain, getattr(yaml, "CSafeLoader", yaml.SafeLoader)), {})


def _read(text: str) -> Any:
    try:
        return yaml.load(text, _FAST)
    except (yaml.YAMLError, ValueError):
        return yaml.load(text, _Loader)


def load(path: str | Path) -> Configuration:
    """Read a configuration file; raises `ConfigError` with all its problems (Q7)."""
    try:
        if Path(path).stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"{path}: the file is larger than {FILE_BYTES_MAX} bytes")
        text = Path(path).read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        detail = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: the configuration file cannot be read: {detail}") from error
    return load_configuration_text(text, str(path))


def load_configuration_text(yaml_text: str, where: str = "") -> Configuration:
    """Read the text of a configuration file; where: the name to use in its problems."""
    prefix = f"{where}: " if where else ""
    try:
        mapping = _read(yaml_text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        raise ConfigError(f"{prefix}{line}{error.problem or error.context}") from error
    except yaml.reader.ReaderError as error:
        line_number = yaml_text.count("\n", 0, error.position) + 1
        detail = f"line {line_number}: the character {chr(error.character)!r} is not allowed"
        raise ConfigError(f"{prefix}{detail}") from error
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        raise ConfigError(f"{prefix}the file is not valid YAML: {error}") from error
    if mapping is None:
        raise ConfigError(f"{prefix}the configuration is empty; it needs at least one section")
    try:
        return parse_configuration(mapping)
    except ConfigError as error:
        placed = [replace(p, where=f"{prefix}{p.where}".rstrip(": ")) for p in error.problems]
        raise ConfigError(placed) from error
