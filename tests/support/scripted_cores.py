"""Engine cores of vLLM as the plugin's control route reaches them: scripted, behind a real server."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import uvicorn
from specwatch_engine.plugin.compat import orders
from specwatch_engine.plugin.control import Control
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from .scripted_scheduler import Scheduler, config

SECRET = "a-secret"


class Worker:
    """Of a model runner: stages, and loads where it was told to."""

    def __init__(self) -> None:
        self.refusal = ""
        self.fails: str | None = None
        #: Cleared: staging takes until it is set.
        self.ready = threading.Event()
        self.ready.set()
        self.calls: list[str] = []

    def specwatch_stage(self, checkpoint: str) -> str:
        self.calls.append(f"stage {checkpoint}")
        return self.refusal

    def specwatch_staged(self) -> dict[str, Any]:
        if self.fails is not None:
            return {"busy": False, "error": self.fails}
        loaded = {"after": "bb", "commit_s": 0.05} if any(call.startswith("load") for call in self.calls) else {}
        return {"busy": not self.ready.is_set(), "checkpoint": "/x", "before": "aa", "stage_s": 0.1, **loaded}

    def specwatch_forget(self) -> None:
        self.calls.append("forget")

    def specwatch_load(self, checkpoint: str) -> str:
        self.calls.append(f"load {checkpoint}")
        return checkpoint


class Core:
    """An engine core with two workers."""

    def __init__(self, rank: int) -> None:
        self.vllm_config = config()
        self.vllm_config.parallel_config.data_parallel_index = rank
        self.scheduler: Any = Scheduler(self.vllm_config)
        self.workers = [Worker(), Worker()]

    def collective_rpc(self, method: str, timeout: Any = None, args: Any = ()) -> list[Any]:
        return [getattr(worker, method)(*args) for worker in self.workers]

    specwatch_order = orders.order
    specwatch_commit = orders.commit


class Cores:
    """As vLLM's client reaches them: everything goes over a wire."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """All anew."""
        self.all = [Core(0), Core(1)]
        self.error: Exception | None = None

    async def call_utility_all_async(self, method: str, *args: Any) -> list[Any]:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(args))
        answers = [getattr(core, method)(*sent) for core in self.all]
        decoded: list[Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(answers))
        return decoded

    @property
    def workers(self) -> list[Worker]:
        return [worker for core in self.all for worker in core.workers]


async def _echo(request: Request) -> Response:
    return PlainTextResponse(f"{request.method} {request.url.path} {(await request.body()).decode()}")


@contextlib.contextmanager
def served(cores: Cores) -> Iterator[httpx.Client]:
    """A server as vLLM starts it, with the plugin's middleware."""
    app = Starlette(routes=[Route("/{path:path}", _echo, methods=["GET", "PUT", "POST"])])
    app.state.engine_client = type("EngineClient", (), {"engine_core": cores})()
    app.add_middleware(Control)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"authorization": f"Bearer {SECRET}"}) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()
