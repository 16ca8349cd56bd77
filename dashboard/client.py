"""The only network of the dashboard: a typed client of `/api/v1`.

    client = Client("http://127.0.0.1:8001")
    client.summary(window="1h").last_100.p

Every failure is one exception, `Problem`, whose message is a sentence for the person on call.
"""

from enum import StrEnum
from typing import Any, TypeVar

import httpx
import msgspec

from dashboard import shapes

DEFAULT_API = "http://127.0.0.1:8001"
#: Seconds. The page refreshes often: a slow answer is better reported than waited for.
TIMEOUT = httpx.Timeout(5.0, connect=2.0)

T = TypeVar("T")


class Kind(StrEnum):
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    UNAUTHORISED = "unauthorised"
    DATABASE = "database"
    #: The sidecar understood and said no.
    REFUSED = "refused"
    UNEXPECTED = "unexpected"


class Problem(Exception):
    """Why there is no answer. `str()` is a sentence for people."""

    def __init__(self, kind: Kind, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


class Client:
    """Safe to share between threads."""

    def __init__(self, url: str = DEFAULT_API, token: str | None = None, *, reads_only: bool = False) -> None:
        """`reads_only`: the token is known to be one that orders nothing."""
        self.url = url.rstrip("/")
        self.reads_only = reads_only
        # As bytes: httpx refuses text that is not ASCII.
        headers = {b"authorization": b"Bearer " + token.encode()} if token else {}
        # The sidecar is near: a proxy named in the environment is for other traffic.
        self._http = httpx.Client(headers=headers, timeout=TIMEOUT, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def summary(self, window: str) -> shapes.Summary:
        """Of all scenarios: the API has no summary of one."""
        return self._get("summary", shapes.Summary, window=window)

    def acceptance(
        self, window: str, *, step: str | None = None, by: str | None = None, scenario: str | None = None
    ) -> shapes.AcceptanceSeries:
        return self._get("acceptance", shapes.AcceptanceSeries, window=window, step=step, by=by, scenario=scenario)

    def truncation(
        self, window: str, *, step: str | None = None, by: str | None = None, scenario: str | None = None
    ) -> shapes.TruncationSeries:
        return self._get("truncation", shapes.TruncationSeries, window=window, step=step, by=by, scenario=scenario)

    def latency(
        self, window: str, *, step: str | None = None, by: str | None = None, scenario: str | None = None
    ) -> shapes.LatencySeries:
        return self._get("latency", shapes.LatencySeries, window=window, step=step, by=by, scenario=scenario)

    def drafts(self, limit: int) -> shapes.Drafts:
        """What the draft proposed for the last requests. The sidecar refuses where it keeps none."""
        return self._get("drafts", shapes.Drafts, limit=str(limit))

    def fallback(self) -> shapes.Fallback:
        return self._get("fallback", shapes.Fallback)

    def set_fallback(self, mode: shapes.Mode, reason: str) -> shapes.Fallback:
        return self._ask("PUT", "fallback", shapes.Fallback, json={"mode": mode, "reason": reason})

    def _get(self, name: str, shape: type[T], **query: str | None) -> T:
        return self._ask("GET", name, shape, params={k: v for k, v in query.items() if v is not None})

    def _ask(self, method: str, name: str, shape: type[T], **options: Any) -> T:
        try:
            response = self._http.request(method, f"{self.url}/api/v1/{name}", **options)
        except httpx.TimeoutException as error:
            raise Problem(
                Kind.TIMEOUT, f"The sidecar at {self.url} did not answer within {TIMEOUT.read:g} s."
            ) from error
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise Problem(Kind.UNREACHABLE, f"{self.url!r} is not an http:// or https:// address.") from error
        except httpx.ConnectError as error:
            raise Problem(Kind.UNREACHABLE, f"Nothing answers at {self.url} ({error}).") from error
        except httpx.HTTPError as error:
            raise Problem(
                Kind.UNREACHABLE, f"The connection to {self.url} broke ({type(error).__name__}: {error})."
            ) from error
        if response.status_code != 200:
            raise self._refusal(name, response)
        try:
            return msgspec.json.decode(response.content, type=shape)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Problem(
                Kind.UNEXPECTED,
                f"{self.url}/api/v1/{name} answered in a shape this dashboard does not know ({error}). "
                "It may be another service, or a sidecar of another version.",
            ) from error

    def _refusal(self, name: str, response: httpx.Response) -> Problem:
        said = _message(response)
        if response.status_code == 401:
            return Problem(Kind.UNAUTHORISED, f"The sidecar at {self.url} refused the admin token ({said}).")
        if response.status_code == 503:
            return Problem(Kind.DATABASE, f"The sidecar cannot read its database at the moment ({said}).")
        if 400 <= response.status_code < 500 and response.status_code != 404:
            return Problem(Kind.REFUSED, f"The sidecar refused: {said}.")
        return Problem(Kind.UNEXPECTED, f"{self.url}/api/v1/{name} answered {said}.")


def _message(response: httpx.Response) -> str:
    """The status and, when the body is an OpenAI-shaped error, its message."""
    status = f"{response.status_code} {response.reason_phrase}".strip()
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return status
    return f"{status}: {str(message).rstrip('.')}"
