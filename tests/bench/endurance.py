"""Many open streams, and many hours: does the proxy hold them, in what memory?

    python tests/bench/endurance.py hold --streams 10000 --seconds 60
    python tests/bench/endurance.py soak --minutes 60 --streams 40

`hold` opens streams that stay silent, lets them end together and compares every byte. Each takes two sockets of the
sidecar, so the limit of open files bounds them. `soak` keeps a number of streams (and JSON requests, aborts and
errors among them) going and compares the sidecar's memory at the beginning and at the end. Upstream, sidecar and
clients are processes of their own; the exit status is 1 if a byte was wrong, a request failed, or memory grew by 5 %
or more between the first and the last sixth of a soak.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
BLOCK = {
    "num_spec_steps": 3,
    "num_accepted_draft_tokens": 6,
    "num_draft_tokens": 12,
    "num_spec_tokens": 4,
    "acceptance_histogram": [1, 0, 1, 0, 1],
}


def event(number: int) -> bytes:
    choice = {"index": 0, "delta": {"content": f" token {number:06d}"}, "finish_reason": None}
    return b"data: " + json.dumps({"object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"


def ending() -> bytes:
    choice = {"index": 0, "delta": {}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 9}
    last = [{"choices": [choice]}, {"choices": [], "usage": usage, "metrics": {"speculative_decoding": BLOCK}}]
    events = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in last)
    return events + b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream_body(events: int) -> bytes:
    return b"".join(event(number) for number in range(events)) + ending()


class Server(asyncio.Protocol):
    """Streams as many events as the path says (`/EVENTS/PAUSE_MS/…`), or answers with JSON where it says none."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.buffer = b""
        self.timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if not found or len(rest) < length:
            return
        self.buffer = rest[length:]
        method, path, _ = head.split(b" ", 2)
        if method != b"POST":  # the sidecar asks for models and metrics
            self.say(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        _, events, pause, *_ = path.decode().split("/")
        if events == "error":
            self.say(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 2\r\n\r\n{}")
        elif int(events):
            self.say(HEAD + chunk(event(0)))
            self.later(1, int(events), float(pause) / 1e3)
        else:
            body = json.dumps({"choices": [], "usage": {}, "metrics": {"speculative_decoding": BLOCK}}).encode()
            kind = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            self.say(b"HTTP/1.1 200 OK\r\n" + kind % (len(body), body))

    def later(self, number: int, events: int, pause: float) -> None:
        self.timer = asyncio.get_running_loop().call_later(pause, self.next, number, events, pause)

    def next(self, number: int, events: int, pause: float) -> None:
        if number < events:
            self.say(chunk(event(number)))
            self.later(number + 1, events, pause)
        else:
            self.say(chunk(ending()) + b"0\r\n\r\n")

    def say(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


def serve(ready: "multiprocessing.Queue[int]") -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=4_096)
        ready.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(main())


async def ask(port: int, path: str, leave_after: float | None = None) -> bytes:
    """The body of one reply, chunks taken apart."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        body = b'{"model": "m", "stream": true, "stream_options": {"include_usage": true}}'
        writer.write(
            b"POST %b HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (path.encode(), len(body), body)
        )
        if leave_after is not None:
            await asyncio.sleep(leave_after)
            return b""
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b"chunked" not in head:
            return await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
        parts = []
        while size := int(await reader.readline(), 16):
            parts.append((await reader.readexactly(size + 2))[:-2])
        await reader.readexactly(2)
        return b"".join(parts)
    finally:
        writer.close()


def memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("the sidecar is gone")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


async def hold(port: int, pid: int, streams: int, seconds: float) -> bool:
    before = memory_mb(pid)
    pause_s = streams / 1_000 + seconds
    path = f"/2/{pause_s * 1e3:.0f}/v1/chat/completions"
    tasks = []
    for number in range(streams):
        tasks.append(asyncio.create_task(ask(port, path)))  # noqa: TID251
        if number % 100 == 99:
            await asyncio.sleep(0.1)
    await asyncio.sleep(seconds / 2)
    during = memory_mb(pid)
    bodies = await asyncio.gather(*tasks, return_exceptions=True)
    whole = sum(body == stream_body(2) for body in bodies)
    kib = (during - before) * 1024 / streams
    print(f"{whole} of {streams} streams whole; RSS {before:.1f} MB idle, {during:.1f} MB held: {kib:.1f} KiB a stream")
    return whole == streams


async def soak(port: int, pid: int, streams: int, minutes: float) -> bool:
    end = time.monotonic() + minutes * 60
    done = {"stream": 0, "json": 0, "error": 0, "abort": 0}
    wrong = 0

    async def client() -> None:
        nonlocal wrong
        while time.monotonic() < end:
            kind = random.choices(list(done), (80, 10, 5, 5))[0]
            try:
                if kind == "stream":
                    events = random.randint(5, 60)
                    right = await ask(port, f"/{events}/50/v1/chat/completions") == stream_body(events)
                elif kind == "json":
                    right = b"speculative_decoding" in await ask(port, "/0/0/v1/chat/completions")
                elif kind == "error":
                    right = await ask(port, "/error/0/v1/chat/completions") == b"{}"
                else:
                    right = await ask(port, "/60/50/v1/chat/completions", leave_after=0.2) == b""
            except (OSError, asyncio.IncompleteReadError, ValueError):
                right = False
            done[kind] += 1
            wrong += not right

    samples: list[float] = []

    async def watch() -> None:
        while time.monotonic() < end:
            await asyncio.sleep(min(10.0, minutes * 60 / 36))
            samples.append(memory_mb(pid))
            if len(samples) % 30 == 0:
                print(f"{len(samples) // 6} min: RSS {samples[-1]:.1f} MB, {done}, wrong {wrong}", flush=True)

    await asyncio.gather(watch(), *(client() for _ in range(streams)))
    sixth = max(1, len(samples) // 6)
    first, last = statistics.median(samples[:sixth]), statistics.median(samples[-sixth:])
    growth = last / first - 1
    print(f"{done}, wrong {wrong}; RSS {first:.1f} MB in the first sixth, {last:.1f} MB in the last: {growth:+.1%}")
    return not wrong and growth < 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("hold", "soak"))
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.mode == "hold" and 2 * options.streams + 40 > hard:
        parser.error(f"--streams: at most {hard // 2 - 20} with a limit of {hard} open files (ulimit -n)")
    ready: multiprocessing.Queue[int] = multiprocessing.Queue()
    upstream = multiprocessing.Process(target=serve, args=(ready,), daemon=True)
    upstream.start()
    listen, admin = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            Path(sys.executable).with_name("specwatch"),
            "sidecar",
            "--upstream",
            f"http://127.0.0.1:{ready.get()}",
        ]
        command += ["--listen", f"127.0.0.1:{listen}", "--admin", f"127.0.0.1:{admin}"]
        command += ["--database-url", f"sqlite:///{folder}/specwatch.db"]
        sidecar = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "SPECWATCH_DRAIN_S": "1"})
        try:
            for _ in range(200):
                time.sleep(0.1)
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", listen)) == 0:
                        break
            time.sleep(1)
            if options.mode == "hold":
                good = uvloop.run(hold(listen, sidecar.pid, options.streams, options.seconds))
            else:
                good = uvloop.run(soak(listen, sidecar.pid, options.streams, options.minutes))
        finally:
            sidecar.send_signal(signal.SIGTERM)
            print("sidecar's exit status", sidecar.wait(30))
            upstream.kill()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
