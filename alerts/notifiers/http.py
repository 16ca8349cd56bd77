"""One HTTP request to a receiver: bounded in time and size, no redirects, errors without secrets."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any

import httpx
from pydantic import SecretStr

from ..redact import place
from .error import NotifyError, Reason
from .quiet import quiet

#: Bytes of a reply that are read.
_MOST_REPLY = 262_144
#: Receivers on this machine are asked without the proxy that the environment names.
_DIRECT = {f"all://{host}": None for host in ("127.0.0.1", "localhost", "[::1]")}
_HINTS = {
    401: "the token or the password is wrong, or missing",
    403: "the token may not do this",
    404: "the path of its url is wrong",
    405: "the path of its url is wrong",
    413: "it takes no message as long as this",
}


Query = Sequence[tuple[str, str]]


@cache
def _trusted() -> ssl.SSLContext:
    return httpx.create_ssl_context()


class Http:
    """One receiver's client. `url` is whole or a base; its user and password are sent as Basic authorization."""

    def __init__(
        self, url: SecretStr, timeout_s: float, headers: Mapping[str, SecretStr], token: SecretStr | None
    ) -> None:
        """Reads the certificates, which takes a moment: for the start of a process."""
        self._url = url
        self._timeout_s = timeout_s
        self._headers = dict(headers)
        if token is not None:
            self._headers["Authorization"] = SecretStr(f"Bearer {token.get_secret_value()}")
        self._place = place(url.get_secret_value())
        self._client = httpx.AsyncClient(timeout=timeout_s, mounts=_DIRECT, verify=_trusted())

    async def send(self, method: str, path: str = "", *, body: bytes | None = None) -> None:
        """Raises NotifyError for all but 2xx. What the reply says beyond that is not read."""
        async with self._asked(method, path, body, None):
            pass

    async def ask(self, method: str, path: str, *, body: bytes | None = None, query: Query | None = None) -> Any:
        """The JSON of the reply. Raises NotifyError, also where it is none or longer than 256 KiB."""
        found = b""
        async with self._asked(method, path, body, query) as reply:
            async for piece in reply.aiter_raw():
                found += piece
                if len(found) > _MOST_REPLY:
                    raise self.invalid(f"answered more than {_MOST_REPLY} bytes")
        try:
            return json.loads(found)
        except (ValueError, RecursionError):
            raise self.invalid("answered no JSON") from None

    async def close(self) -> None:
        with quiet():
            await self._client.aclose()

    def invalid(self, what: str) -> NotifyError:
        """Of an answer that makes no sense."""
        return self._error(Reason.INVALID, what, recoverable=False)

    @asynccontextmanager
    async def _asked(
        self, method: str, path: str, body: bytes | None, query: Query | None
    ) -> AsyncIterator[httpx.Response]:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        headers |= {name: secret.get_secret_value() for name, secret in self._headers.items()}
        headers["Accept-Encoding"] = "identity"
        url = self._url.get_secret_value() + path
        with quiet():
            try:
                async with (
                    asyncio.timeout(self._timeout_s),
                    self._client.stream(
                        method,
                        url,
                        params=None if query is None else httpx.QueryParams(tuple(query)),
                        content=body,
                        headers=headers,
                    ) as reply,
                ):
                    if not reply.is_success:
                        raise self._refusal(reply)
                    yield reply
            except (TimeoutError, httpx.TimeoutException):
                raise self._error(Reason.TIMEOUT, f"did not answer within {self._timeout_s:g} s") from None
            except (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL, UnicodeError):
                raise self._error(
                    Reason.INVALID, "cannot be asked so: its url or a header is no valid one", False
                ) from None
            except (httpx.HTTPError, OSError) as error:
                raise self._error(Reason.UNREACHABLE, _why_unreachable(error)) from None

    def _refusal(self, reply: httpx.Response) -> NotifyError:
        status = reply.status_code
        said = f"answered {status}"
        if status == 429:
            return self._error(Reason.THROTTLED, said, retry_after_s=retry_after(reply.headers.get("retry-after")))
        if status >= 500:
            return self._error(Reason.SERVER_ERROR, said, retry_after_s=retry_after(reply.headers.get("retry-after")))
        if status < 400:
            said += ", which is not followed; give the url it leads to"
        elif hint := _HINTS.get(status):
            said += f": {hint}"
        return self._error(Reason.REJECTED, said, recoverable=False)

    def _error(
        self, reason: Reason, what: str, recoverable: bool = True, *, retry_after_s: float | None = None
    ) -> NotifyError:
        return NotifyError(reason, f"{self._place} {what}", recoverable, retry_after_s=retry_after_s)


def retry_after(value: str | None) -> float | None:
    """Seconds from now, of a Retry-After in seconds or as a date; None where it is neither."""
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdecimal():
        return float(value.strip()[:9])
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max((at - datetime.now(UTC)).total_seconds(), 0.0)


def _why_unreachable(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return "shows a certificate that is not trusted"
        if isinstance(cause, ssl.SSLError):
            return "speaks no TLS that is understood"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.ProxyError):
        return "cannot be reached through the proxy of the environment"
    if isinstance(error, httpx.ConnectError):
        return "cannot be connected to"
    return "closed the connection, or answers no HTTP"
