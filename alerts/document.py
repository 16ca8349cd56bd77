"""Reads YAML strictly: no key twice, keys are text, size bounded. Errors show no values, as these may be secrets."""

import re
from pathlib import Path
from typing import Any

import yaml

_MOST_BYTES = 1_048_576
#: Nodes of a document, aliases counted each time they are used.
_MOST_NODES = 100_000
_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"

_WORD = re.compile(r"[a-z_-]{1,24}|[A-Z][a-z]{0,15}(?:-[A-Z][a-z]{0,15})*")


class ConfigError(Exception):
    """A file that cannot be used. One line an error: file, key path, what is wrong, what to do."""


def read(path: Path) -> Any:
    """The document in `path`. Raises ConfigError."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if len(raw) > _MOST_BYTES:
        raise ConfigError(f"{path}: is longer than {_MOST_BYTES} bytes")
    try:
        return parse(raw.decode("utf-8"), str(path))
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is no UTF-8 text") from None


def parse(text: str, name: str) -> Any:
    """The document in `text`; errors call it `name`. Raises ConfigError."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if errors := _faults(node):
            raise ConfigError("\n".join(f"{name}: {error}" for error in errors))
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" (line {mark.line + 1})" if mark else ""
        raise ConfigError(f"{name}: no valid YAML{line}: {_harmless(error.problem or 'it cannot be read')}") from None
    except yaml.YAMLError:
        raise ConfigError(f"{name}: no valid YAML: it holds a character that YAML does not allow") from None
    except RecursionError:
        raise ConfigError(f"{name}: is nested too deeply") from None
    except ValueError:  # of a number or a date that is none, as 0x_ or 2020-99-99
        raise ConfigError(f"{name}: no valid YAML: a number or date is none; put text in quotes") from None


def shown_key(key: object) -> str:
    """A key in an error. One that does not look like a word may be a value in the wrong place."""
    return str(key) if _WORD.fullmatch(str(key)) else "…"


def _harmless(problem: str) -> str:
    # YAML quotes what it stumbled over: `<scalar>` and single characters tell, anything else may be a secret.
    return re.sub(r"""(['"])(?!<)(?:(?!\1).){2,}\1""", "…", problem)


def _faults(root: yaml.Node) -> list[str]:
    faults: list[str] = []
    sizes: dict[int, int] = {}

    def walk(node: yaml.Node, path: str) -> int:
        if (known := sizes.get(id(node))) is not None:
            return known
        # What is reached again before it is counted holds itself.
        sizes[id(node)] = _MOST_NODES + 1
        size = 1
        if isinstance(node, yaml.SequenceNode):
            for place, item in enumerate(node.value):
                size += walk(item, f"{path}[{place}]")
        elif isinstance(node, yaml.MappingNode):
            lines: dict[str, int] = {}
            for key, value in node.value:
                line = key.start_mark.line + 1
                if key.tag not in (_TEXT, _MERGE):
                    where = f"{path}: " if path else ""
                    faults.append(f"{where}line {line}: a key is no text; put it in quotes")
                    continue
                inner = f"{path}.{shown_key(key.value)}" if path else shown_key(key.value)
                if key.value in lines:
                    faults.append(f"{inner}: stands there twice, in lines {lines[key.value]} and {line}; keep one")
                lines[key.value] = line
                size += 1 + walk(value, inner)
        sizes[id(node)] = size
        return size

    if walk(root, "") > _MOST_NODES:
        faults.append("holds itself, or more than can be read, through its anchors (&) and aliases (*)")
    return faults
