"""A real engine with the plugin, and a listener that keeps all it tells."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import yaml

from .chain import counters, free_ports

READY_S = 300
TOKEN = "token-of-the-tests"

#: Of a configuration: what suits the demo's models on a small machine.
SMALL: Mapping[str, Any] = {
    "served_model_name": "demo",
    "max_model_len": 1024,
    "max_num_seqs": 16,
    "kv_cache_memory_bytes": 67108864,
}


@dataclass
class Told:
    """What events told of one engine request."""

    prompt_tokens: int | None = None
    #: (draft ids, emitted ids) of every step, prefill chunks left out.
    steps: list[tuple[list[int], list[int]]] = field(default_factory=list)
    output_tokens: int | None = None
    reason: str | None = None

    @property
    def figures(self) -> tuple[int, int, int]:
        """(verify steps, drafted, accepted)."""
        drafting = [(drafts, emitted) for drafts, emitted in self.steps if drafts]
        return (
            len(drafting),
            sum(len(drafts) for drafts, _ in drafting),
            sum(len(emitted) - 1 for _, emitted in drafting),
        )


class Listener:
    """The sidecar's end of the socket, in a thread; as simple as can be, to check the real one and the plugin by."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.hellos: list[dict[str, Any]] = []
        self.requests: dict[str, Told] = {}
        self.steps = 0
        self.gaps = 0
        #: Tokens drafted in each step of a number; of use with one core alone.
        self.drafted: dict[int, int] = {}
        #: Set: packets are not taken any more, while the connection stays.
        self.asleep = threading.Event()
        #: By engine core: the number of its next step, and what it dropped.
        self._next: dict[int, int] = {}
        self._dropped: dict[int, int] = {}
        self._sockets: list[socket.socket] = []
        self.open()

    def open(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.path.unlink(missing_ok=True)
        self._listener.bind(str(self.path))
        self._listener.listen(16)
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def figures(self) -> tuple[int, int, int]:
        """(verify steps, drafted, accepted) over all requests."""
        every = [told.figures for told in self.requests.values()]
        return tuple(map(sum, zip(*every, strict=True))) if every else (0, 0, 0)  # type: ignore[return-value]

    @property
    def dropped(self) -> int:
        return sum(self._dropped.values())

    def of(self, reply_id: str) -> list[Told]:
        return [told for name, told in self.requests.items() if reply_id in name]

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                self._sockets.append(connection)
                threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            hello = msgspec.msgpack.decode(connection.recv(1 << 20))[1]
            self.hellos.append(hello)
            while packet := connection.recv(1 << 20):
                self._take(hello["engine"], msgspec.msgpack.decode(packet))
                while self.asleep.is_set():
                    time.sleep(0.05)

    def _take(self, core: int, packet: list[Any]) -> None:
        _, first, dropped, steps = packet
        self.gaps += first - self._next.get(core, 1)
        self._next[core] = first + len(steps)
        self.steps += len(steps)
        self._dropped[core] = dropped
        for at, (started, ids, emitted, drafted, invalid, finished) in enumerate(steps, first):
            self.drafted[at] = sum(map(len, drafted.values()))
            for name, tokens in started:
                self.requests[name] = Told(tokens)
            for name, tokens in zip(ids, emitted, strict=True):
                if tokens:
                    drafts = drafted.get(name, [])
                    drafts = drafts[: len(drafts) - (invalid or {}).get(name, 0)]
                    self.requests.setdefault(name, Told()).steps.append((drafts, tokens))
            for name, tokens, reason in finished:
                told = self.requests.setdefault(name, Told())
                told.output_tokens, told.reason = tokens, reason


@dataclass
class Engine:
    """A running vLLM with the plugin."""

    url: str
    events: Path
    log: Path
    process: subprocess.Popen[bytes]

    def order(self, method: str, path: str, body: object = None, token: str = TOKEN) -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"}
        return httpx.request(method, f"{self.url}/specwatch/v1/{path}", json=body, headers=headers, timeout=60)

    def state(self) -> dict[str, Any]:
        (state,) = self.order("GET", "engine").json()["engines"]
        return dict(state)

    def cap(self, cap: int | None, **more: Any) -> dict[str, Any]:
        answer = self.order("PUT", "speculation", {"cap": cap, **more})
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["engines"][0])

    def counters(self) -> tuple[int, int, int]:
        """(verify steps, drafted, accepted) as the engine counts them, once they stand still."""
        return counters(self.url)

    def complete(self, client: httpx.Client | None = None, **body: Any) -> dict[str, Any]:
        """One completion at temperature 0."""
        ask = {"model": "demo", "temperature": 0, "max_tokens": 32, **body}
        answer = (client or httpx).post(f"{self.url}/v1/completions", json=ask, timeout=120)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


@contextlib.contextmanager
def engine(folder: Path, config: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Iterator[Engine]:
    """vLLM with `config`, started by the product's own launcher; `env` on top of this environment."""
    port = config.get("port") or free_ports(1)[0]
    file, events = folder / "engine.yaml", folder / "events.sock"
    file.write_text(yaml.safe_dump({"port": port, "log": str(folder / "vllm.log"), **config}))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SPECWATCH_")}
    support = Path(__file__).parent
    # vLLM's own ways to start take three times as long, and the chain's tests have them.
    environment["PYTHONPATH"] = f"{support / 'vllm_on_cpu'}:{support}"
    environment |= {"SPECWATCH_ENGINE_TOKEN": TOKEN, "SPECWATCH_ENGINE_EVENTS": str(events), **(env or {})}
    command = [sys.executable, "-m", "specwatch_engine.launch", "-c", str(file)]
    with (folder / "launch.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        deadline = time.monotonic() + READY_S
        while "engine ready on" not in (said := (folder / "launch.log").read_text()):
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.2)
        yield Engine(f"http://127.0.0.1:{port}", events, folder / "vllm.log", process)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
