"""What SQL answers of compared texts equals a plain computation over the rows, on both databases."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from support.records import NOW

from sidecar.api.models import SimilaritySeries
from sidecar.store import queries
from sidecar.store.engine import writing_engine
from sidecar.store.queries import Reader
from sidecar.store.refresh import refresh_all
from sidecar.store.rows import SimilarityRow
from sidecar.store.writer import Writer

NONE: dict[str, Any] = {"pairs": 0, "mean": None, "p10": None, "warning": 0, "critical": 0}
STATE = {"model": "m", "reason": None, "draft": NONE, "replay": NONE, "replay_equal": None, "dropped": 0}


def row(number: int, score: float | None, kind: str = "draft") -> SimilarityRow:
    level = "unknown" if score is None else "critical" if score < 0.75 else "warning" if score < 0.82 else "ok"
    return SimilarityRow(NOW - 1 - 60 * number, "test", f"r{number}", kind, score, level, None, "m", chunked=False)


def test_points_by_kind_and_step(database_url: str) -> None:
    scores = [0.5 + (37 * n % 51) / 102 if n % 5 else None for n in range(45)]
    rows = [row(n, score) for n, score in enumerate(scores)] + [row(0, 0.7, "replay"), row(100, 0.1)]
    writer = Writer(database_url)
    for each in rows:
        writer.put_similarity(each)
    writer.start()
    writer.close(10)
    reader = Reader(database_url)
    found = reader.similarity(3600, None, NOW)
    known = sorted(score for score in scores if score is not None)
    draft, replay = found["points"]
    assert draft == {
        "at": None,
        "group": None,
        "kind": "draft",
        "pairs": 36,
        "mean": pytest.approx(sum(known) / 36),
        "p10": known[math.ceil(3.6) - 1],
        "warning": sum(0.75 <= score < 0.82 for score in known),
        "critical": sum(score < 0.75 for score in known),
        "unknown": 9,
    }
    assert (replay["kind"], replay["pairs"], replay["mean"], replay["p10"], replay["critical"]) == (
        "replay",
        1,
        0.7,
        0.7,
        1,
    )
    by_step = SimilaritySeries(**reader.similarity(3600, 600, NOW), last_100=STATE)
    assert sum(point.pairs for point in by_step.points) == 37
    start = datetime.fromtimestamp(NOW - NOW % 600, UTC)
    newest = by_step.points[-2]
    assert (newest.at, newest.kind, newest.pairs + newest.unknown) == (
        start,
        "draft",
        sum((NOW - 1 - 60 * n) // 600 == NOW // 600 for n in range(45)),
    ) or (NOW - 1) // 600 != NOW // 600
    assert reader.similarity(1, None, NOW - 500_000)["points"] == []
    with pytest.raises(ValueError, match="more than 1500 points"):
        reader.similarity(86_400, 1, NOW)
    reader.close()


def test_rollups_tell_the_same(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Few enough a point for a sketch to have them all; 0.25 and the like are the same in single precision.
    rows = [row(n, (n % 33 - 8) / 32 if n % 7 else None, "replay" if n % 3 else "draft") for n in range(180)]
    writer = Writer(database_url)
    for each in rows:
        writer.put_similarity(each)
    writer.start()
    writer.close(10)
    engine = writing_engine(database_url)
    assert refresh_all(engine, NOW) >= 180
    engine.dispose()
    reader = Reader(database_url)
    now = NOW + 30  # a whole minute
    for step in (None, 600, 3600):
        monkeypatch.setattr(queries, "EXACT_ROWS", 1000)
        exact = reader.similarity(2 * 3600, step, now)
        monkeypatch.setattr(queries, "EXACT_ROWS", -1)
        found = reader.similarity(2 * 3600, step, now)
        assert (exact.pop("exact"), exact.pop("resolution_s")) == (True, None)
        assert (found.pop("exact"), found.pop("resolution_s")) == (False, 60)
        for point in exact["points"]:
            point["mean"] = point["mean"] and pytest.approx(point["mean"])
        assert found == exact
    assert reader.similarity(60, None, NOW - 500_000)["points"] == []
    reader.close()
