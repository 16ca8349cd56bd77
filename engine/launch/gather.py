"""Sort the keys of a configuration file to the options they mean, whatever name they were given."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .document import Entry
from .options import (
    LAUNCH,
    REMOVED,
    RESERVED,
    SPECULATIVE,
    TARGET,
    Option,
    is_integer,
    is_json,
    is_number,
    is_text,
    plain,
    problem_with,
    shown,
)

Key = tuple[str, str]

TOP: Mapping[str, Option] = {name: o for o in (*LAUNCH, *TARGET) for name in (o.name, *o.synonyms)} | {
    name: o for o in SPECULATIVE for name in o.synonyms
}
"""Every name that may stand at the top level."""

NESTED: Mapping[str, Option] = {o.name: o for o in SPECULATIVE}
"""Every name that may stand inside `speculative_config`: vLLM's own."""


@dataclass
class Gathered:
    """The values that passed, where they were written, and the faults met on the way."""

    values: dict[Key, Any] = field(default_factory=dict)
    entries: dict[Key, Entry] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    faults: list[tuple[int, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def fault(self, line: int, text: str) -> None:
        """Record a fault at `line` (from 1)."""
        self.faults.append((line, text))

    @property
    def problems(self) -> list[str]:
        """The faults in the order of the file."""
        return [f"{line}: {text}" for line, text in sorted(self.faults)]

    def has(self, side: str, name: str) -> bool:
        """True when the file has the key, even with a value that failed its check."""
        return (side, name) in self.entries

    def value(self, side: str, name: str) -> Any:
        """The checked value, or None."""
        return self.values.get((side, name))

    def entry(self, side: str, name: str) -> Entry:
        """The place where a key was written; KeyError when it was not."""
        return self.entries[side, name]

    def entry_or_none(self, side: str, name: str) -> Entry | None:
        """The place where a key with a good value was written."""
        return self.entries[side, name] if (side, name) in self.values else None

    def side(self, side: str) -> dict[str, Any]:
        """All checked values of one side, by vLLM's name."""
        return {name: value for (of, name), value in self.values.items() if of == side}

    @property
    def speculates(self) -> bool:
        """True when any key asks for speculation."""
        return ("launch", "speculative_config") in self.entries or any(
            side == "speculative" for side, _ in self.entries
        )

    @property
    def first_speculative_line(self) -> int:
        """The line of the first key about speculation, 1 when there is none."""
        lines = [e.line for (side, name), e in self.entries.items() if side == "speculative" or "specul" in name]
        return min(lines, default=1)


def gather(entries: tuple[Entry, ...]) -> Gathered:
    """Names resolved, types and limits checked, doubles compared, unknown names reported."""
    found = Gathered()
    for option, entry in _resolved(entries, found):
        key = (option.side, option.name)
        earlier = found.entries.get(key)
        if earlier is None:
            found.entries[key] = entry
        elif earlier.value != entry.value or type(earlier.value) is not type(entry.value):
            found.fault(
                entry.line,
                f"{earlier} and {entry} are the same setting with different values "
                f"({shown(earlier.value)} and {shown(entry.value)}); keep one of them",
            )
            continue
        if entry.value is None:
            found.fault(entry.line, f"{entry.key} has no value; give one or delete the line")
        elif wrong := problem_with(option, entry.value):
            found.fault(entry.line, f"{entry.key} {wrong}")
        else:
            found.values[key] = entry.value
    return found


def _resolved(entries: tuple[Entry, ...], found: Gathered) -> Iterator[tuple[Option, Entry]]:
    for entry in entries:
        option = TOP.get(plain(entry.key))
        if option is None:
            found.fault(entry.line, _unknown(entry.key, TOP, NESTED, "inside speculative_config"))
            continue
        yield option, entry
        if option.name == "speculative_config":
            for inner in entry.nested:
                under = Entry(f"speculative_config.{inner.key}", inner.line, inner.value)
                known = NESTED.get(plain(inner.key))
                if known is None:
                    found.fault(inner.line, _unknown(inner.key, NESTED, TOP, "at the top level", under.key))
                else:
                    yield known, under
        elif option.name == "extra_args":
            for inner in entry.nested:
                _take_extra(inner, found)


def _unknown(
    key: str,
    here: Mapping[str, Option],
    elsewhere: Mapping[str, Option],
    place: str,
    spelled: str | None = None,
) -> str:
    """The sentence for an unknown key, with the nearest valid name."""
    name, spelled = plain(key), shown(spelled or key)
    if name in REMOVED:
        return f"{spelled} is not a key: {REMOVED[name]}"
    if name in RESERVED:
        return f"{spelled} cannot be set here: {RESERVED[name]}"
    if name in elsewhere:
        return f"{spelled} is not a key here: it belongs {place}"
    close = difflib.get_close_matches(name, here, 1, 0.6)
    if close:
        return f"{spelled} is not a known key; did you mean {close[0]}?"
    return f"{spelled} is not a known key; if vLLM has it, put it under extra_args"


def _take_extra(entry: Entry, found: Gathered) -> None:
    name, value = plain(entry.key), entry.value
    fine = isinstance(value, bool) or is_text(value) or is_number(value) or is_integer(value)
    if isinstance(value, list):
        fine = bool(value) and all(is_text(item) or is_number(item) for item in value)
    elif isinstance(value, dict):
        fine = is_json(value)
    if name in RESERVED:
        found.fault(entry.line, f"extra_args.{entry.key} cannot be set: {RESERVED[name]}")
    elif name in REMOVED:
        found.fault(entry.line, f"extra_args.{entry.key} is not an argument: {REMOVED[name]}")
    elif name in TOP:
        found.fault(entry.line, f"extra_args.{entry.key} is a key of its own: write it at the top level")
    elif not name.replace("_", "").isalnum() or not name.isascii():
        found.fault(entry.line, f"extra_args: {shown(entry.key)} is not the name of an argument")
    elif not fine:
        found.fault(entry.line, f"extra_args.{entry.key} has a value no argument can have: {shown(value)}")
    elif name in found.extra:
        found.fault(entry.line, f"extra_args.{entry.key} is written twice; keep one")
    else:
        found.extra[name] = value
