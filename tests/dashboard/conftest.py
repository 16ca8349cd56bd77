"""Sample payloads of the API, a real HTTP server that serves them, and a dashboard and a browser of its own."""

import json
import math
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from support import board, lab_runs
from support.board import ANSWERED, NOW, Payload
from support.dashboard import browser, opened
from support.tokenizer_report import MOVED, report

from dashboard import client
from sidecar.api import models, params
from sidecar.api.lab import LabPage, LabParams, LabRun
from sidecar.api.texts import StoredTexts

SCENARIOS = {"chat": 0.78, "code": 0.86, "summarise": 0.71, "translate": 0.55}
MODELS = {
    "summary": models.Summary,
    "acceptance": models.AcceptanceSeries,
    "truncation": models.TruncationSeries,
    "latency": models.LatencySeries,
    "fallback": models.Fallback,
    "drafts": models.Drafts,
    "latency/distribution": models.LatencyDistribution,
    "traffic": models.TrafficSeries,
    "similarity": models.SimilaritySeries,
    "similarity/histogram": models.SimilarityHistogram,
    "similarity/pairs": models.SimilarityPairs,
    "quality": models.Quality,
    "alignment": models.Alignment,
    "alerts": models.Alerts,
    "runbook": models.Runbook,
    "events": models.EventPage,
    "requests": models.RequestPage,
    "request": models.RequestRow,
    "texts": StoredTexts,
    "lab/runs": LabPage,
    "lab/run": LabRun,
}
QUERIES = {
    "summary": params.WindowParams,
    "acceptance": params.SeriesParams,
    "truncation": params.SeriesParams,
    "latency": params.SeriesParams,
    "traffic": params.SeriesParams,
    "requests": params.PageParams,
    "drafts": params.DraftsParams,
    "lab/runs": LabParams,
}


def figures(requests: int, p: float | None, k: int = 4) -> Payload:
    more = dict.fromkeys(("p_low", "p_high", "p_per_token", "num_speculative_tokens"))
    if p is None:
        return dict.fromkeys(("requests", "verify_steps", "draft_tokens", "accepted_tokens"), 0) | {
            "p": None,
            "mean_acceptance_length": None,
            **more,
        }
    steps = requests * 20
    accepted = round(steps * k * p)
    return {
        "requests": requests,
        "verify_steps": steps,
        "draft_tokens": steps * k,
        "accepted_tokens": accepted,
        "p": accepted / (steps * k),
        "mean_acceptance_length": 1 + accepted / steps,
        **more,
    }


def latencies(requests: int, p95: float | None) -> Payload:
    names = (
        *("p50_ms", "p95_ms", "p99_ms"),
        *("ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms"),
        *("tpot_p50_ms", "tpot_p95_ms", "tpot_p99_ms"),
    )
    shares = (0.55, 1.0, 1.3, 0.07, 0.16, 0.2, 0.009, 0.012, 0.014)
    return {"requests": requests, "under_800ms_ratio": None if p95 is None else 0.97} | {
        name: None if p95 is None else p95 * share for name, share in zip(names, shares, strict=True)
    }


def fallback(**changes: Any) -> Payload:
    return {
        "mode": "auto",
        "state": "speculative",
        "since": (NOW - timedelta(minutes=92)).isoformat(),
        "reason": "p over the last 100 requests is back above 0.70",
        "can_fall_back": True,
        "trigger": "probes",
        "evidence": {"p": 0.72},
        "effective": True,
        "dry_run": False,
        "until": None,
        "slices": [],
        "fleet": None,
        "shared": None,
        "decided_by": "sidecar-1",
        "history": [
            {
                "at": (NOW - timedelta(minutes=92)).isoformat(),
                "instance": "sidecar-1",
                "mode": "auto",
                "from_state": "autoregressive",
                "to_state": "speculative",
                "reason": "p over the last 100 requests is back above 0.70",
                "slice": "",
                "trigger": "probes",
                "evidence": {"p": 0.72},
            }
        ],
    } | changes


