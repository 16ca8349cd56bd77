"""The engine itself: what it counts, whether it speculates, and whether it is crowded."""

from collections.abc import Iterator

from ...probes.counters import read
from ..facts import EngineFacts, Facts, Unseen
from ..findings import Check, NotLooked, Result, fault, fine, note, warning

#: Preemptions a finished request, and share of the KV cache.
_PREEMPTED, _KV_FULL = 0.01, 0.95


def metrics(facts: Facts) -> Iterator[Result]:
    """Its own counters, which tell of requests that no row tells of."""
    engine = facts.engine
    assert engine is not None
    if not facts.settings.counters_every_s:
        yield warning(
            "counters-off",
            "the engine's own counters are not read: counters_every_s is 0",
            cause="the setting",
            remedy="set counters_every_s: 15: without it nothing tells how much of the drafting the rows cover, nor "
            "whether a fallback is effective",
        )
    if not engine.server.serves:
        yield NotLooked("engine-metrics", f"the engine's counters: {engine.server.url} is no engine")
        return
    url, text = engine.server.url, engine.text
    command = f"curl -s {url}/metrics | grep -c '^vllm:'"
    if isinstance(text, Unseen):
        yield warning(
            "metrics-missing",
            "the engine has no /metrics",
            text.why,
            cause="a proxy before it hides the path, or the server is no vLLM",
            remedy="let the sidecar reach /metrics of the engine itself",
            command=command,
        )
        return
    scrape = read(text)
    if scrape.never_speculates:
        yield fault(
            "no-speculation",
            "the engine does not speculate",
            "it counts tokens, and has no vllm:spec_decode counters",
            cause="it was started without speculative_config; or the upstreams are mixed up",
            remedy="start it with a draft model (specwatch engine -c FILE), or correct upstream",
            command=f"curl -s {url}/metrics | grep spec_decode",
        )
    elif scrape.unknown is not None and "models" not in scrape.unknown:
        yield warning(
            "metrics-off",
            "the engine counts nothing",
            scrape.unknown,
            cause="it was started with --disable-log-stats, or is no vLLM",
            remedy="start it without --disable-log-stats",
            command=command,
        )
    elif scrape.unknown is not None:
        yield note("metrics-mixed", scrape.unknown, remedy="have one sidecar before each model")
    else:
        drafts = sum(
            value for (_, family, _), value in scrape.counts.items() if family == "spec_decode_num_draft_tokens"
        )
        yield fine("engine-metrics", f"the engine counts its drafting: {drafts} draft tokens since its start")


def cap(facts: Facts) -> Iterator[Result]:
    engine = facts.engine
    assert engine is not None
    if isinstance(engine.cores, Unseen):
        yield NotLooked("cap", f"the cap of the engine: {engine.cores.why}")
        return
    capped = [core for core in engine.cores if core.cap is not None]
    zero = [core for core in capped if core.cap == 0]
    command = "specwatch status"
    if zero:
        yield warning(
            "cap-zero",
            "the engine drafts nothing: its cap is 0",
            *(f"core {core.engine}: mode {core.mode}" + (f", {core.at_zero}" if core.at_zero else "") for core in zero),
            cause="an order (specwatch cap 0), or a fallback with fallback_actuator cap",
            remedy="specwatch cap default, once the reason is gone",
            command=command,
        )
    elif capped:
        most = capped[0].num_speculative_tokens
        yield note(
            "cap-set",
            f"the engine is capped at {capped[0].cap} of {most} draft tokens a step",
            cause="an order (specwatch cap)",
            remedy="specwatch cap default takes it off; it ends with the engine's restart by itself",
            command=command,
        )
    elif any(core.method is None for core in engine.cores):
        yield fault(
            "no-method",
            "an engine core does not speculate",
            *(f"core {core.engine} has no method" for core in engine.cores if core.method is None),
            cause="the engine has no speculative_config, or the plugin has failed in that core",
            remedy="look at its log; start it with a draft model",
            command=command,
        )
    else:
        core = engine.cores[0]
        yield fine("cap", f"the engine drafts up to {core.num_speculative_tokens} tokens a step ({core.method})")


def crowding(facts: Facts) -> Iterator[Result]:
    """Requests that wait or are thrown out, as the KV cache is small: the draft takes its share of it."""
    for engine in facts.engines.values():
        yield from _crowding(engine)


def _crowding(engine: EngineFacts) -> Iterator[Result]:
    samples = engine.samples
    if isinstance(samples, Unseen):
        yield NotLooked("crowding", f"queue and KV cache of {engine.server.url}: {samples.why}")
        return
    running = samples.total("vllm:num_requests_running")
    waiting = samples.total("vllm:num_requests_waiting")
    usage = samples.largest("vllm:kv_cache_usage_perc")
    preempted = samples.total("vllm:num_preemptions") or 0
    finished = samples.total("vllm:request_success") or 0
    if running is None or waiting is None:
        yield NotLooked("crowding", f"queue and KV cache of {engine.server.url}: its counters do not tell")
        return
    url, before = engine.server.url, False
    if waiting > max(running, 4):
        before = True
        yield warning(
            "requests-wait",
            f"{waiting:.0f} requests wait in the engine, {running:.0f} run",
            cause="more come than its batch holds (max_num_seqs, max_num_batched_tokens) or its KV cache (then "
            "speculation's own cache takes room)",
            remedy="raise max_num_seqs or --max-num-batched-tokens (the operators' guide has 4096), add an engine, and "
            "turn speculation off in large batches (speculation_max_batch_size in the engine's file)",
            command=f"curl -s {url}/metrics | grep num_requests_waiting",
        )
    if finished and preempted / finished > _PREEMPTED and preempted >= 5:
        before = True
        yield warning(
            "preemptions",
            f"{preempted:.0f} preemptions in {finished:.0f} requests",
            *([f"the KV cache is {usage:.0%} full now"] if usage is not None else []),
            cause="the KV cache does not hold what runs: requests are thrown out and computed anew, drafts with them",
            remedy="raise gpu_memory_utilization or kv_cache_memory_bytes, lower max_num_seqs or max_model_len, or "
            "take "
            "a smaller draft model",
            command=f"curl -s {url}/metrics | grep num_preemptions",
        )
    elif usage is not None and usage > _KV_FULL:
        before = True
        yield warning(
            "kv-cache-full",
            f"the KV cache is {usage:.0%} full",
            f"{running:.0f} requests run, {waiting:.0f} wait",
            cause="long prompts or many requests; the draft model's cache takes a share of the same memory",
            remedy="raise gpu_memory_utilization or kv_cache_memory_bytes, or lower max_num_seqs",
            command=f"curl -s {url}/metrics | grep kv_cache_usage",
        )
    if not before:
        held = "" if usage is None else f", the KV cache {usage:.0%} full"
        yield fine(
            "crowding",
            f"{url} is not crowded: {running:.0f} requests run, {waiting:.0f} wait{held}",
            f"{preempted:.0f} preemptions in {finished:.0f} requests",
        )


CHECKS = (Check("engine-metrics", metrics), Check("cap", cap), Check("crowding", crowding))
