"""The way to a Grafana: its address, who asks, and one line for people for each way it can fail."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

INSTALL = "grafana-client is not installed: pip install 'specwatch[grafana]'"

#: As Grafana takes them for folders, dashboards, data sources and rules.
UID = re.compile(r"[A-Za-z0-9_-]{1,40}")

_ADDRESS = "must be http://HOST[:PORT][/SUB-PATH] or https://…, without ? and #"
_START_PAGE = "give --url as the browser shows Grafana's start page, with its sub-path and without /api or /login"
_AGAIN = "run the push again, what is done stays"

#: What to do about an HTTP status: (why, remedy). `kind` may have a remedy of its own below.
_REFUSALS = {
    400: ("refused", "what is in brackets is in the way; Grafana 10.4 or later is needed"),
    401: (
        "whoever asks is not accepted",
        "set GRAFANA_TOKEN, or --token-file, to a service account's token of this Grafana that has not expired",
    ),
    403: (
        "not allowed",
        "give the token's service account a role that may: Admin for data sources and alert rules, Editor for the rest",
    ),
    404: ("not found", _START_PAGE),
    409: ("in conflict with what is there", "look at it in Grafana, then " + _AGAIN),
    412: ("changed by someone else, or of a name that is taken", _AGAIN),
    413: ("too large for the proxy in front", "raise its limit of the request body, then " + _AGAIN),
    422: ("not valid for this Grafana", "Grafana 10.4 or later is needed"),
    429: ("too many requests", "wait a minute, then " + _AGAIN),
}
_BROKEN = ("Grafana or a proxy in front of it failed", "look into its log, then " + _AGAIN)

#: Statuses that say something of the one thing sent; after any other there is no use in sending the next.
_OF_ONE_THING = frozenset({400, 404, 409, 412, 413, 422})


class UsageError(ValueError):
    """What was asked for cannot be meant; the message names the option."""


class Failure(Exception):
    """One line: the address, what was being done, why it failed, what to do. `status` is 0 without an answer."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.of_one_thing = status in _OF_ONE_THING


@dataclass(frozen=True)
class Target:
    """Where a Grafana is. `url` has no credentials and no slash at its end."""

    url: str
    credential: str | tuple[str, str] | None = field(default=None, repr=False)
    org: int | None = None
    timeout_s: float = 20.0


def check_address(option: str, url: str) -> tuple[SplitResult, int | None]:
    """The parts of an http(s) address and its port. Raises UsageError, which does not repeat the address."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise UsageError(f"{option}: {_ADDRESS}") from None
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not re.fullmatch(r"[A-Za-z0-9._:-]+", host) or port == 0:
        raise UsageError(f"{option}: {_ADDRESS}")
    if parts.query or parts.fragment or not re.fullmatch(r"[A-Za-z0-9._~/-]*", parts.path):
        raise UsageError(f"{option}: {_ADDRESS}")
    return parts, port


def target(url: str, token: str, *, org: int | None = None, timeout_s: float = 20.0) -> Target:
    """`token` is a service account's token or user:password; without one, those in the address are taken."""
    parts, port = check_address("--url", url)
    host = parts.hostname or ""
    token = token.strip()
    if not all(33 <= ord(character) <= 126 for character in token):
        raise UsageError("GRAFANA_TOKEN or --token-file: must be one line, a token or user:password in plain letters")
    credential: str | tuple[str, str] | None = token or None
    if ":" in token:
        user, _, password = token.partition(":")
        credential = (user, password)
    elif not token and parts.username:
        credential = (unquote(parts.username), unquote(parts.password or ""))
    address = f"[{host}]" if ":" in host else host
    plain = f"{parts.scheme}://{address}{'' if port is None else f':{port}'}{parts.path.rstrip('/')}"
    return Target(plain, credential, org, timeout_s)


