"""A running sidecar, by its admin port."""

import asyncio
from typing import Any

import httpx

from ...settings import Settings, split_address
from ..facts import SidecarFacts, Unseen
from ..samples import Samples
from .servers import Answer, get, name_fails

#: Of the figures, which come from the database.
DAY = "24h"


def admin_url(settings: Settings) -> str:
    """Where it is asked from this machine."""
    host, port = split_address(settings.admin)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def look(client: httpx.AsyncClient, settings: Settings) -> SidecarFacts | Unseen:
    url = admin_url(settings)
    token = settings.admin_token or settings.admin_read_token
    # As bytes: httpx refuses text that is not ASCII.
    headers = {b"authorization": b"Bearer " + token.get_secret_value().encode()} if token else {}
    if (unresolved := await name_fails(url)) is not None:
        return Unseen(f"admin: {unresolved}", "away")
    try:
        ready = (await get(client, f"{url}/readyz")).json()
    except (httpx.TimeoutException, TimeoutError):
        return Unseen(f"what listens on {url} gives no answer", "silent")
    except httpx.HTTPError:
        return Unseen(f"no sidecar answers on {url}", "away")
    if not isinstance(ready, dict) or "failed_tasks" not in ready:
        return Unseen(f"what answers on {url} is no sidecar's admin port", "foreign")

    async def ask(path: str) -> dict[str, Any] | Unseen:
        try:
            return _told(path, await get(client, f"{url}/api/v1/{path}", headers))
        except (httpx.HTTPError, TimeoutError) as error:
            return Unseen(f"/api/v1/{path} gave no answer ({type(error).__name__})", "silent")

    async def metrics() -> Samples | Unseen:
        try:
            answer = await get(client, f"{url}/metrics", headers)
        except (httpx.HTTPError, TimeoutError) as error:
            return Unseen(f"/metrics gave no answer ({type(error).__name__})", "silent")
        return Samples(answer.body) if answer.status == 200 else Unseen(f"/metrics gives {answer.status}", "refused")

    async def is_open() -> bool | None:
        """Whether the token that is set here is asked for there."""
        if token is None:
            return None
        try:
            return (await get(client, f"{url}/api/v1/fallback")).status == 200
        except (httpx.HTTPError, TimeoutError):
            return None

    paths = (
        f"summary?window={DAY}",
        "windows?by=scenario",
        "alignment",
        "quality",
        "fallback",
        "alerts",
        f"events?window={DAY}",
        "requests?limit=500",
    )
    found, samples, unguarded = await asyncio.gather(asyncio.gather(*map(ask, paths)), metrics(), is_open())
    summary, windows, alignment, quality, fallback, alerts, events, page = found
    return SidecarFacts(
        url=url,
        ready=ready,
        summary=summary,
        windows=windows,
        alignment=alignment,
        quality=quality,
        fallback=fallback,
        alerts=alerts,
        events=events,
        requests=page if isinstance(page, Unseen) else page["requests"],
        samples=samples,
        open_without_token=unguarded,
    )


def _told(path: str, answer: Answer) -> dict[str, Any] | Unseen:
    value = answer.json()
    if answer.status == 401:
        return Unseen("the sidecar wants a token that is not set here: admin_token or admin_read_token", "locked")
    if answer.status != 200 or not isinstance(value, dict):
        error = value.get("error") if isinstance(value, dict) else None
        message = str(error.get("message", "")) if isinstance(error, dict) else ""
        return Unseen(f"/api/v1/{path.partition('?')[0]} gives {answer.status}: {message[:300]}", "refused")
    return value
