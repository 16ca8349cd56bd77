"""Tokenizers: whether draft and target know the tokens by the same ids, and what to do where they do not. Pure."""

import shlex
from collections.abc import Sequence
from typing import Literal, NamedTuple

from dashboard import shapes
from dashboard.frames.base import Tile, count, percent, sentence, utc
from dashboard.frames.table import Cell, Row, table
from dashboard.words import EVENTS_YAML, NO_DATA, define

Verdict = Literal["aligned", "misaligned", "unknown"]

FOLDERS_YAML = (
    "target_tokenizer: /models/target   # the folder that holds its tokenizer.json\ndraft_tokenizer: /models/draft"
)
SEVERITIES = {
    "none": "note",
    "warning": "warning: costs some acceptance at most",
    "high": "high: right guesses are rejected",
    "critical": "critical: right guesses are rejected in nearly every reply",
}
KINDS = {
    "same_text": "the tokenizers differ: the same text has two ids",
    "neighbour": "the draft's weights do: they were trained on ids moved by one",
}


# Verdict


class Judged(NamedTuple):
    verdict: Verdict
    headline: str
    #: By the files, and by live traffic; sentences of the sidecar's own.
    grounds: list[tuple[str, Verdict, str]]
    #: What it means and what to do; in Markdown.
    meaning: str


def judged(alignment: shapes.Alignment) -> Judged:
    live, files = alignment.state, alignment.static.verdict
    grounds: list[tuple[str, Verdict, str]] = [
        ("By the files of both tokenizers", files, _by_files(alignment.static)),
        ("By live traffic", live, sentence(alignment.reason)),
    ]
    if "misaligned" in (live, files):
        return Judged(
            "misaligned", "Misaligned: draft and target know tokens by different ids", grounds, _lost(live, files)
        )
    if "aligned" in (live, files):
        known = "files and live traffic say so" if live == files else "the files say so" if files == "aligned" else ""
        known = known or "live traffic says so, and the files do not tell"
        meaning = "What the draft proposes is read as it was meant. A low acceptance rate has other reasons."
        return Judged("aligned", f"Aligned: {known}", grounds, meaning)
    meaning = "Nothing is known of it, good or bad. Below is what it takes."
    return Judged("unknown", "Cannot tell whether draft and target know the tokens by the same ids", grounds, meaning)


def _lost(live: Verdict, files: Verdict) -> str:
    means = (
        "Where such a token comes next, the draft's guess is right and is rejected all the same, and with it all that "
        "is behind it. "
    )
    if files == "misaligned" and live != "misaligned":
        means = (
            "The files differ, and no right guess was seen to be lost so far: the tokens concerned are rare in this "
            "traffic. " + means
        )
    elif files == "aligned":
        means = (
            "The files agree, so it is the draft's weights: they were trained with other ids than the tokenizer beside "
            "them has. " + means
        )
    return means + (
        "Use a draft that was trained with the target's tokenizer (`specwatch swap FOLDER` where the engine has the "
        "plugin's control route). Until then, `fallback_triggers` with `misalignment` in it has decoding fall back."
    )


def _by_files(static: shapes.StaticCheck) -> str:
    """Why it is not known, or how bad what was found is; the sentences themselves stand further below."""
    if static.severity is None:
        return sentence(static.sentences[0]) if static.sentences else ""
    return "" if static.severity == "none" else sentence(f"Severity {SEVERITIES[static.severity]}")


class Remedy(NamedTuple):
    words: str
    yaml: str = ""


def remedy(reason: str) -> Remedy:
    """What to do where it is unknown, by the sidecar's reason."""
    if "engine_events is not set" in reason:
        return Remedy(
            "Live traffic tells only where the engine's plugin tells its drafts. Set where it does, and start engine "
            "and sidecar again:",
            EVENTS_YAML,
        )
    if "no engine has told its models" in reason:
        return Remedy(
            "The engine tells its models with the first request that ends. If requests have ended since: check that "
            "the Specwatch plugin is loaded at the engine, and that `engine_events` is one path at both."
        )
    if any(words in reason for words in ("target_tokenizer", "tokenizer.json", "no such folder", "cannot be read")):
        return Remedy(
            "Set where the files of both models lie on the sidecar's machine, and start it again:", FOLDERS_YAML
        )
    if "does not speculate" in reason:
        return Remedy("Start the engine with `--speculative-config`.")
    if "are needed" in reason:
        return Remedy("It takes some more requests that speculate.")
    if "could not see the draft ids" in reason:
        return Remedy(
            "This engine does not show its plugin what it drafted (some methods keep it on the accelerator): the check "
            "of the files is all there is."
        )
    if "being" in reason:
        return Remedy("That takes some seconds.")
    return Remedy("")


