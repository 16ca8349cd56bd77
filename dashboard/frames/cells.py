"""A cell of a heat map that a person chose, and the requests behind it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dashboard import shapes
from dashboard.frames.base import NO_NAMES, count, milliseconds, plain, ratio, utc
from dashboard.frames.positions import By, room, step_name
from dashboard.frames.requests import LOOKED_AT, held_by, p_of
from dashboard.frames.table import NONE, Cell, Row, link, table
from dashboard.words import P_MIN

#: Rows that are shown.
SHOWN = 20


@dataclass(frozen=True, slots=True)
class Place:
    """Verify steps that were truncated at a position (from 1), between two times, in a scenario, model or k."""

    position: int
    since: datetime
    until: datetime
    scenario: str | None = None
    model: str | None = None
    k: str | None = None

    @property
    def query(self) -> dict[str, str | None]:
        """As the API and the page Requests take it."""
        return {
            "truncated_at": str(self.position),
            "since": step_name(self.since),
            "until": step_name(self.until),
            "scenario": self.scenario,
            "model": self.model,
            "k": self.k,
        }

    @property
    def words(self) -> str:
        """In Markdown."""
        kinds = (("scenario", self.scenario), ("model", self.model), ("k =", self.k))
        named = "".join(f", {kind} {plain(name)}" for kind, name in kinds if name is not None)
        day = "%Y-%m-%d %H:%M" if self.since.date() != self.until.date() else "%H:%M"
        return f"position {self.position}, {self.since:%Y-%m-%d %H:%M} to {self.until.strftime(day)} UTC{named}"


def step_of(name: str | None) -> datetime | None:
    """The step of an address, None where it is none."""
    try:
        return utc(datetime.fromisoformat(name or ""))
    except (ValueError, OverflowError):
        return None


def place(
    series: shapes.TruncationSeries,
    position: int,
    step: datetime | None,
    group: tuple[By, str] | None,
    names: tuple[str | None, str | None],
) -> Place:
    """What is chosen: `step` and `group` narrow the time range and `names`, the page's scenario and model."""
    since, until = utc(series.since), utc(series.until)
    if step is not None:
        since, until = step, step + min(timedelta(seconds=series.step_s or 60), room(step))
    chosen = Place(position, since, until, *names)
    if group is None:
        return chosen
    by, name = group
    found = {"scenario": chosen.scenario, "model": chosen.model, by: name}
    return Place(position, since, until, found["scenario"], found["model"], found.get("k"))


def unasked(group: tuple[By, str] | None) -> str:
    """Why the requests of a group cannot be asked for, in Markdown; empty where they can."""
    if group is None or group[1] not in NO_NAMES:
        return ""
    by, name = group
    if name == "other":
        return (
            f"*other* holds every {by} beyond the twenty largest, so its requests have no name to be asked for by. "
            "Choose a shorter time range, or leave the third choice empty."
        )
    return f"Requests whose {by} is unknown cannot be asked for. Leave the third choice empty."


def counted(series: shapes.TruncationSeries, position: int, at: datetime | None, group: str | None) -> int | None:
    """Verify steps truncated at a position, in the points of a time or of a group; None: never drafted there."""
    points = [
        point
        for point in series.points
        if (at is None or (point.at is not None and utc(point.at) == at)) and (group is None or point.group == group)
    ]
    known = [
        point.rejected_at[position - 1] or 0
        for point in points
        if position <= len(point.reached) and point.reached[position - 1] is not None
    ]
    return sum(known) if known else None


def said(place: Place, page: shapes.RequestPage, counts: int | None) -> str:
    """How many requests there are, in Markdown. `counts`: the verify steps in the cell."""
    if page.requests:
        newest = "The newest " if page.next_cursor is not None else ""
        return f"{newest}{count(len(page.requests), 'request')} with a verify step truncated at {place.words}."
    if counts is None:
        return f"Nothing was drafted at {place.words}."
    if page.next_cursor is not None:
        return f"None of the newest {LOOKED_AT:,} requests there was truncated at {place.words}; older ones may be."
    if not counts:
        return f"No verify step was truncated at {place.words}."
    return (
        f"{count(counts, 'verify step')} truncated at {place.words}, but no such request is kept: single requests are "
        "deleted after the days of `retention_days`, what is counted stays longer."
    )


def requests_table(place: Place, rows: Sequence[shapes.RequestRow]) -> str:
    """As HTML, newest first, as the API gives them; each leads to its own page."""
    heads = [
        ("request", ()),
        ("began (UTC)", ()),
        ("scenario", ()),
        ("p", ("acceptance rate p",)),
        (f"truncated at {place.position}", ("verify step",)),
        ("verify steps", ("verify step",)),
        ("latency", ("latency",)),
    ]
    return table(heads, [_row(place, row) for row in rows], "Requests behind the chosen cell")


def _row(place: Place, row: shapes.RequestRow) -> Row:
    cut = row.rejected_at or []
    p = p_of(row)
    return Row(
        [
            Cell(row.request_id, href=link("requests", **held_by(row)), more=row.request_id),
            Cell(f"{utc(row.started_at):%Y-%m-%d %H:%M:%S}"),
            Cell(row.scenario),
            NONE if p is None else Cell(f"{'✗ ' if p < P_MIN else ''}{ratio(p, P_MIN)}", "bad" if p < P_MIN else ""),
            Cell(count(cut[place.position - 1], "step")) if place.position <= len(cut) else NONE,
            NONE if row.verify_steps is None else Cell(f"{row.verify_steps:,}"),
            NONE if row.latency_ms is None else Cell(milliseconds(row.latency_ms)),
        ]
    )
