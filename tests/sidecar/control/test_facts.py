"""What a server says of itself."""

import asyncio

import httpx
import pytest
from support.upstream import Upstream, json_reply, running

from sidecar.control.facts import read_server

DEEP = b'{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
NAMED = json_reply({"data": [{"id": "m"}], "version": "0.32.0"})

ANSWERS = {
    "vLLM": (NAMED, ("0.32.0", ["m"])),
    "an API key is wanted": (json_reply({}, b"401 Unauthorized"), (None, [])),
    "no server of models": (json_reply({}), None),
    "no JSON": (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n<", None),
    "JSON that nobody can read": (b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(DEEP) + DEEP, None),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_what_is_no_answer_is_none(name: str) -> None:
    reply, found = ANSWERS[name]

    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await upstream.read_request(reader)
            writer.write(reply)

    async with running(handler) as server, httpx.AsyncClient(trust_env=False) as client:
        assert await read_server(client, server.url) == found
