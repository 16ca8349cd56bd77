"""Keeps secrets out of what is shown: of a URL its host alone, of a text all that is known to be secret."""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from urllib.parse import quote, unquote, urlsplit

#: Shorter ones are words, ports and versions, which would riddle a text with stars.
_SHORTEST = 4
#: Of a variable whose name sounds secret, shorter values are words, as `false`.
_SHORTEST_OF_ENVIRONMENT = 8
_NAMES = re.compile(r"(?:^|_)(?:TOKENS?|SECRETS?|PASS|PASSWORD|PASSWD|PWD|KEYS?|CREDENTIALS?)(?:_|$)", re.IGNORECASE)
STARS = "***"


def place(url: str) -> str:
    """What may be shown of an HTTP URL: `https://host:8443`, without user, path and query."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return STARS
    if parts.scheme not in ("http", "https") or not host:
        return STARS
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "")


class Redactor:
    """Stars for secrets. Of a URL among them, its parts are secrets too: user, password, path and query."""

    def __init__(self, secrets: Iterable[str]) -> None:
        found = {form for secret in secrets for part in _parts(secret) for form in _forms(part)}
        # The longest first: a secret may hold another one.
        words = sorted((word for word in found if len(word) >= _SHORTEST), key=lambda word: (-len(word), word))
        self._pattern = re.compile("|".join(re.escape(word) for word in words)) if words else None

    def __repr__(self) -> str:
        return "Redactor()"

    def __call__(self, text: str) -> str:
        return self._pattern.sub(STARS, text) if self._pattern is not None else text


def of_environment(environment: Mapping[str, str]) -> Iterator[str]:
    """What a program may have inherited and must not show: values of such names, and passwords in addresses."""
    for name, value in environment.items():
        if len(value) >= _SHORTEST_OF_ENVIRONMENT and _NAMES.search(name):
            yield value
        if "://" in value and "@" in value:
            with suppress(ValueError):
                yield urlsplit(value).password or ""


def _parts(secret: str) -> Iterable[str]:
    yield secret
    if "://" not in secret:
        return
    scheme, _, rest = secret.partition("://")
    rest, _, fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    user, _, host = authority.rpartition("@")
    yield from (user, path, query, fragment, *user.split(":"), *path.split("/"))
    for pair in query.split("&"):
        yield from (pair, pair.partition("=")[2])
    # Of Apprise's addresses the host may be a token.
    if scheme.lower() not in ("http", "https"):
        yield from (host, host.partition(":")[0])
    if user:
        yield base64.b64encode(unquote(user).encode()).decode()


def _forms(part: str) -> Iterable[str]:
    yield from (part, unquote(part), quote(part, safe=""), quote(part))