def summary(**changes: Any) -> Payload:
    state = fallback()
    del state["history"]
    return {
        "generated_at": NOW.isoformat(),
        "window_s": 3600,
        **ANSWERED,
        "instance": "sidecar-1",
        "fallback": state,
        "last_100": figures(100, 0.7225),
        "acceptance": figures(412, 0.715),
        "truncation": {"truncation_rate": 0.412, "first_position_share": 0.137},
        "latency": {
            "speculative": latencies(398, 612.0),
            "autoregressive": latencies(57, 948.0),
            "baseline": "true_ar",
            "ratio": 612.0 / 948.0,
            "ratio_concurrency": "2-4",
            "ratio_reason": None,
            "by_concurrency": [],
            "baseline_share": 0.02,
        },
        "slo": {"latency_under_800ms_ratio": 0.981, "p95_latency_under_800ms_ratio": 0.9333},
        "traffic": {
            "requests": 473,
            "ok": 455,
            "outcomes": {"ok": 455, "client_abort": 11, "upstream_error": 4, "timeout": 3},
            "requests_per_s": 0.1314,
            "completion_tokens_per_s": 21.7,
            "streaming": 390,
        },
        "coverage": {
            "requests": 0.957,
            "missing": {"no acceptance block in the reply": 14, "acceptance block of unknown shape": 4},
            "engines": [],
        },
        "alignment": alignment(),
        "alerts": [],
        "similarity": {
            "model": "all-MiniLM-L6-v2",
            "reason": None,
            "draft": {"pairs": 100, "mean": 0.95, "p10": 0.81, "warning": 9, "critical": 2},
            "replay": {"pairs": 0, "mean": None, "p10": None, "warning": 0, "critical": 0},
            "replay_equal": None,
            "dropped": 0,
        },
        "quality": {"requests": 473, "flags": [{"flag": "repetition", "total": 1, "share": 0.01}]},
        "versions": {
            "specwatch": "0.1.0",
            "fingerprint": "vllm-0.32.0-ab12",
            "model": "demo-target",
            "draft_model": "demo-draft",
            "num_speculative_tokens": 4,
        },
        "database": "ok",
        "records_dropped": 0,
    } | changes


def alignment(*moved: tuple[str | None, int, int, int], more: int = 0) -> Payload:
    """Moved tokens: text, id in the target, id in the draft, times seen."""
    seen = {"first_seen": NOW.isoformat(), "last_seen": NOW.isoformat(), "share": 0.9, "kind": "same_text"}
    tokens = [
        {"target_text": text, "draft_text": text, "target_id": target, "draft_id": draft, "count": times} | seen
        for text, target, draft, times in moved
    ]
    return {
        "state": "misaligned" if moved else "aligned",
        "reason": "told by the engine's events",
        "same_text_other_id": sum(times for *_, times in moved),
        "moved_tokens": len(moved) + more,
        "moved": tokens,
        "static": {
            "verdict": "aligned",
            "severity": "none",
            "sentences": [],
            "share_at_moved": 0.0,
            "unknown_ids": 0,
        },
    }


def whole_alignment(*moved: tuple[str | None, int, int, int]) -> Payload:
    """The same with all that is known."""
    short = alignment(*moved)
    return short | {
        "since": (NOW - timedelta(hours=5)).isoformat(),
        "target_model": "demo-target",
        "draft_model": "demo-draft",
        "requests": 473,
        "positions": 30_000,
        "rejections": 6_000,
        "static": short["static"] | {"report": None},
    }


def misaligned() -> Payload:
    """By traffic and by files."""
    found = whole_alignment(("<|eot|>", 4, 5, 100), ("\n", 7, 8, 12))
    static = {"verdict": "misaligned", "severity": "high", "report": report(), "share_at_moved": 0.0123}
    found["static"] |= static | {"sentences": [MOVED.sentence]}
    return found


