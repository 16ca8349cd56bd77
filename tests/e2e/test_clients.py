"""Clients people use get through the proxy what the engine itself says, and each request is one row."""

import asyncio
import json
import shutil
import subprocess
import sys
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import httpx
import openai
import pytest
import websockets.exceptions
import websockets.sync.client
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict, Field
from support.chain import Chain
from support.proxy import proxy
from support.replies import folded, from_wire, plain
from support.upstream import Upstream, chunked, running

from sidecar.record import Outcome

BENCH = Path(__file__).parents[1] / "support" / "vllm_bench.py"
QUESTION = "Why is my May bill 43.50 euros? The basic plan is 38.50."
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
CHAT: Any = {"model": "demo", "temperature": 0, "max_tokens": 16, "messages": MESSAGES}
COMPLETION: Any = {"model": "demo", "temperature": 0, "max_tokens": 16, "prompt": QUESTION}
RESPONSE: Any = {"model": "demo", "temperature": 0, "max_output_tokens": 16, "input": QUESTION}
#: The client has no argument for the temperature.
MESSAGE: Any = {"model": "demo", "max_tokens": 16, "messages": MESSAGES, "extra_body": {"temperature": 0}}
#: Does not end before a client has left.
ENDLESS: Any = CHAT | {"max_tokens": 900, "stream": True, "extra_body": {"ignore_eos": True}}


class Invoice(BaseModel):
    """Looks an invoice up."""

    model_config = ConfigDict(extra="forbid")
    number: str = Field(pattern="^INV-[0-9]{2}$")


SCHEMA: Any = Invoice.model_json_schema()
FUNCTION: Any = {"name": "look_up", "parameters": SCHEMA, "strict": True}
TOOLS: Any = {"tools": [{"type": "function", "function": FUNCTION}], "parallel_tool_calls": False, "max_tokens": 40}
NAMED: Any = TOOLS | {"tool_choice": {"type": "function", "function": {"name": "look_up"}}}
REQUIRED: Any = TOOLS | {"tool_choice": "required", "max_tokens": 64}
AS_JSON: Any = {"type": "json_schema", "json_schema": {"name": "invoice", "schema": SCHEMA, "strict": True}}
JSON: Any = CHAT | {"max_tokens": 40, "response_format": AS_JSON}


@dataclass
class Both:
    """Asks the engine, then the proxy, and knows the rows that came of it."""

    chain: Chain
    last: int

    def __call__(
        self, ask: Callable[[str], Any], rows: int = 1, *, endpoint: str = "chat_completions", outcome: str = "ok"
    ) -> tuple[Any, list[dict[str, Any]]]:
        direct = ask(self.chain.engine)
        through = ask(self.chain.proxy)
        assert through == direct
        return through, self.rows(*[(endpoint, outcome)] * rows)

    def rows(self, *expected: tuple[str, str]) -> list[dict[str, Any]]:
        """The rows since the last call. One too many is found by the next call, or at the module's end."""
        self.chain.wait_rows(self.last + len(expected))
        found = self.chain.rows("select * from requests order by id")[self.last :]
        self.last += len(found)
        assert [(row["endpoint"], row["outcome"]) for row in found] == [*expected]
        return found


@pytest.fixture(scope="module")
def both(chain: Chain) -> Iterator[Both]:
    asked = Both(chain, chain.count_rows())
    yield asked
    asked.rows()


def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


