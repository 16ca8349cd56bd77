"""The recorder inside the server, for those who want no proxy: a pure ASGI middleware.

    vllm serve … --middleware sidecar.middleware.Specwatch

Settings come from the environment, and from the YAML file that SPECWATCH_CONFIG names. Messages pass through
unchanged and at once; the tap sees copies. Whatever fails here, the server goes on serving.
"""

import logging
import multiprocessing
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import partial
from typing import Any

import httpx

from .faults import where
from .record import Arm, Outcome
from .recorder import SPECULATIVE, Recorder, StartError
from .relay.watch import CODED_FRAMING, FRAMING, REFUSALS
from .settings import Settings, SettingsError, load
from .tap.tap import Tap

_log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Names of vLLM's processes where several serve one port, or one port each.
_NUMBERED = re.compile(r"(?:ApiServer|APIServer_DPRank)_(\d+)")


class Specwatch:
    """Starts with the server's lifespan, else with the first request; ends with the lifespan.

    Where it cannot start, or its admin port cannot be had, one line of the log names the setting.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._begun = False
        self._recorder: Recorder | None = None
        #: Generation requests that ended, by outcome. What the relay counts for the proxy.
        self.outcomes: Counter[Outcome] = Counter()
        self.in_flight = 0
        self.refused = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        exchange = self._watch(scope, receive, send) if scope["type"] == "http" else None
        if exchange is None:
            await self._app(scope, receive, send)
        else:
            await exchange.run(self._app, scope)

    def _watch(self, scope: Scope, receive: Receive, send: Send) -> "Exchange | None":
        self._begin(scope)
        if self._recorder is None:
            return None
        try:
            tap = self._recorder.tap.watch(_RequestHead(scope), time.monotonic())
            if tap is None:
                return None
            rewrites = self._recorder.tap.add_usage or self._recorder.controller.fallback.can_fall_back
            self.in_flight += 1
            return Exchange(tap, receive, send, partial(self._choose, self._recorder), self._ended, rewrites=rewrites)
        except Exception as error:
            _log.error("a request is served unwatched\n%s", where(error))
            return None

    def _choose(self, recorder: Recorder, tap: Tap) -> bool:
        """Tells the tap how its request is served. Returns whether that must be asked for in the body."""
        arm = recorder.controller.arm(tap, self.in_flight)
        tap.sent(SPECULATIVE, arm, self.in_flight)
        return arm not in (Arm.SPECULATIVE, Arm.PROBE)

    def _ended(self, outcome: Outcome) -> None:
        self.in_flight -= 1
        self.outcomes[outcome] += 1

    # ---- start and stop

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def passing(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                self._begin(scope)
            elif message["type"].startswith("lifespan.shutdown."):
                await self._end()  # before the server takes the word for its leave to exit
            await send(message)

        try:
            await self._app(scope, receive, passing)
        finally:
            await self._end()

    def _begin(self, scope: Scope) -> None:
        if self._begun:
            return
        self._begun = True
        try:
            settings = _settings()
            # Handlers ask their scope for the application, which Starlette puts there.
            transport = httpx.ASGITransport(scope.get("app", self._app), raise_app_exceptions=False)
            recorder = Recorder(settings, {SPECULATIVE: "http://127.0.0.1"}, lambda: self, transport)
            recorder.start()
            self._recorder = recorder
        except SettingsError as error:
            _log.error("Specwatch is off, and requests are not recorded: %s", error)
            return
        except Exception as error:
            _log.error("Specwatch is off, and requests are not recorded\n%s", where(error))
            return
        try:
            recorder.start_feed()
        except StartError as error:
            _log.error("Specwatch records, but without the engine's events: %s", error)
        try:
            recorder.start_admin()
            _log.info("requests are recorded, admin on %s", settings.admin)
        except StartError as error:
            _log.error("Specwatch records, but without its admin port: %s", error)
        except Exception as error:
            _log.error("Specwatch records, but without its admin port\n%s", where(error))

    async def _end(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        try:
            await recorder.stop()
        except Exception as error:
            _log.error("Specwatch did not stop cleanly\n%s", where(error))


def _settings() -> Settings:
    """What is configured, as it is meant inside a server. Raises SettingsError."""
    settings = load()
    changes: dict[str, Any] = {}
    if "baseline_share" not in settings.model_fields_set:
        changes["baseline_share"] = 0.0  # the same
    host, _, port = settings.admin.rpartition(":")
    if numbered := _NUMBERED.fullmatch(multiprocessing.current_process().name):
        changes["admin"] = f"{host}:{int(port) + int(numbered[1])}"
    return settings.model_copy(update=changes)


class Exchange:
    """One watched request and its reply. Ends exactly once, by `_end`; sizes are those of the bodies."""

    __slots__ = (
        "_bytes_in",
        "_bytes_out",
        "_changed",
        "_choose",
        "_complete",
        "_ended",
        "_filtering",
        "_held",
        "_instead",
        "_left",
        "_opt_out",
        "_over",
        "_receive",
        "_refused",
        "_rewrites",
        "_send",
        "_status",
        "_tap",
    )

    def __init__(
        self,
        tap: Tap,
        receive: Receive,
        send: Send,
        choose: Callable[[Tap], bool],
        ended: Callable[[Outcome], None],
        *,
        rewrites: bool,
    ) -> None:
        """`rewrites`: the tap may change the request, so that is read before the app runs, as far as `tap.hold`.

        `choose` tells whether it is to be changed so that it is served without speculation.
        """
        self._tap = tap
        self._receive = receive
        self._send = send
        self._ended = ended
        self._choose = choose
        #: None: not yet chosen, as the tap is to have read the request before.
        self._opt_out = None if rewrites else choose(tap)
        self._rewrites = self._opt_out is not False
        #: The request's body as far as it was read; None once the tap was given it, or it is too long to be.
        self._held: list[bytes] | None = []
        #: What the tap wants to be asked instead.
        self._instead: bytes | None = None
        self._bytes_in = 0
        self._bytes_out = 0
        #: The app is answering a changed request; and it refuses that, which is kept from the client.
        self._changed = False
        self._refused = False
        self._filtering = False
        self._status: int | None = None
        #: The app has said its last word.
        self._complete = False
        #: The client left before that.
        self._left = False
        self._over = False

    async def run(self, app: App, scope: Scope) -> None:
        """Raises what the app raises, and what the server's own `receive` and `send` do."""
        failed = True
        try:
            if self._rewrites:
                await self._run_held(app, scope)
            else:
                await app(scope, self._receive_and_look, self._send_and_look)
            failed = False
        finally:
            if not self._over:
                await self._close(failed=failed)

    async def _close(self, *, failed: bool) -> None:
        """The app has ended without an end of its reply."""
        if self._left:
            self._end(Outcome.CLIENT_ABORT)
        elif self._status is None:
            self._status = 500  # so answers whoever called, uvicorn and Starlette alike
            self._end(Outcome.UPSTREAM_ERROR)
        else:
            rest = self._tap.flush() if self._filtering else b""
            self._bytes_out += len(rest)
            self._end(Outcome.UPSTREAM_ERROR if failed else Outcome.TRUNCATED)
            if rest:
                await self._send({"type": "http.response.body", "body": rest, "more_body": True})

    def _end(self, outcome: Outcome) -> None:
        self._over = True
        self._ended(outcome)
        self._tap.end(outcome, self._status, self._bytes_in, self._bytes_out, time.monotonic())

    # ---- the request

    async def _receive_and_look(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._read(message)
        elif message["type"] == "http.disconnect" and not self._complete:
            self._left = True
        return message

    def _read(self, message: Message) -> None:
        body = message.get("body", b"")
        self._bytes_in += len(body)
        held = self._held
        if held is None:
            return
        held.append(body)
        if self._bytes_in > self._tap.hold:
            self._decide(None)
        elif not message.get("more_body", False):
            self._decide(b"".join(held))

    def _decide(self, body: bytes | None) -> None:
        self._held = None
        self._tap.request(body)
        if self._opt_out is None:
            self._opt_out = self._choose(self._tap)
        self._instead = self._tap.change(opt_out=self._opt_out)

    async def _run_held(self, app: App, scope: Scope) -> None:
        messages: list[Message] = []
        while self._held is not None and not self._left:
            messages.append(await self._receive_and_look())
        if self._held is not None:
            self._decide(None)
        body = self._instead
        if body is not None:
            self._changed = True
            changed: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
            other = _with_body(scope, len(body), uncoded=self._tap.uncoded)
            await app(other, self._again(changed), self._send_and_look)
            self._changed = False
            if not self._refused or self._left:
                return
            self._refused = False
            self._tap.restored()
        await app(scope, self._again(messages), self._send_and_look)

    def _again(self, messages: list[Message]) -> Receive:
        """Gives what was received already, then what comes."""
        received = iter(messages)

        async def receive() -> Message:
            for message in received:
                return message
            return await self._receive_and_look()

        return receive

    # ---- the reply

    async def _send_and_look(self, message: Message) -> None:
        kind = message["type"]
        if self._left:
            await self._send(message)
        elif kind == "http.response.start":
            # A refusal may quote the request, and the changed one is not the client's.
            self._refused = self._changed and message.get("status") in REFUSALS
            if not self._refused:
                await self._forward(self._head(message))
        elif self._refused:
            return
        elif kind == "http.response.body":
            await self._forward_body(message)
        else:
            await self._forward(message)

    def _head(self, message: Message) -> Message:
        fields = list(message.get("headers", ()))
        self._status = message["status"]
        self._filtering, added = self._tap.response(_ResponseHead(fields, message["status"]), time.monotonic())
        if self._filtering:
            fields = [field for field in fields if field[0].lower() != b"content-length"]
        elif not added:
            return message
        fields += [tuple(line.split(b": ", 1)) for line in added.splitlines()]
        return {**message, "headers": fields}

    async def _forward_body(self, message: Message) -> None:
        body, last = message.get("body", b""), not message.get("more_body", False)
        if self._filtering:
            out = self._tap.filter(bytes(body), time.monotonic()) if body else b""
            if last:
                out += self._tap.flush()
            elif not out:
                return
            message = {**message, "body": out}
        self._complete = last
        await self._forward(message)
        self._bytes_out += len(message.get("body", b""))
        if body and not self._filtering:
            self._tap.feed(bytes(body), time.monotonic())
        if last and not self._over:
            self._end(Outcome.OK if self._status is not None and self._status < 400 else Outcome.UPSTREAM_ERROR)

    async def _forward(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError:  # so servers of ASGI 2.4 tell it
            self._left = True
            raise


class _Head:
    def __init__(self, fields: Iterable[tuple[bytes, bytes]]) -> None:
        self._fields = fields

    def value(self, name: bytes) -> bytes | None:
        """The first value of a field, `name` in lower case; None if absent."""
        return next((value for key, value in self._fields if key.lower() == name), None)


class _RequestHead(_Head):
    def __init__(self, scope: Scope) -> None:
        super().__init__(scope["headers"])
        self.method: bytes = scope["method"].encode()
        self.version: bytes = b"HTTP/" + scope["http_version"].encode()
        self.path: bytes = scope["path"].encode()


class _ResponseHead(_Head):
    def __init__(self, fields: Iterable[tuple[bytes, bytes]], status: int) -> None:
        super().__init__(fields)
        self.status = status


def _with_body(scope: Scope, length: int, *, uncoded: bool) -> Scope:
    """The scope of a request that has another body, of `length` bytes; `uncoded`: and takes no coded reply."""
    replaced = CODED_FRAMING if uncoded else FRAMING
    fields = [field for field in scope["headers"] if field[0] not in replaced]
    return {**scope, "headers": [*fields, (b"content-length", b"%d" % length)]}
