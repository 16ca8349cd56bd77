"""Who may ask what of the admin port: tokens, names of the host, rates, kinds and sizes of bodies.

Two tokens: `admin_token` does everything, `admin_read_token` reads. Where neither is set the port is open, which the
settings allow on loopback alone; then a web page must not get in through the browser of somebody on this machine:
orders are JSON, which a page of another origin may not send unasked (no CORS header ever allows it), and the name that
was asked must be one of loopback, as a page could have its own name pointed here (DNS rebinding).
"""

import asyncio
import hmac
import math
import re
import time
from hashlib import sha256
from ipaddress import ip_address
from typing import Literal

from fastapi import Depends, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .audit import Asked, Trail
from .deps import ApiDeps
from .errors import ApiError
from .limit import Buckets, network

#: control, read, none: what the token that came allows; open: none is set.
Who = Literal["control", "read", "none", "open"]

#: Probes of an orchestrator carry no token, and come as often as they like.
PROBES = frozenset(("/healthz", "/readyz"))
#: The schema holds no secret.
OPEN_PATHS = PROBES | {"/openapi.json"}

#: Bytes. The longest order is a path and a reason.
MAX_BODY = 65_536
#: How long its sender may take over it.
BODY_S = 10.0
#: Of `admin_per_second`, so that a dashboard may ask for a page's figures at once.
_BURST_S = 2.0
_WRONG_PER_MINUTE = 10

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]@]+)(:[0-9]{0,5})?")


class Tokens:
    """The configured tokens; None: not set."""

    def __init__(self, control: str | None, read: str | None) -> None:
        """Raises ValueError for an empty one."""
        if "" in (control, read):
            raise ValueError("admin_token and admin_read_token must not be empty, which would let everybody in")
        self._control = None if control is None else _digest(control.encode())
        self._read = None if read is None else _digest(read.encode())

    def who(self, given: list[bytes]) -> Who:
        """What the values of the authorization fields allow."""
        if self._control is None and self._read is None:
            return "open"
        scheme, _, token = (given[0] if len(given) == 1 else b"").partition(b" ")
        digest = _digest(token.strip() if scheme.lower() == b"bearer" else b"")
        # Both, whatever came, so that the time tells nothing; digests, so that it tells no length either.
        may_order = hmac.compare_digest(digest, self._control or _NOTHING)
        may_read = hmac.compare_digest(digest, self._read or _NOTHING)
        return "control" if may_order else "read" if may_read else "none"


class Guard:
    """Answers whatever may not pass, unknown paths included; the audit tells of it, and of every order."""

    def __init__(self, app: ASGIApp, deps: ApiDeps, tokens: Tokens) -> None:
        self._app = app
        self._tokens = tokens
        self._rate = Buckets(deps.admin_per_second, _BURST_S * deps.admin_per_second)
        self._wrong = Buckets(_WRONG_PER_MINUTE / 60, _WRONG_PER_MINUTE)
        self._trail = Trail(deps)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        client = scope["client"][0] if scope.get("client") else ""
        who = self._tokens.who(_fields(scope, b"authorization"))
        scope["specwatch.who"] = who
        asked = Asked(who, client, scope["method"], scope["path"])
        try:
            self._let_in(scope, who, network(client))
        except ApiError as error:
            await error.answer()(scope, receive, send)
            self._trail.refusal(asked, error.status, error.code)
            return
        if asked.is_order:
            await self._order(asked, scope, receive, send)
        else:
            await self._app(scope, receive, self._trail.watch(asked, send))

    def _let_in(self, scope: Scope, who: Who, client: str) -> None:
        """Raises ApiError."""
        now = time.monotonic()
        # Behind one address may be many; who has no token must not keep out who has one.
        if wait_s := self._rate.take((client, who), now):
            message = "too many requests from this address: admin_per_second bounds them"
            raise _too_many(message, "rate_limit_exceeded", wait_s)
        if scope["path"] in OPEN_PATHS:
            return
        if who == "open":
            _check_host(_fields(scope, b"host"))
        elif who == "none":
            # What brings no token at all guesses nothing, and is to be told what is missing.
            if _fields(scope, b"authorization") and (wait_s := self._wrong.take(client, now)):
                message = f"more than {_WRONG_PER_MINUTE} wrong tokens a minute came from this address"
                raise _too_many(message, "too_many_wrong_tokens", wait_s)
            message = "this port needs the admin token: send the header 'Authorization: Bearer TOKEN'"
            raise ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
        elif who == "read" and scope["method"] not in ("GET", "HEAD"):
            raise _read_only()

    async def _order(self, asked: Asked, scope: Scope, receive: Receive, send: Send) -> None:
        watched = self._trail.watch(asked, send)
        try:
            _check_kind(_fields(scope, b"content-type"))
            body = await _read(_fields(scope, b"content-length"), receive)
        except ApiError as error:
            await error.answer()(scope, receive, watched)
            return
        if body is None:
            return
        asked.body = body
        try:
            await self._app(scope, _once(body, receive), watched)
        except Exception:
            # Answered further out, with 500.
            self._trail.order(asked, 500, "internal_error")
            raise