OPENAI: dict[str, tuple[str, Callable[[OpenAI], Any]]] = {
    "chat": ("chat_completions", lambda c: c.chat.completions.create(**CHAT)),
    "chat, streamed": ("chat_completions", lambda c: c.chat.completions.create(**CHAT, stream=True)),
    "chat, streamed with usage": (
        "chat_completions",
        lambda c: c.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}),
    ),
    "completion": ("completions", lambda c: c.completions.create(**COMPLETION)),
    "completion, streamed": ("completions", lambda c: c.completions.create(**COMPLETION, stream=True)),
    "tools it need not call": ("chat_completions", lambda c: c.chat.completions.create(**CHAT | TOOLS)),
    "named tool": ("chat_completions", lambda c: c.chat.completions.create(**CHAT | NAMED)),
    "named tool, streamed": ("chat_completions", lambda c: c.chat.completions.create(**CHAT | NAMED, stream=True)),
    "required tool": ("chat_completions", lambda c: c.chat.completions.create(**CHAT | REQUIRED)),
    "required tool, streamed": (
        "chat_completions",
        lambda c: c.chat.completions.create(**CHAT | REQUIRED, stream=True),
    ),
    "JSON schema": ("chat_completions", lambda c: c.chat.completions.create(**JSON)),
    "regular expression": (
        "chat_completions",
        lambda c: c.chat.completions.create(**CHAT, extra_body={"structured_outputs": {"regex": "INV-[0-9]{4}"}}),
    ),
    "response": ("responses", lambda c: c.responses.create(**RESPONSE)),
    "response, streamed": ("responses", lambda c: c.responses.create(**RESPONSE, stream=True)),
}


@pytest.mark.parametrize("name", OPENAI)
def test_the_openai_client_gets_the_engines_reply(both: Both, name: str) -> None:
    endpoint, ask = OPENAI[name]

    def reply(url: str) -> Any:
        got = ask(client(url))
        return plain(got) if isinstance(got, BaseModel) else folded(got)

    got, (row,) = both(reply, endpoint=endpoint)
    assert (row["status"], row["model"], row["arm"]) == (200, "demo", "speculative")
    assert row["stream"] == name.endswith(("streamed", "usage"))
    if row["stream"]:
        assert row["ttft_ms"] > 0
        assert row["completion_tokens"] > 0
    else:
        names = ("input_tokens", "output_tokens") if endpoint == "responses" else ("prompt_tokens", "completion_tokens")
        assert [row["prompt_tokens"], row["completion_tokens"]] == [got["usage"][name] for name in names]
    if row["acceptance_reason"] != "nothing was drafted for this request":
        assert (row["acceptance_source"], row["acceptance_quality"]) == ("engine", "ok")
        assert row["draft_tokens"] > 0
    if name == "named tool":
        (call,) = got["choices"][0]["message"]["tool_calls"]
        assert Invoice.model_validate_json(call["function"]["arguments"])
    if name in ("named tool, streamed", "required tool, streamed", "JSON schema"):
        text = got[0] if isinstance(got, list) else got["choices"][0]["message"]["content"]
        assert Invoice.model_validate_json(text)


def test_the_openai_clients_own_readers_of_replies_work(both: Both) -> None:
    def parsed(url: str) -> Any:
        return plain(client(url).chat.completions.parse(**JSON | {"response_format": Invoice}))

    got, _ = both(parsed)
    assert got["choices"][0]["message"]["parsed"]["number"].startswith("INV-")

    def gathered(url: str) -> Any:
        with client(url).chat.completions.stream(**CHAT | NAMED) as stream:
            return plain(stream.get_final_completion())

    got, _ = both(gathered)
    assert got["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look_up"


def test_the_async_openai_client_gets_the_engines_reply(both: Both) -> None:
    async def replies(url: str) -> Any:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as c:
            whole = plain(await c.chat.completions.create(**CHAT))
            parts = folded([part async for part in await c.chat.completions.create(**CHAT, stream=True)])
        return whole, parts

    (whole, parts), rows = both(lambda url: asyncio.run(replies(url)), 2)
    assert parts[0] == whole["choices"][0]["message"]["content"]
    assert rows[0]["completion_tokens"] == rows[1]["completion_tokens"]


def test_what_the_engine_refuses_the_openai_client_sees_refused(both: Both) -> None:
    def refusals(*asks: Callable[[OpenAI], Any]) -> Callable[[str], Any]:
        def all_of(url: str) -> Any:
            seen = []
            for ask in asks:
                with pytest.raises(openai.APIStatusError) as refused:
                    ask(client(url))
                seen.append((type(refused.value), refused.value.status_code, refused.value.body))
            return seen

        return all_of

    seen, _ = both(
        refusals(
            lambda c: c.chat.completions.create(**CHAT | {"model": "nobody"}),
            lambda c: c.chat.completions.create(**CHAT | {"model": "nobody"}, stream=True),
            lambda c: c.chat.completions.create(**CHAT | {"max_tokens": 5000}),
        ),
        3,
        outcome="upstream_error",
    )
    assert [status for _, status, _ in seen] == [404, 404, 400]
    # No generation, no row.
    seen, _ = both(refusals(lambda c: c.embeddings.create(model="demo", input=QUESTION)), 0)
    assert seen[0][1] == 404


def test_an_error_inside_a_stream_reaches_the_openai_client(both: Both) -> None:
    with pytest.raises(openai.APIError, match="not yet supported with speculative decoding"):
        list(client(both.chain.proxy).chat.completions.create(**CHAT, logit_bias={"5": 1}, stream=True))
    both.chain.wait_rows(both.last + 1)
    (row,) = both.chain.rows("select * from requests order by id")[both.last :]
    both.last += 1
    assert row["outcome"] == "upstream_error"


TEXT = (
    b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}'
)


