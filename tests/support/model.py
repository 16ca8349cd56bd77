"""A server of one model on loopback, which tells its acceptance figures as vLLM does, and is as good as it is told."""

import json
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: Of each reply.
K, STEPS = 4, 25


class Model:
    """`p` and `status` may be changed any time."""

    def __init__(self, url: str) -> None:
        self.url = url
        #: Share of the verify steps whose draft is accepted as a whole; of the others nothing is.
        self.p = 0.8
        self.status = 200

    def reply(self) -> dict[str, object]:
        whole = round(self.p * STEPS)
        figures = {
            "acceptance_histogram": [STEPS - whole, *[0] * (K - 1), whole],
            "num_spec_steps": STEPS,
            "num_accepted_draft_tokens": K * whole,
            "num_draft_tokens": K * STEPS,
            "num_spec_tokens": K,
            "per_step_accepted": [K] * whole + [0] * (STEPS - whole),
            "per_step_drafted": [K] * STEPS,
        }
        tokens = STEPS + K * whole
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens},
            "metrics": {"speculative_decoding": figures},
        }


@contextmanager
def model() -> Iterator[Model]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Else each reply waits for an acknowledgement of its head.
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self.answer(200, {"object": "list", "data": [{"id": "m", "object": "model"}]})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            ok = served.status == 200
            self.answer(served.status, served.reply() if ok else {"error": {"message": "it is broken"}})

        def answer(self, status: int, value: object) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: object, client_address: object) -> None:
            """Of a client that was killed there is nothing to tell."""

    server = Server(("127.0.0.1", 0), Handler)
    served = Model(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def ask(proxy: str, count: int, scenario: str = "billing") -> None:
    """Send so many chat requests, eight at a time; whatever they are answered with."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}]}).encode()
    headers = {"content-type": "application/json", "x-scenario": scenario}

    def one(_: int) -> None:
        request = urllib.request.Request(f"{proxy}/v1/chat/completions", body, headers)
        try:
            urllib.request.urlopen(request, timeout=30).read()
        except urllib.error.HTTPError as error:
            error.read()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(count)))
