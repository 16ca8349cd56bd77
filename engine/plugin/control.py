"""The control route on the engine's own HTTP server: `vllm serve --middleware specwatch_engine.plugin.control.Control`.

    GET /specwatch/v1/engine                                      the state of every engine core
    PUT /specwatch/v1/speculation  {"cap": null | n, "mode": …}   caps the draft tokens, answers with the state then
    PUT /specwatch/v1/draft        {"checkpoint": "/folder"}      swaps the draft model's weights

All want `Authorization: Bearer` with the token of SPECWATCH_ENGINE_TOKEN; without that variable all are refused.
Every other path passes through untouched.
"""

import asyncio
import hmac
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from .compat.orders import Client
from .switch import Refused

PREFIX = "/specwatch/"
TOKEN = "SPECWATCH_ENGINE_TOKEN"  # noqa: S105 - the name of a variable

_STATE, _CAP = ("GET", PREFIX + "v1/engine"), ("PUT", PREFIX + "v1/speculation")
_ROUTES = (_STATE, _CAP, ("PUT", PREFIX + "v1/draft"))

#: Numbers beyond could not even be passed on.
_MOST = 2**31
#: Longest order, bytes.
_MAX_BODY = 65_536

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class _Answer(Exception):
    """An error to be answered with `status`."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "error": {"message": message, "type": "specwatch_engine", "param": param, "code": code},
        }


class Control:
    """Pure ASGI middleware."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._token = os.environ.get(TOKEN, "")
        # Two swaps at a time would stage over each other.
        self._swapping = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        try:
            status, body = 200, await self._answer(scope, receive)
        except _Answer as error:
            status, body = error.status, error.body
        except Refused as error:
            refusal = _Answer(409, str(error), "refused", error.param)
            status, body = refusal.status, refusal.body
        except Exception as error:
            failure = _Answer(502, f"the engine could not do it: {str(error) or repr(error)}", "engine_failed")
            status, body = failure.status, failure.body
        content = json.dumps(body).encode()
        fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        if status == 401:
            fields.append((b"www-authenticate", b"Bearer"))
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": content})

    async def _answer(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        self._authenticate(scope)
        what = scope["method"], scope["path"]
        if what not in _ROUTES:
            raise _Answer(404, f"there is no {what[0]} {what[1]}", "not_found")
        engine = Client(scope["app"])
        if what == _STATE:
            return {"engines": await engine.order({})}
        if what == _CAP:
            order = await _order(receive, ("cap", "mode"))
            if isinstance(order.get("cap"), int) and abs(order["cap"]) > _MOST:
                raise _Answer(400, "cap: is no number of tokens", "invalid", "cap")
            if not order:
                raise _Answer(400, "the body must have cap (null or a number) or mode", "invalid", "cap")
            return {"engines": await engine.order(order)}
        checkpoint = (await _order(receive, ("checkpoint",))).get("checkpoint")
        if not isinstance(checkpoint, str) or not os.path.isabs(checkpoint):
            message = "checkpoint: must be the absolute path of a folder on the engine's machine"
            raise _Answer(400, message, "invalid", "checkpoint")
        if self._swapping.locked():
            raise _Answer(409, "another swap is under way", "busy")
        async with self._swapping:
            return {"engines": await engine.swap(checkpoint)}

    def _authenticate(self, scope: Scope) -> None:
        if not self._token:
            raise _Answer(403, f"the engine was started without {TOKEN}, so that it takes no orders", "no_token")
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token.encode()):
            raise _Answer(401, f"the bearer token is not that of the engine's {TOKEN}", "unauthorized")


async def _order(receive: Receive, names: tuple[str, ...]) -> dict[str, Any]:
    """The body: a JSON object with no other fields than `names`. Raises _Answer."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Answer(400, "the body was cut", "invalid")
        body += message.get("body", b"")
        if len(body) > _MAX_BODY:
            raise _Answer(413, f"the body is longer than {_MAX_BODY} bytes", "invalid")
        if not message.get("more_body"):
            break
    try:
        order = json.loads(body)
    except (ValueError, RecursionError):
        order = None
    if not isinstance(order, dict):
        raise _Answer(400, "the body must be a JSON object", "invalid")
    for name in order:
        if name not in names:
            raise _Answer(400, f"{name}: no such field; there are {' and '.join(names)}", "invalid", name)
    return order
