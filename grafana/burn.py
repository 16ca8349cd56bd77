"""Burn rates of the latency objective, over two windows each (The Site Reliability Workbook, chapter 5)."""

from typing import NamedTuple

#: Share of ok requests that take at most 800 ms.
OBJECTIVE = 0.95


class Burn(NamedTuple):
    """Fires while the budget burns `factor` times as fast as it may, over both windows."""

    alert: str
    factor: float
    long: str
    short: str
    #: ok requests in the long window, below which the share says little.
    least: int
    severity: str
    for_: str
    keep_firing_for: str


#: Of a budget of 30 days, they tell of 2 % gone in an hour, 5 % in six hours, 10 % in three days; the short window is
#: a twelfth of the long one.
BURNS = (
    Burn("SpecwatchLatencyBudgetFastBurn", 14.4, "1h", "5m", 100, "critical", "2m", "5m"),
    Burn("SpecwatchLatencyBudgetSlowBurn", 6, "6h", "30m", 100, "critical", "15m", "15m"),
    Burn("SpecwatchLatencyBudgetTicket", 1, "3d", "6h", 100, "warning", "1h", "1h"),
)


def threshold(objective: float, factor: float) -> float:
    """The share of bad requests above which the budget of `objective` burns `factor` times too fast.

    Raises ValueError for an objective of which nothing can burn so fast: were every request bad, it would burn
    1 / (1 - objective) times too fast.
    """
    if not 0 < objective < 1:
        raise ValueError(f"an objective of {objective:g} is no share between 0 and 1")
    if factor <= 0:
        raise ValueError(f"a burn rate of {factor:g} is not above 0")
    share = round(factor * (1 - objective), 9)
    if share >= 1:
        fastest = 1 / (1 - objective)
        raise ValueError(
            f"a burn rate of {factor:g} can never be exceeded with an objective of {objective:g}, which burns at most "
            f"{fastest:.3g} times too fast: take a smaller factor, or an objective above {1 - 1 / factor:.4g}"
        )
    return share
