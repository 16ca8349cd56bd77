"""The figures of a minute, as the sidecar's API tells them: what the soak judges is what production sees."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

from .drift import Point

#: Requests that a point of p takes; minutes with fewer are taken together. Pairs of texts, the same.
LEAST_REQUESTS = 5
#: Requests without speculation that the latency of a minute is compared with at least.
LEAST_BASELINE = 3
#: Standard errors to each side of p in the API's intervals.
_Z = 1.96
#: A sidecar's clock may be ahead of this one, s.
_MARGIN_S = 600

Row = Mapping[str, Any]


class SeriesError(Exception):
    """The sidecar's API does not tell the figures: why."""


class Reader:
    def __init__(self, api: str, token: str | None = None) -> None:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._client = httpx.AsyncClient(base_url=api, headers=headers, timeout=30.0, trust_env=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def minute(self, since: int, until: int) -> dict[str, Any]:
        """Of the requests that began from `since` to before `until` (Unix s). Raises SeriesError."""
        acceptance = await self._get("/acceptance", since, until, by="scenario")
        whole = await self._get("/summary", since, until)
        pairs = await self._get("/similarity", since, until)
        mine, plain = whole["latency"]["speculative"], whole["latency"]["autoregressive"]
        similar = next((each for each in pairs["points"] if each["kind"] == "draft"), {"pairs": 0, "mean": None})
        return {
            "acceptance": {each["group"] or "default": _acceptance(each) for each in acceptance["points"]},
            "mix": _acceptance(whole["acceptance"]),
            "k": whole["acceptance"]["num_speculative_tokens"],
            "seen": whole["traffic"]["requests"],
            "ok": whole["traffic"]["ok"],
            "outcomes": whole["traffic"]["outcomes"],
            "speculative": _latency(mine),
            "baseline": _latency(plain),
            "baseline_kind": whole["latency"]["baseline"],
            "similarity": {"pairs": similar["pairs"], "mean": similar["mean"]},
            "similarity_reason": whole["similarity"]["reason"],
            "coverage": whole["coverage"]["requests"],
            "missing": whole["coverage"]["missing"],
            "dropped": whole["records_dropped"],
            "state": whole["fallback"]["state"],
        }

    async def _get(self, path: str, since: int, until: int, **more: str) -> dict[str, Any]:
        # The window reaches back from now, and has to hold all of the minute.
        window = f"{max(int(time.time()) - since, until - since) + _MARGIN_S}s"
        try:
            answer = await self._client.get(
                f"/api/v1{path}", params={"since": str(since), "until": str(until), "window": window} | more
            )
            told = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise SeriesError(f"GET /api/v1{path}: {error or type(error).__name__}") from error
        if answer.status_code != 200:
            said = told.get("error", {}).get("message", "") if isinstance(told, dict) else ""
            raise SeriesError(f"GET /api/v1{path}: {answer.status_code} {said}".rstrip())
        return dict(told)


def _acceptance(told: Row) -> dict[str, Any]:
    return {
        "requests": told["requests"],
        "accepted": told["accepted_tokens"],
        "drafted": told["draft_tokens"],
        "p": told["p"],
        "low": told["p_low"],
        "high": told["p_high"],
    }


def _latency(told: Row) -> dict[str, Any]:
    names = ("requests", "p50_ms", "p95_ms", "p99_ms", "ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms")
    return {name: told[name] for name in names}


# ---- rows into points


def whole(rows: Sequence[Row]) -> list[Row]:
    """Those that can be compared: of whole minutes that were read. The minute after a gap is none of them."""
    return [row for row in rows if "gap_s" not in row and not row.get("partial") and "unread" not in row]


def scenarios(rows: Sequence[Row]) -> list[str]:
    return sorted({name for row in whole(rows) for name in row["acceptance"]})


def to_p(y: float) -> float:
    """p of a point's y."""
    return math.sin(min(max(y, 0.0), math.pi / 2)) ** 2


def p_points(rows: Sequence[Row], scenario: str | None) -> list[Point]:
    """p of a scenario, or of the mix (None): y = asin sqrt p, whose variance does not depend on p.

    A draft token is an observation of variance 1/4, times how much more alike the tokens of one request are, which the
    API's interval tells.
    """
    return _folded(rows, lambda row: row["mix"] if scenario is None else row["acceptance"].get(scenario), _p_point)


def _p_point(start: float, end: float, parts: Sequence[Row]) -> Point | None:
    drafted, accepted = (sum(part[name] for part in parts) for name in ("drafted", "accepted"))
    if not drafted:
        return None
    effects = [effect for part in parts if (effect := _design_effect(part)) is not None]
    noise = max(sum(effects) / len(effects), 1.0) / 4 if effects else 0.25
    return Point(start, end, math.asin(math.sqrt(accepted / drafted)), float(drafted), noise)


def _design_effect(told: Row) -> float | None:
    """Variance of p / that of as many tokens which know nothing of each other; None where the interval says nothing."""
    p, n = told["p"], told["requests"]
    if told["low"] is None or not 0 < p < 1:
        return None
    # As `sidecar.probes.acceptance.Counted.interval` widens it for few requests.
    z = _Z * (1 + (_Z**2 + 1) / (4 * (n - 1)) + (5 * _Z**4 + 16 * _Z**2 + 3) / (96 * (n - 1) ** 2))
    error = max(told["high"] - p, p - told["low"]) / z
    return float(error**2 * told["drafted"] / (p * (1 - p)))


def similarity_points(rows: Sequence[Row]) -> list[Point]:
    def made(start: float, end: float, parts: Sequence[Row]) -> Point | None:
        pairs = sum(part["pairs"] for part in parts)
        return Point(start, end, sum(part["pairs"] * part["mean"] for part in parts) / pairs, float(pairs))

    return _folded(rows, lambda row: {**row["similarity"], "requests": row["similarity"]["pairs"]}, made)


def _folded(
    rows: Sequence[Row],
    part_of: Callable[[Row], Row | None],
    made: Callable[[float, float, Sequence[Row]], Point | None],
) -> list[Point]:
    points: list[Point] = []
    start, parts = None, []
    for row in whole(rows):
        part = part_of(row)
        if part is None or not part["requests"]:
            continue
        start = row["minute"] if start is None else start
        parts.append(part)
        if sum(each["requests"] for each in parts) >= LEAST_REQUESTS:
            if (point := made(start, row["minute"] + 1, parts)) is not None:
                points.append(point)
            start, parts = None, []
    return points


def latency_points(rows: Sequence[Row], figure: str) -> list[Point]:
    """ln ms of a quantile of the requests that speculated, as `p95_ms`."""
    return [
        Point(row["minute"], row["minute"] + 1, math.log(told[figure]), float(told["requests"]))
        for row in whole(rows)
        if (told := row["speculative"])["requests"] >= LEAST_REQUESTS and told[figure]
    ]


def ratio_points(rows: Sequence[Row], figure: str, to: str) -> list[Point]:
    """ln of a quantile with speculation / the quantile `to` without, of minutes with enough of both."""
    return [
        Point(row["minute"], row["minute"] + 1, math.log(mine[figure] / plain[to]), _of_both(mine, plain))
        for row in whole(rows)
        if (mine := row["speculative"])["requests"] >= LEAST_REQUESTS
        and (plain := row["baseline"])["requests"] >= LEAST_BASELINE
        and mine[figure]
        and plain[to]
    ]


def _of_both(mine: Row, plain: Row) -> float:
    return 1 / (1 / float(mine["requests"]) + 1 / float(plain["requests"]))
