"""Figures of a window, whole or divided by time and by groups, and how they are spread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Protocol

from fastapi import APIRouter, Response

from sidecar.store.source import EmptyWindow, TooManyRows

from . import errors, models
from .deps import ApiDeps
from .models import as_json
from .params import SeriesParams, SeriesQuery, WindowQuery


def router(deps: ApiDeps) -> APIRouter:
    made = APIRouter()
    reader = deps.reader

    @made.get("/traffic", response_model=models.TrafficSeries)
    def traffic(query: SeriesQuery) -> Response:
        """All requests, whether or not they speculated: how many, how they ended, and how many reach the goal.

        The figures of a point are those of `/summary` for the same time. Steps without requests have no point.
        """
        return as_json(models.TrafficSeries(**_series(deps, reader.traffic, query)))

    @made.get("/acceptance", response_model=models.AcceptanceSeries)
    def acceptance(query: SeriesQuery) -> Response:
        """Pooled acceptance rate p and mean acceptance length."""
        return as_json(models.AcceptanceSeries(**_series(deps, reader.acceptance, query)))

    @made.get("/truncation", response_model=models.TruncationSeries)
    def truncation(query: SeriesQuery) -> Response:
        """First rejections by position in the draft."""
        return as_json(models.TruncationSeries(**_series(deps, reader.truncation, query)))

    @made.get("/latency", response_model=models.LatencySeries)
    def latency(query: SeriesQuery) -> Response:
        """Quantiles of ok requests, with and without speculation."""
        return as_json(models.LatencySeries(**_series(deps, reader.latency, query)))

    @made.get("/latency/distribution", response_model=models.LatencyDistribution)
    def distribution(query: WindowQuery) -> Response:
        """How latency, time to first token and time per output token are spread over ok requests, side by side."""
        with refusals(query):
            found = reader.distribution(query.window, query.filters(), deps.now())
        return as_json(models.LatencyDistribution(**found))

    return made


class _Until(Protocol):
    @property
    def until(self) -> datetime | None: ...


@contextmanager
def refusals(query: _Until) -> Iterator[None]:
    """Windows and steps that cannot be answered for, as errors that name the parameter."""
    try:
        yield
    except TooManyRows as error:
        raise errors.invalid("window", str(error)) from None
    except EmptyWindow as error:
        raise errors.invalid("since" if query.until is None else "until", str(error)) from None
    except ValueError as error:
        raise errors.invalid("step", str(error)) from None


def _series(deps: ApiDeps, read: Callable[..., dict[str, Any]], query: SeriesParams) -> dict[str, Any]:
    with refusals(query):
        return read(query.window, query.step, query.by, query.filters(), deps.now())
