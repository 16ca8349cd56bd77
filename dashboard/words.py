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

#: What stands where a figure is not known. Never 0, never NaN.
NO_DATA: Final = "no data"

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
        "p per token": (
            "Accepted / judged draft tokens: those accepted and the first rejected one of each verify step. "
            "Comparable between different k, which p is not."
        ),
        "k": "num_speculative_tokens: the most draft tokens of a verify step.",
        "break-even p": "The p at which speculation takes as much time as it saves, by the setting draft_cost.",
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
            "p95 latency speculative / p95 latency of the autoregressive baseline. Below 1, speculation "
            "is faster. Needs 50 requests on both sides."
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
            "Every acceptance figure here speaks for this share of them."
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
    }
)


def define(*terms: str) -> str:
    """Help text for one or more terms."""
    if len(terms) == 1:
        return DEFINITIONS[terms[0]]
    return "\n\n".join(f"**{term}**: {DEFINITIONS[term]}" for term in terms)
