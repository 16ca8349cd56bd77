"""A scripted hour: what the board shows is what SQL says of the same rows, and what the API answers.

The SQL here is plain and of its own: sums and sorted lists over the rows, in sqlite3.
"""

import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest
from support import hour
from support.dashboard import browser, opened
from support.hour import Hour
from support.sidecar import Sidecar


class Board:
    """The dashboard over the hour, and the rows that it speaks of."""

    def __init__(self, sidecar: Sidecar, url: str, page: Any, of: Hour) -> None:
        self.sidecar, self.url, self.page, self.hour = sidecar, url, page, of

    def open(self, path: str, waits_for: str, **query: str) -> None:
        given = "&".join(f"{name}={value}" for name, value in (self.hour.held | query).items())
        self.page.goto(f"{self.url}/{path}?{given}")
        self.page.get_by_text(waits_for).first.wait_for()

    def metric(self, label: str) -> str:
        named = self.page.get_by_test_id("stMetricLabel").get_by_text(label, exact=True)
        found = self.page.get_by_test_id("stMetric").filter(has=named)
        return str(found.get_by_test_id("stMetricValue").inner_text()).strip()

    def api(self, path: str, **query: str) -> Any:
        return self.sidecar.api(path, **self.hour.query, **query)

    def sql(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.sidecar.folder / "specwatch.db")) as file:
            return file.execute(query, values).fetchall()

    def one(self, query: str, *values: object) -> Any:
        return self.sql(query, *values)[0][0]


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    of = hour.scripted(hour.last_minute() - 120)
    folder = tmp_path_factory.mktemp("hour")
    with hour.served(folder, of) as sidecar, opened(sidecar.admin) as url, browser() as chromium:
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(60_000)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        yield Board(sidecar, url, page, of)
        assert problems == []


#: Rows that count in p.
COUNTED = (
    "acceptance_quality = 'ok' AND draft_tokens > 0 AND outcome IN ('ok', 'truncated') "
    "AND arm IN ('speculative', 'probe')"
)
OK = "outcome = 'ok' AND latency_ms IS NOT NULL"

#: The heat map of the page, undefined until it is drawn.
HEAT = "document.querySelector('.js-plotly-plot')?.data?.find(each => each.type === 'heatmap')"


def nearest_rank(values: list[float], q: float) -> float:
    return sorted(values)[math.ceil(q * len(values)) - 1]


def trailing_minutes(rows: list[tuple[int, float]]) -> float:
    """Share of the minutes with traffic whose p95, with the four minutes before, is at most 800 ms."""
    minutes = sorted({minute for minute, _ in rows})
    within = [nearest_rank([ms for at, ms in rows if minute - 4 <= at <= minute], 0.95) <= 800 for minute in minutes]
    return sum(within) / len(within)


