"""Truncation: at which position the target model says no, in words and single figures. Pure."""

from collections.abc import Sequence

from dashboard import shapes
from dashboard.frames.base import NO_NAMES, Tile, count, judged, percent, plain
from dashboard.frames.plots import with_trend
from dashboard.words import ENOUGH_STEPS, FIRST_POSITION_MAX, NO_DATA, TRUNCATION_MAX, define


def truncation_tiles(series: shapes.TruncationSeries) -> list[Tile]:
    total, steps = series.total, series.total.verify_steps
    full = steps - total.truncated_steps
    helps = (
        define("truncation rate", "verify step"),
        define("first-position share"),
        define("fully accepted steps"),
    )
    if steps:
        rate = total.truncated_steps / steps
        note = f"{total.truncated_steps:,} of {count(steps, 'verify step')} truncated."
        first = judged(
            "Truncation rate",
            percent(rate, TRUNCATION_MAX),
            helps[0],
            rate <= TRUNCATION_MAX,
            "at most 35 %",
            note,
        )
        whole = Tile(
            "Fully accepted steps",
            percent(full / steps),
            helps[2],
            note=f"{full:,} of {count(steps, 'verify step')}, not in the heat map's cells.",
        )
    else:
        none = "No verify step in this time range."
        first = Tile("Truncation rate", NO_DATA, helps[0], note=none)
        whole = Tile("Fully accepted steps", NO_DATA, helps[2], note=none)
    share = series.first_position_share
    if share is None:
        second = Tile("First-position share", NO_DATA, helps[1], note="No truncated step in this time range.")
    else:
        second = judged(
            "First-position share",
            percent(share, FIRST_POSITION_MAX),
            helps[1],
            share <= FIRST_POSITION_MAX,
            "at most 15 %",
            f"Of {count(total.truncated_steps, 'truncated step')}.",
        )
    return [
        with_trend(first, series, rate_of, TRUNCATION_MAX),
        with_trend(second, series, first_share, FIRST_POSITION_MAX),
        with_trend(whole, series, full_share, None),
    ]


def rate_of(point: shapes.TruncationPoint) -> float | None:
    return point.truncated_steps / point.verify_steps if point.verify_steps else None


def first_share(point: shapes.TruncationPoint) -> float | None:
    """Of the steps that were truncated, those that were at position 1."""
    cut = sum(each or 0 for each in point.rejected_at)
    return (point.rejected_at[0] or 0) / cut if cut else None


def full_share(point: shapes.TruncationPoint) -> float | None:
    """Share of the verify steps in which every draft token was accepted."""
    return (point.verify_steps - point.truncated_steps) / point.verify_steps if point.verify_steps else None


def worst_position(point: shapes.TruncationPoint) -> int | None:
    """Index of the position at which most steps were truncated; None: not one was."""
    most = max((each or 0 for each in point.rejected_at), default=0)
    return point.rejected_at.index(most) if most > 0 else None


def hazard_at(point: shapes.TruncationPoint, index: int) -> float | None:
    return point.hazard[index] if index < len(point.hazard) else None


def headline(total: shapes.TruncationPoint, scenarios: Sequence[shapes.TruncationPoint]) -> str:
    """What the heat maps show, in a sentence of Markdown; empty where positions are not known."""
    index = worst_position(total)
    if index is None:
        return f"No draft token was rejected in {count(total.verify_steps, 'verify step')}." if total.reached else ""
    hazard, cut = hazard_at(total, index), total.rejected_at[index] or 0
    words = f"Most truncations happen at position {index + 1}"
    words += f": {cut:,}" if hazard is None else f": {percent(hazard)} of the steps that reach it"
    named = [
        (found, point.group)
        for point in scenarios
        if point.group
        and point.group not in NO_NAMES
        and _reached(point, index) >= ENOUGH_STEPS
        and (found := hazard_at(point, index)) is not None
    ]
    if len(named) > 1:
        worst, name = max(named)
        words += f"; worst scenario: {plain(name)} ({percent(worst)})"
    return f"{words}."


def _reached(point: shapes.TruncationPoint, index: int) -> int:
    return (point.reached[index] or 0) if index < len(point.reached) else 0


def cliffs(total: shapes.TruncationPoint, groups: Sequence[shapes.TruncationPoint], by: str) -> str:
    """Where acceptance falls off a cliff, and what that means, in Markdown; empty where it nowhere does."""
    found = [f"in all, behind position {total.cliff_at}"] if total.cliff_at is not None else []
    found += [
        f"in {by} {plain(point.group or '(none)')}, behind position {point.cliff_at}"
        for point in groups
        if point.cliff_at is not None
    ]
    if not found:
        return ""
    least = min(point.cliff_at for point in (total, *groups) if point.cliff_at is not None)
    return (
        f"**Acceptance falls off a cliff:** {'; '.join(found)}. Behind it next to nothing is accepted, as of a draft "
        "model that is run wrongly beyond that length (positions, cache, or another model than was trained). Until "
        f"that is found, drafts of {count(least, 'token')} save what the rest costs."
    )


def shape_words(total: shapes.TruncationPoint) -> str:
    """What it means that there is no cliff."""
    if total.shape == "decay":
        return (
            "No cliff but decay, in all: each position is accepted about as often as the one before it, or somewhat "
            "less. That speaks against a draft model that is run wrongly, not for one that guesses well."
        )
    return "Cliff or decay, in all: no data. Too few verify steps came past the first position to tell."
