"""Truncations by position, named and any."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from dashboard import shapes
from sidecar.api import models

from .payloads import COUNTS, FINITE, STEPS, TIMES

AT = datetime(2026, 11, 29, 18, 0, tzinfo=UTC)


def point(
    *,
    steps: int,
    cut: int,
    rejected: list[int | None] | None = None,
    reached: list[int | None] | None = None,
    group: str | None = None,
    minute: int | None = None,
    shape: Any = None,
    cliff: int | None = None,
) -> shapes.TruncationPoint:
    came, no = reached or [], rejected or []
    return shapes.TruncationPoint(
        at=None if minute is None else AT + timedelta(minutes=minute),
        group=group,
        verify_steps=steps,
        truncated_steps=cut,
        rejected_at=no,
        reached=came,
        hazard=[None if not n or r is None else r / n for r, n in zip(no, came, strict=True)],
        shape=shape or ("decay" if cliff is None else "cliff"),
        cliff_at=cliff,
    )


def series(
    total: shapes.TruncationPoint,
    *points: tuple[int, dict[str, Any]] | shapes.TruncationPoint,
    share: float | None = None,
) -> shapes.TruncationSeries:
    """By steps of a minute; points are finished ones, or a minute and what is known of it."""
    built = [each if isinstance(each, shapes.TruncationPoint) else point(minute=each[0], **each[1]) for each in points]
    return shapes.TruncationSeries(
        exact=True,
        resolution_s=None,
        since=AT,
        until=AT + timedelta(minutes=10),
        window_s=600,
        step_s=60,
        by=None,
        positions=max((len(each.reached) for each in (total, *built)), default=0),
        total=total,
        first_position_share=share,
        points=built,
    )


@st.composite
def truncation_series(draw: st.DrawFn) -> models.TruncationSeries:
    """Any that the API can give."""
    positions = draw(st.integers(0, 6))

    def cells(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
        return st.lists(st.none() | values, min_size=positions, max_size=positions)

    each = st.builds(
        models.TruncationPoint,
        at=st.none() | TIMES,
        rejected_at=cells(COUNTS),
        reached=cells(COUNTS),
        hazard=cells(FINITE),
        verify_steps=COUNTS,
        truncated_steps=COUNTS,
        cliff_at=st.none() | st.integers(1, 64),
    )
    return draw(
        st.builds(
            models.TruncationSeries,
            positions=st.just(positions),
            total=each,
            points=st.lists(each, max_size=5),
            step_s=STEPS,
        )
    )
