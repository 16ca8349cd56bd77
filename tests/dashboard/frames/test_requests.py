"""Rows of requests as a table, and one with all its figures."""

import msgspec
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import board
from support.payloads import law, over_the_wire

from dashboard import shapes
from dashboard.frames import facts
from dashboard.frames import requests as frames
from dashboard.words import NO_DATA
from sidecar.api import models
from sidecar.record import Arm, Outcome
from sidecar.store.pages import MOST_LOOKED_AT


def row(**changes):
    return msgspec.convert(board.row(**changes), shapes.RequestRow)


PLAIN = row(number=2, **board.PLAIN)


def test_the_choices_are_those_of_the_sidecar():
    assert set(frames.OUTCOMES) == set(Outcome)
    assert set(frames.ARMS) == set(Arm)
    assert frames.LOOKED_AT == MOST_LOOKED_AT


def test_the_table_keeps_the_order_and_tells_unknown_from_zero():
    zero = row(number=1, accepted_tokens=0, tpot_ms=None)
    table = frames.table([row(), zero, PLAIN])
    assert list(table["started (UTC)"]) == ["11-29 18:27:00", "11-29 18:26:00", "11-29 18:25:00"]
    assert list(table["p"].isna()) == [False, False, True]
    assert list(table["p"][:2]) == [0.6, 0.0]
    assert list(table["accepted/drafted"]) == ["9/15", "0/15", NO_DATA]
    assert list(table["steps"].isna()) == [False, False, True]
    assert list(table["TPOT"].isna()) == [False, True, False]
    assert list(table["request id"]) == ["req-0", "req-1", "req-2"]


@pytest.mark.parametrize(
    ("changes", "p", "told"),
    [
        ({}, "0.600", "9 of 15 draft tokens accepted."),
        ({"accepted_tokens": 13}, "0.867", "13 of 15 draft tokens accepted."),
        ({"accepted_tokens": 0}, "0.000", "0 of 15 draft tokens accepted."),
        ({"draft_tokens": 0, "accepted_tokens": 0}, NO_DATA, "Nothing was drafted."),
        (
            {"acceptance_quality": "inconsistent", "acceptance_reason": "more accepted than drafted"},
            *(NO_DATA, "Its figures cannot all be true: more accepted than drafted."),
        ),
        (board.PLAIN, NO_DATA, "No acceptance figures; arm autoregressive."),
    ],
)
def test_p_of_one_request(changes, p, told):
    tile = frames.tiles(row(**changes))[0]
    assert (tile.value, tile.note) == (p, told)
    assert tile.met is (None if p == NO_DATA else float(p) >= 0.65)


def test_tiles_of_one_request():
    tiles = frames.tiles(row())
    assert [(tile.label, tile.value) for tile in tiles] == [
        ("Acceptance rate p", "0.600"),
        ("Mean acceptance length", "3.25"),
        ("Latency", "512 ms"),
        ("TTFT", "41.0 ms"),
        ("TPOT", "36.2 ms"),
    ]
    assert tiles[1].note == "4 verify steps, 2 truncated"
    assert frames.tiles(row(ttft_ms=None))[3].note == "No content byte was seen."


def test_every_figure_of_the_row_is_told():
    told = {fact.name: fact.value for group in frames.facts(row()).values() for fact in group}
    assert told["Started"] == "2026-11-29 18:27:00.000000 UTC"
    assert told["Waited"] == "1.0 ms"
    assert told["Bytes in"] == "812 bytes"
    assert told["Concurrency"] == "2 requests"
    assert told["Why"] == NO_DATA
    # Those drawn by position and by step have their own places.
    drawn = {"acceptance_histogram", "rejected_at", "reached", "steps"}
    assert len(told) == len(msgspec.structs.fields(shapes.RequestRow)) - len(drawn)


def test_texts_of_others_stay_text():
    html = facts.html(frames.facts(row(scenario="<script>", model='"x"')))
    assert "<dd>&lt;script&gt;</dd>" in html
    assert "<dd>&quot;x&quot;</dd>" in html


def test_the_link_holds_a_time_range_that_ends_with_the_request():
    held = frames.held_by(row(started_at="2026-11-29T18:27:00.250000Z"))
    assert held == {"request": "req-0", "since": "2026-11-29T18:22:01Z", "until": "2026-11-29T18:27:01Z"}


@law
@given(st.builds(models.RequestPage))
def test_any_page(model):
    rows = over_the_wire(model, shapes.RequestPage).requests
    table = frames.table(rows)
    assert len(table) == len(rows)
    for each, p in zip(rows, table["p"], strict=True):
        assert (p is pd.NA) == (frames.p_of(each) is None)
        values = [tile.value for tile in frames.tiles(each)]
        assert not any("nan" in value or "None" in value for value in values)
        assert "nan" not in [fact.value for fact in frames.facts(each)["Time and bytes"]]
        facts.html(frames.facts(each))
