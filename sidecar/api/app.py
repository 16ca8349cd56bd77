"""The admin application: /api/v1, /metrics, /healthz, /readyz.

Endpoints that read the database are plain functions, which FastAPI runs on worker threads; they also build
their JSON there. Whatever touches the fallback runs on the event loop, where the fallback lives.
"""

import logging
from datetime import UTC, datetime
from typing import Any

from anyio import from_thread, move_on_after, to_thread
from fastapi import APIRouter, FastAPI, Response

from sidecar.control.fallback import NOWHERE, REMEDY
from sidecar.store.cursor import BadCursor
from sidecar.store.queries import DatabaseUnavailable

from . import alerts, audit, engine, errors, events, figures, lab, models, similarity, texts, windows
from .auth import NEEDS_CONTROL, Guard, Tokens
from .deps import ApiDeps
from .models import as_json
from .params import DraftsQuery, PageQuery, RowQuery, WindowQuery

log = logging.getLogger(__name__)

#: How long the last changes may take to be read.
_HISTORY_S = 2.0


def create_app(deps: ApiDeps) -> FastAPI:
    """The admin application. Raises ValueError for an empty token."""
    tokens = Tokens(deps.admin_token, deps.admin_read_token)
    # The pages of /docs load scripts from elsewhere; the schema is at /openapi.json.
    app = FastAPI(title="Specwatch", version=deps.version, docs_url=None, redoc_url=None)
    errors.install(app)
    app.add_middleware(Guard, deps=deps, tokens=tokens)
    app.include_router(_health(deps))
    app.include_router(texts.router(deps), prefix="/api/v1", dependencies=[NEEDS_CONTROL])
    app.include_router(_summary(deps), prefix="/api/v1")
    app.include_router(figures.router(deps), prefix="/api/v1")
    app.include_router(similarity.router(deps), prefix="/api/v1")
    app.include_router(_rows(deps), prefix="/api/v1")
    app.include_router(_drafts(deps), prefix="/api/v1")
    app.include_router(_fallback(deps), prefix="/api/v1")
    app.include_router(engine.router(deps), prefix="/api/v1")
    app.include_router(windows.router(deps), prefix="/api/v1")
    app.include_router(alerts.router(deps), prefix="/api/v1")
    app.include_router(events.router(deps), prefix="/api/v1")
    app.include_router(lab.router(deps), prefix="/api/v1")
    app.include_router(audit.router(deps), prefix="/api/v1", dependencies=[NEEDS_CONTROL])
    return app


def _health(deps: ApiDeps) -> APIRouter:
    router = APIRouter()

    @router.get("/healthz", response_model=models.Health)
    async def healthz() -> Response:
        """The process is alive."""
        return as_json(models.Health(status="ok"))

    @router.get("/readyz", response_model=models.Ready)
    async def readyz() -> Response:
        """200 while requests can be proxied, which needs no database; its state is in the body."""
        alive = deps.relay_alive()
        ready = models.Ready(
            status="ready" if alive else "not_ready",
            database=_database(deps),
            failed_tasks=list(deps.failed_tasks()),
        )
        return as_json(ready, 200 if alive else 503)

    @router.get("/metrics")
    async def metrics() -> Response:
        """Prometheus exposition."""
        content, content_type = deps.render_metrics()
        # Set as a header: `media_type` would have a charset added to it.
        return Response(content, headers={"content-type": content_type})

    return router


def _summary(deps: ApiDeps) -> APIRouter:
    router = APIRouter()

    @router.get("/summary", response_model=models.Summary)
    def summary(query: WindowQuery) -> Response:
        """The figures of one window, and how things stand.

        Filters are of last_100, acceptance, truncation, latency, slo, traffic, and of the rows that coverage counts;
        all else is of the whole sidecar.
        """
        now = deps.now()
        with figures.refusals(query):
            found = deps.reader.summary(query.window, now, query.filters())
        found["versions"]["specwatch"] = deps.version
        found["coverage"]["engines"] = from_thread.run_sync(deps.counters)
        return as_json(
            models.Summary(
                generated_at=datetime.fromtimestamp(now, UTC),
                window_s=query.window,
                instance=deps.instance,
                fallback=from_thread.run_sync(deps.fallback.state),
                alignment=from_thread.run_sync(_alignment, deps).short(),
                similarity=similarity.state(deps),
                quality=models.Quality(**from_thread.run_sync(deps.quality)).short(),
                alerts=from_thread.run_sync(alerts.firing, deps),
                database=_database(deps),
                records_dropped=deps.records_dropped(),
                **found,
            )
        )

    return router


