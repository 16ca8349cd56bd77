"""Looks at everything at once. Each look has a time limit, and what has not come by the end is told as not seen."""

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx

from ..settings import Settings
from ..threads import in_thread
from .facts import (
    DatabaseFacts,
    EngineFacts,
    Facts,
    Kind,
    LogFacts,
    Machine,
    Server,
    SidecarFacts,
    Unseen,
)
from .looks import database, engines, gpus, logs, machine, models, servers, sidecar
from .looks.limits import within

T = TypeVar("T")

#: Of a look, and of the two looks that wait for others, s; all together stay below 20.
LOOK_S, SECOND_S = 10.0, 6.0


async def gather(settings: Settings, log_files: Sequence[Path]) -> Facts:
    """All facts, in some 3 s mostly and in 18 at most. Never raises."""
    now = time.time()
    # Of this machine first, in milliseconds: it tells who listens where.
    here = await within(LOOK_S, in_thread(lambda: machine.look(settings)))
    listeners = here.listeners if isinstance(here, Machine) else {}
    files = {
        name: file
        for name, file in (("engine", settings.engine), ("fallback_engine", settings.fallback_engine))
        if file is not None
    }
    # The environment's proxies are for the outside.
    async with httpx.AsyncClient(trust_env=False, timeout=servers.ASK_S) as client:
        urls = {"speculative": settings.upstream}
        if settings.fallback_upstream is not None:
            urls["autoregressive"] = settings.fallback_upstream
        first = await _together(
            {
                "sidecar": within(LOOK_S, sidecar.look(client, settings)),
                "database": within(LOOK_S, in_thread(lambda: database.look(settings))),
                "rows": within(LOOK_S, in_thread(lambda: database.rows(settings, now))),
                "day": within(LOOK_S, in_thread(lambda: database.day(settings, now))),
                "gpus": within(LOOK_S, gpus.look()),
                "certificates": within(LOOK_S, in_thread(lambda: models.certificates(settings))),
                "ports": within(LOOK_S, _ports(client, settings, listeners)),
                **{
                    f"engine {name}": within(LOOK_S, engines.look(client, name, url, settings, listeners))
                    for name, url in urls.items()
                },
                **{f"file {name}": within(LOOK_S, models.describe(file)) for name, file in files.items()},
            }
        )
        described = {name: first[f"file {name}"] for name in files}
        found = {name: _engine(name, url, first[f"engine {name}"]) for name, url in urls.items()}
        told = [each for each in described.values() if isinstance(each, dict)]
        live = _live(first["sidecar"])
        names = models.pair_names(settings, found.get("speculative"), told[0] if told else {}, live)
        more = logs.of_run(settings.run_dir, [str(each["log"]) for each in told if each.get("log")])
        second = await _together(
            {
                "pair": _as_it_is(names)
                if isinstance(names, Unseen)
                else within(SECOND_S, in_thread(lambda: models.pair(names))),
                "neighbours": within(
                    SECOND_S, engines.neighbours(client, settings, [str(each["url"]) for each in told], listeners)
                ),
                **{
                    f"log {path}": within(SECOND_S, logs.look(path, named=path not in more))
                    for path in dict.fromkeys([*log_files, *more])
                },
            }
        )
    side, base, rows, day = first["sidecar"], first["database"], first["rows"], first["day"]
    return Facts(
        now=now,
        settings=settings,
        sidecar=side,
        engines=found,
        neighbours=_or(second["neighbours"], []),
        ports=_or(first["ports"], {}),
        engine_files=described,
        database=base,
        rows=_rows(rows, side, base),
        day=_day(day, side, base),
        machine=here,
        gpus=first["gpus"],
        logs=[each for name, each in second.items() if name.startswith("log ") and isinstance(each, LogFacts)],
        pair=second["pair"],
        certificates=_or(first["certificates"], []),
    )


async def _together(work: Mapping[str, Awaitable[Any]]) -> dict[str, Any]:
    return dict(zip(work, await asyncio.gather(*work.values()), strict=True))


async def _as_it_is(value: T) -> T:
    return value


def _or(value: Any, other: Any) -> Any:
    return other if isinstance(value, Unseen) else value


def _engine(name: str, url: str, found: EngineFacts | Unseen) -> EngineFacts:
    if isinstance(found, EngineFacts):
        return found
    return EngineFacts(name, Server(url, Kind.SILENT, found.why), found, found, found)


async def _ports(client: httpx.AsyncClient, settings: Settings, listeners: Mapping[int, Any]) -> dict[str, Server]:
    """Who answers on this machine's ports of the settings, but for the data port, which passes questions on."""
    names = ("admin", "dashboard")
    urls = [sidecar.admin_url(settings), f"http://{settings.dashboard}"]
    found = await asyncio.gather(*(servers.identify(client, url, listeners) for url in urls))
    return dict(zip(names, found, strict=True))


def _live(side: SidecarFacts | Unseen) -> dict[str, Any]:
    """The models that the engine's events told of."""
    alignment = side.alignment if isinstance(side, SidecarFacts) else side
    return {} if isinstance(alignment, Unseen) else alignment


def _rows(found: Any, side: SidecarFacts | Unseen, base: DatabaseFacts | Unseen) -> Any:
    """From the database; else those that the sidecar gives, whose database may be out of our reach."""
    if not isinstance(found, Unseen):
        return found
    if isinstance(side, SidecarFacts) and not isinstance(side.requests, Unseen):
        return side.requests
    return _why(found, base)


def _day(found: Any, side: SidecarFacts | Unseen, base: DatabaseFacts | Unseen) -> Any:
    if not isinstance(found, Unseen):
        return found
    return side.summary if isinstance(side, SidecarFacts) else _why(found, base)


def _why(found: Unseen, base: DatabaseFacts | Unseen) -> Unseen:
    """In the plainest words."""
    return base.problem if isinstance(base, DatabaseFacts) and base.problem is not None else found


def look(settings: Settings, log_files: Sequence[Path]) -> Facts:
    """`gather`, for callers without a loop."""
    return asyncio.run(gather(settings, log_files))
