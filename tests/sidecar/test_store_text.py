"""`store_text: true`: prompts and replies are rows, redacted, for the control token; and nothing else changes."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.canaries import Canaries, files
from support.scripted_engine import until
from support.upstream import DONE, chat_chunk, chunked, json_reply
from support.way import Way, answering, way

SECRET = "sk-proj-0123456789abcdefghij"
CONTROL, READ = {"authorization": "Bearer control-it"}, {"authorization": "Bearer read-it"}


async def get(made: Way, path: str, headers: dict[str, str]) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, headers=headers, timeout=30) as client:
        return await client.get(f"http://{made.sidecar.settings.admin}/api/v1/{path}")


async def texts(made: Way, request_id: str, count: int) -> list[dict[str, Any]]:
    for _ in range(400):
        answer = await get(made, f"requests/{request_id}/texts", CONTROL)
        found = answer.json().get("texts", [])
        if len(found) >= count:
            return list(found)
        await asyncio.sleep(0.05)
    raise AssertionError(answer.text)


def options(folder: Path, **more: Any) -> dict[str, Any]:
    tokens = {"admin_token": "control-it", "admin_read_token": "read-it"}
    return {"store_text": True, "redact": ["ACME-[0-9]+"], "spool": folder / "spool", "engine": False, **tokens, **more}


@pytest.mark.parametrize("stream", [False, True])
async def test_prompt_and_reply_are_kept_redacted(tmp_path: Path, stream: bool) -> None:
    canaries = Canaries()
    said, answered = canaries("prompt"), canaries("reply")
    if stream:
        pieces = (f"{answered} to bob@exam", "ple.com ", SECRET[:9], SECRET[9:])
        reply = chunked(*(chat_chunk({"content": piece}) for piece in pieces), DONE)
    else:
        content = f"{answered} to bob@example.com {SECRET}"
        reply = json_reply({"choices": [{"message": {"content": content}, "finish_reason": "stop"}]})
    async with way(tmp_path, answering(reply), **options(tmp_path)) as made:
        body = {"stream": stream, "messages": [{"role": "user", "content": f"{said} {SECRET} of ACME-17"}]}
        answer = await made.ask(body, extra=b"X-Request-Id: r1\r\nX-Scenario: billing\r\n")
        assert answer.endswith(reply.partition(b"\r\n\r\n")[2])
        prompt, kept = await texts(made, "r1", 2)
        assert prompt == {"kind": "prompt", "text": f"user: {said} [key] of [redacted]", "cut": False}
        assert kept == {"kind": "reply", "text": f"{answered} to [email] [key]", "cut": False}
        refused = await get(made, "requests/r1/texts", READ)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "read_only_token")
        assert (await get(made, "requests/r1", READ)).json()["scenario"] == "billing"
        for path in ("requests", "requests/r1", "summary?window=1h", "similarity?window=1h", "audit", "alerts"):
            assert canaries.found((await get(made, path, CONTROL)).content) == []
        assert (await get(made, "requests/none/texts", CONTROL)).status_code == 404
    written = b"".join(content for _, content in files(tmp_path))
    assert canaries.found(written) == ["prompt", "reply"]
    assert SECRET.encode() not in written


async def test_without_it_nothing_is_kept_and_nothing_runs(tmp_path: Path) -> None:
    async with way(tmp_path, answering(json_reply({"choices": []})), **options(tmp_path, store_text=False)) as made:
        await made.ask({"messages": [{"role": "user", "content": "hello"}]}, extra=b"X-Request-Id: r1\r\n")
        for _ in range(200):
            answer = await get(made, "requests/r1/texts", CONTROL)
            if answer.status_code == 200:
                break
            await asyncio.sleep(0.05)
        assert answer.json() == {"texts": []}
        assert made.sidecar.recorder.transcripts is None


async def test_the_process_that_redacts_holds_up_no_request(tmp_path: Path) -> None:
    async with way(tmp_path, answering(json_reply({"choices": []})), **options(tmp_path, redact=["(a+)+$"])) as made:
        recorder = made.sidecar.recorder
        hostile = {"messages": [{"role": "user", "content": "a" * 60 + "!"}]}
        for number in range(20):
            began = asyncio.get_running_loop().time()
            answer = await made.ask(hostile if number == 5 else {}, extra=b"X-Request-Id: r%d\r\n" % number)
            assert answer.startswith(b"HTTP/1.1 200")
            assert asyncio.get_running_loop().time() - began < 5
        transcripts = recorder.transcripts
        assert transcripts is not None
        child = transcripts._redaction._child
        await until(lambda: child._process is not None or recorder.writer.dropped, 30)
        if (process := child._process) is not None:
            os.kill(process.pid, signal.SIGKILL)
        await until(lambda: transcripts.held > 0 or recorder.writer.dropped, 30)
        assert (await made.ask({})).startswith(b"HTTP/1.1 200")


def test_patterns_are_checked_at_the_start(tmp_path: Path) -> None:
    from sidecar.settings import SettingsError, load

    file = tmp_path / "s.yaml"
    file.write_text(json.dumps({"redact": ["[一-龥]+", r"\u4e00"]}))
    assert load(file).redact == ["[一-龥]+", r"\u4e00"]
    file.write_text(json.dumps({"redact": ["("]}))
    with pytest.raises(SettingsError, match="redact"):
        load(file)
