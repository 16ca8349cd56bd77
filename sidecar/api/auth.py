"""The bearer token of the admin port."""

import hmac

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import error_body

#: Probes of an orchestrator carry no token, and the schema holds no secret.
OPEN_PATHS = frozenset(("/healthz", "/readyz", "/openapi.json"))


class RequireToken:
    """Answers 401 to whatever comes without the token, unknown paths included."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._allowed(scope):
            await self._app(scope, receive, send)
            return
        message = "this port needs the admin token: send the header 'Authorization: Bearer TOKEN'"
        body = error_body(message, kind="invalid_request_error", code="invalid_api_key")
        await JSONResponse(body, 401, headers={"www-authenticate": "Bearer"})(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)