def position(mark: str, draft: str | None, target: str | None) -> Payload:
    ids = [None if text is None else 1000 + sum(map(ord, text)) for text in (draft, target)]
    return {"mark": mark, "draft_id": ids[0], "draft": draft, "target_id": ids[1], "target": target}


def draft(*steps: list[Payload], **changes: Any) -> Payload:
    """What was proposed for one request."""
    positions = [each for step in steps for each in step]
    drafted = sum(each["draft"] is not None for each in positions)
    accepted = sum(each["mark"] == "accepted" for each in positions)
    final = [each["target"] for each in positions if each["target"] is not None]
    chosen = [each["draft"] or each["target"] for each in positions if each["target"] is not None]
    return {
        "request_id": "chatcmpl-8f2a61d09b3c4f7a",
        "at": (NOW - timedelta(seconds=4)).isoformat(),
        "finish_reason": "stop",
        "prompt_tokens": 61,
        "output_tokens": len(final),
        "draft_tokens": drafted,
        "accepted_tokens": accepted,
        "p": accepted / drafted if drafted else None,
        "draft_text": "".join(chosen),
        "final_text": "".join(final),
        "reason": None,
        "steps": list(steps),
    } | changes


def drafts() -> Payload:
    def accepted(*texts: str) -> list[Payload]:
        return [position("accepted", text, text) for text in texts]

    english = draft(
        [position("not_drafted", None, "Your")],
        [*accepted(" May", " bill", " is"), position("rejected", " higher", " 43"), position("discarded", " by", None)],
        [*accepted(".", "5", "0", " euros"), position("bonus", None, ",")],
        [
            *accepted(" which"),
            position("rejected", "\n", " is"),
            *(position("discarded", x, None) for x in (" a", " <b")),
        ],
        [*accepted(" 5", " more", "."), position("rejected", "<|eot|>", "<|eot|>")],
    )
    chinese = draft(
        [position("not_drafted", None, "好的")],
        [*accepted("，", "您的", "地址", "是"), position("bonus", None, "北京市")],
        [*accepted("人民路"), position("rejected", "8", "1"), *(position("discarded", x, None) for x in "8号")],
        [*accepted("2", "号", "。"), position("rejected", "\n", "<|eot|>")],
    )
    plain = draft(
        *([position("not_drafted", None, text)] for text in ("def", " total", "(", "orders", "):")),
        draft_text=None,
        reason="the engine could not see the draft ids",
        finish_reason="length",
    )
    return {"drafts": [english, chinese, plain]}


def acceptance(by: str | None = None, *, steps: bool = False) -> Payload:
    """An hour of p with a drop in its middle and four silent minutes, or one point per scenario, or both at once."""
    points = [
        figures(7, 0.74 + 0.04 * math.sin(i) - 0.33 * math.exp(-(((i - 32) / 6) ** 2)))
        | {"at": (NOW - timedelta(minutes=60 - i)).isoformat(), "group": None}
        for i in range(60)
        if not 17 <= i < 21
    ]
    if by is not None and steps:
        ends = dict(zip(SCENARIOS, (0, 0, 30, 45), strict=True))
        points = [
            figures(1 + i % 3, max(0.0, point["p"] + p - 0.74)) | {"at": point["at"], "group": name}
            for name, p in SCENARIOS.items()
            for i, point in enumerate(points)
            if i >= ends[name]
        ]
    elif by is not None:
        points = [figures(100, p) | {"at": None, "group": name} for name, p in SCENARIOS.items()]
        points.append(figures(0, None) | {"at": None, "group": "untested"})
    return {"window_s": 3600, **ANSWERED, "step_s": 60 if steps or not by else None, "by": by, "points": points}


