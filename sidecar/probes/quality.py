"""Whether a reply looks broken, from its token ids alone: loops, garble, and an acceptance rate too good to be true.

None of it looks at p but the last: a draft agrees readily with a target that repeats itself, so that p near 1 tells
nothing of the reply (and p near 0 may be garble).

The limits were set by what text that is in order shows, in two tokenizers (2,048 and 131,072 tokens): 9,300 stretches
of 512 tokens of prose, Python, JSON, HTML, Chinese and tables of numbers. Of these 2 had a loop at their end and 37
were repetitive, all of them matrices of a few numbers; the largest share of different tokens was 0.75. Random tokens
have one of 0.93 (2,048 tokens) to 1.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from ..engine_request import EngineRequest

#: A loop is a passage of at most so many tokens, at least three times at the end of a reply, which makes at least
#: LOOP_TOKENS.
LONGEST_PERIOD = 256
LOOP_TOKENS = 128
#: Share of the 4-grams of the last 512 tokens that stood there before (seq-rep-4 of Welleck et al., Neural Text
#: Generation with Unlikelihood Training, 2020), from which a reply counts as repetitive.
REPETITIVE_TOKENS = 512
REPETITIVE = 0.9
#: Different tokens / tokens, of the last 256.
GARBLE_TOKENS = 256
GARBLE = 0.85
#: From so many draft tokens on p may be near 1.
HIGH_TOKENS = 512
HIGH_P = 0.98

WINDOW = 100
KEPT = 50


class Flag(StrEnum):
    REPETITION = "repetition"
    GARBLE = "garble"
    P_NEAR_ONE = "p_near_one"


class Flagged(NamedTuple):
    flag: Flag
    #: What was seen, in words.
    evidence: str


def look(ids: array[int], draft_tokens: int, accepted_tokens: int, finish_reason: str) -> list[Flagged]:
    """What is wrong with a reply of the tokens `ids`. Some 100 us for any length."""
    found = []
    if finish_reason == "repetition":
        found.append(Flagged(Flag.REPETITION, "the engine ended it for that"))
    elif (period := loop(ids)) is not None:
        found.append(Flagged(Flag.REPETITION, f"it ends in a loop of {period} token{'s' * (period > 1)}"))
    elif len(ids) >= REPETITIVE_TOKENS and (share := repeated(ids[-REPETITIVE_TOKENS:])) >= REPETITIVE:
        found.append(
            Flagged(Flag.REPETITION, f"{share:.0%} of the 4-grams of its last {REPETITIVE_TOKENS} tokens repeat others")
        )
    if len(ids) >= GARBLE_TOKENS and (different := len(set(ids[-GARBLE_TOKENS:]))) >= GARBLE * GARBLE_TOKENS:
        found.append(Flagged(Flag.GARBLE, f"{different} of its last {GARBLE_TOKENS} tokens are different ones"))
    if draft_tokens >= HIGH_TOKENS and accepted_tokens >= HIGH_P * draft_tokens:
        p = accepted_tokens / draft_tokens
        found.append(Flagged(Flag.P_NEAR_ONE, f"p is {p:.3f} over {draft_tokens} draft tokens"))
    return found


def loop(ids: array[int]) -> int | None:
    """Tokens of the passage that a reply repeats at its end; None where it does not."""
    for period in range(1, LONGEST_PERIOD + 1):
        length = max(LOOP_TOKENS, 3 * period)
        if length > len(ids):
            return None
        if ids[-length:-period] == ids[period - length :]:
            return period
    return None


def repeated(ids: array[int]) -> float:
    """Share of the 4-grams that stood before; needs four tokens."""
    grams = len(ids) - 3
    return 1 - len(set(zip(ids, ids[1:], ids[2:], ids[3:], strict=False))) / grams


class Kept(NamedTuple):
    #: Unix time in s.
    at: float
    #: The id in the reply.
    request_id: str
    flagged: Flagged


class Quality:
    """The replies of an engine that tells its tokens."""

    def __init__(self) -> None:
        self.requests = 0
        #: Since the start.
        self.totals: Counter[Flag] = Counter()
        self._window: deque[frozenset[Flag]] = deque(maxlen=WINDOW)
        #: The newest last.
        self.recent: deque[Kept] = deque(maxlen=KEPT)

    def add(self, request: EngineRequest, now: float) -> list[Flagged]:
        """Look at a finished request; `now` is Unix time in s."""
        counts = request.counts.items()
        drafted = sum(drafted * count for (drafted, _), count in counts)
        accepted = sum(accepted * count for (drafted, accepted), count in counts if drafted)
        found = look(request.output_ids(), drafted, accepted, request.finish_reason)
        self.requests += 1
        self._window.append(frozenset(each.flag for each in found))
        for each in found:
            self.totals[each.flag] += 1
            self.recent.append(Kept(now, request.reply_id, each))
        return found

    def share(self, flag: Flag) -> float | None:
        """Of the last WINDOW replies; None before the first."""
        return sum(flag in each for each in self._window) / len(self._window) if self._window else None

    def state(self) -> dict[str, Any]:
        """`Quality` of `sidecar.api.models`."""
        return {
            "requests": self.requests,
            "flags": [{"flag": flag, "total": self.totals[flag], "share": self.share(flag)} for flag in Flag],
            "recent": [
                {
                    "at": datetime.fromtimestamp(each.at, UTC),
                    "request_id": each.request_id,
                    "flag": each.flagged.flag,
                    "evidence": each.flagged.evidence,
                }
                for each in reversed(self.recent)
            ],
        }
