"""`/api/v1/windows` and `/api/v1/places`: the newest figures, from memory."""

from typing import Any

from anyio import from_thread
from fastapi import APIRouter, Response

from sidecar.probes import truncation
from sidecar.probes.acceptance import Counted, Figures, break_even
from sidecar.probes.windows import NotDrafted
from sidecar.store.expressions import group_order
from sidecar.store.figures import acceptance, ratio
from sidecar.store.figures import truncation as by_position

from . import models
from .deps import ApiDeps
from .models import as_json
from .params import By, WindowsQuery

_Window = tuple[str | None, Figures, list[Counted]]


def router(deps: ApiDeps) -> APIRouter:
    made = APIRouter()

    @made.get("/windows", response_model=models.Windows)
    def windows(query: WindowsQuery) -> Response:
        """Acceptance and truncation over the last requests: of all traffic, and of the slices of one kind."""
        (whole, *slices), hour, silent = from_thread.run_sync(_held, deps, query.by)
        slices.sort(key=lambda window: group_order(query.by, window[0]))
        k, cost = whole[1].num_speculative_tokens, deps.draft_cost
        answer = models.Windows(
            whole=_window(*whole),
            hour=models.AcceptanceFigures(**acceptance(hour)),
            by=query.by,
            slices=[_window(*window) for window in slices],
            not_drafted=models.NotDrafted(share=ratio(silent.without, silent.requests), **silent._asdict()),
            break_even_p=cost,
            break_even_p_per_token=None if k is None or cost is None else break_even(k, cost),
        )
        return as_json(answer)

    @made.get("/places", response_model=models.Places)
    async def places() -> Response:
        """Acceptance and truncation by the place of the verify step in the answer, over the last hour."""
        found = {} if deps.places is None else deps.places.figures(deps.now())
        answer = models.Places(
            reason="no engine tells its drafts: engine_events is not set" if deps.places is None else None,
            places=[
                models.Place(
                    place=name,
                    draft_tokens=each.draft_tokens,
                    accepted_tokens=each.accepted_tokens,
                    p=ratio(each.accepted_tokens, each.draft_tokens),
                    truncation=_truncation(each.positions, each.verify_steps),
                )
                for name, each in found.items()
            ],
        )
        return as_json(answer)

    return made


def _held(deps: ApiDeps, by: By | None) -> tuple[list[_Window], Figures, NotDrafted]:
    """What is in memory now, all traffic first; runs in the event loop, so what it costs to look at comes later."""
    windows = [
        (value or None, window.figures(), list(window))
        for dimension, value, window in deps.windows
        if dimension in ("", by)
    ]
    return windows, deps.windows.hour.figures(deps.now()), deps.windows.not_drafted()


def _window(group: str | None, found: Figures, rows: list[Counted]) -> models.Window:
    told = [row for row in rows if row.rejected_at is not None and row.reached is not None]
    steps = sum(row.verify_steps for row in told)
    return models.Window(group=group, truncation=_truncation(truncation.positions(told), steps), **acceptance(found))


def _truncation(found: truncation.Positions, steps: int) -> models.WindowTruncation:
    figures: dict[str, Any] = by_position(steps, *found)
    return models.WindowTruncation(
        **figures,
        truncation_rate=ratio(figures["truncated_steps"], steps),
        first_position_share=found.first_position_share,
        warnings=truncation.warnings(found, steps),
    )
