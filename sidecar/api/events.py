"""What happened, each event in a sentence: `/api/v1/events`."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from sidecar.store.cursor import BadCursor
from sidecar.store.events import MAX_EVENTS, SETTING, SPECWATCH, Happened, Kind
from sidecar.store.expressions import utc

from . import errors, models
from .deps import ApiDeps
from .models import as_json
from .params import Duration, Time

#: What a change of the fallback did, by the state that it led to.
_DEEDS = {
    "autoregressive": "Fell back to autoregressive",
    "probing": "Began to probe speculation",
    "speculative": "Returned to speculative",
    "ineffective": "Autoregressive is without effect",
}
#: The same where the state before makes a difference.
_AGAIN = {
    ("probing", "autoregressive"): "Fell back to autoregressive again",
    ("ineffective", "autoregressive"): "Autoregressive is in effect again",
}
_DRY_RUN = "dry run: "
#: Characters of a value in a sentence: settings may be long lists.
_LONGEST = 500
#: What is told of an upstream, in words.
_NAMES = {
    "vllm": "vLLM",
    "models": "the list of served models",
    "draft_model": "the draft model",
    "num_speculative_tokens": "the number of draft tokens a step (k)",
    "target_digest": "the digest of the target model's checkpoint",
    "draft_digest": "the digest of the draft model's checkpoint",
    "device": "the device",
}


class EventsParams(BaseModel):
    model_config = ConfigDict(extra="forbid")

    window: Duration = 86_400
    #: Inclusive; the narrower of the two counts.
    since: Time | None = None
    #: Exclusive.
    until: Time | None = None
    #: May be repeated; left out, all.
    kind: list[Kind] = []
    limit: int = Field(100, ge=1, le=MAX_EVENTS)
    cursor: str | None = Field(None, max_length=200)


def router(deps: ApiDeps) -> APIRouter:
    made = APIRouter()

    @made.get("/events", response_model=models.EventPage)
    def events(query: Annotated[EventsParams, Query()]) -> Response:
        """Switches, orders to engines, alerts, versions, moved tokens and runs of the lab that ended, of all instances.

        Newest first, in pages.
        """
        since = utc(deps.now()) - timedelta(seconds=query.window)
        if query.since is not None:
            since = max(since, query.since)
        try:
            found, following = deps.reader.events(since, query.until, frozenset(query.kind), query.limit, query.cursor)
        except BadCursor as error:
            raise errors.invalid("cursor", str(error)) from None
        page = models.EventPage(events=[event(each) for each in found], next_cursor=following)
        return as_json(page)

    return made


def event(happened: Happened) -> models.Event:
    row = happened.row
    match happened.kind:
        case "switch":
            subject, what, words, evidence = row["slice"], row["to_state"], _switch(row), row["evidence"]
        case "engine":
            words = row["reason"][:1].upper() + row["reason"][1:]
            subject, what, evidence = row["slice"], "changed", row["evidence"]
        case "alert":
            subject, what, words = row["alert"], row["event"], _alert(row)
            evidence = {"value": row["value"], "labels": row["labels"], "starts_at": row["starts_at"].isoformat()}
        case "alignment":
            subject, what = row["target_text"] or str(row["target_id"]), row["kind"]
            words, evidence = _moved(row), _moved_evidence(row)
        case "version":
            subject, words = _version(row)
            what = "default" if row["value"] is None else _short(row["value"])
            evidence = {name: row[name] for name in ("name", "before", "value")}
        case "lab":
            subject, what, words = row["run"], _found(row), _lab(row)
            evidence = {name: row[name] for name in ("run", "kind", "model", "draft_model", "folder")}
    return models.Event(
        at=row["at"],
        instance=row["instance"],
        kind=happened.kind,
        subject=subject,
        what=what,
        words=words,
        severity=row["severity"] if happened.kind == "alert" else None,
        evidence=evidence,
    )


def _switch(row: Mapping[str, Any]) -> str:
    before, after, reason = row["from_state"], row["to_state"], row["reason"]
    if row["trigger"] == "operator" and not row["slice"]:
        return f"Mode {row['mode']} was ordered, serving {after}: {reason}"
    deed = _AGAIN.get((before, after)) or _DEEDS.get(after, f"{after} after {before}")
    if row["slice"]:
        deed += f" ({row['slice']})"
    if (row["evidence"] or {}).get("dry_run"):
        return f"Dry run, nothing was switched: {deed[:1].lower()}{deed[1:]}: {reason.removeprefix(_DRY_RUN)}"
    return f"{deed}: {reason}"


def _alert(row: Mapping[str, Any]) -> str:
    if row["event"] == "firing":
        return ": ".join(filter(None, (f"{row['alert']} fires", row["annotations"].get("summary"))))
    return ": ".join(filter(None, (f"{row['alert']} is over", row["detail"])))


def _moved(row: Mapping[str, Any]) -> str:
    token = "A token" if row["target_text"] is None else f"The token {row['target_text']!r}"
    draft = f"the draft model {row['draft_model']}" if row["draft_model"] else "the draft model"
    return f"{token} has id {row['target_id']} in the target model and {row['draft_id']} in {draft}"


def _moved_evidence(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("upstream", "draft_model", "target_id", "draft_id", "target_text", "draft_text", "count", "share")
    return {name: row[name] for name in names} | {"first_seen": row["first_seen"].isoformat()}


def _found(row: Mapping[str, Any]) -> str:
    """The verdict of a run of the lab that came to one, else how it ended."""
    return str((row["verdict"] if row["state"] == "done" else None) or row["state"])


def _lab(row: Mapping[str, Any]) -> str:
    """`Qualify of draft_generalist: qualified in part. The scenario billing is not certified.`"""
    of = row["draft_model"] or row["model"]
    kind = row["kind"][:1].upper() + row["kind"][1:]
    # Models may be folders, whose names are all but their last part the machine's.
    subject = f"{kind} of {of.rstrip('/').rpartition('/')[2] or of}" if of else kind
    if row["state"] == "interrupted":
        return f"{subject} was interrupted"
    reasons = row["reasons"] if isinstance(row["reasons"], list) else []
    reason = _short(str(reasons[0])) if reasons else ""
    if row["state"] == "failed":
        return ": ".join(filter(None, (f"{subject} failed", reason)))
    return ". ".join(filter(None, (f"{subject}: {_found(row)}", reason)))


def _version(row: Mapping[str, Any]) -> tuple[str, str]:
    """What it is of, and the sentence."""
    upstream, name = row["upstream"], row["name"]
    value, before = (None if row[each] is None else _short(row[each]) for each in ("value", "before"))
    if upstream:
        subject = upstream
        words = f"{upstream}: {_NAMES.get(name, name)} is {value}"
    elif name == SPECWATCH:
        subject, words = name, f"Specwatch {value} started"
        if before == value:
            return subject, words
    else:
        subject = name.removeprefix(SETTING)
        words = f"Setting {subject} is {'at its default again' if value is None else value}"
        before = "at its default" if before is None else before
    return subject, words if before is None else f"{words}, and was {before}"


def _short(value: str) -> str:
    """For a sentence; the evidence has all of it."""
    return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…"
