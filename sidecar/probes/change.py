"""Whether the acceptance rate has dropped, told sooner than a window of 100 requests shows it. Pure.

A one-sided CUSUM (Page, Biometrika 1954) over requests. What is added up is how far a request's rate lies below that of
the first `REFERENCE` requests, in standard deviations as these requests had them: how unlike each other requests are
is learned, not assumed. Tokens of one request resemble each other, so a request of 50 draft tokens weighs half of what
a very long one does.

On synthetic streams whose requests are alike to unlike (intraclass correlation 0.02 to 0.3; `tests/bench/change.py`)
one in 40,000 to 240,000 requests was a false alarm. A drop of pooled p from 0.75 to 0.50 was told after 9 to 38
requests, where the p of the last 100 was below 0.65 after 43 to 67; from 0.85 to 0.60 after 8 to 38 (82 to 144). A drop
of less than a standard deviation is told late or not at all (0.75 to 0.60: 17, 55, and hardly ever where requests are
most unlike); there the window is sooner.
"""

import math

#: Requests before it tells anything, and those that it goes on to learn from: after a hundred, the mean is still off by
#: a tenth of a standard deviation, which is a fifth of the slack.
REFERENCE, LEARNED = 100, 500
#: Drops of less than twice this many standard deviations are let pass, mostly...
_SLACK = 0.5
#: ... and at this sum it is a drop.
_LIMIT = 12.0
#: One request counts for no more than so many standard deviations.
_MOST = 3.0
#: Where requests are as good as equal; a smaller drop does not matter.
_LEAST_DEVIATION = 0.05
#: Draft tokens of a request that weighs half: variance within requests / variance between them, of usual traffic.
_HALF_WEIGHT = 50


class Change:
    def __init__(self) -> None:
        self._requests = 0
        # Of the reference: sums of w, w r, w^2, w^2 r and w^2 r^2, r being the rates and w the weights.
        self._w = self._wr = self._ww = self._wwr = self._wwrr = 0.0
        self._sum = 0.0
        self._accepted = self._drafted = 0

    def add(self, accepted: int, drafted: int) -> bool:
        """Take in a request (drafted > 0); whether the rate has dropped, as far as is known by now."""
        rate, weight = accepted / drafted, drafted / (drafted + _HALF_WEIGHT)
        if self._requests >= REFERENCE:
            self._judge(rate, weight)
            self._accepted += accepted
            self._drafted += drafted
            if self._sum <= 0:
                self._sum, self._accepted, self._drafted = 0.0, 0, 0
        if self._requests < LEARNED:
            self._requests += 1
            self._w += weight
            self._wr += weight * rate
            self._ww += weight**2
            self._wwr += weight**2 * rate
            self._wwrr += (weight * rate) ** 2
        return self._sum > _LIMIT

    def _judge(self, rate: float, weight: float) -> None:
        mean = self._wr / self._w
        squares = self._wwrr - 2 * mean * self._wwr + mean**2 * self._ww
        deviation = max(math.sqrt(max(squares, 0.0) / self._requests), _LEAST_DEVIATION)
        self._sum += min(weight * (mean - rate) / deviation, _MOST) - _SLACK

    @property
    def rate(self) -> float | None:
        """Pooled acceptance rate since the requests began to fall behind; None where they do not."""
        return self._accepted / self._drafted if self._drafted else None