class Grafana:
    """A Grafana that is asked through grafana-client; whatever fails is raised as Failure.

    Redirects are not followed: a POST would become a GET, and a login page is no answer.
    """

    def __init__(self, target: Target) -> None:
        try:
            from grafana_client.api import GrafanaApi
        except ImportError:
            raise Failure(INSTALL) from None
        self.target = target
        parts = urlsplit(target.url)
        path = parts.path.lstrip("/")
        maker: Any = GrafanaApi
        self.api: Any = maker(
            target.credential,
            protocol=parts.scheme,
            host=f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname,
            port=parts.port,
            url_path_prefix=f"{path}/" if path else "",
            timeout=target.timeout_s,
            organization_id=target.org,
            user_agent="specwatch",
        )
        self.api.client.s.max_redirects = 0

    def close(self) -> None:
        self.api.client.s.close()

    def ask(self, doing: str, call: Callable[[], Any], *, kind: Any = dict, remedy: str = "") -> Any:
        """What `call` answers, JSON of that kind; None where Grafana says that there is no such thing.

        `remedy` stands in for the usual one where Grafana refuses this very thing.
        """
        from grafana_client.client import GrafanaException
        from niquests.exceptions import RequestException

        try:
            answer = call()
        except GrafanaException as error:
            if error.status_code == 404 and (isinstance(error.response, dict) or not error.response):
                return None
            if error.status_code == 0:
                raise self._silent(doing) from None
            raise self._refused(doing, error.status_code, error.response, remedy) from None
        except RequestException as error:
            raise self._unheard(doing, error) from None
        if not isinstance(answer, kind):
            raise self._page(doing)
        return answer

    def must(self, doing: str, call: Callable[[], Any], *, remedy: str = "") -> Any:
        """As `ask`, for a change: that something of it is not there is a refusal, too."""
        answer = self.ask(doing, call, remedy=remedy)
        if answer is None:
            raise self.failure(doing, "not found (HTTP 404)", remedy or _START_PAGE, status=404)
        return answer

    def failure(self, doing: str, why: str, remedy: str, *, status: int = 0) -> Failure:
        return Failure(f"{self.target.url}: {doing}: {why}; {remedy}", status=status)

    def _refused(self, doing: str, status: int, response: Any, remedy: str) -> Failure:
        why, usual = _REFUSALS.get(status, _BROKEN if status >= 500 else _REFUSALS[400])
        message = response.get("message") if isinstance(response, dict) else response
        words = self._words(message) if isinstance(message, str) and not message.lstrip().startswith("<") else ""
        own = remedy if remedy and status in _OF_ONE_THING else usual
        return self.failure(doing, f"{why} (HTTP {status}{': ' + words if words else ''})", own, status=status)

    def _words(self, text: str) -> str:
        """Somebody else's words on one line, short, and without our secret."""
        credential = self.target.credential
        secret = credential[1] if isinstance(credential, tuple) else credential
        if secret:
            text = text.replace(secret, "***")
        line = " ".join("".join(c if c.isprintable() else " " for c in text).split()).rstrip(".")
        return line if len(line) <= 200 else line[:199] + "…"

    def _silent(self, doing: str) -> Failure:
        return self.failure(
            doing, f"no answer within {self.target.timeout_s:g} s", "look whether Grafana is well, then " + _AGAIN
        )

    def _page(self, doing: str) -> Failure:
        return self.failure(
            doing, "the answer is a page, not Grafana's JSON: a login page, a proxy or another server", _START_PAGE
        )

    def _unheard(self, doing: str, error: Any) -> Failure:
        """niquests raises these; its own words name hosts, pools and objects, so ours are told."""
        from niquests import exceptions

        match error:
            case exceptions.TooManyRedirects():
                return self._redirected(doing, error)
            case exceptions.JSONDecodeError():
                return self._page(doing)
            case exceptions.Timeout():
                return self._silent(doing)
            case exceptions.SSLError():
                return self.failure(
                    doing,
                    f"no trust in the connection ({self._words(_innermost(error))})",
                    "name your CA's file in REQUESTS_CA_BUNDLE, or give --url with http:// if Grafana speaks no TLS",
                )
            case exceptions.ProxyError():
                return self.failure(
                    doing, "the proxy named in the environment failed", "set HTTPS_PROXY or NO_PROXY right"
                )
        return self.failure(
            doing,
            f"not reachable ({self._words(_innermost(error))})",
            "look whether Grafana runs and the address is right (--url or GRAFANA_URL)",
        )

    def _redirected(self, doing: str, error: Any) -> Failure:
        location = error.response.headers.get("location", "") if error.response is not None else ""
        there = urlsplit(location)
        place = f"{there.scheme}://{there.hostname or ''}" if there.scheme in ("http", "https") else ""
        if there.port:
            place += f":{there.port}"
        place += there.path
        if "login" in there.path or "auth" in there.path:
            return self.failure(
                doing,
                f"redirected to a login page ({self._words(place)})",
                "give --url past the proxy that asks for a login, and a token in GRAFANA_TOKEN",
            )
        return self.failure(
            doing, f"redirected to {self._words(place) or 'elsewhere'}", "give the address it redirects to as --url"
        )


def _innermost(error: BaseException) -> str:
    """The words of what went wrong underneath, as `Connection refused`."""
    seen: set[int] = set()
    words = type(error).__name__
    current: Any = error
    while isinstance(current, BaseException) and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, OSError) and current.strerror:
            words = re.sub(r" \(_ssl\.c:\d+\)$", "", current.strerror)
        elif type(current).__name__ == "NameResolutionError":
            words = "no such host name"
        reason = getattr(current, "reason", None) or next(
            (one for one in getattr(current, "args", ()) if isinstance(one, BaseException)), None
        )
        current = reason if isinstance(reason, BaseException) else current.__cause__ or current.__context__
    return words