def _digest(token: bytes) -> bytes:
    return sha256(token).digest()


#: No digest.
_NOTHING = bytes(32)


async def _needs_control(request: Request) -> None:
    if request.scope["specwatch.who"] == "read":
        raise _read_only()


#: Dependency of a route that reads what the read token is not enough for:
#: `@made.get("/requests/{request_id}/texts", dependencies=[NEEDS_CONTROL])`.
NEEDS_CONTROL = Depends(_needs_control)


def _read_only() -> ApiError:
    message = "the token of admin_read_token only reads: this needs the token of admin_token"
    return ApiError(403, message, code="read_only_token")


def _too_many(message: str, code: str, wait_s: float) -> ApiError:
    return ApiError(429, message, code=code, headers={"retry-after": str(math.ceil(wait_s))})


def _check_host(given: list[bytes]) -> None:
    """Raises ApiError unless the one host field names loopback."""
    host = given[0].decode("latin-1") if len(given) == 1 else ""
    if not is_loopback(host):
        message = (
            f"the host {host[:100]!r} is none of this machine's own, so that a web page may have sent this: ask "
            "http://127.0.0.1 or http://localhost, or set admin_token"
        )
        raise ApiError(421, message, code="wrong_host")


def is_loopback(host: str) -> bool:
    """Whether the value of a host field, as `localhost:8001`, names loopback."""
    found = _HOST.fullmatch(host.lower())
    if found is None:
        return False
    name = found[1].strip("[]").removesuffix(".")
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _check_kind(given: list[bytes]) -> None:
    """Raises ApiError unless the body is said to be JSON."""
    kind = given[0].partition(b";")[0].strip().lower() if len(given) == 1 else b""
    if kind != b"application/json":
        message = "content-type: must be application/json"
        raise ApiError(415, message, code="unsupported_media_type", param="content-type")


async def _read(declared: list[bytes], receive: Receive) -> bytes | None:
    """The whole body; None where its sender has left. Raises ApiError."""
    if any(int(length) > MAX_BODY for length in declared):
        raise _too_large()
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            while True:
                part = await receive()
                if part["type"] == "http.disconnect":
                    return None
                body += part.get("body", b"")
                if len(body) > MAX_BODY:
                    raise _too_large()
                if not part.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        message = f"the body did not come within {BODY_S:g} s"
        raise ApiError(408, message, code="body_too_slow", headers={"connection": "close"}) from None


def _too_large() -> ApiError:
    message = f"the body is longer than {MAX_BODY} bytes"
    return ApiError(413, message, code="body_too_large", headers={"connection": "close"})


def _once(body: bytes, receive: Receive) -> Receive:
    """`receive` for a body that has been read already."""
    left = [body]

    async def read() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return read


def _fields(scope: Scope, name: bytes) -> list[bytes]:
    return [value for each, value in scope["headers"] if each == name]
