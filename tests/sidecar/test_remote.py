"""`specwatch status` as a person reads it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from sidecar.remote import print_status

FIGURES = {"p": None, "p_low": None, "p_high": None, "requests": 0, "mean_acceptance_length": None}
LATENCY = {"p95_ms": None, "requests": 0}
ANSWER: dict[str, Any] = {
    "fallback": {
        "state": "speculative",
        "mode": "auto",
        "since": datetime(2026, 1, 1, tzinfo=UTC).isoformat(),
        "reason": "started",
        "slices": [{"slice": "scenario=[x]", "state": "autoregressive", "reason": "p 0.4 is low"}],
    },
    "last_100": FIGURES,
    "acceptance": FIGURES,
    "latency": {"speculative": LATENCY, "autoregressive": LATENCY, "ratio": None, "ratio_reason": "too few"},
    "traffic": {"requests": 0, "outcomes": {}},
    "similarity": {"reason": "engine_events is not set", "draft": {"mean": None}},
    "quality": {"requests": 0, "flags": []},
    "alerts": [],
    "coverage": {"engines": []},
    "database": "ok",
}


@pytest.mark.parametrize(
    ("state", "reason", "moved", "row"),
    [
        ("aligned", "none of 9", [], "aligned: none of 9"),
        ("unknown", "a [/folder] is missing", [], "unknown: a [/folder] is missing"),
        (
            "misaligned",
            "2 tokens",
            [("<|eot|>", 4, 5), (None, 6, 7)],
            "misaligned: 2 tokens: <|eot|> (4, draft 5), ? (6",
        ),
        ("misaligned", "1 token", [("[/x]", 4, 5)], "misaligned: 1 token: [/x] (4, draft 5)"),
    ],
)
def test_the_row_of_the_tokenizers(
    state: str,
    reason: str,
    moved: list[tuple[str | None, int, int]],
    row: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    tokens = [{"target_text": text, "target_id": target, "draft_id": draft} for text, target, draft in moved]
    static = {"verdict": "aligned", "sentences": ["[/y]: one", "two"]}
    print_status(ANSWER | {"alignment": {"state": state, "reason": reason, "moved": tokens, "static": static}}, [])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    (told,) = [line for line in lines if line.startswith("tokenizers ")]
    assert told.startswith(f"tokenizers {row}")
    assert "tokenizers, by files aligned: [/y]: one" in lines


def test_rows_of_slices_and_quality(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    static = {"verdict": "unknown", "sentences": []}
    alignment = {"state": "unknown", "reason": "nothing", "moved": [], "static": static}
    print_status(ANSWER | {"alignment": alignment}, [])
    said = capsys.readouterr().out
    assert "scenario=[x]" in said
    assert "autoregressive: p 0.4 is low" in said
    assert "engine_events is not set" in said
    figures = FIGURES | {"p": 0.8, "p_low": 0.75, "p_high": 0.85, "requests": 100}
    flags = [{"flag": "repetition", "total": 2, "share": 0.02}, {"flag": "garble", "total": 0, "share": 0.0}]
    seen = {
        "alignment": alignment,
        "last_100": figures,
        "similarity": {"reason": None, "draft": {"mean": 0.912, "pairs": 40, "warning": 3, "critical": 1}},
        "quality": {"requests": 90, "flags": flags},
        "coverage": {"engines": [{"upstream": "speculative", "coverage": 0.98}]},
    }
    print_status(ANSWER | seen, [])
    said = capsys.readouterr().out
    for words in (
        "0.800 (0.750 to 0.850) over the last 100 speculating requests",
        "0.912 mean of the last 40 drafts with their replies (3 warnings, 1 critical)",
        "2 repetition of 90 replies",
        "rows tell of 98.0% of its draft tokens",
    ):
        assert words in said


def test_alerts_that_fire_are_told_as_they_come(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    alignment = {"state": "unknown", "reason": "", "moved": [], "static": {"verdict": "unknown", "sentences": []}}
    own = {"alertname": "x", "severity": "critical", "instance": "here"}
    since = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).isoformat()
    alerts = [
        {"name": "Errors", "severity": "critical", "labels": own, "summary": "Replies fail", "since": since},
        {
            "name": "Slow",
            "severity": "info",
            "labels": own | {"scenario": "[/x]\x1b[2J\r"},
            "summary": "",
            "since": since,
        },
    ]
    print_status(ANSWER | {"alignment": alignment, "alerts": alerts}, [])
    told = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.startswith("alert")]
    assert told == [
        "alert, critical Errors: Replies fail, since 2026-01-02 03:04:05 UTC",
        "alert, info Slow (scenario=[/x] [2J ), since 2026-01-02 03:04:05 UTC",
    ]
