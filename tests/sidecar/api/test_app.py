"""The admin port over ASGI, on a real SQLite file that a real writer filled."""

import asyncio
import logging
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import json
from support.admin import fallback_state
from support.records import NOW, figures, record

from alerts.model import Alert, Event, Happening, Status
from sidecar.api import models
from sidecar.api.app import create_app
from sidecar.api.deps import ApiDeps
from sidecar.api.params import parse_duration
from sidecar.engine_request import EngineRequest, Hello
from sidecar.probes.tokenizer_check.compare import compare
from sidecar.probes.tokenizer_check.files import Model as FilesOf
from sidecar.probes.truncation import Places
from sidecar.probes.windows import Windows
from sidecar.record import Acceptance, Arm, Outcome
from sidecar.store import pages, queries, source
from sidecar.store.engine import writing_engine
from sidecar.store.queries import Reader
from sidecar.store.refresh import refresh_all
from sidecar.store.rows import SimilarityRow, Transition
from sidecar.store.writer import Writer

TYPE = "text/plain; version=0.0.4; charset=utf-8"


SCORES = {"pairs": 4, "mean": 0.9, "p10": 0.7, "warning": 1, "critical": 1}
SIMILARITY = {
    "model": "all-MiniLM-L6-v2",
    "reason": None,
    "draft": SCORES,
    "replay": {"pairs": 0, "mean": None, "p10": None, "warning": 0, "critical": 0},
    "replay_equal": None,
    "dropped": 3,
}
QUALITY: dict[str, Any] = {
    "requests": 9,
    "flags": [{"flag": "garble", "total": 1, "share": 0.11}],
    "recent": [{"at": "2026-01-31T12:00:00Z", "request_id": "chatcmpl-a", "flag": "garble", "evidence": "250 of …"}],
}


class Switch:
    """A fallback that obeys."""

    def __init__(self, *, can_fall_back: bool = True) -> None:
        self.orders: list[tuple[str, str]] = []
        self.threads: set[int] = set()
        self._state = fallback_state(since=datetime.fromtimestamp(NOW - 500, UTC), can_fall_back=can_fall_back)

    def state(self) -> models.FallbackState:
        self.threads.add(threading.get_ident())
        return self._state

    def set_mode(self, mode: models.Mode, reason: str) -> None:
        self.threads.add(threading.get_ident())
        self.orders.append((mode, reason))
        state: models.State = "autoregressive" if mode == "autoregressive" else "speculative"
        self._state = self._state.model_copy(update={"mode": mode, "state": state, "reason": reason})