def test_now(board):
    board.open("", "Requests by outcome")
    (accepted, drafted, steps) = board.sql(
        f"SELECT sum(accepted_tokens), sum(draft_tokens), sum(verify_steps) FROM requests WHERE {COUNTED}"
    )[0]
    last = board.sql(
        "SELECT sum(accepted_tokens), sum(draft_tokens) FROM (SELECT * FROM requests "
        f"WHERE {COUNTED} ORDER BY started_at DESC LIMIT 100)"
    )[0]
    ours, theirs = (
        [ms for (ms,) in board.sql(f"SELECT latency_ms FROM requests WHERE {OK} AND arm = ?", arm)]
        for arm in ("speculative", "baseline")
    )
    alone = [
        ms
        for (ms,) in board.sql(
            f"SELECT latency_ms FROM requests WHERE {OK} AND arm = 'speculative' AND concurrency = 1"
        )
    ]
    minutes = board.sql(
        f"SELECT CAST(strftime('%s', substr(started_at, 1, 19)) AS INT) / 60, latency_ms FROM requests WHERE {OK}"
    )
    served, told = board.sql(
        "SELECT count(*), sum(acceptance_quality = 'ok') FROM requests WHERE outcome = 'ok' AND arm = 'speculative'"
    )[0]
    assert board.metric("Acceptance rate p, last 100 requests") == f"{last[0] / last[1]:.3f}"
    assert board.metric("Mean acceptance length") == f"{1 + accepted / steps:.2f}"
    assert board.metric("p95_latency_under_800ms_ratio") == f"{100 * trailing_minutes(minutes):.1f} %"
    assert board.metric("Latency p95, speculative") == f"{nearest_rank(ours, 0.95):.0f} ms"
    assert board.metric("Latency p95, autoregressive") == f"{nearest_rank(theirs, 0.95):.0f} ms"
    ratio = nearest_rank(alone, 0.95) / nearest_rank(theirs, 0.95)
    assert board.metric("Latency ratio p95") == f"{ratio:.3f}", "at a concurrency of 1, where the baseline is"
    assert board.metric("Coverage") == f"{100 * told / served:.1f} %"
    assert board.metric("Requests") == f"{len(board.hour.records) / 3600:.2f} /s"
    assert board.metric("Similarity, last 100 pairs") == "no data", "nothing compares here"
    assert board.metric("Tokenizer alignment") == "no data"
    summary = board.api("summary")
    assert summary["acceptance"]["accepted_tokens"] == accepted
    assert summary["acceptance"]["draft_tokens"] == drafted
    assert summary["slo"]["p95_latency_under_800ms_ratio"] == pytest.approx(trailing_minutes(minutes))
    page_says = board.page.locator(".sw-health").inner_text()
    worst = board.sql(
        f"SELECT scenario, 1.0 * sum(accepted_tokens) / sum(draft_tokens) AS p, count(*) FROM requests "
        f"WHERE {COUNTED} GROUP BY scenario ORDER BY p LIMIT 1"
    )[0]
    assert f"Scenario {worst[0]} guesses worst: p is {worst[1]:.3f} over {worst[2]} requests" in page_says


def test_now_of_one_scenario_without_a_baseline(board):
    board.open("", "Requests by outcome", scenario="billing")
    accepted, drafted, requests = board.sql(
        f"SELECT sum(accepted_tokens), sum(draft_tokens), count(*) FROM requests WHERE {COUNTED} AND scenario = ?",
        "billing",
    )[0]
    assert requests < 100
    assert board.metric("Acceptance rate p, last 100 requests of these") == f"{accepted / drafted:.3f}"
    assert board.metric("Latency ratio p95") == "no data"
    assert board.metric("Latency p95, autoregressive") == "no data"
    ok, all_ = board.sql("SELECT sum(outcome = 'ok'), count(*) FROM requests WHERE scenario = 'billing'")[0]
    assert f"{all_} requests: {ok} ok" in board.page.get_by_test_id("stMain").inner_text()


def table(board: Board, label: str) -> dict[str, list[str]]:
    """Rows of a table by their first cell."""
    found = board.page.locator(f'[aria-label^="{label}"]')
    found.wait_for()
    rows = found.locator("tr").evaluate_all("rows => rows.map(row => [...row.children].map(cell => cell.innerText))")
    return {row[0].strip(): [" ".join(cell.split()) for cell in row[1:]] for row in rows}


def test_scenarios(board):
    board.open("scenarios", "Figures by scenario")
    rows = table(board, "Figures by scenario")
    worst, *others = (name for name in rows if name != "scenario")
    assert worst.endswith("billing")
    assert others == ["chat", "code", "untested"], "worst first, unknown last"
    for name, cells in rows.items():
        scenario = name.split()[-1]
        if scenario == "scenario":
            continue
        requests, within = board.sql(
            f"SELECT count(*), 1.0 * sum({OK} AND latency_ms <= 800) / sum({OK}) FROM requests WHERE scenario = ?",
            scenario,
        )[0]
        accepted, drafted, steps = board.sql(
            f"SELECT sum(accepted_tokens), sum(draft_tokens), sum(verify_steps) FROM requests "
            f"WHERE {COUNTED} AND scenario = ?",
            scenario,
        )[0]
        sides = [
            [
                ms
                for (ms,) in board.sql(
                    f"SELECT latency_ms FROM requests WHERE {OK} AND arm = ? AND scenario = ?", *each
                )
            ]
            for each in (("speculative", scenario), ("baseline", scenario))
        ]
        shown = dict(zip((" ".join(head.split()) for head in rows["scenario"]), cells, strict=True))
        assert shown["requests"] == str(requests)
        assert shown["within 800 ms"] == f"{100 * within:.1f} %"
        if drafted is None:
            assert shown["mean acceptance length"] == "no data"
        else:
            assert f"{accepted / drafted:.3f}" in shown["p (≥ 0.65)"]
            assert shown["mean acceptance length"] == f"{1 + accepted / steps:.2f}"
        for head, side in zip(("p95 speculative", "p95 baseline"), sides, strict=True):
            assert shown[head] == (f"{nearest_rank(side, 0.95):.0f} ms" if side else "no data")