@pytest.mark.parametrize(
    ("events", "outcome"),
    [((TEXT, b"data: [DONE]"), Outcome.OK), ((b'data: {"error":{"message":"no"}}',), Outcome.UPSTREAM_ERROR)],
    ids=["at the end", "at an error"],
)
async def test_an_openai_client_that_leaves_before_the_last_chunk_has_read_all(
    events: tuple[bytes, ...], outcome: Outcome
) -> None:
    async def without_last_chunk(upstream: Upstream, reader: StreamReader, writer: StreamWriter) -> None:
        await upstream.read_request(reader)
        writer.write(chunked(*(event + b"\n\n" for event in events)).removesuffix(b"0\r\n\r\n"))
        await reader.read()

    async with running(without_last_chunk) as upstream, proxy(upstream.url) as sidecar:
        async with AsyncOpenAI(base_url=f"http://127.0.0.1:{sidecar.port}/v1", api_key="none", max_retries=0) as c:
            with suppress(openai.APIError):
                assert [part async for part in await c.chat.completions.create(**CHAT, stream=True)]
        assert (await sidecar.record()).outcome is outcome


def test_the_openai_client_sees_two_headers_more_and_the_rows_id(both: Both) -> None:
    got = {}

    def raw(url: str) -> Any:
        reply = client(url).chat.completions.with_raw_response.create(**CHAT)
        got[url] = reply
        return plain(reply.parse())

    _, (row,) = both(raw)
    direct, through = got[both.chain.engine], got[both.chain.proxy]
    assert set(through.headers) - set(direct.headers) == {"x-request-id", "x-specwatch-arm"}
    assert through.headers.keys() >= direct.headers.keys()
    assert through.request_id == row["request_id"]
    both(lambda url: [model.id for model in client(url).models.list()], 0)


def test_an_openai_client_that_leaves_ends_its_request_in_the_engine(both: Both) -> None:
    def engine(name: str) -> float:
        lines = httpx.get(f"{both.chain.engine}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:{name}{{"))

    def left(leave: Callable[[], Any]) -> None:
        finished = engine("request_success_total")
        leave()
        deadline = time.monotonic() + 20
        while engine("num_requests_running"):
            assert time.monotonic() < deadline
        assert engine("request_success_total") == finished
        (row,) = both.rows(("chat_completions", "client_abort"))
        # One that left at its first token has no drafts yet.
        assert row["acceptance_source"] == "engine" or row["completion_tokens"] in (None, 1)

    here = client(both.chain.proxy)

    def close() -> None:
        with here.chat.completions.create(**ENDLESS) as stream:
            next(stream)

    def lose_patience() -> None:
        with pytest.raises(openai.APITimeoutError):
            here.with_options(timeout=0.3).chat.completions.create(**ENDLESS | {"stream": False})

    left(close)
    left(lose_patience)
    assert here.chat.completions.create(**CHAT).choices
    both.rows(("chat_completions", "ok"))


