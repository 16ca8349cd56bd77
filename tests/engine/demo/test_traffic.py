"""Demo traffic against a small real server: what it sends, when it stops and what it says at the end."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from specwatch_engine.demo import traffic
from specwatch_engine.demo.dialogues import SCENARIOS


class Server(ThreadingHTTPServer):
    """Answers as vLLM would; `behaviour` makes it misbehave."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen = []
        self.behaviour = "good"
        self.delay = 0.0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self._answer(200, "application/json", b'{"data": [{"id": "first-model"}]}')

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.seen.append((self.path, self.headers["x-scenario"], body))
        time.sleep(self.server.delay)
        if self.server.behaviour == "error":
            self._answer(500, "application/json", b'{"error": {"message": "no"}}')
        elif body["stream"]:
            end = b"" if self.server.behaviour == "cut" else b"data: [DONE]\n\n"
            self._answer(200, "text/event-stream", b'data: {"choices": []}\n\n' + end)
        else:
            choices = [] if self.server.behaviour == "cut" else [{"index": 0}]
            self._answer(200, "application/json", json.dumps({"choices": choices}).encode())

    def _answer(self, status, kind, body):
        try:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_message(self, *_arguments):
        pass


@pytest.fixture
def server():
    running = Server()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


def run(server, *arguments):
    return traffic.main(["--url", server.url, "--model", "demo", *arguments])


def test_requests_are_standard_and_labelled(server, capsys):
    assert run(server, "--requests", "60", "--concurrency", "8") == 0
    assert capsys.readouterr().out.startswith("60 ok, 0 failed, ")
    assert len(server.seen) == 60
    kinds = Counter()
    for path, scenario, body in server.seen:
        assert path == "/v1/chat/completions"
        assert scenario in SCENARIOS
        assert (body["model"], body["temperature"]) == ("demo", 0)
        assert body["messages"][-1]["role"] == "user"
        assert set(body) <= {"model", "messages", "temperature", "max_tokens", "stream", "stream_options"}
        kinds[body["stream"], "stream_options" in body] += 1
    assert set(kinds) == {(True, True), (True, False), (False, False)}


def test_seed_decides_what_is_sent(server):
    for seed in ("1", "1", "2"):
        run(server, "--requests", "10", "--concurrency", "1", "--seed", seed)
    first, again, other = server.seen[:10], server.seen[10:20], server.seen[20:]
    assert first == again != other


def test_shift_ends_in_fault_reports_alone(server):
    run(server, "--requests", "40", "--mix", "shift", "--concurrency", "1")
    scenarios = [scenario for _, scenario, _ in server.seen]
    assert set(scenarios[20:]) == {"fault_report"}
    assert len(set(scenarios[:20])) >= 4


def test_an_incident_changes_what_one_scenario_asks(server):
    for name in ("familiar", "incident"):
        run(server, "--requests", "40", "--mix", name, "--concurrency", "1")
    before, after = server.seen[:40], server.seen[40:]
    assert [scenario for _, scenario, _ in before] == [scenario for _, scenario, _ in after]
    assert {scenario for _, scenario, _ in before} == set(SCENARIOS) - {"fault_report"}
    changed = {scenario for (_, scenario, old), (_, _, new) in zip(before, after, strict=True) if old != new}
    assert changed == {"billing"}


def test_own_mix(server):
    run(server, "--requests", "10", "--mix", "code=2,billing=0")
    assert {scenario for _, scenario, _ in server.seen} == {"code"}


def test_model_defaults_to_the_first_served(server):
    assert traffic.main(["--url", server.url, "--requests", "1"]) == 0
    assert server.seen[0][2]["model"] == "first-model"


@pytest.mark.parametrize("behaviour", ["error", "cut"])
def test_failed_replies_are_counted(server, capsys, behaviour):
    server.behaviour = behaviour
    assert run(server, "--requests", "5", "--stream-share", "0.5") == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("0 ok, 5 failed, ")
    assert len(captured.err.splitlines()) == 1


def test_seconds_and_rate_bound_a_run(server):
    started = time.monotonic()
    assert run(server, "--seconds", "0.5", "--rate", "20") == 0
    assert time.monotonic() - started < 30
    assert 1 <= len(server.seen) <= 10


def test_nothing_there_is_one_line(capsys):
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        for model in ([], ["--model", "demo"]):
            assert traffic.main(["--url", url, *model]) == 1
            captured = capsys.readouterr()
            assert captured.err.startswith(f"nothing answers at {url}: ")
            assert len(captured.err.splitlines()) == 1
            assert captured.out == ""


@pytest.mark.parametrize(
    ("number", "delay", "told"), [(signal.SIGINT, 5, b"0 ok, 0 failed, "), (signal.SIGTERM, 1, b"4 ok, 0 failed, ")]
)
def test_signals_end_a_run_cleanly(server, number, delay, told):
    server.delay = delay
    process = subprocess.Popen(
        [sys.executable, "-m", "specwatch_engine.demo.traffic", "--url", server.url, "--model", "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    while len(server.seen) < 4:
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out.startswith(told)
    assert err == b""
    assert len(server.seen) == 4


def test_a_run_that_finishes_sends_nothing_more(server):
    async def finished():
        with traffic.Progress(disable=True) as progress:
            run = traffic.Run(traffic.Plan(server.url, "demo", rate=4, concurrency=2), progress)
            task = asyncio.ensure_future(run())
            while run.totals.ok < 2:
                await asyncio.sleep(0.01)
            run.finish()
            return await asyncio.wait_for(task, 30)

    assert asyncio.run(finished()).ok == len(server.seen) == 2


def test_a_run_that_finishes_drops_what_takes_too_long(server, monkeypatch):
    monkeypatch.setattr(traffic, "FINISH_SECONDS", 0.2)
    server.delay = 5

    async def finished():
        with traffic.Progress(disable=True) as progress:
            run = traffic.Run(traffic.Plan(server.url, "demo"), progress)
            task = asyncio.ensure_future(run())
            while len(server.seen) < 4:
                await asyncio.sleep(0.01)
            run.finish()
            return await asyncio.wait_for(task, 30)

    assert asyncio.run(finished()) == traffic.Totals()


@pytest.mark.parametrize("text", ["", "poetry", "poetry=1", "code", "code=x", "code=-1", "code=0", "code=1,,billing=2"])
def test_senseless_mixes_are_refused(text):
    with pytest.raises(ValueError, match="unknown mix"):
        traffic.parse_mix(text)


@pytest.mark.parametrize("arguments", [["--concurrency", "0"], ["--rate", "-1"], ["--stream-share", "2"]])
def test_senseless_options_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        traffic.main(["--url", "http://127.0.0.1:1", *arguments])
    assert ended.value.code == 2
    assert "concurrency is at least 1" in capsys.readouterr().err


def test_a_plan_needs_a_bound():
    with pytest.raises(ValueError, match="needs a bound"):
        traffic.Plan("http://127.0.0.1:1", requests=None)


def test_outer_cancellation_is_not_swallowed(server):
    server.delay = 5

    async def cancelled():
        with traffic.Progress(disable=True) as progress:
            task = asyncio.ensure_future(traffic.Run(traffic.Plan(server.url, "demo"), progress)())
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancelled())
