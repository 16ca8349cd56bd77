"""The shared noun: one `Record` per request, whatever its end.

Records are `msgspec.Struct`s because one is made for every request: given its fields by position a frozen
struct takes 0.3 us, a frozen dataclass 8.
"""

from enum import StrEnum

import msgspec


class Outcome(StrEnum):
    """How a request ended. Exactly one per request."""

    OK = "ok"
    #: The reply stopped before the terminal event or the declared length.
    TRUNCATED = "truncated"
    #: A status >= 400 from the upstream, or an error object inside a 200.
    UPSTREAM_ERROR = "upstream_error"
    CLIENT_ABORT = "client_abort"
    #: The upstream refused, reset or spoke no HTTP before a reply head.
    BAD_GATEWAY = "bad_gateway"
    TIMEOUT = "timeout"


class Arm(StrEnum):
    """Why a request was served the way it was."""

    SPECULATIVE = "speculative"
    #: Plain decoding, because the controller or an operator decided so.
    AUTOREGRESSIVE = "autoregressive"
    #: Plain decoding of a small share, to compare latencies with.
    BASELINE = "baseline"
    #: Speculative decoding of a small share during a fallback.
    PROBE = "probe"


class AcceptanceSource(StrEnum):
    """Where the acceptance figures of a row came from."""

    ENGINE = "engine"
    RESPONSE = "response"
    NONE = "none"


class AcceptanceQuality(StrEnum):
    """Whether the figures agree with each other."""

    OK = "ok"
    #: Figures that cannot all be true; kept raw, left out of every ratio.
    INCONSISTENT = "inconsistent"
    #: No figures, or a block of a shape this version does not know.
    UNKNOWN = "unknown"


class Acceptance(msgspec.Struct, frozen=True, gc=False):
    """Acceptance figures of one request.

    Token and step counts are totals over the reply's verify steps. `histogram[j]` is the number of
    steps that accepted exactly j draft tokens. `rejected_at[i]` and `reached[i]` (0-based lists for the
    1-based positions 1..k) count the steps whose first rejection was at position i+1 and the steps in which
    position i+1 was drafted and every earlier one accepted. What is not known is None, never zero.
    """

    source: AcceptanceSource = AcceptanceSource.NONE
    quality: AcceptanceQuality = AcceptanceQuality.UNKNOWN
    #: Why figures are missing or not to be trusted; None when they are fine.
    reason: str | None = None
    num_speculative_tokens: int | None = None
    verify_steps: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    histogram: tuple[int, ...] | None = None
    rejected_at: tuple[int, ...] | None = None
    reached: tuple[int, ...] | None = None
    #: The figures of the block as they came, kept only when quality is not ok.
    raw: str | None = None
    #: Verify steps one after the other, as `engine_request.step_digits` tells them; None where nothing tells them.
    steps: str | None = None


class Record(msgspec.Struct, frozen=True, gc=False):
    """What is known of one request after its end. Times in ms unless named otherwise, sizes in bytes.

    The order of the fields counts: the tap gives them by position.
    """

    request_id: str
    #: Unix time in seconds (UTC) at which the request head was complete.
    started_at: float
    instance: str
    upstream: str
    arm: Arm
    endpoint: str
    scenario: str
    outcome: Outcome
    acceptance: Acceptance = Acceptance()
    model: str | None = None
    draft_model: str | None = None
    stream: bool = False
    #: HTTP status sent to the client; None when it left before one was known.
    status: int | None = None
    finish_reason: str | None = None
    temperature: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    #: Request head complete to first content byte of the reply, at this proxy.
    ttft_ms: float | None = None
    #: Request head complete to last byte of the reply (or to the abort).
    latency_ms: float | None = None
    #: (end - first token) / (completion tokens - 1); None for one token or none.
    tpot_ms: float | None = None
    #: Longest pause between two reads of reply body. A chunk is not a token.
    max_chunk_gap_ms: float | None = None
    #: Queue time as the engine reports it.
    queue_ms: float | None = None
    #: Requests in flight at this upstream when the request was sent, itself included.
    concurrency: int = 1
    #: Engine version and speculative settings the figures belong to.
    fingerprint: str | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    #: Id of the reply, as the upstream calls it.
    reply_id: str | None = None
    #: Replies asked for: `n` times the prompts; None where the request was not read.
    replies: int | None = None
    #: First to last content of a stream.
    content_ms: float | None = None
    #: Nobody asked for no speculation: the arm is what the engine's cap made of it, which may have changed meanwhile.
    capped: bool = False
