"""What is alarming now, what is watched, and what was told to whom."""

import logging

from anyio import to_thread
from fastapi import APIRouter, Response

from alerts.runbook import sections
from sidecar.store.queries import DatabaseUnavailable

from . import models
from .deps import ApiDeps
from .models import as_json

log = logging.getLogger(__name__)


def router(deps: ApiDeps) -> APIRouter:
    made = APIRouter()

    @made.get("/alerts", response_model=models.Alerts)
    async def alerts() -> Response:
        """Alerts that are pending or fire, the rules, and what happened last (nothing while the database is away)."""
        history = await to_thread.run_sync(_history, deps)
        return as_json(models.Alerts(**deps.alerts(), history=history))

    @made.get("/runbook", response_model=models.Runbook)
    def runbook() -> Response:
        """What each shipped alert means, what to look at, what to do."""
        return as_json(models.Runbook(alerts=sections()))

    return made


def firing(deps: ApiDeps) -> list[models.FiringAlert]:
    """Called on the event loop."""
    active = (models.ActiveAlert(**each) for each in deps.alerts()["alerts"])
    return [
        models.FiringAlert(
            name=alert.name,
            severity=alert.severity,
            labels=alert.labels,
            summary=alert.annotations.get("summary", ""),
            since=alert.starts_at,
            value=alert.value,
        )
        for alert in active
        if alert.status == "firing"
    ]


def _history(deps: ApiDeps) -> list[models.AlertEvent]:
    try:
        return [models.AlertEvent(**row) for row in deps.reader.alerts()]
    except DatabaseUnavailable as error:
        log.warning("%s", error)
        return []
