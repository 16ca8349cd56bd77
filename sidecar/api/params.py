"""Query parameters."""

import re
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import Query
from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from sidecar.probes.truncation import MOST_POSITIONS
from sidecar.record import Arm, Outcome
from sidecar.store.expressions import Filters
from sidecar.store.pages import Only

By = Literal["scenario", "model", "temperature", "prompt_length", "concurrency", "k"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([1-9][0-9]{0,6})([smhd])")
MAX_DURATION_S = 366 * 86400


def parse_duration(text: str) -> int:
    """Seconds of `30s`, `15m`, `1h` or `7d`. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= MAX_DURATION_S:
        raise ValueError(f"{text[:40]!r} is not a duration: write 30s, 15m, 1h or 7d (at most 366d)")
    return seconds


def _duration(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


def _time(value: object) -> object:
    """Times as ISO 8601, or Unix seconds; without a zone they are UTC."""
    if not isinstance(value, str):
        return value
    try:
        if re.fullmatch(r"[0-9]{1,11}(\.[0-9]{1,6})?", value):
            return datetime.fromtimestamp(float(value), UTC)
        # An unescaped + in a query arrives as a space.
        found = datetime.fromisoformat(re.sub(r" (\d\d:?\d\d)$", r"+\1", value))
    except (ValueError, OverflowError):
        raise ValueError(f"{value[:40]!r} is not a time: write 2026-01-31T12:00:00Z or Unix seconds") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _storable(value: datetime) -> datetime:
    # The ends of the calendar cannot be moved to UTC.
    if not 1970 <= value.year <= 9000:
        raise ValueError("is out of range")
    return value.astimezone(UTC)


Duration = Annotated[int, BeforeValidator(_duration), Field(json_schema_extra={"type": "string", "example": "1h"})]
Time = Annotated[AwareDatetime, BeforeValidator(_time), AfterValidator(_storable)]


class FilterParams(BaseModel):
    model_config = ConfigDict(extra="forbid")

    scenario: str | None = None
    model: str | None = None
    upstream: str | None = None
    arm: Arm | None = None
    outcome: Outcome | None = None
    instance: str | None = None
    #: Inclusive.
    since: Time | None = None
    #: Exclusive.
    until: Time | None = None

    def filters(self) -> Filters:
        return Filters(
            scenario=self.scenario,
            model=self.model,
            upstream=self.upstream,
            arm=self.arm and self.arm.value,
            outcome=self.outcome and self.outcome.value,
            instance=self.instance,
            since=self.since,
            until=self.until,
        )


class WindowParams(FilterParams):
    window: Duration = 3600


class SeriesParams(WindowParams):
    #: Left out, the answer is not split by time.
    step: Duration | None = None
    by: By | None = None


class PairsWindowParams(BaseModel):
    """A window of pairs of texts, which know no more than a scenario."""

    model_config = ConfigDict(extra="forbid")

    window: Duration = 3600
    scenario: str | None = None
    #: Inclusive.
    since: Time | None = None
    #: Exclusive.
    until: Time | None = None

    def filters(self) -> Filters:
        return Filters(scenario=self.scenario, since=self.since, until=self.until)


class SimilarityParams(PairsWindowParams):
    #: Left out, the answer is not split by time.
    step: Duration | None = None
    by: Literal["scenario"] | None = None


class PairsParams(PairsWindowParams):
    kind: Literal["draft", "replay"] | None = None
    limit: int = Field(20, ge=1, le=100)


class PageParams(FilterParams):
    #: A verify step had its first rejection at that position.
    truncated_at: int | None = Field(None, ge=1, le=MOST_POSITIONS)
    #: The id in the reply.
    reply_id: str | None = Field(None, min_length=1)
    latency_over_ms: float | None = Field(None, ge=0, allow_inf_nan=False)
    p_below: float | None = Field(None, ge=0, le=1)
    #: num_speculative_tokens.
    k: int | None = Field(None, ge=0, le=1000)
    limit: int = Field(100, ge=1, le=500)
    cursor: str | None = Field(None, max_length=200)

    def only(self) -> Only:
        return Only(self.truncated_at, self.reply_id, self.latency_over_ms, self.p_below, self.k)


class RowParams(BaseModel):
    model_config = ConfigDict(extra="forbid")

    #: Exclusive.
    until: Time | None = None


class DraftsParams(BaseModel):
    model_config = ConfigDict(extra="forbid")

    limit: int = Field(20, ge=1, le=1000)


class WindowsParams(BaseModel):
    model_config = ConfigDict(extra="forbid")

    by: By | None = None


WindowsQuery = Annotated[WindowsParams, Query()]
WindowQuery = Annotated[WindowParams, Query()]
SeriesQuery = Annotated[SeriesParams, Query()]
PairsWindowQuery = Annotated[PairsWindowParams, Query()]
SimilarityQuery = Annotated[SimilarityParams, Query()]
PairsQuery = Annotated[PairsParams, Query()]
RowQuery = Annotated[RowParams, Query()]
PageQuery = Annotated[PageParams, Query()]
DraftsQuery = Annotated[DraftsParams, Query()]
