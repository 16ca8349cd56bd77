"""A tap driven as the relay drives it, with a clock of its own."""

from sidecar.record import Arm, Outcome, Record
from sidecar.relay.http1 import RequestHead, ResponseHead
from sidecar.tap.tap import Facts, Tap, TapContext

SSE = b"Content-Type: text/event-stream\r\n"
JSON = b"Content-Type: application/json\r\n"
STREAM = b'{"model":"m","stream":true,"temperature":0}'


class Run:
    """One exchange; its request came at second 10."""

    def __init__(
        self,
        request: bytes | None = STREAM,
        *,
        fields: bytes = b"",
        path: bytes = b"/v1/chat/completions",
        arm: Arm = Arm.SPECULATIVE,
        **context: object,
    ) -> None:
        self.records: list[Record] = []
        facts = {"speculative": Facts("draft", 4, "vllm 0.32")}
        self.context = TapContext("here", self.records.append, facts, **context)  # type: ignore[arg-type]
        head = RequestHead(b"POST " + path + b" HTTP/1.1\r\nHost: h\r\n" + fields + b"\r\n")
        tap = self.context.watch(head, 10.0)
        assert isinstance(tap, Tap)
        self.tap = tap
        tap.request(request)
        self.sent = tap.change(opt_out=False)
        tap.sent("speculative", arm, 3)

    def reply(self, *reads: tuple[float, bytes], status: int = 200, fields: bytes = SSE) -> bytes:
        """Gives the tap a reply read at (seconds after the request); returns what the client gets."""
        head = ResponseHead(b"HTTP/1.1 %d X\r\n" % status + fields + b"\r\n", b"POST")
        filtering, _ = self.tap.response(head, 10.0)
        out = b""
        for at, data in reads:
            if filtering:
                out += self.tap.filter(data, 10.0 + at)
            else:
                self.tap.feed(data, 10.0 + at)
                out += data
        return out + self.tap.flush()

    def end(self, outcome: Outcome = Outcome.OK, status: int | None = 200, at: float = 2.0) -> Record:
        self.tap.end(outcome, status, 7, 9, 10.0 + at)
        assert len(self.records) == 1
        assert self.context.failures == 0
        return self.records[0]
