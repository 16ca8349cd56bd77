"""Requests for as long as the soak lasts: the prompts of a file again and again, in another order each time."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from ..prompts import Prompt

#: A request has failed where nothing comes for so long, s: as long as vLLM's own clients wait for a step at most.
LIMIT_S = 300.0
#: In flight at most where a rate is kept and no concurrency is named: a server that stalls is not to be buried.
MOST_AT_A_RATE = 64


@dataclass(frozen=True, slots=True)
class Phase:
    """Which prompts are sent, from so many seconds of the soak on."""

    from_s: float
    prompts: Sequence[Prompt]


@dataclass(slots=True)
class Sent:
    """Requests that ended in one minute; failures by what went wrong."""

    requests: int = 0
    failures: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Flight:
    """A request under way: when it began, and when anything came of its reply last (Unix s)."""

    began: float
    heard: float


@dataclass
class Load:
    """`rate` requests a second at even distances, or with None `concurrency` in flight all the time.

    `passed` counts the passes through files that a run has had already, so that no order comes twice after a resume.
    """

    url: str
    model: str
    phases: Sequence[Phase]
    rate: float | None
    concurrency: int
    seed: int
    headers: dict[str, str] = field(default_factory=dict)
    passed: int = 0
    minute_s: int = 60
    clock: Callable[[], float] = time.time
    #: By the minute (Unix s) in which they ended.
    sent: dict[int, Sent] = field(default_factory=dict)
    #: When the last reply came to its end (Unix s).
    answered: float = 0.0
    _flying: dict[int, _Flight] = field(default_factory=dict)
    _number: int = 0
    _orders: dict[int, Iterator[Prompt]] = field(default_factory=dict)

    def oldest(self) -> float:
        """When the request began that has been under way longest (Unix s); now, where none is."""
        return min((each.began for each in self._flying.values()), default=self.clock())

    def silent(self, since: float) -> int:
        """Requests under way of which nothing has come since `since` (Unix s)."""
        return sum(each.heard < since for each in self._flying.values())

    def hangs(self, since: float) -> float | None:
        """When the last request began (Unix s), where all are silent and none was answered after that; else None."""
        newest = max((each.began for each in self._flying.values()), default=0.0)
        return newest if self.answered <= newest and 0 < self.silent(since) == len(self._flying) else None

    def taken(self, minute: int) -> Sent:
        return self.sent.pop(minute, Sent())

    async def run(self, since: float, until: float) -> None:
        """Sends until `until`, and waits for what is under way; `since`: when the soak's first second was (Unix s)."""
        async with httpx.AsyncClient(
            base_url=self.url,
            timeout=httpx.Timeout(LIMIT_S, connect=10.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=self.concurrency),
            headers=self.headers,
            trust_env=False,
            # Reading the certificates of the whole world takes a while, for nothing where none is shown.
            verify=self.url.startswith("https"),
        ) as client:
            places = asyncio.Semaphore(self.concurrency)
            async with asyncio.TaskGroup() as requests:
                due = self.clock()
                while True:
                    await places.acquire()
                    now = self.clock()
                    if self.rate is not None:
                        # What a stall has held up is not sent in one burst behind it.
                        due = max(due + 1 / self.rate, now)
                        await asyncio.sleep(min(due, until) - now)
                    if self.clock() >= until:
                        return
                    prompt = self._next(self.clock() - since)
                    requests.create_task(self._send(client, prompt, places))

    def _next(self, elapsed_s: float) -> Prompt:
        phase = max(number for number, each in enumerate(self.phases) if each.from_s <= elapsed_s or number == 0)
        order = self._orders.setdefault(phase, self._order(self.phases[phase].prompts))
        return next(order)

    def _order(self, prompts: Sequence[Prompt]) -> Iterator[Prompt]:
        while True:
            chance = random.Random(f"soak-{self.seed}-{self.passed}")  # noqa: S311 - an order of prompts, no secret
            self.passed += 1
            yield from chance.sample(prompts, len(prompts))

    async def _send(self, client: httpx.AsyncClient, prompt: Prompt, places: asyncio.Semaphore) -> None:
        number = self._number = self._number + 1
        flight = self._flying[number] = _Flight(self.clock(), self.clock())
        try:
            failure = await self._fails(client, prompt, flight)
            if failure is None:
                self.answered = self.clock()
        finally:
            del self._flying[number]
            places.release()
        minute = self.sent.setdefault(int(self.clock() // self.minute_s) * self.minute_s, Sent())
        minute.requests += 1
        if failure is not None:
            minute.failures[failure] += 1

    async def _fails(self, client: httpx.AsyncClient, prompt: Prompt, flight: _Flight) -> str | None:
        """What went wrong; None for a reply that came to its end."""
        tail = b""
        try:
            async with client.stream(
                "POST", prompt.endpoint, content=_encoded(body(prompt, self.model)), headers=_head(prompt)
            ) as answer:
                async for chunk in answer.aiter_bytes():
                    flight.heard = self.clock()
                    tail = (tail + chunk)[-4096:]
        except httpx.HTTPError as error:
            return type(error).__name__
        if answer.status_code != httpx.codes.OK:
            return f"status {answer.status_code}"
        return None if tail.rstrip().endswith(b"data: [DONE]") else "cut short"


def body(prompt: Prompt, model: str) -> dict[str, Any]:
    """What is sent: streamed, with usage, which vLLM's acceptance figures come with; greedy unless the prompt says.

    A scenario that no header can name is named in the metadata.
    """
    asked = {"temperature": 0} | prompt.body
    asked |= {} if _in_head(prompt) else {"metadata": {"scenario": prompt.scenario}}
    return asked | {"model": model, "stream": True, "stream_options": {"include_usage": True}}


def _head(prompt: Prompt) -> dict[str, str]:
    named = {"x-scenario": prompt.scenario} if _in_head(prompt) else {}
    return {"content-type": "application/json"} | named


def _in_head(prompt: Prompt) -> bool:
    return prompt.scenario.isascii() and prompt.scenario.isprintable()


def _encoded(value: dict[str, Any]) -> bytes:
    # Half a surrogate pair, which JSON can name, has no bytes.
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


async def served_model(url: str, headers: dict[str, str] | None = None) -> str | None:
    """The first model that a server lists; None where it lists none."""
    async with httpx.AsyncClient(base_url=url, timeout=10.0, trust_env=False, headers=headers or {}) as client:
        with suppress(httpx.HTTPError, ValueError, KeyError, IndexError, TypeError):
            return str((await client.get("/v1/models")).json()["data"][0]["id"])
    return None
