"""The words of the dashboard: each figure is named and defined here once."""

from types import MappingProxyType
from typing import Final

P_MIN: Final = 0.65
SLO_MIN: Final = 0.95
TRUNCATION_MAX: Final = 0.35
FIRST_POSITION_MAX: Final = 0.15
LATENCY_GOAL_MS: Final = 800
SIMILARITY_MIN: Final = 0.82
SIMILARITY_CRITICAL: Final = 0.75
#: Fewer verify steps tell no share: its standard error is 0.05 at most from here on, as for the sidecar's warnings.
ENOUGH_STEPS: Final = 100

#: What stands where a figure is not known. Never 0, never NaN.
NO_DATA: Final = "no data"
#: A line of the sidecar's YAML file, without which no engine tells its tokens.
EVENTS_YAML: Final = "engine_events: /run/specwatch/events.sock   # and the same path at the engine"

DEFINITIONS = MappingProxyType(
    {
        "verify step": "One pass of the target model over the draft tokens proposed since the last one.",
        "draft tokens": "Tokens the draft model proposed; the extra token of a verify step is not counted.",
        "acceptance rate p": (
            "Accepted draft tokens / draft tokens, summed over the requests that speculated. "
            f"Below {P_MIN} speculation is at risk of costing more than it saves."
        ),
        "interval of p": (
            "Where p lies, 19 times of 20, by how much the requests differ among each other. "
            f"While it holds {P_MIN}, more requests are needed to tell."
        ),
        "k": "num_speculative_tokens: the most draft tokens of a verify step.",
        "alignment": (
            "Whether draft model and target model know the tokens by the same ids, by the files of their "
            "tokenizers and by what is rejected in the traffic. A moved id makes right guesses wrong."
        ),
        "similarity": (
            "Cosine of the embeddings of what the draft model would have written and of the reply, -1..1. "
            f"Below {SIMILARITY_MIN} is a warning, below {SIMILARITY_CRITICAL} critical. A share of the requests is "
            "compared."
        ),
        "mean acceptance length": (
            "Tokens gained per verify step: 1 + accepted draft tokens / verify steps. "
            "1.00 means that speculation gains nothing."
        ),
        "p95_latency_under_800ms_ratio": (
            "Share of one-minute slices with traffic whose p95 latency over the trailing 5 minutes "
            f"is at most {LATENCY_GOAL_MS} ms. The goal is {SLO_MIN:.0%}."
        ),
        "latency_under_800ms_ratio": f"Share of ok requests with a latency of at most {LATENCY_GOAL_MS} ms.",
        "latency": (
            "From the complete request head to the last byte of the reply, at the proxy. "
            "Quantiles are nearest rank over ok requests."
        ),
        "latency ratio": (
            "p95 latency speculative / p95 latency of the autoregressive baseline; of a whole time range at like "
            "concurrency, the one with most requests. Below 1, speculation is faster. Needs 50 requests on both sides."
        ),
        "TTFT": "Time to first token: from the complete request head to the first content byte.",
        "TPOT": "Time per output token after the first: (end - first token) / (completion tokens - 1).",
        "speculative": "A draft model proposes tokens and the target model verifies them.",
        "autoregressive": "Plain decoding: the target model alone, one token at a time.",
        "outcome": (
            "How a request ended: ok, truncated (the reply broke off), upstream_error, client_abort, "
            "bad_gateway, timeout."
        ),
        "requests/s": "Requests that began in the time range / its length, whatever their outcome.",
        "completion tokens/s": "Completion tokens of the replies in the time range / its length.",
        "coverage": (
            "Requests with acceptance figures / ok generation requests served speculatively. "
            "Every acceptance figure here speaks for this share of them. Of an upstream, by the engine's own counters: "
            "draft tokens in the records / draft tokens counted."
        ),
        "truncation rate": (
            "Truncated verify steps / verify steps. A step is truncated when the target model rejects "
            f"one of its draft tokens. The goal is at most {TRUNCATION_MAX:.0%}."
        ),
        "first-position share": (
            "Share of the truncated steps whose very first draft token was rejected. "
            f"The goal is at most {FIRST_POSITION_MAX:.0%}."
        ),
        "fully accepted steps": "Verify steps in which the target model accepted every draft token.",
        "hazard": (
            "Rejected / reached: of the verify steps that got as far as this position, the share "
            "whose draft token was rejected there."
        ),
        "rejected": "The first draft token of a verify step that the target did not take, beside the target's own.",
        "discarded": "Draft tokens behind a rejected one: the target never looked at them.",
        "bonus": "The target's own token behind a fully accepted draft; it is not counted as a draft token.",
        "not drafted": "Tokens for which the draft proposed nothing, as the first of a reply.",
        "reached": "Verify steps in which this position was drafted and every earlier one accepted.",
        "event": (
            "A switch of decoding, an order to an engine, another version or setting, an alert that begins or ends, "
            "a token that has another id in the draft model, a run of the lab that ended."
        ),
        "verdict": (
            "What a run of the lab comes to. qualify: qualified, qualified in part (not for every scenario), rejected; "
            "sweep: recommended, that but not confirmed (by a second run), no gain; soak: stable, drift, failed; "
            "self-draft: made; any of them: cannot tell."
        ),
        "gate": (
            "A condition of the verdict: a value against its limit. Cannot tell: there is no value, or there are too "
            "few requests for one."
        ),
        "request id": "The X-Request-Id of the request, or one that the sidecar gave. Clients may use one again.",
        "reply id": "The id in the reply, as chatcmpl-…; drafts and similarities go by it.",
        "arm": (
            "Why a request was served as it was: speculative; autoregressive (fallback or an operator's order); "
            "baseline (plain decoding of a small share, to compare latencies with); probe (speculative decoding of a "
            "small share during a fallback)."
        ),
        "acceptance source": "Whether the engine's events or the reply told the acceptance figures; none: neither did.",
        "acceptance quality": (
            "ok: the figures agree with each other; inconsistent: they cannot all be true, and count nowhere; "
            "unknown: there are none."
        ),
        "longest gap": "Longest pause between two reads of the reply. A read may bring many tokens.",
        "concurrency": "Requests in flight at this upstream when the request was sent, itself included.",
        "queue": "Time in the engine's queue, as the engine reports it.",
        "baseline": (
            "Requests served without speculation. true_ar: by an engine that never speculates (the upstream "
            "autoregressive). spec_disabled: by the engine that speculates for others, where they share its steps. "
            "The two are never mixed."
        ),
        "p50, p95, p99": "So long, or less, took 50 %, 95 %, 99 % of the ok requests; by nearest rank.",
        "spread of latencies": (
            "For each time (across) the share of the ok requests (up) that took no longer: the empirical distribution "
            "function (ECDF). The curve further left is the faster one."
        ),
        "p10 of similarity": "A tenth of the pairs has this similarity or less.",
        "replay": (
            "A request that the sidecar sent twice more, with and without speculation, at temperature 0, to compare "
            "both replies. Replies that differ are no fault by themselves: a batch of another shape rounds otherwise."
        ),
        "repetition": "The reply ends in a loop, or 90 % of its last 4-grams stood there before.",
        "garble": "Of the last 256 tokens of the reply 85 % or more are different ones. Text has 75 % at most.",
        "p near one": (
            "p is 0.98 or more over at least 512 draft tokens. No fault by itself, but a target that repeats itself "
            "looks like that."
        ),
        "same text, other id": (
            "Rejected draft tokens that were the target's own token by another id: right guesses that were lost."
        ),
        "share at moved tokens": (
            "Of the draft positions that the target judged, those where the draft was rejected and the target put a "
            "token that has another id in the draft."
        ),
        "unknown ids": (
            "Verify steps in which the target emitted an id beyond those of its tokenizer: a model has room for more "
            "ids than there are tokens, and these are no text."
        ),
        "coverage of the draft": (
            "Share of the target's tokens that the draft can propose by the right id, of all of them and of those of "
            "the probe texts. Where another comes next, the draft is rejected."
        ),
        "cliff": (
            "From one position on less than a quarter as much is accepted as at any position before it, beyond chance: "
            "next to nothing, as of a draft model that is run wrongly beyond some length."
        ),
        "decay": "Each position is accepted about as often as the one before it, or somewhat less.",
        "worst position": "The position of the draft at which most verify steps are truncated, and its hazard.",
        "worst first": (
            "Those that fell back by themselves first, whose p is of before and of probes. "
            f"Below {P_MIN} next, by how far p is below it, then the others by p; those whose p is not known last."
        ),
        "requests of a slice": "All of the time range, whatever their outcome, also those that did not speculate.",
        "state of a slice": (
            "Whether the slice is served with speculation: on; off; probing (off, but for a few requests that are "
            "watched); off, in vain (the engine drafts all the same). By itself: by a decision of its own "
            "(fallback_slices); else as all traffic is."
        ),
        "slice": (
            "Requests that are alike: of one scenario, temperature, prompt length (tokens), concurrency (requests in "
            "flight) or k."
        ),
    }
)


def define(*terms: str) -> str:
    """Help text for one or more terms."""
    if len(terms) == 1:
        return DEFINITIONS[terms[0]]
    return "\n\n".join(f"**{term}**: {DEFINITIONS[term]}" for term in terms)
