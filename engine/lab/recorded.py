"""Prompts of recorded traffic: the texts that a sidecar stores (`store_text`), over its admin port."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx

from .prompts import CHAT, COMPLETIONS, DEFAULT_SCENARIO, Prompt, PromptError

TOKEN = "SPECWATCH_ADMIN_TOKEN"  # noqa: S105 - the name of a variable
_LIMIT_S = 30.0
#: Rows of one page of requests.
_PAGE = 500
#: What is waited at most where the port has had too many requests, s, and how often for one of ours.
_PAUSE_S, _TRIES = 10.0, 20

_PATHS = {"chat_completions": CHAT, "completions": COMPLETIONS}
#: How the sidecar begins each message of a chat that it stores.
_ROLE = re.compile(r"^(system|developer|user|assistant|tool): ", re.MULTILINE)
#: What it puts where there was no text to keep.
_PLACEHOLDER = re.compile(
    r"^(?:\w+: )?\[(?:image|audio|video|file|document|\d+ tokens|tool call|reasoning)\b", re.MULTILINE
)


def recorded(url: str, tell: Callable[[str], object], most: int, until: str | None = None) -> list[Prompt]:
    """The prompts that the sidecar at `url` has stored: the newest, `most` at most; `tell` hears what was left out.

    `until`: of requests that began before it, ISO 8601. Each is asked for by itself, and the sidecar bounds how often
    (admin_per_second).

    Raises PromptError where it does not answer, or has none.
    """
    token = os.environ.get(TOKEN)
    if not token:
        raise PromptError(
            [f"--prompts: {TOKEN} is not set: texts are for the control token of the sidecar's admin port"]
        )
    url = url.rstrip("/")
    prompts: list[Prompt] = []
    ids: set[str] = set()
    left_out: Counter[str] = Counter()
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=f"{url}/api/v1", headers=headers, timeout=_LIMIT_S, trust_env=False) as client:
        cursor: str | None = None
        tell(f"the prompts that {url} has stored are being read, the newest {most:,} at most")
        while len(prompts) < most:
            query = {"limit": _PAGE, "cursor": cursor, "until": until}
            page = _get(client, url, "/requests", {name: value for name, value in query.items() if value})
            for row in page.get("requests") or ():
                found = _prompt(client, url, row)
                if not isinstance(found, Prompt):
                    left_out[found] += 1
                    continue
                if found.id in ids:
                    found = replace(found, id=f"{found.id} of {row.get('started_at')}")
                ids.add(found.id)
                prompts.append(found)
                if len(prompts) == most:
                    break
            cursor = page.get("next_cursor")
            if not cursor:
                break
    if left_out:
        words = ", ".join(f"{number} {why}" for why, number in left_out.most_common())
        tell(f"{len(prompts)} recorded prompts are used; left out were {words}")
    if not prompts:
        raise PromptError(
            [f"--prompts: the sidecar at {url} has no stored prompts: set store_text, and let traffic come"]
        )
    return prompts


def _prompt(client: httpx.Client, url: str, row: dict[str, Any]) -> Prompt | str:
    """The prompt of a recorded request, or why it cannot be sent again."""
    endpoint = _PATHS.get(str(row.get("endpoint")))
    if endpoint is None:
        return f"of the endpoint {row.get('endpoint')}"
    # The id may be used again: the row is the newest of it before the moment after.
    until = row.get("started_at")
    request_id = str(row.get("request_id"))
    path = f"/requests/{quote(request_id, safe='')}/texts"
    texts = _get(client, url, path, {"until": _after(str(until))} if until else {}).get("texts") or ()
    text = next((each for each in texts if each.get("kind") == "prompt"), None)
    if text is None:
        return "without a stored prompt"
    if text.get("cut"):
        return "that were cut when they were stored"
    said = str(text.get("text"))
    if _PLACEHOLDER.search(said):
        return "with parts that are not stored, as images and tool calls"
    body: dict[str, Any] = {"prompt": said} if endpoint == COMPLETIONS else {"messages": messages(said)}
    if not said or (endpoint == CHAT and not any(each["role"] == "user" for each in body["messages"])):
        return "in which no user says anything"
    if row.get("temperature") is not None:
        body["temperature"] = row["temperature"]
    return Prompt(request_id, str(row.get("scenario") or DEFAULT_SCENARIO), body, endpoint)


def messages(text: str) -> list[dict[str, str]]:
    """The messages of a stored chat prompt, in which each begins with its role: `user: Hello`.

    A line of a message that itself begins like that is taken for a message of its own: nothing tells them apart. Text
    before the first role is the user's. The last message is not the assistant's, as that would be the reply.
    """
    found: list[dict[str, str]] = []
    starts = list(_ROLE.finditer(text))
    if not starts or starts[0].start() > 0:
        found.append({"role": "user", "content": text[: starts[0].start() if starts else None].rstrip("\n")})
    for start, end in zip(starts, [*(each.start() for each in starts[1:]), len(text)], strict=False):
        found.append({"role": start[1], "content": text[start.end() : end].removesuffix("\n")})
    while found and found[-1]["role"] == "assistant":
        found.pop()
    return found


def _get(client: httpx.Client, url: str, path: str, query: dict[str, Any]) -> dict[str, Any]:
    """Raises PromptError."""
    try:
        answer = client.get(path, params=query)
        for _ in range(_TRIES):
            if answer.status_code != 429:
                break
            time.sleep(min(_seconds(answer.headers.get("retry-after")), _PAUSE_S))
            answer = client.get(path, params=query)
        body = answer.json()
    except httpx.HTTPError as error:
        why = str(error) or type(error).__name__
        raise PromptError([f"--prompts: the admin port {url} does not answer: {why}"]) from error
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, dict) and answer.status_code == 200:
        return body
    if isinstance(body, dict) and answer.status_code == 404 and path.endswith("/texts"):
        return {}
    if answer.status_code in (401, 403):
        raise PromptError([f"--prompts: {url} refuses the token: set {TOKEN} to its control token, admin_token"])
    words = f"{url}/api/v1{path} answered {answer.status_code}, not as a sidecar's admin port does"
    raise PromptError([f"--prompts: {words}: correct the URL"])


def _seconds(text: str | None) -> float:
    return max(float(text), 0.05) if text is not None and text.isdecimal() else 1.0


def _after(started_at: str) -> str:
    """A moment after it: of requests of one id, the newest before that is the one."""
    try:
        return (datetime.fromisoformat(started_at) + timedelta(microseconds=1)).isoformat()
    except ValueError:
        return started_at
