"""Trends: gaps are gaps, and nothing is drawn of nothing."""

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.frames.spark import HEIGHT, WIDTH, drawn, sparkline

SVG = "{http://www.w3.org/2000/svg}"


def lines(html: str) -> list[list[tuple[float, float]]]:
    return [
        [tuple(map(float, point.split(","))) for point in each.attrib["points"].split()]
        for each in ElementTree.fromstring(html).iter(f"{SVG}polyline")
    ]


@pytest.mark.parametrize(
    ("values", "runs"),
    [
        ([0.1, 0.2, 0.3], [3]),
        ([0.1, None, 0.3, 0.4], [2, 2]),
        ([None, 0.5, None], [2]),
        ([0.5], [2]),
        ([math.nan, 1.0], [2]),
    ],
)
def test_a_step_without_data_breaks_the_line(values, runs):
    assert [len(run) for run in lines(drawn(values, None))] == runs


@pytest.mark.parametrize("values", [[], [None, None], [math.nan]])
def test_nothing_of_nothing(values):
    assert sparkline(values, "p", 0.65) == ""


def test_a_limit_is_drawn_where_it_is():
    svg = ElementTree.fromstring(drawn([0.0, 1.0], 0.5))
    (line,) = svg.iter(f"{SVG}line")
    assert float(line.attrib["y1"]) == HEIGHT / 2
    assert not list(ElementTree.fromstring(drawn([0.0, 1.0], None)).iter(f"{SVG}line"))


@given(st.lists(st.none() | st.floats(-1e12, 1e12), min_size=1, max_size=50))
def test_every_point_is_on_the_picture(values):
    svg = drawn(values, 0.5)
    for run in lines(svg) if svg else []:
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in run)


def test_what_is_told_stays_text():
    assert sparkline([1.0], '"><script>').startswith('<img class="sw-spark" alt="&quot;&gt;&lt;script&gt;"')
