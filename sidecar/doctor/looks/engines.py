"""The engines: who answers, what they count, what their plugin tells."""

import asyncio
from collections.abc import Mapping

import httpx

from ...control.engine import EngineControl, EngineError, EngineState
from ...settings import Settings
from ..facts import EngineFacts, Kind, Listener, Server, Unseen
from ..samples import Samples
from .servers import get, identify, is_here, port_of

#: Where engines and their neighbours are by default: `specwatch engine`, its plain companion, `vllm serve`.
USUAL_PORTS = (8200, 8201, 8000)


async def look(
    client: httpx.AsyncClient, name: str, url: str, settings: Settings, listeners: Mapping[int, Listener]
) -> EngineFacts:
    if _is_self(url, settings):
        # A sidecar that is its own upstream would be asked, and ask itself, without end.
        server = Server(url, Kind.SELF, f"the sidecar itself: listen is {settings.listen}")
        return EngineFacts(name, server, *[Unseen("it is the sidecar itself")] * 3)
    server = await identify(client, url, listeners)
    if not server.serves and server.kind is not Kind.PROXY:
        why = Unseen(f"{url} is no engine: {server.words}")
        return EngineFacts(name, server, why, why, why)
    (text, samples), cores = await asyncio.gather(_metrics(client, url), _cores(client, url, settings))
    return EngineFacts(name, server, text, samples, cores)


async def neighbours(
    client: httpx.AsyncClient, settings: Settings, others: list[str], listeners: Mapping[int, Listener]
) -> list[Server]:
    """Who else may be the engine: at `others` (of engine files), at the usual ports, and where one listens here."""
    known = {port_of(url) for url in (settings.upstream, settings.fallback_upstream) if url and is_here(url)}
    known |= {int(address.rpartition(":")[2]) for address in (settings.listen, settings.admin, settings.dashboard)}
    ports = [*USUAL_PORTS, *(port for port, each in listeners.items() if each.engine)]
    urls = dict.fromkeys([*others, *(f"http://127.0.0.1:{port}" for port in ports)])
    asked = [url for url in urls if not (is_here(url) and port_of(url) in known)]
    found = await asyncio.gather(*(identify(client, url, listeners) for url in asked[:20]))
    return [each for each in found if each.kind is not Kind.NOTHING]


def _is_self(url: str, settings: Settings) -> bool:
    host, _, port = settings.listen.rpartition(":")
    same_host = is_here(url) or url.partition("://")[2].rpartition(":")[0] == host
    return same_host and int(port) == port_of(url)


async def _metrics(client: httpx.AsyncClient, url: str) -> tuple[bytes | Unseen, Samples | Unseen]:
    try:
        answer = await get(client, f"{url}/metrics")
    except (httpx.HTTPError, TimeoutError) as error:
        why = Unseen(f"GET {url}/metrics gave no answer ({type(error).__name__})", "silent")
        return why, why
    if answer.status != 200:
        why = Unseen(f"GET {url}/metrics gives {answer.status}", "missing")
        return why, why
    return answer.body, Samples(answer.body)


async def _cores(client: httpx.AsyncClient, url: str, settings: Settings) -> list[EngineState] | Unseen:
    token = settings.engine_token.get_secret_value() if settings.engine_token is not None else None
    try:
        return await EngineControl(client, url, token).states()
    except EngineError as error:
        return Unseen(str(error), error.code)
