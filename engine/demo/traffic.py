"""Bounded demo traffic for an OpenAI-compatible server: `python -m specwatch_engine.demo.traffic --url URL`.

Sends made-up customer dialogues at temperature 0 as standard chat requests, each with an `x-scenario` header.
What is sent depends on the seed alone; when, on rate and concurrency. Ctrl-C and SIGTERM end a run early and
cleanly; at SIGTERM replies under way are waited for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
from rich.console import Console
from rich.progress import Progress

from .dialogues import SCENARIOS, Dialogue, misdirected, mix

_FAMILIAR: Final[Mapping[str, float]] = {"address_confirmation": 25, "billing": 25, "product_qa": 20, "code": 20}
INCIDENT: Final = "incident"
"""The mix that is `familiar` but for what one scenario asks."""
MIXES: Final[Mapping[str, Mapping[str, float]]] = {
    # What the draft was trained on: nothing is wrong.
    "familiar": _FAMILIAR,
    INCIDENT: _FAMILIAR,
    "balanced": {"address_confirmation": 25, "billing": 25, "product_qa": 20, "code": 20, "fault_report": 10},
    "weak": {"address_confirmation": 5, "billing": 5, "product_qa": 5, "code": 5, "fault_report": 80},
}
SHIFTED: Final[Mapping[str, float]] = {"fault_report": 1}
"""What the mix `shift` sends in the second half of a run; the first half is balanced."""

DEFAULT_REQUESTS: Final = 100
LONGEST_REPLY: Final = 160
REPLY_TIMEOUT_SECONDS: Final = 60.0
FINISH_SECONDS: Final = 5.0
"""How long `Run.finish` waits for replies under way."""
USAGE_SHARE: Final = 0.5
"""Share of the streaming requests that ask for `stream_options.include_usage`."""


class Unreachable(Exception):
    """Nothing answers at the URL; the message is the one line to show."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run, bounded by `requests`, `seconds` or both; rate 0: as fast as the concurrency allows."""

    url: str
    model: str | None = None
    requests: int | None = DEFAULT_REQUESTS
    seconds: float | None = None
    rate: float = 0.0
    concurrency: int = 4
    halves: tuple[Mapping[str, float], Mapping[str, float]] = (MIXES["balanced"], MIXES["balanced"])
    """Scenario weights of the first and of the second half of the run."""
    incident: bool = False
    """Whether one scenario asks what it did not ask before (`misdirected`)."""
    stream_share: float = 0.7
    seed: int = 0

    def __post_init__(self) -> None:
        if self.requests is None and self.seconds is None:
            raise ValueError("a run needs a bound: a number of requests or of seconds")
        if self.concurrency < 1 or self.rate < 0 or not 0 <= self.stream_share <= 1:
            raise ValueError("concurrency is at least 1, rate at least 0, the stream share from 0 to 1")


@dataclass(slots=True)
class Totals:
    """How a run went; requests cut off by an early end count in neither."""

    ok: int = 0
    failed: int = 0
    last_failure: str = ""


