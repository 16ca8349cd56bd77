"""Runs of the lab: which there were, and how one stands, in words. Pure; no Streamlit, no network."""

import posixpath
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from dashboard import shapes
from dashboard.frames.base import count, iso, span, utc
from dashboard.frames.facts import Fact
from dashboard.frames.lab_summary import Summary
from dashboard.frames.table import Cell, Row, Tone, link, table
from dashboard.words import NO_DATA

#: How a verdict is meant; the word says what colour and sign repeat.
Meaning = Literal["good", "part", "bad", "unknown"]
MEANINGS: dict[str, Meaning] = {
    "qualified": "good",
    "recommended": "good",
    "stable": "good",
    "made": "good",
    "qualified in part": "part",
    "recommended, not confirmed": "part",
    "no gain": "part",
    "rejected": "bad",
    "drift": "bad",
    "failed": "bad",
}
SIGNS: dict[Meaning, str] = {"good": "✓", "part": "◐", "bad": "✗", "unknown": "?"}
#: Of a run that has no verdict.
STATES: dict[shapes.LabState, str] = {
    "running": "▶ under way",
    "done": "■ done",
    "failed": "✗ failed",
    "interrupted": "■ interrupted",
}
#: The commands, and what each is for.
KINDS = {
    "qualify": "whether a draft model is good enough, and for which scenarios",
    "sweep": "which k gains most, by scenario and batch size",
    "soak": "whether p, latency and memory stay as they are for hours",
    "self-draft": "a draft model from the target's own lower layers",
}
COMMANDS = (
    "specwatch qualify --prompts prompts.jsonl --target TARGET --draft DRAFT\n"
    "specwatch sweep --prompts prompts.jsonl --engine http://127.0.0.1:8200\n"
    "specwatch soak --prompts prompts.jsonl --hours 24 --engine http://127.0.0.1:8200\n"
    "specwatch self-draft TARGET --layers 8"
)
#: Those that can go on from what was measured.
_RESUMABLE = ("qualify", "sweep", "soak")
#: Without a word for so long, a run that is said to be under way may have been killed, s.
SILENT_S = 900
#: Lines of what was run.
MOST_FACTS = 60
_DASH = "–"


def tone_of(verdict: str) -> Meaning:
    return MEANINGS.get(verdict, "unknown")


def verdict_of(run: shapes.LabRunShort) -> str | None:
    """What some commands say meanwhile, or where they failed, is none yet."""
    return run.verdict if run.state == "done" else None


def standing(run: shapes.LabRunShort) -> str:
    """The verdict with its sign; of a run that has none, its state."""
    verdict = verdict_of(run)
    return STATES[run.state] if verdict is None else f"{SIGNS[tone_of(verdict)]} {verdict}"


def subject(run: shapes.LabRunShort) -> str:
    """`qualify of draft_generalist`. Models may be folders: of these the last part."""
    of = run.draft_model or run.model
    return f"{run.kind} of {_short(of)}" if of else run.kind


def _short(model: str) -> str:
    return model.rstrip("/").rpartition("/")[2] or model


def took(run: shapes.LabRunShort, now: datetime) -> str:
    if run.ended_at is None:
        return f"{span((now - utc(run.started_at)).total_seconds())} so far"
    return span((utc(run.ended_at) - utc(run.started_at)).total_seconds())


# The list


def runs_table(runs: Sequence[shapes.LabRunShort], opened: str | None, now: datetime, command: str | None) -> str:
    """As HTML, in the order given; each leads to itself. `command`: the kind that the page shows."""
    heads: list[tuple[str, Sequence[str]]] = [
        ("run", ()),
        ("verdict", ("verdict",)),
        ("began (UTC)", ()),
        ("took", ()),
        ("k", ("k",)),
        ("instance", ()),
    ]
    rows = [
        Row(
            [
                Cell(subject(run), href=link("lab", command=command, run=run.id), more=run.title or run.id),
                Cell(standing(run), _tone(run), more=" ".join(run.reasons)),
                Cell(f"{utc(run.started_at):%Y-%m-%d %H:%M}"),
                Cell(took(run, now)),
                Cell(_DASH, "none") if run.num_speculative_tokens is None else Cell(f"{run.num_speculative_tokens}"),
                Cell(run.instance) if run.instance else Cell(_DASH, "none"),
            ],
            opened=run.id == opened,
        )
        for run in runs
    ]
    return table(heads, rows, "Runs of the lab")


def _tone(run: shapes.LabRunShort) -> Tone:
    if (verdict := verdict_of(run)) is None:
        return "bad" if run.state == "failed" else ""
    return {"good": "", "part": "", "bad": "bad", "unknown": "none"}[tone_of(verdict)]  # type: ignore[return-value]


