"""A server as vLLM's own: an ASGI app that streams as it does, on real uvicorn in the test's loop."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, WebSocket
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from .upstream import BLOCK, USAGE, chat_chunk, chat_stream


class Engine:
    """What the app did and may do."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        #: Replies of model "slow" wait for it after their first token.
        self.go = asyncio.Event()
        self.left = asyncio.Event()
        self.app = self._app()

    def _app(self) -> FastAPI:
        app = FastAPI()
        app.add_api_route("/v1/chat/completions", self._chat, methods=["POST"])
        app.state.models = ["m"]
        app.add_api_route("/v1/models", self._models)
        app.add_api_route("/version", lambda: {"version": "0.32.0"})
        app.add_api_route("/health", lambda: Response(), methods=["GET", "HEAD"])
        app.add_api_websocket_route("/v1/realtime", self._echo)
        return app

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": name} for name in request.app.state.models]})

    async def _chat(self, request: Request) -> Response:
        """The model asked for says how it ends."""
        raw = await request.body()
        body = json.loads(raw)
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        model = body.get("model")
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        if model == "nobody":
            return JSONResponse({"error": {"message": "no such model", "code": 404}}, 404)
        if model == "invalid":
            # vLLM's words quote what it was sent.
            return JSONResponse({"error": {"message": f"bad request: {raw.decode()}", "code": 400}}, 400)
        if model == "broken":
            raise RuntimeError("before the head")
        if not body.get("stream"):
            choice = {"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}
            answer = {"model": "m", "choices": [choice], "usage": USAGE, "metrics": {"speculative_decoding": BLOCK}}
            return JSONResponse(answer)
        return StreamingResponse(self._stream(model, usage=usage), media_type="text/event-stream")

    async def _stream(self, model: str, *, usage: bool) -> AsyncIterator[bytes]:
        events = chat_stream(usage=usage)
        if model == "cut":
            events = events[:2]
        yield events[0]
        yield events[1]
        if model == "breaks":
            raise RuntimeError("inside the stream")
        if model == "slow":
            try:
                while not self.go.is_set():
                    yield chat_chunk({"content": "."})
                    await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                self.left.set()
                raise
        for event in events[2:]:
            yield event

    async def _echo(self, websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())
        await websocket.close()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(app: Any, **config: Any) -> AsyncIterator[int]:
    """Gives the port. What an app raises is logged by the server, and not raised here."""
    listener = socket.create_server(("127.0.0.1", 0))
    given: dict[str, Any] = {"lifespan": "on", "server_header": False, "date_header": False, **config}
    server = _Server(uvicorn.Config(app, log_config=None, **given))
    task = asyncio.ensure_future(server.serve([listener]))
    while not server.started:
        assert not task.done()
        await asyncio.sleep(0.01)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, 30)


async def exchange(port: int, request: bytes) -> bytes:
    """Everything the server sends for `request`, until it closes; what follows an upgrade is sent once that is made."""
    head, end, rest = request.partition(b"\r\n\r\n")
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
    answer = b""
    if b"Upgrade: " in head:
        writer.write(head + end)
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        writer.write(rest)
    else:
        writer.write(request)
    answer += await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return answer
