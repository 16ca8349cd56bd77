"""A stand-in for the launcher that is a real process: it takes its arguments, says its lines, and serves what the lab
asks of an engine.

The file after `-c` is JSON: `say` (lines before it is ready, or instead of that), `exit` (its status then), `stubborn`
(SIGINT does not end it), `told` (a file for its arguments and variables), `cap` (at the start).
"""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

ARGUMENTS = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
OPTIONS: dict[str, Any] = json.loads(Path(ARGUMENTS["-c"]).read_text())
STATE: dict[str, Any] = {
    "engine": 0,
    "vllm": "0.32.0",
    "method": "draft_model",
    "num_speculative_tokens": 3,
    "cap": OPTIONS.get("cap"),
    "mode": "hard",
    "draft_model": "/models/draft",
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answers = {
            "/v1/models": {"data": [{"id": "served", "root": "/models/target"}]},
            "/version": {"version": "0.32.0"},
            "/specwatch/v1/engine": {"engines": [STATE]},
        }
        self._answer(answers.get(self.path, {}))

    def do_PUT(self) -> None:
        STATE.update(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self._answer({"engines": [STATE]})

    def _answer(self, body: object) -> None:
        if self.path.startswith("/specwatch"):
            assert self.headers["authorization"] == "Bearer " + os.environ["SPECWATCH_ENGINE_TOKEN"]
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


def end(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGINT and OPTIONS.get("stubborn"):
        return
    print("engine: stopped", file=sys.stderr, flush=True)
    os._exit(0)


for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, end)
if "told" in OPTIONS:
    variables = {name: os.environ.get(name) for name in ("SPECWATCH_ENGINE_TOKEN", "SPECWATCH_ENGINE_EVENTS")}
    Path(OPTIONS["told"]).write_text(json.dumps({"arguments": ARGUMENTS, "variables": variables, "pid": os.getpid()}))
for line in OPTIONS.get("say", ()):
    print(line, file=sys.stderr, flush=True)
if "exit" in OPTIONS:
    sys.exit(OPTIONS["exit"])
server = ThreadingHTTPServer(("127.0.0.1", int(ARGUMENTS["--port"])), Handler)
url = f"http://127.0.0.1:{ARGUMENTS['--port']}"
print(f"engine ready on {url} after 1 s (target served, k=3)", file=sys.stderr, flush=True)
server.serve_forever()
