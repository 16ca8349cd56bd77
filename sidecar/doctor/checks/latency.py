"""Whether speculation is faster than plain decoding, where it is not, and whether first requests are slow."""

from collections.abc import Iterator, Sequence

from ...probes.latency import MIN_FOR_RATIO, quantile
from ...probes.slices import CONCURRENCIES
from .. import figures
from ..facts import Facts, Unseen
from ..figures import Row, ms
from ..findings import Check, NotLooked, Result, fault, fine, note, warning

#: First requests that take so many times the usual time, and so long at least, were not warmed up for.
_SLOW_TIMES, _SLOW_MS = 3.0, 1000.0
#: Share of a request's time to its first token that it waits in the engine's queue.
_QUEUE_SHARE, _QUEUE_MS = 0.5, 100.0


def slower(facts: Facts) -> Iterator[Result]:
    """The ratio of the p95 at like concurrency, by concurrency."""
    if isinstance(facts.rows, Unseen):
        yield NotLooked("latency-ratio", f"whether it is faster than plain decoding: {facts.rows.why}")
        return
    found = list(_compared(facts.rows))
    if not found:
        yield NotLooked(
            "latency-ratio",
            f"whether it is faster than plain decoding: at no concurrency have both sides {MIN_FOR_RATIO} requests in "
            "the "
            "rows of the last day"
            + ("" if facts.settings.baseline_share else "; baseline_share is 0, so that nothing is served without"),
            "specwatch sweep, or a larger baseline_share",
        )
        return
    lines = [
        f"concurrency {name}: p95 {ms(ours)} with, {ms(theirs)} without ({kind}), ratio {ratio.value:.2f} "
        f"(95 %: {ratio.low:.2f} to {ratio.high:.2f})"
        for name, kind, ours, theirs, ratio in found
    ]
    slow = [each for each in found if each[4].value >= 1]
    sure = [each for each in slow if each[4].low > 1]
    fast = [each for each in found if each[4].value < 1]
    command = "specwatch status --json | jq .latency"
    # Lost from a concurrency on: the smallest above which no bucket is faster.
    last_fast = fast[-1][0] if fast else None
    lost = [each for each in slow if fast and _rank(each[0]) > _rank(fast[-1][0])]
    if lost and (sure or min(each[4].value for each in lost) >= 1.1):
        rule = CONCURRENCIES.bounds[_rank(str(last_fast))]
        yield warning(
            "slower-under-load",
            f"the speed-up is lost above a concurrency of {rule:.0f}",
            *lines,
            cause="in a large batch verifying costs what drafting saves: the engine's compute is used up",
            remedy=f"speculation_max_batch_size: {rule:.0f} in the engine's file turns speculation off above; or a "
            "smaller k",
            command=command,
        )
    elif sure:
        yield fault(
            "slower-than-plain",
            "speculation is slower than plain decoding",
            *lines,
            cause="k is too large or p too low for the draft's cost, or the batch is large",
            remedy="lower k (see draft-too-long), or speculation_max_batch_size in the engine's file; until then "
            "specwatch "
            "fallback autoregressive; the trigger latency_ratio does it by itself",
            command=command,
        )
    elif slow:
        yield warning(
            "perhaps-slower-than-plain",
            "speculation is perhaps slower than plain decoding",
            *lines,
            cause="the intervals hold 1: too few requests were served without speculation to be sure",
            remedy="wait for more, raise baseline_share, or measure with specwatch sweep",
            command=command,
        )
    else:
        yield fine(
            "latency-ratio",
            "speculation is faster than plain decoding at every concurrency that can be compared",
            *lines,
        )


def _rank(name: str) -> int:
    return CONCURRENCIES.names.index(name)


def _compared(rows: Sequence[Row]) -> Iterator[tuple[str, str, float, float, figures.Ratio]]:
    """By concurrency, lowest first: what without is, both p95 in ms, and their ratio. Kinds of without never mix."""
    timed = [row for row in figures.ok(rows) if row["latency_ms"] is not None]
    groups = figures.grouped(timed, lambda row: CONCURRENCIES.name(row["concurrency"]))
    plain = [row for row in timed if row["arm"] not in figures.SPECULATIVE]
    apart = [row for row in plain if row["upstream"] == "autoregressive"]
    true_ar = len(apart) >= MIN_FOR_RATIO or len(apart) > len(plain) - len(apart)
    for name in CONCURRENCIES.names:
        group = groups.get(name, [])
        ours = figures.values(figures.speculative(group), "latency_ms")
        theirs = figures.values(
            (
                row
                for row in group
                if row["arm"] not in figures.SPECULATIVE and (row["upstream"] == "autoregressive") is true_ar
            ),
            "latency_ms",
        )
        if min(len(ours), len(theirs)) < MIN_FOR_RATIO:
            continue
        ratio = figures.p95_ratio(ours, theirs)
        if ratio is not None:
            kind = "an engine without a draft" if true_ar else "opt-out at the same engine"
            yield name, kind, quantile(ours, 95) or 0.0, quantile(theirs, 95) or 0.0, ratio


