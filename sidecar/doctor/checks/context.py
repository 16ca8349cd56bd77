"""Long prompts: the prefix cache, acceptance by length, and requests near the longest context."""

from collections.abc import Iterator

from ...probes.slices import PROMPT_LENGTHS
from .. import figures
from ..facts import Facts, Unseen
from ..figures import percent
from ..findings import Check, NotLooked, Result, fine, note, warning

#: Prompt tokens above which the draft's cache crowds out the target's, by the operators' guide.
LONG = 2048
_FEW = 20
#: Share of the prompts that are long, from which that matters.
_OFTEN = 0.1
#: Of the tokens of prompts, those that the prefix cache has saved.
_HIT = 0.05


def prefix_cache(facts: Facts) -> Iterator[Result]:
    engine = facts.engine
    assert engine is not None
    if isinstance(engine.samples, Unseen):
        yield NotLooked("prefix-cache", f"the prefix cache: {engine.samples.why}")
        return
    configured = next((labels for labels, _ in engine.samples.of("vllm:cache_config_info")), None)
    if configured is None or "enable_prefix_caching" not in configured:
        yield NotLooked("prefix-cache", "the prefix cache: the engine's counters do not tell whether it is on")
        return
    on = configured["enable_prefix_caching"].lower() == "true"
    asked = engine.samples.total("vllm:prefix_cache_queries") or 0
    hits = engine.samples.total("vllm:prefix_cache_hits") or 0
    usage = engine.samples.largest("vllm:kv_cache_usage_perc")
    rows = [] if isinstance(facts.rows, Unseen) else figures.lately(facts.rows, facts.now)
    told = figures.values(rows, "prompt_tokens")
    long = sum(value > LONG for value in told)
    share = figures.share(long, len(told))
    seen = [
        f"enable_prefix_caching is {configured['enable_prefix_caching']}",
        f"{long} of {len(told)} prompts ({percent(share)}) have more than {LONG} tokens",
        *([f"the KV cache is {usage:.0%} full"] if usage is not None else []),
        *([f"{hits:.0f} of {asked:.0f} prompt tokens came from the cache"] if asked else []),
    ]
    command = f"curl -s {engine.server.url}/metrics | grep -E 'cache_config_info|prefix_cache|kv_cache_usage'"
    if not on and len(told) >= _FEW and share >= _OFTEN:
        yield warning(
            "prefix-caching-off",
            "prefix caching is off, and prompts are long",
            *seen,
            cause="the engine was started with --no-enable-prefix-caching, or its model does not have it: each long "
            "prompt is "
            "computed anew by target and draft, and both hold it in the KV cache",
            remedy="enable_prefix_caching: true in the engine's file (and a draft model that has it too)",
            command=command,
        )
    elif not on:
        yield note("prefix-caching-off-short", "prefix caching is off; prompts are short", *seen, command=command)
    elif asked > 100_000 and hits / asked < _HIT and share >= _OFTEN:
        yield note(
            "prefix-cache-misses",
            f"the prefix cache saves {percent(hits / asked)} of the prompt tokens",
            *seen,
            cause="prompts share no beginning: what varies (dates, ids) stands first; or the cache is too small",
            remedy="put what is common (system prompt, documents) first",
            command=command,
        )
    else:
        yield fine("prefix-cache", "prefix caching is on", *seen)


def by_length(facts: Facts) -> Iterator[Result]:
    """Acceptance that falls with the prompt's length."""
    if isinstance(facts.rows, Unseen):
        yield NotLooked("long-prompts", f"acceptance by prompt length: {facts.rows.why}")
        return
    rows = figures.speculative(figures.lately(facts.rows, facts.now))
    groups = figures.grouped(rows, lambda row: PROMPT_LENGTHS.name(row["prompt_tokens"]))
    found = {name: figures.acceptance(group) for name, group in groups.items() if name in PROMPT_LENGTHS.names}
    known = {name: each for name, each in found.items() if each.requests >= 10 and each.draft_tokens >= 500}
    order = [name for name in PROMPT_LENGTHS.names if name in known]
    if not order:
        yield NotLooked("long-prompts", "acceptance by prompt length: too few requests have figures")
        return
    lines = [f"{name} tokens: p {known[name].p or 0:.3f} over {known[name].requests} requests" for name in order]
    first = known[order[0]]
    fallen = [
        name
        for name in order[1:]
        if known[name].high is not None
        and first.low is not None
        and (known[name].high or 0) < first.low
        and (known[name].p or 0) < facts.settings.fallback_below
    ]
    if fallen:
        yield warning(
            "acceptance-falls-with-length",
            f"acceptance is lower for long prompts, of {fallen[0]} tokens",
            *lines,
            cause="the draft model was trained on shorter contexts, or its own context ends before the target's",
            remedy="let these fall back alone (fallback_slices: [prompt_length]), or take a draft model for long "
            "contexts",
            command=f"curl -s 'http://{facts.settings.admin}/api/v1/acceptance?by=prompt_length&window=1h'",
        )
    else:
        yield fine("long-prompts", "acceptance does not fall with the prompts' length", *lines)


def near_the_end(facts: Facts) -> Iterator[Result]:
    """Requests that come near max_model_len: vLLM drafts nothing for the last k tokens there."""
    engine = facts.engine
    assert engine is not None
    length = engine.server.max_model_len
    if length is None or isinstance(facts.rows, Unseen):
        why = facts.rows.why if isinstance(facts.rows, Unseen) else "the engine does not tell max_model_len"
        yield NotLooked("context-end", f"requests near the longest context: {why}")
        return
    rows = [row for row in figures.lately(facts.rows, facts.now) if row["prompt_tokens"] is not None]
    if len(rows) < _FEW:
        yield NotLooked("context-end", f"requests near the longest context: only {len(rows)} tell their tokens")
        return
    near = [
        row
        for row in rows
        if row["prompt_tokens"] + (row["completion_tokens"] or 0) + (row["num_speculative_tokens"] or 8) >= length
    ]
    share = figures.share(len(near), len(rows))
    longest = max(row["prompt_tokens"] + (row["completion_tokens"] or 0) for row in rows)
    if share > 0.05:
        yield warning(
            "near-max-model-len",
            f"{percent(share)} of the requests come to the end of the context",
            f"{len(near)} of {len(rows)} requests reach max_model_len {length} with their next draft; the longest has "
            f"{longest} tokens",
            cause="there vLLM drafts nothing more, and replies end with finish_reason length",
            remedy="raise max_model_len (and the draft model's), or shorten prompts and max_tokens",
            command=f"curl -s {engine.server.url}/v1/models | jq '.data[0].max_model_len'",
        )
    else:
        yield fine("context-end", f"requests have room: the longest of {len(rows)} has {longest} of {length} tokens")


CHECKS = (
    Check("prefix-cache", prefix_cache),
    Check("long-prompts", by_length),
    Check("context-end", near_the_end),
)