def latency(by: str | None = None) -> Payload:
    """An hour by minutes with four silent ones, or one point per group."""
    points: list[Payload] = [
        {
            "at": (NOW - timedelta(minutes=60 - i)).isoformat(),
            "group": None,
            "speculative": latencies(6, 600 + 40 * math.sin(i / 2) + 380 * math.exp(-(((i - 32) / 6) ** 2))),
            "autoregressive": latencies(1, 930 + 30 * math.cos(i)) if i % 3 == 0 else latencies(0, None),
            "ratio": None,
        }
        for i in range(60)
        if not 17 <= i < 21
    ]
    if by is not None:
        names = {"1": 0.9, "2-4": 1.0, "5-8": 1.4} if by == "concurrency" else dict.fromkeys(SCENARIOS, 1.0)
        points = [
            {
                "at": None,
                "group": name,
                "speculative": latencies(100, 600 * scale),
                "autoregressive": latencies(57, 930.0) if name != "5-8" else latencies(12, 800.0),
                "ratio": 600 * scale / 930 if name != "5-8" else None,
            }
            for name, scale in names.items()
        ]
    step = None if by else 60
    return {"window_s": 3600, **ANSWERED, "step_s": step, "by": by, "baseline": "true_ar", "points": points}


def truncation_point(steps: int, p: float, *, drafted: int = 4, positions: int = 5) -> Payload:
    """`drafted` positions drafted, of `positions` that other points know."""
    reached: list[int | None] = [None] * positions
    rejected: list[int | None] = [None] * positions
    left = steps
    for i in range(drafted):
        reached[i], rejected[i] = left, round(left * (1 - p))
        left -= round(left * (1 - p))
    pairs = zip(rejected, reached, strict=True)
    return {
        "at": None,
        "group": None,
        "verify_steps": steps,
        "truncated_steps": steps - left,
        "rejected_at": rejected,
        "reached": reached,
        "hazard": [None if not r or n is None else n / r for n, r in pairs],
        "shape": "decay",
        "cliff_at": None,
    }


def truncation(by: str | None = None) -> Payload:
    points = [
        truncation_point(140, min(0.97, point["p"] + 0.16), drafted=5 if i > 40 else 4)
        | {"at": point["at"], "group": point["group"]}
        for i, point in enumerate(acceptance()["points"])
    ]
    if by is not None:
        points = [truncation_point(2000, p + 0.1) | {"group": name} for name, p in SCENARIOS.items()]
    total = truncation_point(8240, 0.87)
    share = total["rejected_at"][0] / total["truncated_steps"]
    return {
        "window_s": 3600,
        **ANSWERED,
        "step_s": None if by else 60,
        "by": by,
        "positions": 5,
        "total": total,
        "first_position_share": share,
        "points": points,
    }


Answer = tuple[int, Payload | bytes]


def kind_of(path: str) -> str:
    """The name of an answer: paths of single requests, and of runs, are all alike."""
    if path.startswith("lab/runs/"):
        return "lab/run"
    if not path.startswith("requests/"):
        return path
    return "texts" if path.endswith("/texts") else "request"


