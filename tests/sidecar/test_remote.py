"""`specwatch status` as a person reads it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from sidecar.remote import print_status

FIGURES = {"p": None, "requests": 0, "mean_acceptance_length": None}
LATENCY = {"p95_ms": None, "requests": 0}
ANSWER: dict[str, Any] = {
    "fallback": {
        "state": "speculative",
        "mode": "auto",
        "since": datetime(2026, 1, 1, tzinfo=UTC).isoformat(),
        "reason": "started",
    },
    "last_100": FIGURES,
    "acceptance": FIGURES,
    "latency": {"speculative": LATENCY, "autoregressive": LATENCY, "ratio": None, "ratio_reason": "too few"},
    "traffic": {"requests": 0, "outcomes": {}},
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