def test_langchain_gets_the_engines_reply(both: Both) -> None:
    def model(url: str) -> ChatOpenAI:
        return ChatOpenAI(
            base_url=f"{url}/v1", api_key="none", model="demo", temperature=0, max_tokens=24, max_retries=0
        )

    async def parts(url: str) -> Any:
        return folded([part async for part in model(url).astream(QUESTION)])

    whole, _ = both(lambda url: plain(model(url).invoke(QUESTION)))
    streamed, (row,) = both(lambda url: folded(model(url).stream(QUESTION)))
    assert streamed[0] == whole["content"]
    assert row["draft_tokens"] > 0
    assert both(lambda url: asyncio.run(parts(url)))[0] == streamed
    for method in ("json_schema", "function_calling"):
        got, _ = both(lambda url, way=method: model(url).with_structured_output(Invoice, method=way).invoke(QUESTION))
        assert isinstance(got, Invoice)
    # Pieces of a call are put together by adding the chunks.
    got, _ = both(
        lambda url: plain(reduce(add, model(url).bind_tools([Invoice], tool_choice="Invoice").stream(QUESTION)))
    )
    assert Invoice.model_validate(got["tool_calls"][0]["args"])


def test_the_anthropic_client_gets_the_engines_reply(both: Both) -> None:
    def there(url: str) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)

    def gathered(url: str) -> Any:
        with there(url).messages.stream(**MESSAGE) as stream:
            return plain(stream.get_final_message())

    tool: Any = {"name": "look_up", "input_schema": SCHEMA}
    named: Any = MESSAGE | {"max_tokens": 40, "tools": [tool], "tool_choice": {"type": "tool", "name": "look_up"}}
    whole, (row,) = both(lambda url: plain(there(url).messages.create(**MESSAGE)), endpoint="messages")
    assert (row["stream"], row["model"]) == (False, "demo")
    tokens = row["prompt_tokens"], row["completion_tokens"]
    assert tokens == (whole["usage"]["input_tokens"], whole["usage"]["output_tokens"])
    events, (row,) = both(lambda url: folded(there(url).messages.create(**MESSAGE, stream=True)), endpoint="messages")
    assert events[0] == whole["content"][0]["text"]
    assert row["stream"]
    assert row["ttft_ms"] > 0
    assert (row["prompt_tokens"], row["completion_tokens"]) == tokens
    both(gathered, endpoint="messages")
    got, _ = both(lambda url: plain(there(url).messages.create(**named)), endpoint="messages")
    assert Invoice.model_validate(got["content"][0]["input"])
    both(lambda url: folded(there(url).messages.create(**named, stream=True)), endpoint="messages")

    def refused(url: str) -> Any:
        with pytest.raises(anthropic.NotFoundError) as error:
            there(url).messages.create(**MESSAGE | {"model": "nobody"})
        return error.value.body

    both(refused, endpoint="messages", outcome="upstream_error")
    both(lambda url: plain(there(url).messages.count_tokens(model="demo", messages=MESSAGES)), 0)


def curl(url: str, body: Any, *options: str, path: str = "/v1/chat/completions") -> bytes:
    command = [
        "curl",
        "--silent",
        "--show-error",
        *options,
        "--json",
        body if isinstance(body, str) else json.dumps(body),
    ]
    return subprocess.run([*command, f"{url}{path}"], check=True, capture_output=True, timeout=60).stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="Debian's package curl is not installed")
def test_curl_gets_the_engines_reply(both: Both, tmp_path: Path) -> None:
    streamed = CHAT | {"stream": True}
    for body, *options in (
        (CHAT, "--compressed"),
        (CHAT, "-0"),
        (CHAT, "-H", "Transfer-Encoding: chunked", "-H", "Expect: 100-continue"),
        (streamed, "-N"),
        (streamed, "-N", "-0"),
    ):
        both(lambda url, body=body, options=options: from_wire(curl(url, body, *options)))
    # The engine counts the characters, and refuses.
    large = tmp_path / "large.json"
    large.write_text(json.dumps(CHAT | {"messages": [{"role": "user", "content": "x" * 5_000_000}]}))
    said = ("--write-out", "\n%{http_code} %{size_upload}", "-H", "Expect: 100-continue")
    got, (row,) = both(lambda url: curl(url, f"@{large}", *said), outcome="upstream_error")
    assert got.endswith(b"\n400 %d" % large.stat().st_size)
    assert b"maximum context length" in got
    assert row["bytes_in"] == large.stat().st_size