@pytest.fixture
def deps(tmp_path: Path) -> ApiDeps:
    url = f"sqlite:///{tmp_path}/specwatch.db"
    writer = Writer(url)
    for i in range(120):
        arm = Arm.BASELINE if i % 2 else Arm.SPECULATIVE
        writer.put(
            record(
                request_id=f"r/{i}",
                started_at=NOW - 10 * i,
                arm=arm,
                scenario=("chat", "code")[i % 4 // 2],
                latency_ms=1000.0 if i % 2 else 500.0,
                outcome=Outcome.TIMEOUT if i == 119 else Outcome.OK,
                acceptance=figures((4, 3, 2, 1)),
            )
        )
    writer.put_transition(Transition(NOW - 400, "test", "auto", "speculative", "autoregressive", "p 0.50"))
    writer.put_transition(Transition(NOW - 300, "test", "auto", "autoregressive", "speculative", "p 0.80"))
    writer.start()
    writer.close(10)
    return ApiDeps(
        instance="test",
        version="1.2.3",
        reader=Reader(url),
        fallback=Switch(),
        engines=None,  # type: ignore[arg-type]  # see test_steering
        database_ok=lambda: True,
        records_dropped=lambda: 7,
        render_metrics=lambda: (b"specwatch_x 1\n", TYPE),
        similarity=lambda: SIMILARITY,
        quality=lambda: QUALITY,
        now=lambda: NOW + 1,
    )


@asynccontextmanager
async def client(deps: ApiDeps, **headers: str | bytes) -> AsyncIterator[httpx.AsyncClient]:
    sent = [(name.encode(), value if isinstance(value, bytes) else value.encode()) for name, value in headers.items()]
    transport = httpx.ASGITransport(create_app(deps), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=sent) as found:
        yield found


def run(deps: ApiDeps, work: Callable[[httpx.AsyncClient], Awaitable[None]], **headers: str | bytes) -> None:
    async def main() -> None:
        async with client(deps, **headers) as http:
            await work(http)

    asyncio.run(main())


def get(deps: ApiDeps, path: str) -> httpx.Response:
    async def main() -> httpx.Response:
        async with client(deps) as http:
            return await http.get(path)

    return asyncio.run(main())


def is_error(answer: httpx.Response, status: int, *, code: str, param: str | None = None) -> str:
    """Checks the shape of an error; returns its message."""
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert (body["error"]["code"], body["error"]["param"]) == (code, param)
    message: str = body["error"]["message"]
    assert message
    assert "\n" not in message
    return message


def test_summary(deps: ApiDeps) -> None:
    answer = get(deps, "/api/v1/summary?window=1h")
    assert answer.headers["content-type"] == "application/json"
    found = models.Summary.model_validate_json(answer.content)
    assert (found.window_s, found.instance, found.database, found.records_dropped) == (3600, "test", "ok", 7)
    assert found.generated_at == datetime.fromtimestamp(NOW + 1, UTC)
    assert found.versions.specwatch == "1.2.3"
    assert found.acceptance.p == 10 / 30
    assert found.acceptance.requests == 119
    assert found.last_100.requests == 100
    assert found.latency.ratio == 0.5
    assert found.traffic.outcomes == {"ok": 119, "timeout": 1}
    assert found.slo.latency_under_800ms_ratio == 60 / 119
    assert found.fallback.mode == "auto"


def test_a_summary_of_a_part_and_its_traffic(deps: ApiDeps) -> None:
    part = f"scenario=chat&arm=baseline&outcome=ok&instance=test&since={NOW - 1000}&until={NOW - 100}"
    found = models.Summary.model_validate_json(get(deps, f"/api/v1/summary?window=366d&{part}").content)
    assert (found.since, found.until) == tuple(datetime.fromtimestamp(NOW - ago, UTC) for ago in (1000, 100))
    assert found.traffic.requests == found.acceptance.requests == found.last_100.requests == 22
    assert (found.latency.speculative.requests, found.latency.autoregressive.requests) == (0, 22)
    assert found.slo.latency_under_800ms_ratio == found.latency.autoregressive.under_800ms_ratio == 0.0
    # Of the whole sidecar, whatever the filters.
    assert found.fallback.mode == "auto"
    assert found.quality.requests == 9
    answer = get(deps, f"/api/v1/traffic?window=366d&step=10m&{part}")
    traffic = models.TrafficSeries.model_validate_json(answer.content)
    assert sum(point.requests for point in traffic.points) == 22
    assert get(deps, "/api/v1/summary?scenario=none").json()["traffic"]["requests"] == 0


def test_distribution(deps: ApiDeps) -> None:
    answer = get(deps, "/api/v1/latency/distribution?window=1h&scenario=chat")
    found = models.LatencyDistribution.model_validate_json(answer.content)
    assert (found.window_s, found.baseline, found.exact) == (3600, "spec_disabled", True)
    assert (found.shares[0], found.shares[98:]) == (0.01, [0.99, 0.995, 0.999, 1.0])
    assert (found.speculative.requests, found.speculative.latency_ms) == (30, [500.0] * 102)
    assert (found.autoregressive.latency_ms, found.autoregressive.tpot_ms) == ([1000.0] * 102, None)


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("acceptance", models.AcceptanceSeries),
        ("truncation", models.TruncationSeries),
        ("latency", models.LatencySeries),
        ("traffic", models.TrafficSeries),
    ],
)
def test_series(
    deps: ApiDeps,
    path: str,
    model: type[models.AcceptanceSeries | models.TruncationSeries | models.LatencySeries | models.TrafficSeries],
) -> None:
    found = model.model_validate_json(get(deps, f"/api/v1/{path}?window=30m").content)
    assert (found.window_s, found.step_s, found.by, len(found.points)) == (1800, None, None, 1)
    split = "window=30m&step=10m&by=scenario&upstream=speculative&arm=speculative&outcome=ok"
    found = model.model_validate_json(get(deps, f"/api/v1/{path}?{split}").content)
    assert (found.step_s, found.by) == (600, "scenario")
    assert {point.group for point in found.points} == {"chat", "code"}
    assert len({point.at for point in found.points}) == 3


