"""What an upstream says about itself: version and served models."""

import httpx

from ..tap.tap import Facts


async def read_facts(
    client: httpx.AsyncClient, url: str, draft_model: str | None, num_speculative_tokens: int | None
) -> tuple[Facts, list[str]] | None:
    """Facts and served model names of the server at `url`; None while it does not answer.

    A server other than vLLM has no /version; its fingerprint then holds the speculative settings alone. One that
    wants an API key tells no names.
    """
    try:
        models = await client.get(f"{url}/v1/models")
        answer = await client.get(f"{url}/version")
        version = answer.json().get("version") if answer.status_code == 200 else None
        locked = models.status_code in (401, 403)
        names = [] if locked else [str(model["id"]) for model in models.json()["data"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        return None
    parts = [f"vllm {version}" if version else "", f"draft {draft_model}" if draft_model else ""]
    if num_speculative_tokens:
        parts.append(f"k={num_speculative_tokens}")
    fingerprint = ", ".join(part for part in parts if part) or None
    return Facts(draft_model, num_speculative_tokens, fingerprint), names
