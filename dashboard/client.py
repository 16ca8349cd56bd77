"""The only network of the dashboard: a typed client of `/api/v1`.

    client = Client("http://127.0.0.1:8001")
    client.summary(window="1h", scenario="billing").last_100.p

Every failure is one exception, `Problem`, whose message is a sentence for the person on call.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from dashboard import shapes
from dashboard.shared import Shared

DEFAULT_API = "http://127.0.0.1:8001"
#: Seconds. The page refreshes often: a slow answer is better reported than waited for.
TIMEOUT = httpx.Timeout(10.0, connect=2.0)

#: Questions at a time; the sidecar answers four.
_AT_A_TIME = 4
#: How long an answer is given to others who ask the same, less than any page waits before it asks again; and how many.
SHARED_SECONDS, _MOST_SHARED = 4.0, 256
NO_QUERY: Mapping[str, str | None] = MappingProxyType({})

P = ParamSpec("P")
T = TypeVar("T")


class Kind(StrEnum):
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    #: There was a connection, and it broke before the answer was whole.
    BROKEN = "broken"
    UNAUTHORISED = "unauthorised"
    DATABASE = "database"
    #: Asked more often than `admin_per_second` allows.
    BUSY = "busy"
    #: The sidecar understood and said no.
    REFUSED = "refused"
    #: There is no request or run of this id, or not where it was looked for.
    MISSING = "missing"
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
        self._pool = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="ask")
        # Of one address and one token: nobody is given what another token may read.
        self._shared = Shared(SHARED_SECONDS, _MOST_SHARED)

    def close(self) -> None:
        self._pool.shutdown()
        self._http.close()

    # What narrows an answer is given as the API takes it: window, since, until, scenario, model, step, by.

    def summary(self, **query: str | None) -> shapes.Summary:
        return self._get("summary", shapes.Summary, query)

    def acceptance(self, **query: str | None) -> shapes.AcceptanceSeries:
        return self._get("acceptance", shapes.AcceptanceSeries, query)

    def truncation(self, **query: str | None) -> shapes.TruncationSeries:
        return self._get("truncation", shapes.TruncationSeries, query)

    def latency(self, **query: str | None) -> shapes.LatencySeries:
        return self._get("latency", shapes.LatencySeries, query)

    def latency_distribution(self, **query: str | None) -> shapes.LatencyDistribution:
        return self._get("latency/distribution", shapes.LatencyDistribution, query)

    def traffic(self, **query: str | None) -> shapes.TrafficSeries:
        return self._get("traffic", shapes.TrafficSeries, query)

    def similarity(self, **query: str | None) -> shapes.SimilaritySeries:
        return self._get("similarity", shapes.SimilaritySeries, query)

    def similarity_histogram(self, **query: str | None) -> shapes.SimilarityHistogram:
        return self._get("similarity/histogram", shapes.SimilarityHistogram, query)

    def similarity_pairs(self, **query: str | None) -> shapes.SimilarityPairs:
        """The lowest scores."""
        return self._get("similarity/pairs", shapes.SimilarityPairs, query)

    def quality(self) -> shapes.Quality:
        return self._get("quality", shapes.Quality)

    def alignment(self) -> shapes.Alignment:
        return self._get("alignment", shapes.Alignment)

    def alerts(self) -> shapes.Alerts:
        return self._get("alerts", shapes.Alerts)

    def runbook(self) -> shapes.Runbook:
        return self._get("runbook", shapes.Runbook)

    def events(self, **query: str | None) -> shapes.EventPage:
        return self._get("events", shapes.EventPage, query)

    def requests(self, **query: str | None) -> shapes.RequestPage:
        return self._get("requests", shapes.RequestPage, query)

    def request(self, request_id: str, until: str | None = None) -> shapes.RequestRow:
        """The newest of this id, before `until`."""
        return self._get(f"requests/{quote(request_id, safe='')}", shapes.RequestRow, {"until": until})

    def texts(self, request_id: str, until: str | None = None) -> shapes.StoredTexts:
        """Prompt and reply of the same, where they are stored; for the control token only."""
        # Private: not kept for others.
        name, query = f"requests/{quote(request_id, safe='')}/texts", {"until": until} if until else {}
        return self._ask("GET", name, shapes.StoredTexts, params=query)

    def lab_runs(self, **query: str | None) -> shapes.LabPage:
        return self._get("lab/runs", shapes.LabPage, query)

    def lab_run(self, run_id: str) -> shapes.LabRun:
        """With its summary."""
        return self._get(f"lab/runs/{quote(run_id, safe='')}", shapes.LabRun)

    def drafts(self, limit: int) -> shapes.Drafts:
        """What the draft proposed for the last requests. The sidecar refuses where it keeps none."""
        return self._get("drafts", shapes.Drafts, {"limit": str(limit)})

    def fallback(self) -> shapes.Fallback:
        return self._get("fallback", shapes.Fallback)

    def set_fallback(self, mode: shapes.Mode, reason: str) -> shapes.Fallback:
        try:
            return self._ask("PUT", "fallback", shapes.Fallback, json={"mode": mode, "reason": reason})
        finally:
            self._shared.forget()

    def later(self, ask: Callable[P, T], *given: P.args, **query: P.kwargs) -> Future[T]:
        """The answer of one of the methods above, asked while others are."""
        return self._pool.submit(ask, *given, **query)

    def _get(self, name: str, shape: type[T], query: Mapping[str, str | None] = NO_QUERY) -> T:
        given = {name: value for name, value in sorted(query.items()) if value is not None}
        return self._shared.get((name, *given.items()), lambda: self._ask("GET", name, shape, params=given))

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
                Kind.BROKEN, f"The connection to {self.url} broke ({type(error).__name__}: {error})."
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
        if response.status_code == 429:
            return Problem(Kind.BUSY, f"The sidecar at {self.url} is asked too often ({said}).")
        if response.status_code == 503:
            return Problem(Kind.DATABASE, f"The sidecar cannot read its database at the moment ({said}).")
        if response.status_code == 404 and name.startswith(("requests/", "lab/runs/")):
            return Problem(Kind.MISSING, f"The sidecar answered {said}.")
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