def _rows(deps: ApiDeps) -> APIRouter:
    router = APIRouter()
    reader = deps.reader

    @router.get("/requests", response_model=models.RequestPage)
    def requests(query: PageQuery) -> Response:
        """Rows, newest first, a page at a time.

        Where few rows are what is asked for, a page may have fewer than `limit` rows, or none, before the last: at most
        200,000 rows are looked at for one. As long as there is a `next_cursor`, there may be more.
        """
        try:
            found = reader.requests(query.filters(), query.limit, query.cursor, deps.now(), query.only())
            return as_json(models.RequestPage(**found))
        except BadCursor as error:
            raise errors.invalid("cursor", str(error)) from None

    @router.get("/requests/{request_id:path}", response_model=models.RequestRow)
    def request(request_id: str, query: RowQuery) -> Response:
        """One row: the newest of this id, before `until`. 500,000 rows are looked at; a 404 says how to go on."""
        row, rest = reader.request(request_id, query.until)
        if row is None:
            message = f"no request {request_id[:200]!r} is recorded"
            if query.until is not None:
                message += f" of before {_iso(query.until)}"
            if rest is None:
                message += " (rows arrive within a second of the end)"
            else:
                message += f" and of {_iso(rest)} or later; older ones are looked through with until={_iso(rest)}"
            raise errors.ApiError(404, message, code="not_found", param="request_id")
        return as_json(models.RequestRow(**row))

    return router


def _drafts(deps: ApiDeps) -> APIRouter:
    router = APIRouter()

    @router.get("/alignment", response_model=models.Alignment)
    async def alignment() -> Response:
        """Whether draft and target know the tokens by the same ids."""
        return as_json(_alignment(deps))

    @router.get("/quality", response_model=models.Quality)
    async def quality() -> Response:
        """Replies that look broken."""
        return as_json(models.Quality(**deps.quality()))

    @router.get("/drafts", response_model=models.Drafts)
    def drafts(query: DraftsQuery) -> Response:
        """What the draft proposed for the last requests, and what the target made of it."""
        if deps.drafts is None:
            message = (
                "recent_drafts: no drafts are kept; set recent_drafts to the number of requests to keep, "
                "and engine_events for the engine to tell them"
            )
            raise errors.ApiError(409, message, code="no_drafts_kept", param="recent_drafts")
        return as_json(models.Drafts(drafts=[models.Draft(**each) for each in deps.drafts(query.limit)]))

    return router


def _alignment(deps: ApiDeps) -> models.Alignment:
    return models.NO_ALIGNMENT if deps.alignment is None else models.Alignment(**deps.alignment())


def _fallback(deps: ApiDeps) -> APIRouter:
    router = APIRouter()

    @router.get("/fallback", response_model=models.Fallback)
    async def fallback() -> Response:
        """How requests are served, and the last changes (none while the database is away)."""
        history: list[models.Transition] = []
        # Orders and state need no database, and clients wait for them.
        with move_on_after(_HISTORY_S):
            history = await to_thread.run_sync(_history, deps, abandon_on_cancel=True)
        return as_json(models.Fallback(**deps.fallback.state().model_dump(), history=history))

    @router.put("/fallback", response_model=models.Fallback)
    async def change(order: models.FallbackChange) -> Response:
        """Order a mode; it holds for the requests that follow. Works without the database."""
        if order.mode == "autoregressive" and not deps.fallback.state().can_fall_back:
            message = f"mode: {NOWHERE}, so there is nothing to fall back to: {REMEDY}"
            raise errors.ApiError(409, message, code="cannot_fall_back", param="mode")
        deps.fallback.set_mode(order.mode, order.reason)
        return await fallback()

    return router


def _history(deps: ApiDeps) -> list[models.Transition]:
    try:
        return [models.Transition(**row) for row in deps.reader.transitions()]
    except DatabaseUnavailable as error:
        log.warning("%s", error)
        return []


def _iso(time: datetime) -> str:
    """A time that URLs carry unchanged."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _database(deps: ApiDeps) -> Any:
    return "ok" if deps.database_ok() else "unavailable"
