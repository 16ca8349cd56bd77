"""A stand-in for vLLM that is a real process: a server, a child of its own, and a chosen misbehaviour.

argv: PORT and `key=value` pairs: delay (seconds before it listens), exit (status, right after the
log line), die (a file: once it is there, exits with 3), say (a log line), stubborn (ignores SIGTERM
and SIGINT), pids (file to append the pids of this process and its child to), drafted (tokens in
the reply; absent: no metrics), hang (seconds before a completion is answered), sick (a file: once
it is there, health answers 503). Who obeys such a file takes it away.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = int(sys.argv[1])
OPTIONS: dict[str, str] = dict(pair.split("=", 1) for pair in sys.argv[2:])
SICK = threading.Event()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(503 if SICK.is_set() else 200, {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        time.sleep(float(OPTIONS.get("hang", "0")))
        reply: dict[str, Any] = {"choices": [{"text": "x"}]}
        if "drafted" in OPTIONS:
            block = {"num_draft_tokens": int(OPTIONS["drafted"]), "num_accepted_draft_tokens": 3}
            reply["metrics"] = {"speculative_decoding": block}
        self._answer(200, reply)

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


def once_there(file: str, obey: Callable[[], None]) -> None:
    while not os.path.exists(file):
        time.sleep(0.01)
    os.unlink(file)
    obey()


def main() -> None:
    if "say" in OPTIONS:
        print(OPTIONS["say"], flush=True)
    if "stubborn" in OPTIONS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    helper = subprocess.Popen(["sleep", "60"])
    if "pids" in OPTIONS:
        with open(OPTIONS["pids"], "a") as out:
            out.write(f"{os.getpid()} {helper.pid}\n")
    if "exit" in OPTIONS:
        sys.exit(int(OPTIONS["exit"]))
    time.sleep(float(OPTIONS.get("delay", "0")))
    ThreadingHTTPServer.allow_reuse_address = True
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    for option, obey in (("die", lambda: os._exit(3)), ("sick", SICK.set)):
        if option in OPTIONS:
            threading.Thread(target=once_there, args=(OPTIONS[option], obey), daemon=True).start()
    server.serve_forever(0.05)


if __name__ == "__main__":
    main()
