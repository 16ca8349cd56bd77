"""The engine's table of draft tokens by batch size, and its configuration file with the table put in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from ...launch.config import ConfigError, EngineConfig, build, load
from ...launch.document import parse
from ...launch.options import plain
from ...launch.speculation import table_problem

KEY = "num_speculative_tokens_per_batch_size"
#: Rules that say the same in other words; the launcher takes one of them only.
_RULES = ("speculation_min_batch_size", "speculation_max_batch_size", "speculative_disable_by_batch_size")
_PATHS = ("model", "target_model", "tokenizer", "speculative_model", "draft_model", "log", "log_file")

#: Begins the comment above the table.
_ABOUT = "# specwatch sweep:"

Table = list[list[int]]


class TableError(Exception):
    """Why there is no tuned file: a sentence."""


def ranges(chosen: Mapping[int, int], max_num_seqs: int) -> Table:
    """`[[first batch size, last, k], …]` from the k chosen at each measured concurrency.

    In a closed loop of c requests, steps have batches of c, so that a measured k is right at batch size c. Between two
    of them the border is their geometric mean, as what a step costs goes by multiples of the batch; below the first and
    above the last one there is nothing better than the nearest. Ranges with the same k become one.

    >>> ranges({1: 5, 4: 3, 8: 0}, 16)
    [[1, 2, 5], [3, 5, 3], [6, 16, 0]]
    """
    found: Table = []
    sizes = sorted(size for size in chosen if size <= max_num_seqs)
    for i, size in enumerate(sizes):
        last = math.floor(math.sqrt(size * sizes[i + 1])) if i + 1 < len(sizes) else max_num_seqs
        first = found[-1][1] + 1 if found else 1
        if found and found[-1][2] == chosen[size]:
            found[-1][1] = last
        elif first <= last:
            found.append([first, last, chosen[size]])
    if wrong := table_problem(found, None):
        raise AssertionError(wrong)
    return found


def with_every(ks: Iterable[int], table: Table, busiest: int, max_num_seqs: int) -> Table | None:
    """The table with each of `ks`, and 0, that it lacks put in at its top batch sizes, which no run of at most
    `busiest` requests reaches; None where there are too few of them.

    vLLM captures full CUDA graphs for the ks that its table has, and steps of other ks run without: they would look
    slower than they are.

    >>> with_every([1, 2, 4], [[1, 16, 4]], 8, 16)
    [[1, 13, 4], [14, 14, 2], [15, 15, 1], [16, 16, 0]]
    """
    every = {0, *ks}
    top = max_num_seqs - len(every)
    if top < busiest:
        return None
    found = [[first, min(last, top), k] for first, last, k in table if first <= top]
    lacking = sorted(every - {k for _, _, k in found}, reverse=True)
    found[-1][1] = max_num_seqs - len(lacking)
    return found + [[size, size, k] for size, k in enumerate(lacking, max_num_seqs - len(lacking) + 1)]


def shown(table: Sequence[Sequence[int]]) -> str:
    return "[" + ", ".join(f"[{first}, {last}, {k}]" for first, last, k in table) + "]"


def snippet(table: Table, evidence: str) -> str:
    """For an engine whose file is not known."""
    return (
        f"{_above(evidence, 0)}speculative_config:\n  num_speculative_tokens: {most(table)}\n  {KEY}: {shown(table)}\n"
    )


def most(table: Table) -> int:
    """The engine's num_speculative_tokens: vLLM keeps room for so many, and no row may have more."""
    return max(1, *(k for _, _, k in table))


def tuned(source: Path, table: Table, evidence: str) -> str:
    """The text of the file at `source` with the table put in, all else as it stands, comments too.

    num_speculative_tokens becomes the table's largest, other rules by batch size become comments, and relative paths
    become absolute, so that the text may lie anywhere. `evidence` is put above the table. Raises TableError.
    """
    try:
        text = source.read_text(encoding="utf-8")
        before = load(source, fetched=False)
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        raise TableError(f"{source} cannot be read any more: {error}") from error
    changed = _edited(text, before, table, evidence)
    if not _holds(changed, source, before, table):
        changed = _rewritten(text, before, table, evidence)
        if not _holds(changed, source, before, table):
            raise TableError(f"{source} is written in a way that the table could not be put in: put it in by hand")
    return changed


def _holds(text: str, source: Path, before: EngineConfig, table: Table) -> bool:
    """Whether the launcher reads from it the same engine with the table."""
    try:
        after = build(parse(text, str(source)), source, fetched=False)
    except ConfigError:
        return False
    speculative = dict(before.speculative or {}) | {KEY: table, "num_speculative_tokens": most(table)}
    return (
        dict(after.speculative or {}) == speculative
        and after.target == before.target
        and (after.served_model_names, after.url, after.log) == (before.served_model_names, before.url, before.log)
        and after.extra_args == before.extra_args
    )


# ---- by places in the text

