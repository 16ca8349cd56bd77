"""Acceptance over the last N requests that speculated, and over the last hour."""

import math
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from ..record import AcceptanceQuality, Outcome, Record

#: Standard errors to each side of p: 95 %.
_Z = 1.96


class Figures(msgspec.Struct, frozen=True, gc=False):
    """Sums over requests that speculated, and what follows from them. Ratios are 0..1; None: not known."""

    requests: int
    verify_steps: int
    draft_tokens: int
    accepted_tokens: int
    #: Verify steps that accepted fewer tokens than were drafted; None where one request does not tell.
    truncated_steps: int | None
    #: k, where all requests had the same.
    num_speculative_tokens: int | None
    #: 95 % interval of p.
    low: float | None = None
    high: float | None = None

    @property
    def p(self) -> float | None:
        """Pooled acceptance rate: accepted / drafted tokens. It falls as k grows; the bonus token is in neither."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else None

    @property
    def p_per_token(self) -> float | None:
        """Accepted / judged tokens, these being the accepted ones and the first rejected one of each step.

        The tokens behind a rejection were never judged (right-censored), so that this compares across k.
        """
        judged = None if self.truncated_steps is None else self.accepted_tokens + self.truncated_steps
        return self.accepted_tokens / judged if judged else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted tokens / verify steps: tokens a step emits, the target's own included."""
        return 1 + self.accepted_tokens / self.verify_steps if self.verify_steps else None


class Counted(msgspec.Struct, gc=False):
    """What is kept of a request that counts, or the sums over several; the windows share one of each request."""

    requests: int = 0
    verify_steps: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    truncated_steps: int = 0
    #: Requests whose truncated steps are not known.
    untold: int = 0
    #: Sums of squares and products of a request's accepted (a) and draft tokens (d).
    aa: int = 0
    ad: int = 0
    dd: int = 0
    #: k, where it is the same throughout.
    num_speculative_tokens: int | None = None
    #: Of a single request.
    rejected_at: Sequence[int] | None = None
    reached: Sequence[int] | None = None
    #: Verify steps of requests whose truncated steps are known, and those of them that were cut at position 1.
    told_steps: int = 0
    first_cut: int = 0

    def put(self, row: "Counted") -> None:
        self.requests += row.requests
        self.verify_steps += row.verify_steps
        self.draft_tokens += row.draft_tokens
        self.accepted_tokens += row.accepted_tokens
        self.truncated_steps += row.truncated_steps
        self.untold += row.untold
        self.aa += row.aa
        self.ad += row.ad
        self.dd += row.dd
        self.told_steps += row.told_steps
        self.first_cut += row.first_cut

    def swap(self, row: "Counted", old: "Counted") -> None:
        """Put `row` in and take `old` out, each one request."""
        self.verify_steps += row.verify_steps - old.verify_steps
        self.draft_tokens += row.draft_tokens - old.draft_tokens
        self.accepted_tokens += row.accepted_tokens - old.accepted_tokens
        self.truncated_steps += row.truncated_steps - old.truncated_steps
        self.untold += row.untold - old.untold
        self.aa += row.aa - old.aa
        self.ad += row.ad - old.ad
        self.dd += row.dd - old.dd
        self.told_steps += row.told_steps - old.told_steps
        self.first_cut += row.first_cut - old.first_cut

    def figures(self, k: int | None) -> Figures:
        low, high = self.interval() or (None, None)
        return Figures(
            self.requests,
            self.verify_steps,
            self.draft_tokens,
            self.accepted_tokens,
            None if self.untold else self.truncated_steps,
            k,
            low,
            high,
        )

    def interval(self, z: float = _Z) -> tuple[float, float] | None:
        """Where p lies, z standard errors to each side (1.96: 95 %); None below two requests.

        Tokens of one request resemble each other, so requests are what is independent, and a binomial formula over
        tokens would be far too sure. p is a ratio of two sums over them, of variance n/(n-1) S(a - p d)^2 / (S d)^2
        (Cochran, Sampling Techniques, 3rd ed., 6.4); z is widened to Student's t of n - 1 degrees of freedom, which
        matters at ten requests (two terms of its expansion, Abramowitz and Stegun 26.7.5). On synthetic streams
        (requests' own p beta distributed, intraclass correlation 0.02 to 0.3, lengths lognormal over two orders) 95 %
        intervals held the true p of 0.6 to 0.8 in 79 to 88 % of windows of 10 requests and in 90 to 93 % of 100; they
        lay below it, which is what falls back, in 2 to 6 % and in 1 to 4 % (2.5 % would be right).
        """
        n = self.requests
        if n < 2:
            return None
        p = self.accepted_tokens / self.draft_tokens
        squares = max(self.aa - 2 * p * self.ad + p * p * self.dd, 0.0)
        error = math.sqrt(n / (n - 1) * squares) / self.draft_tokens
        z *= 1 + (z**2 + 1) / (4 * (n - 1)) + (5 * z**4 + 16 * z**2 + 3) / (96 * (n - 1) ** 2)
        return max(p - z * error, 0.0), min(p + z * error, 1.0)