class Api:
    """A scripted sidecar. `answers[name]` is a payload, an answer, or a function of the query."""

    def __init__(self) -> None:
        self.begin()
        script = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(script.get)

            def do_PUT(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                models.FallbackChange.model_validate(body)
                script.put_bodies.append(body)
                self.answer(lambda *_: script.put(body))

            def answer(self, give: Callable[[str, dict[str, str]], Answer]) -> None:
                split = urlsplit(self.path)
                name = kind_of(split.path.removeprefix("/api/v1/"))
                query = {key: values[0] for key, values in parse_qs(split.query).items()}
                script.paths.append(split.path)
                script.seen.append((self.command, name, query, self.headers["authorization"]))
                # The real API takes no parameter that it does not know.
                if name in QUERIES:
                    QUERIES[name].model_validate(query)
                status, body = give(name, query)
                if isinstance(body, dict):
                    if status == 200:
                        MODELS[name].model_validate_json(json.dumps(body))
                    body = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="api")
        self._thread.start()

    def begin(self) -> None:
        """As if nothing had been asked or changed."""
        self.answers: dict[str, Any] = {
            "summary": summary(),
            "acceptance": lambda query: (200, acceptance(query.get("by"), steps="step" in query)),
            "truncation": lambda query: (200, truncation(query.get("by"))),
            "latency": lambda query: (200, latency(query.get("by"))),
            "fallback": fallback(),
            "drafts": drafts(),
            "latency/distribution": board.distribution(),
            "traffic": lambda query: (200, board.traffic(query.get("by"))),
            "similarity": lambda query: (200, board.similarity(query)),
            "similarity/histogram": board.histogram(),
            "similarity/pairs": board.pairs(),
            "quality": board.quality(),
            "alignment": whole_alignment(),
            "alerts": board.alerts(),
            "runbook": board.runbook(),
            "events": board.events(),
            "requests": lambda query: (200, board.requests(query)),
            "request": board.row(),
            "texts": {"texts": []},
            "lab/runs": lambda query: (200, lab_runs.runs(query)),
            "lab/run": lambda _: lab_runs.run(self.paths[-1]),
        }
        self.paths: list[str] = []
        self.seen: list[tuple[str, str, dict[str, str], str | None]] = []
        self.put: Callable[[Payload], Answer] = self._put
        self.put_bodies: list[Payload] = []

    def get(self, name: str, query: dict[str, str]) -> Answer:
        answer = self.answers[name]
        if callable(answer):
            return answer(query)  # type: ignore[no-any-return]
        return answer if isinstance(answer, tuple) else (200, answer)

    def _put(self, body: Payload) -> Answer:
        mode = body["mode"]
        state = "autoregressive" if mode == "autoregressive" else "speculative"
        self.answers["fallback"] = fallback(mode=mode, state=state, reason=body["reason"])
        return 200, self.answers["fallback"]

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(scope="module")
def board_in_browser() -> Iterator[tuple[Api, str]]:
    """A scripted sidecar, and the address of `python -m dashboard` before it."""
    script = Api()
    with opened(script.url, "secret") as address:
        yield script, address
    script.close()


@pytest.fixture(scope="module")
def browser_of_module() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture
def api(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """The scripted sidecar that pages in this process ask, or with `url` those of the process that a module has."""
    shared = "url" in request.fixturenames
    script = request.getfixturevalue("board_in_browser")[0] if shared else Api()
    script.begin()
    monkeypatch.setenv("SPECWATCH_API", script.url)
    # What a test changes shows at once.
    monkeypatch.setattr(client, "SHARED_SECONDS", 0.0)
    for name in ("TOKEN", "READ_TOKEN"):
        monkeypatch.delenv(f"SPECWATCH_ADMIN_{name}", raising=False)
    yield script
    if not shared:
        script.close()


@pytest.fixture
def sample() -> Any:
    """The builders of this file, for tests that change a payload."""
    return SimpleNamespace(
        figures=figures,
        fallback=fallback,
        summary=summary,
        alignment=alignment,
        acceptance=acceptance,
        draft=draft,
        position=position,
        truncation=truncation,
        truncation_point=truncation_point,
        latency=latency,
        latencies=latencies,
        whole_alignment=whole_alignment,
        misaligned=misaligned,
        board=board,
    )


@pytest.fixture
def url(api: Api, board_in_browser: tuple[Api, str]) -> str:
    """`python -m dashboard` before the scripted sidecar.

    A module has one. For some seconds it gives answers again, also those of the test before.
    """
    return board_in_browser[1]


@pytest.fixture
def chromium(browser_of_module: Any) -> Iterator[Any]:
    """A browser, one a module; `new_page()` opens a page, which is closed after the test."""
    yield browser_of_module
    for context in browser_of_module.contexts:
        context.close()
