"""Requests: rows of a table, and the figures of one. Pure."""

from collections.abc import Sequence
from datetime import timedelta

import pandas as pd  # type: ignore[import-untyped]

from dashboard import shapes
from dashboard.frames.base import Tile, count, iso, milliseconds, ratio, utc
from dashboard.frames.facts import Fact
from dashboard.words import NO_DATA, P_MIN, define

OUTCOMES = ("ok", "truncated", "upstream_error", "client_abort", "bad_gateway", "timeout")
ARMS = ("speculative", "autoregressive", "baseline", "probe")
#: Rows that the sidecar looks at for one answer, at most (`/api/v1/requests`).
LOOKED_AT = 200_000
#: Shown around a request by the link to it.
AROUND = timedelta(minutes=5)


def p_of(row: shapes.RequestRow) -> float | None:
    """Only of figures that agree with each other, as everywhere."""
    if row.acceptance_quality != "ok" or not row.draft_tokens or row.accepted_tokens is None:
        return None
    return row.accepted_tokens / row.draft_tokens


def table(rows: Sequence[shapes.RequestRow]) -> pd.DataFrame:
    """One row each, in their order. Numbers are numbers, so that the reader can sort by them; unknown is missing."""
    whole = {
        "steps": [row.verify_steps for row in rows],
        "concurrency": [row.concurrency for row in rows],
    }
    values = {
        "p": [p_of(row) for row in rows],
        "TTFT": [row.ttft_ms for row in rows],
        "latency": [row.latency_ms for row in rows],
        "TPOT": [row.tpot_ms for row in rows],
    }
    columns = {
        "started (UTC)": [f"{utc(row.started_at):%m-%d %H:%M:%S}" for row in rows],
        "scenario": [row.scenario for row in rows],
        "arm": [row.arm for row in rows],
        "outcome": [row.outcome for row in rows],
        "p": pd.array(values["p"], dtype="Float64"),
        "accepted/drafted": [_accepted(row) for row in rows],
        "steps": pd.array(whole["steps"], dtype="Int64"),
        "TTFT": pd.array(values["TTFT"], dtype="Float64"),
        "latency": pd.array(values["latency"], dtype="Float64"),
        "TPOT": pd.array(values["TPOT"], dtype="Float64"),
        "concurrency": pd.array(whole["concurrency"], dtype="Int64"),
        "request id": [row.request_id for row in rows],
    }
    return pd.DataFrame(columns)


def _accepted(row: shapes.RequestRow) -> str:
    if row.draft_tokens is None or row.accepted_tokens is None:
        return NO_DATA
    return f"{row.accepted_tokens:,}/{row.draft_tokens:,}"


# One request


def tiles(row: shapes.RequestRow) -> list[Tile]:
    p = p_of(row)
    helped = define("acceptance rate p", "draft tokens")
    if p is None:
        first = Tile("Acceptance rate p", NO_DATA, helped, note=_no_p(row))
    else:
        note = f"{row.accepted_tokens:,} of {count(row.draft_tokens or 0, 'draft token')} accepted."
        met = p >= P_MIN
        verdict = f"✓ at least {P_MIN}" if met else f"✗ below {P_MIN}"
        first = Tile("Acceptance rate p", ratio(p, P_MIN), helped, verdict=verdict, met=met, note=note)
    length = NO_DATA
    if p is not None and row.verify_steps and row.accepted_tokens is not None:
        length = f"{1 + row.accepted_tokens / row.verify_steps:.2f}"
    steps = "" if row.verify_steps is None else f"{count(row.verify_steps, 'verify step')}"
    steps += "" if row.truncated_steps is None else f", {row.truncated_steps:,} truncated"
    return [
        first,
        Tile("Mean acceptance length", length, define("mean acceptance length", "verify step"), note=steps),
        Tile("Latency", milliseconds(row.latency_ms), define("latency"), note=f"Outcome: {row.outcome}."),
        Tile("TTFT", milliseconds(row.ttft_ms), define("TTFT"), note=_note(row.ttft_ms, "No content byte was seen.")),
        Tile(
            "TPOT",
            milliseconds(row.tpot_ms),
            define("TPOT"),
            note=_note(row.tpot_ms, "Needs two tokens, and the time of the first."),
        ),
    ]


