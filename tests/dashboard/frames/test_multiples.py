"""Small multiples of p and requests."""

import base64
import re
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.payloads import law, no_nan, over_the_wire
from support.positions import AT

from dashboard import shapes
from dashboard.frames import multiples as frames
from sidecar.api import models


def at(minute, p, requests=1):
    fields = {field.name: None for field in msgspec.structs.fields(shapes.AcceptancePoint)}
    tokens = {"draft_tokens": 100, "accepted_tokens": 0 if p is None else round(100 * p), "p": p, "requests": requests}
    return shapes.AcceptancePoint(**fields | tokens | {"at": AT + timedelta(minutes=minute), "group": "a"})


def steps(*points):
    return [(AT + timedelta(minutes=minute), point) for minute, point in enumerate(points)]


def images(html):
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    return [base64.b64decode(each).decode() for each in found]


def lines(svg):
    return re.findall(r'<polyline [^>]*points="([^"]*)"', svg)


def test_a_step_without_data_is_a_gap_and_p_of_0_a_point():
    (svg,) = images(frames.multiples([("a", steps(at(0, 0.5), at(1, 0.0), None, at(3, 1.0)))]))
    first, second = lines(svg)
    assert len(first.split()) == 2
    assert first.split()[1] == f"90.0,{frames.LINE - 3:.1f}", "p 0 is the lowest point"
    assert second == "210.0,3.0 210.0,3.0", "a point by itself is a dot"
    assert svg.count("<rect") == 3


def test_all_have_one_scale_of_requests():
    html = frames.multiples([("a", steps(at(0, 0.5, requests=10))), ("b", steps(at(0, 0.5, requests=5)))])
    heights = [re.findall(r'height="([\d.]+)" fill', svg) for svg in images(html)]
    assert heights == [[f"{frames.BARS:.2f}"], [f"{frames.BARS / 2:.2f}"]]


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([at(0, 0.7), at(1, 0.6)], "p 0.650 ✓ · 2 requests speculated"),
        ([at(0, 0.64)], "p 0.640 ✗ below 0.65 · 1 request speculated"),
        ([None], "p no data · 0 requests speculated"),
    ],
)
def test_in_words(points, words):
    assert f"<p>{words}</p>" in frames.multiples([("a", steps(*points))])


def test_steps_are_told_on_hover():
    html = frames.multiples([("a", steps(at(0, 0.5, requests=3), None))])
    assert re.findall(r'<span title="([^"]*)"', html) == [
        "2026-11-29 18:00 UTC: p 0.500, 3 requests",
        "2026-11-29 18:01 UTC: no data",
    ]


def test_names_stay_text_and_the_first_twelve_are_drawn():
    html = frames.multiples([(f'<b>"{number}', steps(at(0, 0.5))) for number in range(20)])
    assert "<b>" not in html
    assert len(images(html)) == 12
    assert "&lt;b&gt;&quot;11</h4>" in html


def test_steps_of_a_group():
    series = shapes.AcceptanceSeries(
        exact=True, resolution_s=None, since=AT, until=AT, window_s=60, step_s=60, by="scenario",
        points=[at(1, 0.5), msgspec.structs.replace(at(0, 0.9), group="b")],
    )  # fmt: skip
    times = [AT, AT + timedelta(minutes=1)]
    assert [point and point.p for _, point in frames.steps_of(series, "a", times)] == [None, 0.5]


@law
@given(st.builds(models.AcceptanceSeries))
def test_any_series(model):
    series = over_the_wire(model, shapes.AcceptanceSeries)
    times = sorted({point.at for point in series.points if point.at is not None})
    html = frames.multiples([(name, frames.steps_of(series, name, times)) for name in ("a", None) if name])
    html += frames.multiples([("x", [(at, point) for at, point in zip(times, series.points, strict=False)])])
    no_nan(html, *images(html))