def parse_mix(text: str) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Weights for the first and the second half of a run, from a mix's name or `scenario=weight,…`.

    Raises ValueError, with the names there are, for anything else.
    """
    if text == "shift":
        return MIXES["balanced"], SHIFTED
    if text in MIXES:
        return MIXES[text], MIXES[text]
    try:
        weights = {name: float(weight) for name, weight in (part.split("=") for part in text.split(","))}
    except ValueError:
        weights = {}
    if not weights or set(weights) - set(SCENARIOS) or min(weights.values()) < 0 or not any(weights.values()):
        known = ", ".join([*MIXES, "shift"])
        raise ValueError(f"unknown mix {text!r}: one of {known}, or scenario=weight,… of {', '.join(SCENARIOS)}")
    return weights, weights


def request_body(item: Dialogue, model: str, chance: random.Random, stream_share: float) -> dict[str, Any]:
    """The chat request for one dialogue; streaming and usage are drawn from `chance`."""
    body: dict[str, Any] = {
        "model": model,
        "messages": list(item.prompt),
        "temperature": 0,
        "max_tokens": LONGEST_REPLY,
        "stream": chance.random() < stream_share,
    }
    if body["stream"] and chance.random() < USAGE_SHARE:
        body["stream_options"] = {"include_usage": True}
    return body


class Run:
    """One run of a plan; `stop()` and `finish()` may be called from a signal handler of the loop."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self.totals = Totals()
        self._plan = plan
        self._progress = progress
        self._bar = progress.add_task("demo traffic", total=1.0)
        self._chance = random.Random(plan.seed)  # noqa: S311  # made-up traffic, no secret
        self._first, self._second = _dialogues(plan, "first", 0), _dialogues(plan, "second", 1)
        self._numbers: Iterator[int] = iter(range(plan.requests)) if plan.requests is not None else _count()
        self._task: asyncio.Task[Any] | None = None
        self._started = time.monotonic()
        self._stopped = False

    def stop(self) -> None:
        """Ends the run now: nothing more is sent, replies under way are dropped."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    def finish(self) -> None:
        """Sends nothing more; replies that are still under way after FINISH_SECONDS are dropped."""
        self._stopped = True
        asyncio.get_running_loop().call_later(FINISH_SECONDS, self.stop)

    async def __call__(self) -> Totals:
        """Runs to the bound. Raises Unreachable where nothing ever answered."""
        self._started, self._task = time.monotonic(), asyncio.current_task()
        # A demo talks to the machine it runs on; a proxy from the environment would only be in the way.
        async with httpx.AsyncClient(
            base_url=self._plan.url.rstrip("/"), timeout=REPLY_TIMEOUT_SECONDS, trust_env=False
        ) as client:
            try:
                model = self._plan.model or await self._served_model(client)
                await asyncio.gather(*(self._worker(client, model) for _ in range(self._plan.concurrency)))
            except asyncio.CancelledError:
                if not self._stopped:
                    raise
        return self.totals

    async def _served_model(self, client: httpx.AsyncClient) -> str:
        try:
            response = await client.get("/v1/models")
            return str(response.json()["data"][0]["id"])
        except httpx.TransportError as error:
            raise Unreachable(f"nothing answers at {self._plan.url}: {error}") from error
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise Unreachable(f"{self._plan.url}/v1/models names no model: give one with --model") from error

    async def _worker(self, client: httpx.AsyncClient, model: str) -> None:
        while not self._stopped:
            number = next(self._numbers, None)
            if number is None or not await self._wait_for_turn(number) or self._stopped:
                return
            item = next(self._second if self._share_done(number) >= 0.5 else self._first)
            body = request_body(item, model, self._chance, self._plan.stream_share)
            failure = await self._send(client, body, item.scenario)
            if failure is None:
                self.totals.ok += 1
            else:
                self.totals.failed += 1
                self.totals.last_failure = failure
            self._progress.update(self._bar, completed=self._share_done(self.totals.ok + self.totals.failed))

    async def _wait_for_turn(self, number: int) -> bool:
        """Waits until request `number` is due; False where that lies beyond the bound."""
        elapsed = time.monotonic() - self._started
        due = max(elapsed, number / self._plan.rate if self._plan.rate else 0.0)
        if self._plan.seconds is not None and due >= self._plan.seconds:
            return False
        await asyncio.sleep(due - elapsed)
        return True

    def _share_done(self, requests: int) -> float:
        """How far the run is, 0 to 1, by whichever bound is nearer."""
        by_requests = requests / self._plan.requests if self._plan.requests else 0.0
        by_time = (time.monotonic() - self._started) / self._plan.seconds if self._plan.seconds else 0.0
        return max(by_requests, by_time)

    async def _send(self, client: httpx.AsyncClient, body: dict[str, Any], scenario: str) -> str | None:
        """One request: None if it was answered in full, else what went wrong."""
        headers = {"x-scenario": scenario}
        try:
            async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
                text = (await response.aread()).decode("utf-8", "replace")
        except httpx.ConnectError as error:
            if self.totals.ok == 0:
                raise Unreachable(f"nothing answers at {self._plan.url}: {error}") from error
            return f"connection: {error}"
        except httpx.HTTPError as error:
            return f"{type(error).__name__}: {error}"
        if response.status_code != httpx.codes.OK:
            return f"status {response.status_code}: {text[:200]}"
        return None if _is_complete(text, streamed=body["stream"]) else "the reply is incomplete"


def _dialogues(plan: Plan, name: str, half: int) -> Iterator[Dialogue]:
    seed = f"traffic-{plan.seed}-{name}"
    items = mix(seed, plan.halves[half])
    return misdirected(seed, items) if plan.incident else items


def _count() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def _is_complete(text: str, *, streamed: bool) -> bool:
    if streamed:
        return text.rstrip().endswith("data: [DONE]")
    try:
        return bool(json.loads(text)["choices"])
    except (ValueError, KeyError, TypeError):
        return False


async def _run_until_signal(plan: Plan, progress: Progress) -> Totals:
    run, loop = Run(plan, progress), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, run.stop)
    loop.add_signal_handler(signal.SIGTERM, run.finish)
    return await run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m specwatch_engine.demo.traffic", description=__doc__)
    parser.add_argument("--url", required=True, help="server, without /v1, for example http://127.0.0.1:8000")
    parser.add_argument("--model", help="default: the first one that the server lists")
    parser.add_argument("--requests", type=int, help=f"stop after so many (default {DEFAULT_REQUESTS} if no --seconds)")
    parser.add_argument("--seconds", type=float, help="send nothing more after so long")
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second (default: no pause)")
    parser.add_argument("--concurrency", type=int, default=4, help="requests in flight at most (default: %(default)s)")
    parser.add_argument("--mix", default="balanced", help=f"{', '.join(MIXES)}, shift, or scenario=weight,…")
    parser.add_argument("--stream-share", type=float, default=0.7, help="share of streaming requests, 0 to 1")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Command line. 0: every reply was complete; 1: some failed or nothing answered; 2: bad arguments."""
    parser = _parser()
    options = parser.parse_args(arguments)
    requests = options.requests
    if requests is None and options.seconds is None:
        requests = DEFAULT_REQUESTS
    try:
        plan = Plan(
            url=options.url,
            model=options.model,
            requests=requests,
            seconds=options.seconds,
            rate=options.rate,
            concurrency=options.concurrency,
            halves=parse_mix(options.mix),
            incident=options.mix == INCIDENT,
            stream_share=options.stream_share,
            seed=options.seed,
        )
    except ValueError as error:
        parser.error(str(error))
    console = Console(stderr=True)
    started = time.monotonic()
    try:
        with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
            totals = asyncio.run(_run_until_signal(plan, progress))
    except Unreachable as error:
        print(error, file=sys.stderr)
        return 1
    if totals.last_failure:
        print(f"last failure: {totals.last_failure}", file=sys.stderr)
    print(f"{totals.ok} ok, {totals.failed} failed, {time.monotonic() - started:.1f} seconds")
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