#: Start and end in the text, and what is to be there.
_Edit = tuple[int, int, str]


def _edited(text: str, config: EngineConfig, table: Table, evidence: str) -> str:
    """Only what has to change is touched; it may fail to do the whole on odd files, which `_holds` tells."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode) or root.flow_style:
        return text
    edits = list(_edits(text, root, config, table, evidence))
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _edits(text: str, root: yaml.MappingNode, config: EngineConfig, table: Table, evidence: str) -> Iterator[_Edit]:
    nested: yaml.Node | None = None
    for key, value in root.value:
        name = plain(str(key.value))
        if name == "speculative_config":
            nested = value
        elif name in _RULES:
            start = text.rfind("\n", 0, key.start_mark.index) + 1
            yield start, start, "# (in place of this: the table) "
        elif name in _PATHS:
            yield from _absolute(name, value, config)
        elif name == "num_speculative_tokens":
            yield value.start_mark.index, value.end_mark.index, str(most(table))
    if nested is None:
        gap = "" if not text or text.endswith("\n") else "\n"
        yield len(text), len(text), f"{gap}speculative_config:\n  {_above(evidence, 2)}{KEY}: {shown(table)}\n"
        return
    if not isinstance(nested, yaml.MappingNode) or not nested.value:
        return
    place = nested.value[0][0].start_mark
    has_table = False
    for key, value in nested.value:
        name = plain(str(key.value))
        if name == KEY:
            has_table = True
            # A block sequence ends where the next thing begins: the blanks and comments before that are kept.
            end = value.end_mark.index
            written = text[value.start_mark.index : end]
            lines = written.splitlines(keepends=True)
            while lines and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
                end -= len(lines.pop())
            end -= len(text[value.start_mark.index : end]) - len(text[value.start_mark.index : end].rstrip())
            start, above = key.start_mark.index, ""
            if not nested.flow_style:
                start, above = _evidence_at(text, start), _above(evidence, key.start_mark.column)
            yield start, end, f"{above}{key.value}: {shown(table)}"
        elif name == "num_speculative_tokens":
            yield value.start_mark.index, value.end_mark.index, str(most(table))
        elif name == "model":
            yield from _absolute("speculative_model", value, config)
    if not has_table:
        if nested.flow_style:
            yield place.index, place.index, f"{KEY}: {shown(table)}, "
        else:
            line = f"{_above(evidence, place.column)}{KEY}: {shown(table)}\n{' ' * place.column}"
            yield place.index, place.index, line


def _above(evidence: str, column: int) -> str:
    """The comment above the table, up to where the next line goes on."""
    return f"{_ABOUT} {evidence}\n{' ' * column}"


def _evidence_at(text: str, start: int) -> int:
    """Where an earlier sweep's comment begins above the key at `start`; the key itself where there is none."""
    line = text.rfind("\n", 0, start) + 1
    before = text.rfind("\n", 0, max(line - 1, 0)) + 1
    found = text[before:line].lstrip()
    return line - len(found) if line and found.startswith(_ABOUT) else start


def _absolute(name: str, value: yaml.Node, config: EngineConfig) -> Iterator[_Edit]:
    resolved = {
        "model": config.model,
        "target_model": config.model,
        "tokenizer": config.target.get("tokenizer"),
        "speculative_model": config.draft_model,
        "draft_model": config.draft_model,
        "log": str(config.log),
        "log_file": str(config.log),
    }[name]
    if isinstance(value, yaml.ScalarNode) and resolved and value.value != resolved:
        quoted = yaml.safe_dump(resolved, allow_unicode=True, width=10**6).removesuffix("...\n").strip()
        yield value.start_mark.index, value.end_mark.index, quoted


# ---- without its comments


def _rewritten(text: str, config: EngineConfig, table: Table, evidence: str) -> str:
    """The same settings dumped anew, for files that are JSON, or one line."""
    loaded = yaml.safe_load(text)
    if not isinstance(loaded, dict):
        return text
    known = {"model": config.model, "draft_model": config.draft_model, "tokenizer": config.target.get("tokenizer")}
    known |= {"target_model": config.model, "speculative_model": config.draft_model, "log": str(config.log)}
    found = {key: value for key, value in loaded.items() if plain(str(key)) not in _RULES}
    for key in found:
        name = plain(str(key))
        if known.get(name):
            found[key] = known[name]
        elif name == "num_speculative_tokens":
            found[key] = most(table)
    at = next((key for key in found if plain(str(key)) == "speculative_config"), "speculative_config")
    inner = {k: v for k, v in (found.get(at) or {}).items() if plain(str(k)) not in (KEY, "num_speculative_tokens")}
    if config.draft_model and "model" in inner:
        inner["model"] = config.draft_model
    found[at] = inner | {"num_speculative_tokens": most(table), KEY: table}
    dumped = yaml.safe_dump(found, allow_unicode=True, sort_keys=False, default_flow_style=None)
    return f"{_above(evidence, 0)}{dumped}"
