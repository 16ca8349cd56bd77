"""What an upstream says about itself: version, served models, and how it speculates."""

from collections.abc import Sequence
from pathlib import PurePath

import httpx

from ..tap.tap import Facts
from .engine import EngineState


async def read_server(client: httpx.AsyncClient, url: str) -> tuple[str | None, list[str]] | None:
    """Version of vLLM and served model names of the server at `url`; None while it does not answer.

    A server other than vLLM has no /version. One that wants an API key tells no names.
    """
    try:
        models = await client.get(f"{url}/v1/models")
        answer = await client.get(f"{url}/version")
        version = answer.json().get("version") if answer.status_code == 200 else None
        locked = models.status_code in (401, 403)
        return version, [] if locked else [str(model["id"]) for model in models.json()["data"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def facts_of(version: str | None, configured: Facts, engines: Sequence[EngineState]) -> Facts:
    """Facts of a server. Where its plugin tells them, `engines`, those that were configured do not count."""
    draft_model, most = configured.draft_model, configured.num_speculative_tokens
    caps = sorted({state.cap for state in engines if state.cap is not None})
    for state in engines:
        draft_model = PurePath(state.draft_model).name if state.draft_model else draft_model
        most = state.num_speculative_tokens or most
    parts = [f"vllm {version}" if version else "", f"draft {draft_model}" if draft_model else ""]
    if most:
        parts.append(f"k={most}")
    parts += [f"cap {cap}" for cap in caps]
    fingerprint = ", ".join(part for part in parts if part) or None
    return Facts(draft_model, most, fingerprint, drafts_nothing=bool(engines) and all(s.cap == 0 for s in engines))
