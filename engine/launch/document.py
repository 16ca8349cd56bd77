"""A YAML file as a mapping whose keys remember their line; every fault is a `ConfigError`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .options import shown


class ConfigError(ValueError):
    """A configuration file that cannot be used: `problems` holds one sentence per fault."""

    def __init__(self, source: str, problems: Iterable[str]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{source}:{problem}" for problem in self.problems))


@dataclass(frozen=True)
class Entry:
    """One key of the file as it was written: `line` counts from 1, `nested` holds a mapping's own keys."""

    key: str
    line: int
    value: Any
    nested: tuple[Entry, ...] = ()

    def __str__(self) -> str:
        return f"{self.key} (line {self.line})"


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, held by name so that nodes and values come from one pass."""


def read(path: Path) -> tuple[Entry, ...]:
    """The top-level keys of the YAML file at `path`.

    Raises ConfigError when the file is missing, no YAML, no mapping, or says a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(str(path), [f" cannot be read: {error.strerror or error}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), [" is not UTF-8 text"]) from error
    return parse(text, str(path))


def parse(text: str, source: str) -> tuple[Entry, ...]:
    """The same for text already in hand; `source` names it in errors."""
    try:
        return _parse(text, source)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(source, [f"{line}: not valid YAML: {error.problem or error.context}"]) from error
    except yaml.YAMLError as error:
        raise ConfigError(source, [f"1: not valid YAML: {shown(str(error), 120)}"]) from error
    except (ValueError, OverflowError, RecursionError, AttributeError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        # PyYAML lets bad dates, odd numbers and deep nesting through as plain Python errors.
        raise ConfigError(source, [f"1: a value is not valid YAML: {shown(str(error), 120)}"]) from error


def _parse(text: str, source: str) -> tuple[Entry, ...]:
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            raise ConfigError(source, ["1: the file is empty; it needs at least `model:`"])
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(source, ["1: the file must be a mapping of `key: value` lines"])
        loader.flatten_mapping(root)
        problems: list[str] = []
        entries = tuple(_entries(loader, root, problems))
    finally:
        loader.dispose()
    if problems:
        raise ConfigError(source, problems)
    return entries


def _entries(loader: _Loader, node: yaml.MappingNode, problems: list[str], deep: bool = True) -> Iterator[Entry]:
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str) or not key.strip():
            problems.append(f"{line}: {shown(key)} is not a key name")
            continue
        if key in seen:
            problems.append(f"{line}: {shown(key)} is written twice (first on line {seen[key]}); keep one")
            continue
        seen[key] = line
        nested: tuple[Entry, ...] = ()
        if deep and isinstance(value_node, yaml.MappingNode):
            loader.flatten_mapping(value_node)
            nested = tuple(_entries(loader, value_node, problems, deep=False))
        yield Entry(key, line, loader.construct_object(value_node, deep=True), nested)
