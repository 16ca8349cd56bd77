"""A chosen cell and the requests behind it."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import board
from support.payloads import law, no_nan, over_the_wire
from support.positions import AT, point, series, truncation_series

from dashboard import shapes
from dashboard.frames import cells as frames
from sidecar.api import models

FOUND = series(
    point(steps=20, cut=2, rejected=[2, 3], reached=[20, 10]),
    (0, {"steps": 10, "cut": 2, "rejected": [2, 0], "reached": [10, 8]}),
    (1, {"steps": 10, "cut": 3, "rejected": [0, 3], "reached": [10, 10]}),
    point(group="a", steps=10, cut=1, rejected=[1, None], reached=[10, None]),
)


def page(*rows, more=None):
    return over_the_wire(models.RequestPage.model_validate({"requests": rows, "next_cursor": more}), shapes.RequestPage)


NOBODY = {"scenario": None, "model": None}


@pytest.mark.parametrize(
    ("step", "group", "names", "query", "words"),
    [
        (
            None, None, (None, None),
            {"since": "2026-11-29T18:00:00Z", "until": "2026-11-29T18:10:00Z"} | NOBODY,
            "position 2, 2026-11-29 18:00 to 18:10 UTC",
        ),
        (
            AT + timedelta(minutes=5), None, ("billing", None),
            {"since": "2026-11-29T18:05:00Z", "until": "2026-11-29T18:06:00Z", "scenario": "billing", "model": None},
            "position 2, 2026-11-29 18:05 to 18:06 UTC, scenario billing",
        ),
        (
            None, ("scenario", "a*b"), (None, "m"),
            {"since": "2026-11-29T18:00:00Z", "until": "2026-11-29T18:10:00Z", "scenario": "a*b", "model": "m"},
            r"position 2, 2026-11-29 18:00 to 18:10 UTC, scenario a\*b, model m",
        ),
        (
            None, ("k", "4"), (None, None),
            {"since": "2026-11-29T18:00:00Z", "until": "2026-11-29T18:10:00Z"} | NOBODY | {"k": "4"},
            "position 2, 2026-11-29 18:00 to 18:10 UTC, k = 4",
        ),
    ],
)  # fmt: skip
def test_what_is_asked_for(step, group, names, query, words):
    place = frames.place(FOUND, 2, step, group, names)
    assert place.query == {"truncated_at": "2", "k": None} | query
    assert place.words == words


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("2026-11-29T18:05:00Z", datetime(2026, 11, 29, 18, 5, tzinfo=UTC)),
        ("2026-11-29T18:05:00", datetime(2026, 11, 29, 18, 5, tzinfo=UTC)),
        ("yesterday", None),
        ("", None),
        (None, None),
        ("0001-01-01T00:00:00+14:00", None),
    ],
)
def test_steps_of_addresses(name, at):
    assert frames.step_of(name) == at


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (None, ""),
        (("scenario", "chat"), ""),
        (("scenario", "other"), "every scenario beyond the twenty largest"),
        (("model", "unknown"), "Requests whose model is unknown cannot be asked for"),
    ],
)
def test_groups_that_are_no_name(group, words):
    assert words in frames.unasked(group)
    assert bool(words) == bool(frames.unasked(group))


@pytest.mark.parametrize(
    ("position", "at", "group", "counted"),
    [
        (1, AT, None, 2),
        (2, AT, None, 0),
        (2, AT + timedelta(minutes=9), None, None),
        (1, None, "a", 1),
        (2, None, "a", None),
        (3, None, None, None),
    ],
)
def test_steps_in_a_cell(position, at, group, counted):
    assert frames.counted(FOUND, position, at, group) == counted


PLACE = frames.place(FOUND, 2, None, None, (None, None))


@pytest.mark.parametrize(
    ("place", "found", "counts", "words"),
    [
        (PLACE, page(board.row(0)), 4, "1 request with a verify step truncated at position 2"),
        (PLACE, page(board.row(0), board.row(1), more="x"), 4, "The newest 2 requests with a verify step"),
        (PLACE, page(), None, "Nothing was drafted at position 2"),
        (PLACE, page(more="x"), None, "Nothing was drafted at position 2"),
        (PLACE, page(more="x"), 7, "None of the newest 200,000 requests there was truncated at position 2"),
        (PLACE, page(more="x"), 0, "None of the newest 200,000 requests there was truncated at position 2"),
        (PLACE, page(), 0, "No verify step was truncated at position 2"),
        (
            PLACE,
            page(),
            7,
            "7 verify steps truncated at position 2, 2026-11-29 18:00 to 18:10 UTC, but no such request",
        ),
    ],
)
def test_how_many_there_are(place, found, counts, words):
    assert frames.said(place, found, counts).startswith(words)


def test_requests_lead_to_their_own_page():
    rows = page(board.row(1, request_id="<r>&1", scenario="<s>"), board.row(2, **board.PLAIN, latency_ms=None)).requests
    html = frames.requests_table(PLACE, rows)
    assert '<a href="requests?request=%3Cr%3E%261&amp;since=2026' in html, (
        "the time too, as clients may use an id again"
    )
    assert '">&lt;r&gt;&amp;1</a>' in html
    assert "<td>&lt;s&gt;</td>" in html
    assert '<td class="sw-bad">✗ 0.600</td><td>0 steps</td><td>4</td><td>512 ms</td>' in html
    assert html.count("no data") == 4, "p, steps there, verify steps and latency of the second"


def test_figures_that_cannot_be_true_give_no_p():
    (row,) = page(board.row(1, acceptance_quality="inconsistent")).requests
    assert frames.requests_table(PLACE, [row]).count("no data") == 1


def test_the_last_step_of_the_calendar():
    last = frames.step_of("9999-12-31T23:59:59Z")
    assert frames.place(FOUND, 1, last, None, (None, None)).since == last


@law
@given(truncation_series(), st.integers(1, 64), st.lists(st.builds(models.RequestRow), max_size=3))
def test_any_requests(model, position, rows):
    found = over_the_wire(model, shapes.TruncationSeries)
    place = frames.place(found, position, None, ("k", "4"), (None, None))
    known = over_the_wire(models.RequestPage(requests=rows, next_cursor=None), shapes.RequestPage)
    no_nan(place.words, frames.said(place, known, frames.counted(found, position, None, None)))
    no_nan(frames.requests_table(place, known.requests))
