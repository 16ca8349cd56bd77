"""Acceptance over the last N requests that speculated."""

from collections import deque

from ..record import AcceptanceQuality, Outcome, Record


class CountWindow:
    """Sums over the last `size` requests with trusted figures and at least one draft token.

    A request without figures is no evidence either way and does not enter (unknown is not zero), nor does
    one that failed.
    """

    def __init__(self, size: int = 100) -> None:
        self._rows: deque[tuple[int, int, int]] = deque(maxlen=size)
        self.verify_steps = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0

    def add(self, record: Record) -> None:
        figures = record.acceptance
        steps, drafted, accepted = figures.verify_steps, figures.draft_tokens, figures.accepted_tokens
        if record.outcome not in (Outcome.OK, Outcome.TRUNCATED):
            return
        if figures.quality is not AcceptanceQuality.OK or not steps or not drafted or accepted is None:
            return
        rows = self._rows
        if len(rows) == rows.maxlen:
            old = rows[0]
            self.verify_steps -= old[0]
            self.draft_tokens -= old[1]
            self.accepted_tokens -= old[2]
        rows.append((steps, drafted, accepted))
        self.verify_steps += steps
        self.draft_tokens += drafted
        self.accepted_tokens += accepted

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def acceptance_rate(self) -> float | None:
        """Pooled p: accepted / drafted tokens; None before the first."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted tokens / verify steps: tokens a step emits, the target's own included."""
        return 1 + self.accepted_tokens / self.verify_steps if self.verify_steps else None