def test_pages_walk_all_rows(deps: ApiDeps) -> None:
    async def work(http: httpx.AsyncClient) -> None:
        seen: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            answer = await http.get("/api/v1/requests", params={"limit": 50, **cursor})
            page = models.RequestPage.model_validate_json(answer.content)
            seen += [row.request_id for row in page.requests]
            if page.next_cursor is None:
                break
            cursor = {"cursor": page.next_cursor}
        assert seen == [f"r/{i}" for i in range(120)]

    run(deps, work)


def test_rows_by_filter_and_id(deps: ApiDeps) -> None:
    since, until = NOW - 100, datetime.fromtimestamp(NOW - 50, UTC).isoformat()
    rows = get(deps, f"/api/v1/requests?since={since}&until={until}&arm=baseline").json()["requests"]
    assert [row["request_id"] for row in rows] == ["r/7", "r/9"]
    row = models.RequestRow.model_validate_json(get(deps, "/api/v1/requests/r%2F3").content)
    assert row.request_id == "r/3"
    assert row.started_at == datetime.fromtimestamp(NOW - 30, UTC)
    assert "'r/500'" in is_error(get(deps, "/api/v1/requests/r%2F500"), 404, code="not_found", param="request_id")
    assert get(deps, "/api/v1/requests?instance=other").json() == {"requests": [], "next_cursor": None}
    assert get(deps, "/api/v1/acceptance?instance=test").json()["points"][0]["requests"] == 119


