"""Runs of the lab: what was found of drafts, of k, of hours under load, by the commands that find it."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from sidecar.store.cursor import BadCursor
from sidecar.store.lab import MAX_PAGE, State

from . import errors
from .deps import ApiDeps
from .models import Model, as_json


class LabParams(BaseModel):
    model_config = ConfigDict(extra="forbid")

    #: qualify, sweep, soak, self-draft; left out, all.
    kind: str | None = Field(None, min_length=1, max_length=50)
    limit: int = Field(50, ge=1, le=MAX_PAGE)
    cursor: str | None = Field(None, max_length=200)


class LabRunShort(Model):
    """A run without what it found in full."""

    #: As `qualify-20260131-120000`.
    id: str
    #: qualify, sweep, soak, self-draft
    kind: str
    #: A run that was killed stays `running`; `updated_at` tells when it was last heard of.
    state: State
    #: In words, as `qualified in part`; null until the run is done.
    verdict: str | None
    started_at: datetime
    ended_at: datetime | None
    updated_at: datetime
    instance: str
    #: Folders or names; null where the engine does not tell them.
    model: str | None
    draft_model: str | None
    num_speculative_tokens: int | None
    #: Where its files are, on the machine that it ran on.
    folder: str
    #: Of Specwatch.
    version: str
    title: str | None
    #: Sentences, the weightiest first.
    reasons: list[str]


class LabRun(LabRunShort):
    #: Of engine, models, k and device, as a certificate has it.
    fingerprint: dict[str, Any] | None
    #: `title`, `verdict`, `reasons`, `gates`, `tables`, `plots` and `files` (relative to the folder); null before there
    #: is any.
    summary: dict[str, Any] | None
    #: The command's, without tokens and passwords.
    options: dict[str, Any] | None


class LabPage(Model):
    #: Newest first.
    runs: list[LabRunShort]
    #: Pass as `cursor` for the next page; null on the last.
    next_cursor: str | None


def router(deps: ApiDeps) -> APIRouter:
    made = APIRouter()
    reader = deps.reader

    @made.get("/lab/runs", response_model=LabPage)
    def runs(query: Annotated[LabParams, Query()]) -> Response:
        """Runs of all instances, newest first, in pages; without gates, tables and plots."""
        try:
            return as_json(LabPage(**reader.lab_runs(query.kind, query.limit, query.cursor)))
        except BadCursor as error:
            raise errors.invalid("cursor", str(error)) from None

    @made.get("/lab/runs/{run_id:path}", response_model=LabRun)
    def run(run_id: str) -> Response:
        """One run, with its summary."""
        found = reader.lab_run(run_id)
        if found is None:
            message = f"no run {run_id[:200]!r} of the lab is recorded; /api/v1/lab/runs lists those that are"
            raise errors.ApiError(404, message, code="not_found", param="run_id")
        return as_json(LabRun(**found))

    return made
