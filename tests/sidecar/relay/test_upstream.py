"""Upstreams that cannot be reached."""

import asyncio
import socket
import time

import pytest
from support.proxy import body_of, post, proxy
from support.upstream import json_reply, replying, running

from sidecar.record import Arm, Outcome
from sidecar.relay.upstream import RETRY_S


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


async def test_an_upstream_that_refuses_is_passed_over_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    async with (
        running(replying(json_reply({"from": "second"}))) as second,
        proxy(f"http://127.0.0.1:{port}", second.url) as made,
    ):
        for number in range(1, 4):
            assert b"second" in await made.exchange(post(b"{}"))
            assert (await made.record(number)).arm is Arm.AUTOREGRESSIVE
        assert caplog.text.count("cannot be reached") == 1
        async with running(replying(json_reply({"from": "first"})), port=port):
            await asyncio.sleep(RETRY_S + 0.1)
            assert b"first" in await made.exchange(post(b"{}"))
        assert caplog.text.count("is reached again") == 1


async def test_an_upstream_that_does_not_answer_delays_one_request_and_not_all() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        address = deaf.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:  # a full backlog: further connections wait for ever
            filler.setblocking(False)
            filler.connect_ex(address)
        async with (
            running(replying(json_reply({}))) as second,
            proxy(f"http://127.0.0.1:{address[1]}", second.url, connect_timeout_s=0.3) as made,
        ):
            assert body_of(await made.exchange(post(b"{}"))) == b"{}"
            before = time.monotonic()
            for _ in range(3):
                assert body_of(await made.exchange(post(b"{}"))) == b"{}"
            assert time.monotonic() - before < 0.3
        for filler in fillers:
            filler.close()


async def test_where_no_upstream_can_be_reached_the_client_is_told_at_once() -> None:
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    async with proxy(*urls) as made:
        for number in (1, 2):
            answer = await made.exchange(post(b"{}"))
            assert answer.startswith(b"HTTP/1.1 502 ")
            assert b"cannot be reached" in answer
            assert (await made.record(number)).outcome is Outcome.BAD_GATEWAY
        assert all(choice.upstream.in_flight == 0 for choice in made.choices)
