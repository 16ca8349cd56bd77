"""HTTP to the engine: is it healthy, and one request that runs target and draft."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

PROMPT = "one two three four one two three four one two three four one two"
MAX_TOKENS = 16


@dataclass(frozen=True)
class WarmUp:
    """What the first request showed: `drafted` is None when the reply says nothing about speculation."""

    ok: bool
    drafted: int | None = None
    accepted: int | None = None
    error: str = ""


def healthy(url: str, timeout_s: float = 2.0) -> bool:
    """True when `url`/health answers 200 within `timeout_s`; never raises."""
    try:
        return _call(url, "GET", "/health", None, None, timeout_s)[0] == 200
    except (OSError, http.client.HTTPException, ValueError):
        return False


def warm_up(url: str, model: str, timeout_s: float, api_key: str | None = None) -> WarmUp:
    """One greedy completion of 16 tokens. Never raises; waits `timeout_s` seconds at most for each read."""
    body = {
        "model": model,
        "prompt": PROMPT,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    try:
        status, reply = _call(url, "POST", "/v1/completions", body, api_key, timeout_s)
        if status != 200:
            return WarmUp(False, error=f"status {status}: {reply[:200].decode('utf-8', 'replace')}")
        return _read(json.loads(reply))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return WarmUp(False, error=f"{type(error).__name__}: {error}")


def _read(reply: Any) -> WarmUp:
    metrics = reply.get("metrics") if isinstance(reply, dict) else None
    block = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    if not isinstance(block, dict):
        return WarmUp(True)
    drafted, accepted = block.get("num_draft_tokens"), block.get("num_accepted_draft_tokens")
    return WarmUp(
        True,
        drafted if isinstance(drafted, int) else None,
        accepted if isinstance(accepted, int) else None,
    )


def _call(url: str, method: str, path: str, body: object, api_key: str | None, timeout_s: float) -> tuple[int, bytes]:
    # http.client rather than httpx: it reads no proxy from the environment, and this is loopback.
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    headers = {"content-type": "application/json"} if body is not None else {}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()