def test_an_id_that_is_older_than_what_was_looked_through(deps: ApiDeps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_FOR_AN_ID", 50)
    message = is_error(get(deps, "/api/v1/requests/r%2F60"), 404, code="not_found", param="request_id")
    (until,) = re.findall(r"older ones are looked through with until=(\S+)$", message)
    assert get(deps, f"/api/v1/requests/r%2F60?until={until}").json()["request_id"] == "r/60"
    message = is_error(get(deps, f"/api/v1/requests/r%2F1?until={until}"), 404, code="not_found", param="request_id")
    assert f"of before {until}" in message


def test_figures_of_rollups_say_so(deps: ApiDeps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refresh_all(writing_engine(f"sqlite:///{tmp_path}/specwatch.db"), NOW)
    found = models.AcceptanceSeries.model_validate_json(get(deps, "/api/v1/acceptance?window=30m").content)
    assert (found.exact, found.resolution_s, found.since) == (True, None, datetime.fromtimestamp(NOW - 1799, UTC))
    monkeypatch.setattr(queries, "EXACT_ROWS", -1)
    found = models.AcceptanceSeries.model_validate_json(get(deps, "/api/v1/acceptance?window=30m&step=90s").content)
    assert (found.exact, found.resolution_s, found.step_s) == (False, 60, 120)
    assert found.since == datetime.fromtimestamp((NOW - 1799) // 60 * 60, UTC)
    monkeypatch.setattr(source, "MOST_ROWS", -1)
    for path in ("latency?", "latency/distribution?", "traffic?", "summary?"):
        answer = get(deps, f"/api/v1/{path}window=30m&instance=test")
        message = is_error(answer, 422, code="invalid_parameter", param="window")
        assert "figures of one instance" in message
        assert "ask for" in message


@pytest.mark.parametrize(
    ("path", "param", "words"),
    [
        ("summary?window=1", "window", "write 30s, 15m, 1h or 7d"),
        ("summary?window=1.5h", "window", "'1.5h' is not a duration"),
        ("summary?window=0h", "window", "not a duration"),
        ("summary?window=9999999d", "window", "not a duration"),
        ("summary?window=", "window", "not a duration"),
        ("summary?windw=1h", "windw", "no such parameter"),
        ("acceptance?by=user", "by", "scenario"),
        ("truncation?step=soon", "step", "'soon' is not a duration"),
        ("latency?window=7d&step=1s", "step", "take a step of at least 404 s"),
        ("latency?arm=fast", "arm", "speculative"),
        ("latency/distribution?step=1m", "step", "no such parameter"),
        ("summary?since=2026-01-31&until=2026-01-30", "until", "ask for an earlier since, a later until"),
        ("summary?since=2030-01-01", "since", "begins at 2030-01-01T00:00:00Z and ends at 2027"),
        ("summary?step=1m", "step", "no such parameter"),
        ("summary?arm=fast", "arm", "speculative"),
        ("traffic?window=7d&step=1s", "step", "take a step of at least 404 s"),
        ("traffic?until=2026-01-31", "until", "or a longer window"),
        ("traffic?by=user", "by", "scenario"),
        ("similarity?by=model", "by", "scenario"),
        ("similarity?model=m", "model", "no such parameter"),
        ("similarity?window=365d&step=1s", "step", "take a step of at least"),
        ("similarity/histogram?step=1m", "step", "no such parameter"),
        ("similarity/pairs?kind=both", "kind", "draft"),
        ("similarity/pairs?limit=101", "limit", "less"),
        ("similarity/pairs?limit=0", "limit", "greater"),
        ("requests?limit=0", "limit", "greater"),
        ("requests?limit=501", "limit", "less"),
        ("requests?cursor=abc", "cursor", "next_cursor"),
        ("requests?since=yesterday", "since", "is not a time"),
        ("requests?until=0001-01-01", "until", "out of range"),
        ("requests?window=1h", "window", "no such parameter"),
        ("requests?truncated_at=0", "truncated_at", "greater"),
        ("requests?truncated_at=65", "truncated_at", "less"),
        ("requests?truncated_at=first", "truncated_at", "integer"),
        ("requests?reply_id=", "reply_id", "at least 1"),
        ("requests?latency_over_ms=long", "latency_over_ms", "number"),
        ("requests?latency_over_ms=-1", "latency_over_ms", "greater"),
        ("requests?latency_over_ms=inf", "latency_over_ms", "finite"),
        ("requests?p_below=1.5", "p_below", "less"),
        ("requests?p_below=nan", "p_below", ""),
        ("requests?k=-1", "k", "greater"),
    ],
)
def test_parameters_that_cannot_be_served(deps: ApiDeps, path: str, param: str, words: str) -> None:
    message = is_error(get(deps, f"/api/v1/{path}"), 422, code="invalid_parameter", param=param)
    assert message.startswith(f"{param}: ")
    assert words in message


def test_durations() -> None:
    found = [parse_duration(text) for text in ("30s", "15m", "1h", "7d")]
    assert found == [30, 900, 3600, 604_800]


def test_paths_and_methods_that_do_not_exist(deps: ApiDeps) -> None:
    async def work(http: httpx.AsyncClient) -> None:
        for path in ("/", "/docs", "/redoc", "/api/v1", "/api/v1/nothing"):
            assert path in is_error(await http.get(path), 404, code="not_found")
        answer = await http.post("/api/v1/summary", json={})
        assert "POST" in is_error(answer, 405, code="method_not_allowed")
        assert answer.headers["allow"] == "GET"
        assert (await http.get("/openapi.json")).json()["info"]["title"] == "Specwatch"
        # A page of another origin gets no leave to read.
        answer = await http.get("/healthz", headers={"origin": "http://evil.example"})
        assert "access-control-allow-origin" not in answer.headers

    run(deps, work)


def test_windows(deps: ApiDeps) -> None:
    windows = Windows()
    for i in range(300):
        asked = "code" if i % 3 else "chat"
        windows.add(record(scenario=asked, acceptance=figures((40, 10) if i % 3 else (10, 40))), NOW)
    windows.add(record(acceptance=Acceptance(reason="nothing was drafted")), NOW)

    async def work(http: httpx.AsyncClient) -> None:
        found = models.Windows.model_validate_json((await http.get("/api/v1/windows?by=scenario")).content)
        assert (found.whole.group, found.whole.requests, found.hour.requests) == (None, 100, 300)
        assert [(each.group, each.p) for each in found.slices] == [("chat", 0.8), ("code", 0.2)]
        code = found.slices[1].truncation
        assert (code.truncation_rate, code.first_position_share, code.shape) == (0.8, 1.0, "unknown")
        assert [warning[:3] for warning in code.warnings] == ["100", "80%"]
        assert found.not_drafted.share == 0.01
        assert found.not_drafted.reasons == {"nothing was drafted": 1}
        assert (found.break_even_p, found.break_even_p_per_token) == (0.25, pytest.approx(0.25))
        bare = models.Windows.model_validate_json((await http.get("/api/v1/windows")).content)
        assert (bare.by, bare.slices, bare.whole) == (None, [], found.whole)
        assert (await http.get("/api/v1/windows?by=colour")).status_code == 422

    run(replace(deps, windows=windows, draft_cost=0.25), work)


def test_empty_windows(deps: ApiDeps) -> None:
    async def work(http: httpx.AsyncClient) -> None:
        found = models.Windows.model_validate_json((await http.get("/api/v1/windows?by=k")).content)
        assert (found.whole.p, found.whole.p_low, found.whole.truncation.truncation_rate) == (None, None, None)
        assert (found.hour.requests, found.not_drafted.share, found.break_even_p) == (0, None, None)
        places = models.Places.model_validate_json((await http.get("/api/v1/places")).content)
        assert (places.places, places.reason) == ([], "no engine tells its drafts: engine_events is not set")

    run(deps, work)


def test_places(deps: ApiDeps) -> None:
    request, places = EngineRequest("a-1", "a", Hello(1, 0), 5), Places()
    for _ in range(10):
        request.add([1, 2, 3], [1, 2, 3, 4], 0, 1000)
    places.add(request, NOW)

    async def work(http: httpx.AsyncClient) -> None:
        found = models.Places.model_validate_json((await http.get("/api/v1/places")).content)
        assert [(each.place, each.p, each.truncation.verify_steps) for each in found.places] == [
            ("0-31", 1.0, 8),
            ("32-127", 1.0, 2),
        ]

    run(replace(deps, places=places), work)


def test_fallback(deps: ApiDeps) -> None:
    switch = deps.fallback
    assert isinstance(switch, Switch)

    async def work(http: httpx.AsyncClient) -> None:
        found = models.Fallback.model_validate_json((await http.get("/api/v1/fallback")).content)
        assert (found.mode, found.state) == ("auto", "speculative")
        assert [change.reason for change in found.history] == ["p 0.80", "p 0.50"]
        order = {"mode": "autoregressive", "reason": "a trial"}
        answer = await http.put("/api/v1/fallback", json=order)
        assert models.Fallback.model_validate_json(answer.content).state == "autoregressive"
        await http.put("/api/v1/fallback", json={"mode": "auto"})
        await http.get("/api/v1/summary")
        # The switch belongs to the event loop.
        assert switch.threads == {threading.get_ident()}

        for body, param in (
            ({"mode": "off"}, "mode"),
            ({}, "mode"),
            ({"mode": "auto", "why": "x"}, "why"),
            ([], None),
        ):
            is_error(await http.put("/api/v1/fallback", json=body), 422, code="invalid_parameter", param=param)
        broken = await http.put("/api/v1/fallback", content=b"{", headers={"content-type": "application/json"})
        assert broken.status_code == 422
        assert set(broken.json()) == {"error"}

    run(deps, work)
    assert switch.orders == [("autoregressive", "a trial"), ("auto", "")]


def test_nothing_to_fall_back_to(deps: ApiDeps) -> None:
    switch = Switch(can_fall_back=False)

    async def work(http: httpx.AsyncClient) -> None:
        answer = await http.put("/api/v1/fallback", json={"mode": "autoregressive"})
        assert "no autoregressive upstream" in is_error(answer, 409, code="cannot_fall_back", param="mode")
        assert (await http.put("/api/v1/fallback", json={"mode": "speculative"})).status_code == 200

    run(replace(deps, fallback=switch), work)
    assert switch.orders == [("speculative", "")]


def test_the_token_guards_all_but_the_health_of_the_process(deps: ApiDeps) -> None:
    guarded = replace(deps, admin_token="s3cret")
    paths = ("/api/v1/summary", "/api/v1/nothing", "/metrics", "/", "//healthz", "/api/v1/fallback")

    async def without(http: httpx.AsyncClient) -> None:
        for path in paths:
            answer = await http.get(path)
            is_error(answer, 401, code="invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
        is_error(await http.put("/api/v1/fallback", json={"mode": "auto"}), 401, code="invalid_api_key")
        for path in ("/healthz", "/readyz"):
            assert (await http.get(path)).status_code == 200

    async def with_it(http: httpx.AsyncClient) -> None:
        for path in ("/api/v1/summary", "/metrics"):
            assert (await http.get(path)).status_code == 200
        assert (await http.put("/api/v1/fallback", json={"mode": "auto"})).status_code == 200

    run(guarded, without)
    for wrong in ("Bearer", "Bearer ", "Bearer s3cre", "Bearer s3crets", "Basic s3cret", "s3cret", b"Bearer \xff"):
        run(guarded, without, authorization=wrong)
    for right in ("Bearer s3cret", "bearer s3cret"):
        run(guarded, with_it, authorization=right)
    with pytest.raises(ValueError, match="empty"):
        run(replace(deps, admin_token=""), without)


ALIGNMENT: dict[str, Any] = {
    "state": "misaligned",
    "reason": "7 tokens have another id in the draft than in the target",
    "since": datetime.fromtimestamp(NOW - 900, UTC),
    "target_model": "t",
    "draft_model": None,
    "requests": 100,
    "positions": 5000,
    "rejections": 400,
    "same_text_other_id": 100,
    "moved_tokens": 7,
    "moved": [
        {
            "kind": "same_text",
            "target_id": number,
            "draft_id": number + 1,
            "target_text": "<|eot|>",
            "draft_text": None,
            "count": 100 - number,
            "share": 1.0,
            "first_seen": datetime.fromtimestamp(NOW - 900, UTC),
            "last_seen": datetime.fromtimestamp(NOW, UTC),
        }
        for number in range(7)
    ],
    "static": {
        "verdict": "misaligned",
        "severity": "critical",
        "sentences": ["2 of 2 ordinary tokens"],
        "share_at_moved": 0.5,
        "unknown_ids": 0,
        "report": json.decode(json.encode(compare(FilesOf(tokens={"a": 0, "b": 1}), FilesOf(tokens={"a": 1, "b": 2})))),
    },
}


def test_alignment(deps: ApiDeps) -> None:
    assert get(deps, "/api/v1/alignment").json() == models.NO_ALIGNMENT.model_dump()
    assert get(deps, "/api/v1/summary").json()["alignment"]["state"] == "unknown"
    told = replace(deps, alignment=lambda: ALIGNMENT)
    found = models.Alignment.model_validate_json(get(told, "/api/v1/alignment").content)
    assert found.model_dump() == ALIGNMENT
    short = models.Summary.model_validate_json(get(told, "/api/v1/summary").content).alignment
    assert (short.moved_tokens, short.same_text_other_id) == (7, 100)
    assert short.moved == found.moved[:5]
    assert short.static.model_dump() == {k: v for k, v in ALIGNMENT["static"].items() if k != "report"}


def test_similarity_and_quality(deps: ApiDeps, tmp_path: Path) -> None:
    writer = Writer(f"sqlite:///{tmp_path}/specwatch.db")
    for number, (score, scenario) in enumerate(((0.9, "chat"), (None, None), (0.5, "code"))):
        level = "unknown" if score is None else "ok"
        pair = "test", f"r{number}", "draft", score, level, None, "m", False, None, scenario
        writer.put_similarity(SimilarityRow(NOW - 60 * number, *pair))
    writer.start()
    writer.close(10)
    found = models.SimilaritySeries.model_validate_json(get(deps, "/api/v1/similarity?window=1h&step=1h").content)
    assert (sum(point.pairs for point in found.points), sum(point.unknown for point in found.points)) == (2, 1)
    assert found.last_100.model_dump() == SIMILARITY
    found = models.SimilaritySeries.model_validate_json(get(deps, "/api/v1/similarity?by=scenario").content)
    assert [(point.group, point.mean) for point in found.points] == [("chat", 0.9), ("code", 0.5), ("unknown", None)]
    only = models.SimilaritySeries.model_validate_json(get(deps, "/api/v1/similarity?scenario=code").content)
    assert [(point.group, point.pairs) for point in only.points] == [(None, 1)]
    answer = get(deps, "/api/v1/similarity/histogram?scenario=chat")
    bins = models.SimilarityHistogram.model_validate_json(answer.content)
    assert (sum(bins.draft), sum(bins.replay), bins.draft[bins.edges.index(0.9)]) == (1, 0, 1)
    pairs = models.SimilarityPairs.model_validate_json(get(deps, "/api/v1/similarity/pairs?kind=draft&limit=5").content)
    assert [(each.reply_id, each.score) for each in pairs.pairs] == [("r2", 0.5), ("r0", 0.9)]
    assert get(deps, "/api/v1/similarity/pairs?kind=replay").json()["pairs"] == []
    assert get(deps, "/api/v1/quality").json() == QUALITY
    summary = get(deps, "/api/v1/summary").json()
    assert summary["similarity"] == SIMILARITY
    assert summary["quality"] == {name: value for name, value in QUALITY.items() if name != "recent"}


ALERTS: dict[str, Any] = {
    "alerts": [
        {
            "name": "Slow",
            "severity": "critical",
            "status": status,
            "labels": {"alertname": "Slow", "severity": "critical", "instance": "test", "scenario": scenario},
            "annotations": annotations,
            "starts_at": datetime.fromtimestamp(NOW - 60, UTC),
            "value": 0.5,
            "stale": False,
        }
        for status, scenario, annotations in (
            ("firing", "billing", {"summary": "It is slow"}),
            ("firing", "code", {}),
            ("pending", "chat", {"summary": "It is slow"}),
        )
    ],
    "rules": [
        {
            "alert": "Slow",
            "by": "scenario",
            "expr": "acceptance_rate < 0.6",
            "for_s": 30.0,
            "severity": "critical",
            "has_data": None,
            "firing": 2,
        }
    ],
}


def test_alerts(deps: ApiDeps, tmp_path: Path) -> None:
    assert get(deps, "/api/v1/alerts").json() == {"alerts": [], "rules": [], "history": []}
    writer = Writer(f"sqlite:///{tmp_path}/specwatch.db")
    labels = {"alertname": "Slow", "severity": "critical", "instance": "test"}
    alert = Alert(labels, {"summary": "It is slow"}, Status.FIRING, NOW - 90, value=0.5)
    writer.put_alert(Event(NOW - 60, Happening.FIRING, alert))
    writer.put_alert(Event(NOW - 50, Happening.FAILED, alert, "chat", "no answer", "timeout"))
    writer.start()
    writer.close(10)
    told = replace(deps, alerts=lambda: ALERTS)
    found = models.Alerts.model_validate_json(get(told, "/api/v1/alerts").content)
    assert found.model_dump(exclude={"history"}) == ALERTS
    assert [(row.event, row.receiver, row.detail) for row in found.history] == [
        ("failed", "chat", "timeout: no answer"),
        ("firing", "", ""),
    ]
    short = models.Summary.model_validate_json(get(told, "/api/v1/summary").content).alerts
    assert [(each.labels["scenario"], each.summary) for each in short] == [("billing", "It is slow"), ("code", "")]
    away = replace(told, reader=Reader(f"sqlite:///{tmp_path}/gone/a.db"))
    found = models.Alerts.model_validate_json(get(away, "/api/v1/alerts").content)
    assert (len(found.alerts), len(found.rules), found.history) == (3, 1, [])


def test_drafts(deps: ApiDeps) -> None:
    message = is_error(get(deps, "/api/v1/drafts"), 409, code="no_drafts_kept", param="recent_drafts")
    assert message.startswith("recent_drafts: ")
    asked: list[int] = []
    draft = {
        "request_id": "r",
        "at": datetime.fromtimestamp(NOW, UTC),
        "finish_reason": "stop",
        "prompt_tokens": 5,
        "output_tokens": 2,
        "draft_tokens": 4,
        "accepted_tokens": 1,
        "p": 0.25,
        "draft_text": "a c",
        "final_text": "a b",
        "reason": None,
        "steps": [[{"mark": "rejected", "draft_id": 1, "draft": " c", "target_id": 2, "target": " b"}]],
    }

    def drafts(limit: int) -> list[dict[str, Any]]:
        asked.append(limit)
        return [draft]

    kept = replace(deps, drafts=drafts)
    found = models.Drafts.model_validate_json(get(kept, "/api/v1/drafts?limit=7").content)
    assert [each.model_dump() for each in found.drafts] == [draft]
    get(kept, "/api/v1/drafts")
    assert asked == [7, 20]
    for limit in ("0", "1001", "x"):
        is_error(get(kept, f"/api/v1/drafts?limit={limit}"), 422, code="invalid_parameter", param="limit")


def test_health_and_metrics(deps: ApiDeps) -> None:
    assert get(deps, "/healthz").json() == {"status": "ok"}
    ready = {"status": "ready", "database": "ok", "failed_tasks": []}
    assert get(deps, "/readyz").json() == ready
    answer = get(replace(deps, database_ok=lambda: False, failed_tasks=lambda: ["facts"]), "/readyz")
    assert (answer.status_code, answer.json()) == (
        200,
        {"status": "ready", "database": "unavailable", "failed_tasks": ["facts"]},
    )
    answer = get(replace(deps, relay_alive=lambda: False), "/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, "not_ready")
    answer = get(deps, "/metrics")
    assert (answer.content, answer.headers["content-type"]) == (b"specwatch_x 1\n", TYPE)


def test_without_a_database(deps: ApiDeps, tmp_path: Path) -> None:
    away = replace(deps, reader=Reader(f"sqlite:///{tmp_path}/gone/a.db"), database_ok=lambda: False)

    async def work(http: httpx.AsyncClient) -> None:
        figures_of = ("summary", "acceptance", "truncation", "latency", "latency/distribution", "traffic")
        for path in (*figures_of, "similarity/histogram", "similarity/pairs", "requests", "requests/x"):
            answer = await http.get(f"/api/v1/{path}")
            is_error(answer, 503, code="database_unavailable")
            assert answer.json()["error"]["type"] == "specwatch_database_unavailable"
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await http.get(path)).status_code == 200
        answer = await http.put("/api/v1/fallback", json={"mode": "autoregressive"})
        assert (answer.status_code, answer.json()["state"], answer.json()["history"]) == (200, "autoregressive", [])

    run(away, work)


def test_a_fault_of_our_own(deps: ApiDeps, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> tuple[bytes, str]:
        raise RuntimeError("secret detail")

    with caplog.at_level(logging.CRITICAL):
        answer = get(replace(deps, render_metrics=broken), "/metrics")
    assert "secret detail" not in is_error(answer, 500, code="internal_error")
