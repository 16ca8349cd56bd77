"""Time-outs of the settings against the times that were seen."""

from collections.abc import Iterator, Sequence

from ...probes.latency import quantile
from .. import figures
from ..facts import Facts, Unseen
from ..figures import Row, ms
from ..findings import Check, NotLooked, Result, fault, fine, warning

_FEW = 20
#: A p99 at this share of a limit is near it.
_NEAR = 0.8


def timeouts(facts: Facts) -> Iterator[Result]:
    if isinstance(facts.rows, Unseen):
        yield NotLooked("timeouts", f"time-outs: {facts.rows.why}")
        return
    rows = figures.lately(facts.rows, facts.now)
    if len(rows) < _FEW:
        yield NotLooked("timeouts", f"time-outs: only {len(rows)} requests were recorded lately")
        return
    results = [
        *_idle(facts, rows),
        *_client(facts, rows),
        *_connect(facts, rows),
        *_first_byte(facts, rows),
        *_engine(facts, rows),
    ]
    yield from results or [
        fine("timeouts", "no time-out of the settings is near the times that were seen", *_usual(rows))
    ]


def _usual(rows: Sequence[Row]) -> list[str]:
    found = []
    for column, name in (
        ("latency_ms", "latency"),
        ("ttft_ms", "time to the first token"),
        ("max_chunk_gap_ms", "gap"),
    ):
        values = figures.values(figures.ok(rows), column)
        if values:
            found.append(f"{name}: p99 {ms(quantile(values, 99) or 0)} of {len(values)} requests")
    return found


def _idle(facts: Facts, rows: Sequence[Row]) -> Iterator[Result]:
    """idle_timeout_s: the engine's silence, before the first byte (of whole replies: all of it) and between two."""
    limit = facts.settings.idle_timeout_s
    if limit is None:
        return
    cut = [row for row in rows if row["outcome"] == "timeout"]
    # Of an earlier setting, which was shorter or longer, are those that took another time.
    ours = [row for row in cut if (row["latency_ms"] or 0) >= 900 * limit]
    silences = [_silence(row) for row in figures.ok(rows)]
    p99 = quantile(silences, 99) or 0.0
    seen = [
        f"longest silence of ok requests: p99 {ms(p99)}, most {ms(max(silences, default=0))}",
        f"idle_timeout_s is {limit:g}",
    ]
    suggested = max(3 * max(silences, default=0) / 1000, 3 * limit, 60)
    common = {
        "cause": "the engine takes longer than that for a prompt or a step: long prompts, a queue, or another load",
        "remedy": f"set idle_timeout_s: {suggested:.0f}, or leave it out: no limit is the default",
        "command": f"curl -s 'http://{facts.settings.admin}/api/v1/requests?outcome=timeout&limit=5'",
    }
    if ours:
        share = figures.share(len(ours), len(rows))
        make = fault if share >= 0.02 else warning
        yield make(
            "idle-timeout-short",
            f"idle_timeout_s ends requests: {len(ours)} of {figures.span(rows, facts.now)}",
            *seen,
            **common,
        )
    elif p99 > _NEAR * 1000 * limit:
        yield warning("idle-timeout-near", f"idle_timeout_s is near what requests need: p99 {ms(p99)}", *seen, **common)


def _silence(row: Row) -> float:
    """The longest time without a byte, ms, as far as is known."""
    first = row["ttft_ms"] if row["ttft_ms"] is not None else row["latency_ms"]
    return max(first or 0.0, row["max_chunk_gap_ms"] or 0.0)


def _client(facts: Facts, rows: Sequence[Row]) -> Iterator[Result]:
    """client_timeout_s: a client that takes nothing of its reply; its rows are client aborts at about that time."""
    limit = facts.settings.client_timeout_s
    aborts = [row for row in rows if row["outcome"] == "client_abort"]
    at_limit = [row for row in aborts if limit * 1000 <= (row["latency_ms"] or 0) <= limit * 1000 + 5000]
    if len(at_limit) >= 3 and len(at_limit) > 0.5 * len(aborts):
        yield warning(
            "client-timeout-short",
            f"{len(at_limit)} replies ended at client_timeout_s, {limit:g} s",
            f"of {len(aborts)} aborts in {figures.span(rows, facts.now)}",
            cause="clients read more slowly than that, or go away without a word",
            remedy=f"set client_timeout_s: {4 * limit:g} if they are only slow",
            command=f"curl -s 'http://{facts.settings.admin}/api/v1/requests?outcome=client_abort&limit=5'",
        )


def _connect(facts: Facts, rows: Sequence[Row]) -> Iterator[Result]:
    limit = facts.settings.connect_timeout_s
    failed = [row for row in rows if row["outcome"] == "bad_gateway"]
    at_limit = [row for row in failed if 900 * limit <= (row["latency_ms"] or 0) <= 2500 * limit]
    if len(at_limit) >= 3:
        yield warning(
            "connect-timeout",
            f"{len(at_limit)} requests failed after connect_timeout_s, {limit:g} s",
            cause="the engine's host is far away or drops connections (a full backlog, a firewall)",
            remedy="look at the way to the engine; a longer connect_timeout_s helps only where connecting succeeds at "
            "last",
            command=f"curl -s -o /dev/null -w '%{{time_connect}} s\\n' {facts.settings.upstream}/health",
        )


def _first_byte(facts: Facts, rows: Sequence[Row]) -> Iterator[Result]:
    """first_byte_limit_s makes decoding fall back (draft_timeout); plain requests that are as late say why not to."""
    limit = facts.settings.first_byte_limit_s
    if limit is None:
        return
    spec = figures.values(figures.ok(figures.speculative(rows)), "ttft_ms")
    if len(spec) < _FEW:
        return
    p99, late = quantile(spec, 99) or 0.0, sum(value > 1000 * limit for value in spec)
    if p99 > _NEAR * 1000 * limit:
        make = fault if late > 0.05 * len(spec) else warning
        yield make(
            "first-byte-limit-short",
            f"first_byte_limit_s is {limit:g}, and streams take {ms(p99)} to their first token (p99)",
            f"{late} of {len(spec)} streams were later than that",
            cause="the limit is below what prompts of this length need: three late streams in a minute make decoding "
            "fall "
            "back",
            remedy=f"set first_byte_limit_s: {max(3 * p99 / 1000, limit):.1f}",
            command=f"curl -s 'http://{facts.settings.admin}/api/v1/latency?window=1h'",
        )


def _engine(facts: Facts, rows: Sequence[Row]) -> Iterator[Result]:
    """request_timeout_s of the engine's file."""
    limit = facts.described.get("request_timeout_s")
    values = figures.values(figures.ok(rows), "latency_ms")
    if not limit or len(values) < _FEW:
        return
    p99 = quantile(values, 99) or 0.0
    if p99 > _NEAR * 1000 * limit:
        yield warning(
            "request-timeout-near",
            f"request_timeout_s of the engine's file is {limit:g}, and requests take {ms(p99)} (p99)",
            cause="the limit is near what requests need",
            remedy=f"set request_timeout_s: {3 * p99 / 1000:.0f} in {facts.settings.engine}",
            command=f"specwatch engine -c {facts.settings.engine} --describe",
        )


CHECKS = (Check("timeouts", timeouts),)