def counted(record: Record) -> Counted | None:
    """What enters windows; None for a request without trusted figures or a draft token, and for one that failed.

    Those are no evidence either way: unknown is not zero.
    """
    figures = record.acceptance
    steps, drafted, accepted = figures.verify_steps, figures.draft_tokens, figures.accepted_tokens
    if record.outcome not in (Outcome.OK, Outcome.TRUNCATED):
        return None
    if figures.quality is not AcceptanceQuality.OK or not steps or not drafted or accepted is None:
        return None
    return one(steps, drafted, accepted, figures.num_speculative_tokens, figures.rejected_at, figures.reached)


def one(
    steps: int,
    drafted: int,
    accepted: int,
    k: int | None,
    rejected_at: Sequence[int] | None = None,
    reached: Sequence[int] | None = None,
) -> Counted:
    """A single request."""
    aa, ad, dd = accepted * accepted, accepted * drafted, drafted * drafted
    if rejected_at is None:
        return Counted(1, steps, drafted, accepted, 0, 1, aa, ad, dd, k, None, reached)
    first, truncated = rejected_at[0] if rejected_at else 0, sum(rejected_at)
    return Counted(1, steps, drafted, accepted, truncated, 0, aa, ad, dd, k, rejected_at, reached, steps, first)


class CountWindow:
    """The last `size` requests that `counted` lets in."""

    def __init__(self, size: int = 100) -> None:
        self._size = size
        self.clear()

    def clear(self) -> None:
        self._rows: deque[Counted] = deque()
        self._sums = Counted()
        self._ks: dict[int | None, int] = {}

    def add(self, record: Record) -> bool:
        """Whether the record counted."""
        row = counted(record)
        if row is not None:
            self.put(row)
        return row is not None

    def put(self, row: Counted) -> None:
        rows, ks, k = self._rows, self._ks, row.num_speculative_tokens
        rows.append(row)
        if len(rows) <= self._size:
            self._sums.put(row)
            ks[k] = ks.get(k, 0) + 1
            return
        old = rows.popleft()
        self._sums.swap(row, old)
        if k != old.num_speculative_tokens:
            ks[k] = ks.get(k, 0) + 1
            ks[old.num_speculative_tokens] -= 1
            if not ks[old.num_speculative_tokens]:
                del ks[old.num_speculative_tokens]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Counted]:
        """The requests, oldest first."""
        return iter(self._rows)

    def figures(self) -> Figures:
        return self._sums.figures(next(iter(self._ks)) if len(self._ks) == 1 else None)

    def interval(self, z: float = _Z) -> tuple[float, float] | None:
        """As the interval of `figures`, of another width."""
        return self._sums.interval(z)

    @property
    def truncation_rate(self) -> float | None:
        """Truncated verify steps / verify steps, of the requests that tell."""
        sums = self._sums
        return sums.truncated_steps / sums.told_steps if sums.told_steps else None

    @property
    def first_position_share(self) -> float | None:
        """Of the truncated verify steps, those that were cut at position 1."""
        sums = self._sums
        return sums.first_cut / sums.truncated_steps if sums.truncated_steps else None


class TimeWindow:
    """Requests by the time of their end: the last `span_s` seconds, in `slots` steps. Times are Unix seconds."""

    def __init__(self, span_s: float = 3600, slots: int = 60) -> None:
        self._slot_s = span_s / slots
        self._slots: deque[tuple[int, Counted]] = deque(maxlen=slots)

    def put(self, row: Counted, now: float) -> None:
        number, slots = int(now / self._slot_s), self._slots
        # A clock that was set back adds to the newest slot.
        if not slots or slots[-1][0] < number:
            slots.append((number, Counted(num_speculative_tokens=row.num_speculative_tokens)))
        sums = slots[-1][1]
        sums.put(row)
        if sums.num_speculative_tokens != row.num_speculative_tokens:
            sums.num_speculative_tokens = None

    def figures(self, now: float) -> Figures:
        first = int(now / self._slot_s) - (self._slots.maxlen or 0)
        inside = [sums for number, sums in self._slots if number > first]
        total = Counted()
        for sums in inside:
            total.put(sums)
        ks = {sums.num_speculative_tokens for sums in inside}
        return total.figures(ks.pop() if len(ks) == 1 else None)


def break_even(k: int, c: float) -> float | None:
    """The per-token p at which k draft tokens a step take as long as they save; None where none in 0..1 does.

    `c`: time of one draft model step / time of a verify step. A step emits 1 + E tokens, E = p + p^2 + … + p^k, and
    takes 1 + k c, so that it is E = k c. Pooled, the same is p = c, as E / k is the pooled p of steps of k tokens.
    """
    if k < 1 or not 0 <= c <= 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(52):  # as fine as a float
        middle = (low + high) / 2
        if sum(middle**i for i in range(1, k + 1)) < k * c:
            low = middle
        else:
            high = middle
    return high
