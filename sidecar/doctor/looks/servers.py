"""Who answers at an address: asked with a few GETs, which no server minds and no sidecar records."""

import asyncio
import ipaddress
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from ...threads import in_thread
from ..facts import Kind, Listener, Server, Unseen
from .limits import within

#: Of each question, s, and of its answer, bytes.
ASK_S = 4.0
MOST_BYTES = 8 << 20
LOOPBACK = frozenset(("127.0.0.1", "::1", "localhost", "0.0.0.0", "::"))  # noqa: S104 - compared, not bound


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: httpx.Headers
    body: bytes

    def json(self) -> Any:
        """None where it is none."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None


async def get(client: httpx.AsyncClient, url: str, headers: Mapping[bytes, bytes] | None = None) -> Answer:
    """The answer, cut at MOST_BYTES. Raises httpx.HTTPError, and TimeoutError for one that trickles."""
    async with asyncio.timeout(ASK_S), client.stream("GET", url, headers=dict(headers or {})) as reply:
        body = bytearray()
        async for part in reply.aiter_bytes():
            body += part
            if len(body) > MOST_BYTES:
                break
        return Answer(reply.status_code, reply.headers, bytes(body[:MOST_BYTES]))


def port_of(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def is_here(url: str) -> bool:
    """Whether it names this machine by loopback."""
    return (urlsplit(url).hostname or "") in LOOPBACK


async def name_fails(url: str) -> str | None:
    """Why the host's name stands for no address; None where it does. In a thread that may hang, as httpx's may not."""
    host = urlsplit(url).hostname or ""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return None
    found = await within(ASK_S, in_thread(lambda: socket.getaddrinfo(host, port_of(url), type=socket.SOCK_STREAM)))
    return f"its name {host} cannot be resolved: {found.why}" if isinstance(found, Unseen) else None


async def identify(client: httpx.AsyncClient, url: str, listeners: Mapping[int, Listener]) -> Server:
    """Who answers at `url` (without a path). `listeners` of this machine tell a sidecar's port from an engine's."""
    if (unresolved := await name_fails(url)) is not None:
        return Server(url, Kind.NOTHING, unresolved)
    began = time.time()
    try:
        answer = await get(client, f"{url}/v1/models")
    except (httpx.TimeoutException, TimeoutError):
        return Server(url, Kind.SILENT, f"it gave no answer in {ASK_S:g} s")
    except httpx.ConnectError as error:
        if "SSL" in str(error).upper() or "certificate" in str(error):
            return Server(url, Kind.NO_HTTP, f"its TLS cannot be used: {error}")
        return Server(url, Kind.NOTHING, f"nothing listens there ({str(error) or type(error).__name__})")
    except httpx.HTTPError as error:
        return Server(url, Kind.NO_HTTP, f"it speaks no HTTP ({type(error).__name__})")
    skew = _skew(answer, began)
    said = answer.json()
    locked = answer.status in (401, 403)
    models = _models(said) if answer.status == 200 else None
    if _is_specwatch(said):
        return await _own(client, url, skew) or Server(
            url, Kind.PROXY, "the data port of a Specwatch sidecar, whose upstream does not answer", skew_s=skew
        )
    if models is not None or locked:
        version = await _version(client, url)
        kind = Kind.VLLM if version else Kind.OPENAI
        first = models[0] if models else {}
        names = tuple(str(each["id"]) for each in models or ())
        if await _is_proxy(url, listeners):
            words = f"the data port of another Specwatch sidecar, before {_named(version, names)}"
            return Server(url, Kind.PROXY, words, version, names, skew_s=skew)
        length = first.get("max_model_len")
        return Server(
            url,
            kind,
            _named(version, names) + (", which wants an API key" if locked else ""),
            version,
            names,
            str(first["root"]) if first.get("root") else None,
            length if isinstance(length, int) else None,
            locked,
            skew,
        )
    if own := await _own(client, url, skew):
        return own
    server = answer.headers.get("server", "")
    about = f" ({server})" if server else ""
    return Server(url, Kind.OTHER, f"another server{about}: GET /v1/models gives {answer.status}", skew_s=skew)


def _named(version: str | None, models: tuple[str, ...]) -> str:
    return (f"vLLM {version}" if version else "an OpenAI-compatible server") + (
        f" with model {', '.join(models[:3])}" if models else ""
    )


def _models(said: Any) -> list[dict[str, Any]] | None:
    """Of an OpenAI-compatible server; None where it is none."""
    data = said.get("data") if isinstance(said, dict) else None
    if not isinstance(data, list) or not all(isinstance(each, dict) and "id" in each for each in data):
        return None
    return data


def _is_specwatch(said: Any) -> bool:
    error = said.get("error") if isinstance(said, dict) else None
    return isinstance(error, dict) and str(error.get("type", "")).startswith("specwatch_")


async def _version(client: httpx.AsyncClient, url: str) -> str | None:
    try:
        answer = await get(client, f"{url}/version")
    except (httpx.HTTPError, TimeoutError):
        return None
    said = answer.json() if answer.status == 200 else None
    version = said.get("version") if isinstance(said, dict) else None
    return str(version)[:100] if version else None


async def _own(client: httpx.AsyncClient, url: str, skew: float | None) -> Server | None:
    """Specwatch's own other ports."""
    try:
        ready = (await get(client, f"{url}/readyz")).json()
        if isinstance(ready, dict) and "failed_tasks" in ready:
            return Server(url, Kind.ADMIN, "the admin port of a Specwatch sidecar", skew_s=skew)
        health = await get(client, f"{url}/_stcore/health")
    except (httpx.HTTPError, TimeoutError):
        return None
    if health.status == 200 and health.body.strip() == b"ok":
        return Server(url, Kind.DASHBOARD, "a Streamlit dashboard", skew_s=skew)
    return None


async def _is_proxy(url: str, listeners: Mapping[int, Listener]) -> bool:
    """Whether a sidecar's data port answers there, which passes on all that its upstream says.

    Of this machine the process tells. Elsewhere it is asked to be a forward proxy: the sidecar refuses that in words of
    its own, while an engine's server calls it an invalid request, in its log as well.
    """
    listener = listeners.get(port_of(url)) if is_here(url) else None
    if listener is not None:
        return listener.sidecar
    if urlsplit(url).scheme != "http":
        return False
    try:
        async with asyncio.timeout(ASK_S):
            reader, writer = await asyncio.open_connection(urlsplit(url).hostname, port_of(url))
            try:
                writer.write(b"CONNECT specwatch.invalid:1 HTTP/1.1\r\nHost: specwatch.invalid:1\r\n\r\n")
                await writer.drain()
                return b"specwatch_" in await reader.read(4096)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


def _skew(answer: Answer, began: float) -> float | None:
    """Its clock - ours, s: 0 where they may be equal, as the field has whole seconds and the answer took some time."""
    try:
        told = parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (KeyError, ValueError, TypeError):
        return None
    if told + 1 < began:
        return told + 1 - began
    return max(told - time.time(), 0.0)