def check_command(alignment: shapes.Alignment) -> str:
    target, draft = alignment.target_model or "TARGET", alignment.draft_model or "DRAFT"
    return f"specwatch tokenizers {shlex.quote(target)} {shlex.quote(draft)}"


def models_line(alignment: shapes.Alignment) -> str:
    target, draft = alignment.target_model or "not known", alignment.draft_model or "not known"
    since = "" if alignment.since is None else f" · counted since {utc(alignment.since):%Y-%m-%d %H:%M:%S} UTC"
    return f"Target model: {target} · draft model: {draft}{since}"


# Tiles


def tiles(alignment: shapes.Alignment) -> list[Tile]:
    static, same, none = alignment.static, alignment.same_text_other_id, "The engine does not tell its drafts."
    rejected = f"Of {count(alignment.rejections, 'rejection')} at {count(alignment.positions, 'draft position')}"
    rejected += f" in {count(alignment.requests, 'request')}."
    files = "Needs the files of both tokenizers, and the engine's events."
    moved = alignment.moved_tokens or alignment.state != "unknown"
    return [
        Tile(
            "Same text, other id",
            NO_DATA if same is None else f"{same:,}",
            define("same text, other id"),
            note=none if same is None else f"Since the sidecar started. {rejected}",
        ),
        Tile(
            "Moved tokens",
            f"{alignment.moved_tokens:,}" if moved else NO_DATA,
            define("alignment"),
            note="Seen in the traffic, time and again." if moved else sentence(alignment.reason),
        ),
        Tile(
            "Lost at moved tokens",
            NO_DATA if static.share_at_moved is None else percent(static.share_at_moved),
            define("share at moved tokens"),
            note=files if static.share_at_moved is None else "Of all draft positions that the target judged.",
        ),
        Tile(
            "Unknown ids",
            NO_DATA if static.unknown_ids is None else f"{static.unknown_ids:,}",
            define("unknown ids"),
            note=files if static.unknown_ids is None else "Verify steps in which the target left its own tokenizer.",
        ),
    ]


# Tables, as HTML


def visible(text: str | None) -> str:
    """The text of a token, in quotes, with what has no look made visible."""
    if text is None:
        return "text not known"
    signs = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
    seen = "".join(signs.get(each, each if each.isprintable() else repr(each)[1:-1]) for each in text)
    return f"'{seen}'"


def moved_table(moved: Sequence[shapes.MovedToken]) -> str:
    """Most frequent first, as the API gives them."""
    heads: list[tuple[str, Sequence[str]]] = [
        ("token", ()),
        ("id in the target", ()),
        ("id in the draft", ()),
        ("times rejected", ("same text, other id",)),
        ("of its places", ()),
        ("first seen (UTC)", ()),
        ("last seen (UTC)", ()),
        ("because", ()),
    ]
    return table(heads, [_moved(each) for each in moved], "Tokens that have another id in the draft")


def _moved(each: shapes.MovedToken) -> Row:
    text = visible(each.target_text)
    if each.draft_text != each.target_text:
        text += f", in the draft {visible(each.draft_text)}"
    return Row(
        [
            Cell(text, more=text),
            Cell(str(each.target_id)),
            Cell(f"{each.draft_id} ({each.draft_id - each.target_id:+d})"),
            Cell(f"{each.count:,}"),
            Cell(percent(each.share)),
            Cell(f"{utc(each.first_seen):%Y-%m-%d %H:%M:%S}"),
            Cell(f"{utc(each.last_seen):%Y-%m-%d %H:%M:%S}"),
            Cell(KINDS[each.kind]),
        ]
    )
