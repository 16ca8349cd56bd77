"""An hour of scripted traffic in a database, with values that are known, and a real sidecar over it.

Four requests a minute but for four silent minutes; k is 3 in the first half and 4 in the second, so that position 4 was
never drafted before; the engine is another after half the hour. `billing` guesses badly from minute 40 on and has no
baseline, `untested` comes without figures.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from msgspec.structs import replace

from alerts.model import Alert, Event, Happening, Status
from sidecar.record import Acceptance, Arm, Outcome, Record
from sidecar.store.keeper import catch_up
from sidecar.store.rows import SimilarityRow, Transition
from sidecar.store.upgrade import upgrade

from .engine import Engine
from .model import model
from .records import figures, record
from .sidecar import Sidecar
from .stored import writing

SILENT = range(20, 24)
MINUTES = 60
GOOD = {3: (1, 1, 2, 8), 4: (1, 1, 1, 1, 8)}
BAD = {3: (2, 8, 1, 1), 4: (1, 9, 1, 1, 0)}
#: Every tenth reply breaks off, and every fifteenth fails at the upstream.
BROKEN, FAILED = 10, 15


@dataclass(frozen=True)
class Hour:
    #: Unix time of its first and its last moment, whole minutes.
    since: int
    until: int
    records: list[Record]

    @property
    def held(self) -> dict[str, str]:
        """As the board's address and the API take it."""
        ends = {"since": self.since, "until": self.until}
        return {name: f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}" for name, at in ends.items()}

    @property
    def query(self) -> dict[str, str]:
        return {"window": "366d"} | self.held


def scripted(until: int) -> Hour:
    """The hour that ends at `until`, a whole minute in Unix time."""
    since, found = until - 60 * MINUTES, []
    for minute in range(MINUTES):
        if minute in SILENT:
            continue
        k = 3 if minute < MINUTES // 2 else 4
        for second, scenario in ((5, "chat"), (20, "chat"), (35, "code"), (50, "billing")):
            number, bad = len(found), scenario == "billing" and minute >= 40
            outcome = Outcome.OK
            if number % BROKEN == 7:
                outcome = Outcome.CLIENT_ABORT
            elif number % FAILED == 3:
                outcome = Outcome.UPSTREAM_ERROR
            ok = outcome is Outcome.OK
            found.append(
                record(
                    request_id=f"hour-{number}",
                    started_at=float(since + 60 * minute + second),
                    scenario=scenario,
                    outcome=outcome,
                    acceptance=figures((BAD if bad else GOOD)[k]) if ok else Acceptance(reason="the reply was cut"),
                    latency_ms=(1200.0 if bad else 300.0) + 5 * minute + second if ok else None,
                    ttft_ms=40.0 + second if ok else None,
                    tpot_ms=(12.0 if bad else 4.0) + minute / 100 if ok else None,
                    completion_tokens=50,
                    prompt_tokens=100 * (1 + second % 7),
                    temperature=0.0 if second < 30 else 0.7,
                    concurrency=1 + second // 20,
                    stream=second < 30,
                    status=500 if outcome is Outcome.UPSTREAM_ERROR else 200,
                    fingerprint=f"vllm 0.32.0, draft demo, k={k}",
                )
            )
        found.append(
            record(
                request_id=f"plain-{minute}",
                started_at=float(since + 60 * minute + 10),
                scenario="chat",
                arm=Arm.BASELINE,
                upstream="autoregressive",
                acceptance=Acceptance(reason="not speculated"),
                latency_ms=700.0 + 4 * minute,
                ttft_ms=60.0,
                tpot_ms=9.0,
                completion_tokens=50,
                draft_model=None,
                concurrency=1,
            )
        )
    found.append(
        record(
            request_id="untested-0",
            started_at=float(since + 30),
            scenario="untested",
            acceptance=Acceptance(reason="no acceptance block in the reply"),
            latency_ms=250.0,
            completion_tokens=5,
        )
    )
    return Hour(since, until, [replace(each, instance="hour") for each in found])


def fill(database_url: str, hour: Hour) -> None:
    """Write the hour: requests, the switch at minute 40, an alert, compared pairs; and its rollups."""
    decided = hour.since + 40 * 60 + 55.0
    with writing(database_url) as writer:
        for each in hour.records:
            writer.put(each)
        for number, score in enumerate((0.95, 0.91, 0.62, 0.97, 0.80)):
            writer.put_similarity(
                SimilarityRow(
                    at=hour.since + 600.0 * number + 30,
                    instance="hour",
                    request_id=f"chatcmpl-{number}",
                    kind="draft",
                    score=score,
                    level="critical" if score < 0.75 else "warning" if score < 0.82 else "ok",
                    reason=None,
                    model="all-MiniLM-L6-v2",
                    chunked=False,
                    scenario="billing" if score < 0.82 else "chat",
                )
            )
        writer.put_transition(
            Transition(
                at=decided,
                instance="hour",
                mode="auto",
                from_state="speculative",
                to_state="autoregressive",
                reason="p 0.361 over 13 requests is below 0.65",
                slice="scenario=billing",
                trigger="acceptance",
                evidence={"p": 0.361, "requests": 13},
            )
        )
        writer.put_alert(_fired(decided + 30))
    catch_up(database_url)


def _fired(at: float) -> Event:
    name = "SpecwatchAcceptanceLowInScenario"
    labels = {"alertname": name, "severity": "warning", "instance": "hour", "scenario": "billing"}
    texts = {"summary": "Too few draft tokens are accepted in a scenario", "runbook": f"RUNBOOK.md#{name.lower()}"}
    return Event(at, Happening.FIRING, Alert(labels, texts, Status.FIRING, at, value=0.361))


@contextmanager
def served(folder: Path, hour: Hour, database_url: str | None = None, **settings: Any) -> Iterator[Sidecar]:
    """A sidecar of its own process over the filled database."""
    url = database_url or f"sqlite:///{folder}/specwatch.db"
    upgrade(url)
    fill(url, hour)
    with model() as upstream:
        engine = cast(Engine, SimpleNamespace(url=upstream.url, events=None))
        sidecar = Sidecar(folder, engine, engine_events=None, database_url=url, instance="hour", **settings)
        try:
            yield sidecar
        finally:
            sidecar.stop()


def last_minute() -> int:
    """The end of the last whole minute, Unix time."""
    return int(time.time()) // 60 * 60