def cold(facts: Facts) -> Iterator[Result]:
    """The first request after the engine's start, where rows hold it."""
    engine = facts.engine
    assert engine is not None
    if isinstance(facts.rows, Unseen) or isinstance(engine.samples, Unseen):
        yield NotLooked(
            "first-request", "how slow the first request was: rows or the engine's counters are out of reach"
        )
        return
    began = engine.samples.largest("process_start_time_seconds")
    after = (
        []
        if began is None
        else [row for row in facts.rows if figures.at(row) >= began and row["upstream"] == "speculative"]
    )
    timed = [row for row in reversed(figures.ok(after)) if (row["ttft_ms"] or row["latency_ms"]) is not None]
    # Where the sidecar was there before, no request of the engine's can be missing.
    whole = began is not None and bool(facts.rows) and (figures.at(facts.rows[-1]) < began or _was_there(facts, began))
    if not whole or len(timed) < 10:
        yield NotLooked("first-request", "how slow the first request was: too few rows of after the engine's start")
        return
    streams = [row for row in timed if row["ttft_ms"] is not None]
    column = "ttft_ms" if streams and streams[0] is timed[0] and len(streams) >= 10 else "latency_ms"
    first, rest = timed[0], figures.values(timed[1:], column)
    usual = quantile(rest, 50) or 0.0
    took = float(first[column] or 0)
    what = "to its first token" if column == "ttft_ms" else "in all"
    if took > _SLOW_MS and took > _SLOW_TIMES * usual:
        yield warning(
            "first-request-slow",
            f"the first request after the engine's start took {ms(took)} {what}, others {ms(usual)}",
            f"request {first['request_id']}",
            cause="the draft model, graphs and caches are set up with the first request",
            remedy="warm up before clients come: specwatch engine sends a request by itself; else one short completion",
            command=f"curl -s http://{facts.settings.admin}/api/v1/requests/{first['request_id']}",
        )
    else:
        yield fine(
            "first-request", f"the first request after the engine's start took {ms(took)} {what}, others {ms(usual)}"
        )


def _was_there(facts: Facts, moment: float) -> bool:
    """Whether the sidecar that runs had started before, and its rows from then on are what is looked at."""
    side = facts.sidecar
    samples = None if isinstance(side, Unseen) or isinstance(side.samples, Unseen) else side.samples
    began = None if samples is None else samples.largest("process_start_time_seconds")
    return began is not None and began < moment and not isinstance(facts.rows, Unseen) and len(facts.rows) < 500


def queue(facts: Facts) -> Iterator[Result]:
    """Time in the engine's own queue, as its replies tell it."""
    if isinstance(facts.rows, Unseen):
        yield NotLooked("engine-queue", f"how long requests wait in the engine: {facts.rows.why}")
        return
    rows = [
        row
        for row in figures.ok(figures.lately(facts.rows, facts.now))
        if row["queue_ms"] is not None and row["ttft_ms"] is not None
    ]
    if len(rows) < 20:
        yield NotLooked("engine-queue", "how long requests wait in the engine: too few streams tell it")
        return
    waits, firsts = figures.values(rows, "queue_ms"), figures.values(rows, "ttft_ms")
    wait, first = quantile(waits, 95) or 0.0, quantile(firsts, 95) or 0.0
    if wait > _QUEUE_MS and wait > _QUEUE_SHARE * first:
        yield warning(
            "engine-queue",
            f"requests wait in the engine: p95 {ms(wait)} of the {ms(first)} to the first token",
            f"{figures.span(rows, facts.now)}",
            cause="more requests come than its batch takes; speculation counts each draft token in the batch "
            "(max_num_batched_tokens)",
            remedy="raise --max-num-batched-tokens (the operators' guide has 4096) or max_num_seqs, lower k, add an "
            "engine",
            command=f"curl -s {facts.settings.upstream}/metrics | grep num_requests_waiting",
        )
    else:
        yield fine("engine-queue", f"requests wait {ms(wait)} in the engine (p95), of {ms(first)} to the first token")


def goal(facts: Facts) -> Iterator[Result]:
    """The 800 ms, as a note: what can be reached depends on models and machine."""
    if isinstance(facts.day, Unseen):
        yield NotLooked("latency-goal", f"the latency goal: {facts.day.why}")
        return
    ratio = facts.day["slo"]["latency_under_800ms_ratio"]
    if ratio is None:
        yield NotLooked("latency-goal", "the latency goal: no request of the last day")
    elif ratio < 0.95:
        yield note(
            "latency-goal-missed",
            f"{ratio:.0%} of the last day's requests took 800 ms at most; the goal is 95 %",
            remedy="where the models and the machine could: raise p (train the draft model), or take a better k",
        )
    else:
        yield fine("latency-goal", f"{ratio:.0%} of the last day's requests took 800 ms at most")


CHECKS = (
    Check("latency-ratio", slower),
    Check("first-request", cold),
    Check("engine-queue", queue),
    Check("latency-goal", goal),
)