def option(run: shapes.LabRunShort) -> str:
    """In a choice of runs."""
    return f"{utc(run.started_at):%Y-%m-%d %H:%M} · {subject(run)} · {standing(run)}"


# One run


class Headline(NamedTuple):
    meaning: Meaning | Literal["running"]
    title: str
    #: In a word or two, and the weightiest reason; empty where there is none.
    words: str
    reason: str
    #: The others.
    reasons: list[str]


def headline(run: shapes.LabRunShort, now: datetime) -> Headline:
    first, *others = [_ended(each) for each in run.reasons if each.strip()] or [""]
    title = run.title or subject(run)
    if (verdict := verdict_of(run)) is not None:
        return Headline(tone_of(verdict), title, standing(run), first, others)
    heard = span((now - utc(run.updated_at)).total_seconds())
    if run.state == "running":
        told = f"For {took(run, now).removesuffix(' so far')} now; last heard of {heard} ago."
        meaning: Meaning | Literal["running"] = "unknown" if _silent(run, now) else "running"
        words = "? under way, or ended without a word" if _silent(run, now) else STATES["running"]
        return Headline(meaning, title, words, " ".join(filter(None, (told, first))), others)
    meaning = "bad" if run.state == "failed" else "unknown"
    told = {
        "interrupted": f"After {took(run, now)}. What was measured by then is kept in its folder.",
        "failed": "" if first else "Its folder has the log.",
        "done": "",
    }[run.state]
    return Headline(meaning, title, STATES[run.state], " ".join(filter(None, (first, told))), others)


def _ended(reason: str) -> str:
    """As a sentence. Names of figures stay small, as p, and so do options."""
    first = reason.split(maxsplit=1)[0]
    if len(first) > 1 and first.isalpha():
        reason = reason[:1].upper() + reason[1:]
    return reason if reason.endswith((".", "!", "?", ":")) else f"{reason}."


def facts_line(run: shapes.LabRunShort, now: datetime) -> str:
    parts = [f"Target model {_short(run.model)}"] if run.model else []
    parts += [f"draft model {_short(run.draft_model)}"] if run.draft_model else []
    parts += [f"k {run.num_speculative_tokens}"] if run.num_speculative_tokens is not None else []
    parts += [f"began {utc(run.started_at):%Y-%m-%d %H:%M:%S} UTC", f"took {took(run, now)}"]
    parts += [f"instance {run.instance}"] if run.instance else []
    parts += [f"Specwatch {run.version}"] if run.version else []
    parts += [f"run {run.id}"]
    return " · ".join(parts)


class Resume(NamedTuple):
    words: str
    command: str


def _silent(run: shapes.LabRunShort, now: datetime) -> bool:
    return run.state == "running" and (now - utc(run.updated_at)).total_seconds() > SILENT_S


def resume(run: shapes.LabRunShort, now: datetime) -> Resume | None:
    """How to go on with a run that did not end; None where it did, or is heard of."""
    silent = _silent(run, now)
    if not run.folder or run.kind not in _RESUMABLE or (run.state not in ("interrupted", "failed") and not silent):
        return None
    words = "Go on from what was measured, on the machine that it ran on:"
    if silent:
        words = f"If its process is gone: {words[:1].lower()}{words[1:]}"
    return Resume(words, f"specwatch {run.kind} --resume {shlex.quote(run.folder)}")


def unread(found: Summary) -> str:
    """What was not understood; empty where all was."""
    told = ", ".join(count(number, name.rstrip("s")) for name, number in found.unread.items())
    return (
        f"Left out, as this dashboard does not know its shape: {told}. The lab is of another version." if told else ""
    )


def files(run: shapes.LabRunShort, found: Summary) -> list[Fact]:
    """Where they are, on the machine that the run ran on."""
    told = [Fact("folder", run.folder)] if run.folder else []
    return told + [Fact(name, posixpath.join(run.folder, path)) for name, path in found.files.items()]


def what_was_run(run: shapes.LabRun) -> dict[str, list[Fact]]:
    """Options and fingerprint by name, but for what was not given."""
    groups = {"Options": run.options, "Engine, models and device": run.fingerprint}
    told = {title: _facts(each or {}) for title, each in groups.items()}
    return {title: each for title, each in told.items() if each}


def _facts(values: Mapping[str, Any]) -> list[Fact]:
    known = [(name, value) for name, value in values.items() if value is not None]
    return [Fact(name.replace("_", " "), _said(value)) for name, value in known[:MOST_FACTS]]


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_said, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_said(each)}" for name, each in value.items()) or "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    return NO_DATA if value is None else str(value)


def around(run: shapes.LabRunShort, now: datetime) -> dict[str, str]:
    """The time of the run, in parameters of an address."""
    return {"since": iso(run.started_at), "until": iso(run.ended_at or now)}