def test_httpx_keeps_its_connection(both: Both) -> None:
    def replies(url: str) -> Any:
        seen, addresses = [], set()
        with httpx.Client(base_url=url, timeout=60) as c:
            for method, path, body in (
                ("POST", "/v1/chat/completions", CHAT),
                ("GET", "/v1/models", None),
                ("POST", "/v1/chat/completions", CHAT | {"stream": True}),
                ("GET", "/v1/nothing-here", None),
                ("HEAD", "/v1/models", None),
                ("POST", "/v1/chat/completions", CHAT),
            ):
                reply = c.request(method, path, json=body)
                addresses.add(reply.extensions["network_stream"].get_extra_info("client_addr"))
                seen.append((reply.status_code, from_wire(reply.content) if reply.content else None))
        assert len(addresses) == 1
        return seen

    both(replies, 3)


def test_aiohttp_keeps_its_connection_longer_than_the_engine_keeps_its_own(both: Both) -> None:
    async def replies() -> tuple[int, list[Any]]:
        reused = 0

        async def count(*_: Any) -> None:
            nonlocal reused
            reused += 1

        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(count)
        seen = []
        async with aiohttp.ClientSession(both.chain.proxy, trace_configs=[trace]) as session:
            # vLLM closes a connection that was quiet for 5 s.
            for pause in (0.0, 0.0, 5.5):
                await asyncio.sleep(pause)
                async with session.post("/v1/chat/completions", json=CHAT | {"stream": True}) as reply:
                    seen.append(from_wire(await reply.read()))
        return reused, seen

    reused, seen = asyncio.run(replies())
    assert reused == 2
    assert seen[0] == seen[1] == seen[2]
    both.rows(*[("chat_completions", "ok")] * 3)


def test_a_websocket_that_the_engine_refuses_is_refused(both: Both) -> None:
    def refused(url: str) -> Any:
        with pytest.raises(websockets.exceptions.InvalidStatus) as error:
            websockets.sync.client.connect(f"{url.replace('http', 'ws', 1)}/v1/nothing-here")
        reply = error.value.response
        return reply.status_code, reply.headers["content-type"], bytes(reply.body or b"")

    assert both(refused, 0)[0][0] == 403


def test_vllms_own_benchmark_counts_what_the_rows_count(both: Both, tmp_path: Path) -> None:
    arguments = {
        "--base-url": both.chain.proxy,
        "--model": "demo",
        "--tokenizer": str(both.chain.config.parent / "models" / "target"),
        "--dataset-name": "random",
        "--random-input-len": "20",
        "--random-output-len": "12",
        "--num-prompts": "24",
        "--max-concurrency": "4",
        "--temperature": "0",
    }
    before = both.chain.counters()
    command = [sys.executable, str(BENCH), "openai,openai-chat", str(tmp_path)]
    said = subprocess.run([*command, *(part for pair in arguments.items() for part in pair)], capture_output=True)
    assert said.returncode == 0, said.stderr.decode()
    results = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("openai", "openai-chat")]
    assert [(result["completed"], result["failed"]) for result in results] == [(24, 0), (24, 0)]
    rows = both.rows(*[("completions", "ok")] * 24, *[("chat_completions", "ok")] * 24)
    sums = [sum(row[name] for row in rows) for name in ("verify_steps", "draft_tokens", "accepted_tokens")]
    after = both.chain.counters()
    assert sums == [b - a for a, b in zip(before, after, strict=True)]
    assert sum(row["completion_tokens"] for row in rows) == sum(result["total_output_tokens"] for result in results)