def _note(value: float | None, none: str) -> str:
    return none if value is None else ""


def _no_p(row: shapes.RequestRow) -> str:
    if row.acceptance_quality == "inconsistent":
        return f"Its figures cannot all be true: {row.acceptance_reason or 'no reason given'}."
    if row.draft_tokens == 0:
        return "Nothing was drafted."
    return f"{(row.acceptance_reason or f'No acceptance figures; arm {row.arm}').rstrip('.')}."


def facts(row: shapes.RequestRow) -> dict[str, list[Fact]]:
    """All that is known of the request, by subject."""
    return {
        "Request": [
            Fact("Started", f"{utc(row.started_at):%Y-%m-%d %H:%M:%S.%f} UTC"),
            Fact("Request id", row.request_id, define("request id")),
            Fact("Reply id", _text(row.reply_id), define("reply id")),
            Fact("Scenario", row.scenario),
            Fact("Endpoint", row.endpoint),
            Fact("Streamed", "yes" if row.stream else "no"),
            Fact("Outcome", row.outcome, define("outcome")),
            Fact("HTTP status", _text(row.status)),
            Fact("Finish reason", _text(row.finish_reason)),
            Fact("Temperature", NO_DATA if row.temperature is None else f"{row.temperature:g}"),
        ],
        "How it was served": [
            Fact("Arm", row.arm, define("arm")),
            Fact("Instance", row.instance),
            Fact("Upstream", row.upstream),
            Fact("Model", _text(row.model)),
            Fact("Draft model", _text(row.draft_model)),
            Fact("k", _text(row.num_speculative_tokens), define("k")),
            Fact("Versions", _text(row.fingerprint)),
            Fact("Concurrency", count(row.concurrency, "request"), define("concurrency")),
        ],
        "Tokens": [
            Fact("Prompt", _number(row.prompt_tokens, "token")),
            Fact("Completion", _number(row.completion_tokens, "token")),
            Fact("Drafted", _number(row.draft_tokens, "draft token"), define("draft tokens")),
            Fact("Accepted", _number(row.accepted_tokens, "draft token"), define("acceptance rate p")),
            Fact("Verify steps", _number(row.verify_steps, "step"), define("verify step")),
            Fact("Truncated steps", _number(row.truncated_steps, "step"), define("truncation rate")),
            Fact("Figures from", row.acceptance_source, define("acceptance source")),
            Fact("Figures are", row.acceptance_quality, define("acceptance quality")),
            Fact("Why", _text(row.acceptance_reason)),
        ],
        "Time and bytes": [
            Fact("Latency", milliseconds(row.latency_ms), define("latency")),
            Fact("TTFT", milliseconds(row.ttft_ms), define("TTFT")),
            Fact("TPOT", milliseconds(row.tpot_ms), define("TPOT")),
            Fact("Longest gap", milliseconds(row.max_chunk_gap_ms), define("longest gap")),
            Fact("Waited", milliseconds(row.queue_ms), define("queue")),
            Fact("Bytes in", f"{row.bytes_in:,} bytes"),
            Fact("Bytes out", f"{row.bytes_out:,} bytes"),
        ],
    }


def _text(value: str | int | None) -> str:
    return NO_DATA if value is None else str(value)


def _number(value: int | None, noun: str) -> str:
    return NO_DATA if value is None else count(value, noun)


def held_by(row: shapes.RequestRow) -> dict[str, str]:
    """The address of a request, in parameters: its id, and a time range that ends with it.

    Clients may use an id again: of those in the range the newest is shown, which is this one.
    """
    until = utc(row.started_at).replace(microsecond=0) + timedelta(seconds=1)
    return {"request": row.request_id, "since": iso(until - AROUND), "until": iso(until)}