def test_latency(board):
    board.open("latency", "Quantiles of ok requests")
    rows = table(board, "Quantiles")
    for number, arm in enumerate(("speculative", "baseline")):
        for name, column in (("Latency", "latency_ms"), ("TTFT", "ttft_ms"), ("TPOT", "tpot_ms")):
            values = [
                value
                for (value,) in board.sql(
                    f"SELECT {column} FROM requests WHERE outcome = 'ok' AND arm = ? AND {column} IS NOT NULL", arm
                )
            ]
            for q in (50, 95, 99):
                value = nearest_rank(values, q / 100)
                told = f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"
                assert rows[f"{name} p{q}"][number] == told, (arm, name, q)
    assert board.metric("p95_latency_under_800ms_ratio") == (
        f"{100 * board.api('summary')['slo']['p95_latency_under_800ms_ratio']:.1f} %"
    )


def test_events_and_requests(board):
    board.open("events", "Fell back to autoregressive")
    said = board.page.get_by_test_id("stMain").inner_text()
    assert "Fell back to autoregressive (scenario=billing): p 0.361 over 13 requests is below 0.65" in said
    assert "SpecwatchAcceptanceLowInScenario fires" in said
    board.open("requests", "requests, newest first", truncated_at="4", scenario="billing")
    behind = board.sql(
        "SELECT count(*) FROM requests WHERE scenario = 'billing' AND acceptance_quality = 'ok' "
        "AND json_extract(rejected_at, '$[3]') > 0"
    )[0][0]
    assert f"{behind} requests, newest first" in board.page.get_by_test_id("stMain").inner_text()


def test_truncation(board):
    board.open("truncation", "Truncation rate")
    lists = [
        (json.loads(rejected), json.loads(reached))
        for rejected, reached in board.sql(f"SELECT rejected_at, reached FROM requests WHERE {COUNTED}")
    ]
    steps = board.one(f"SELECT sum(verify_steps) FROM requests WHERE {COUNTED}")
    cut = sum(sum(rejected) for rejected, _ in lists)
    first = sum(rejected[0] for rejected, _ in lists)
    assert board.metric("Truncation rate") == f"{100 * cut / steps:.1f} %"
    assert board.metric("First-position share") == f"{100 * first / cut:.1f} %"
    assert board.metric("Fully accepted steps") == f"{100 * (steps - cut) / steps:.1f} %"
    # Tiles come before the charts, which are drawn in their own time.
    board.page.wait_for_function(f"() => ({HEAT}) !== undefined")
    heat = board.page.evaluate(
        f"() => {{ const {{z, x}} = {HEAT}; return {{z: z.map(row => Array.from(row)), x: Array.from(x)}}; }}"
    )
    minutes = [round((at - board.hour.since) / 60) for at in map(_seconds, heat["x"])]
    for position, row in enumerate(heat["z"]):
        for minute, value in zip(minutes, row, strict=False):
            told = [
                (json.loads(rejected), json.loads(reached))
                for rejected, reached in board.sql(
                    f"SELECT rejected_at, reached FROM requests WHERE {COUNTED} AND started_at >= ? AND started_at < ?",
                    _text(board.hour.since + 60 * minute),
                    _text(board.hour.since + 60 * minute + 60),
                )
            ]
            drafted = [pair for pair in told if len(pair[1]) > position]
            if not drafted:
                assert value is None, f"minute {minute}, position {position + 1} was never drafted"
                continue
            there = sum(rejected[position] for rejected, _ in drafted)
            assert value == pytest.approx(there / sum(reached[position] for _, reached in drafted))
    assert any(value is None for value in heat["z"][3]), "position 4 of the first half"


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at.replace("Z", "")).replace(tzinfo=UTC).timestamp()


def _text(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S.%f}"
