"""Plots of a run of the lab: values, intervals, gaps, and what is told by more than a colour."""

import pytest
from support import lab_runs

from dashboard.frames.lab_plots import COLOURS, figure, labels
from dashboard.frames.lab_summary import read


def plot_of(summary, at=0):
    return read(summary).plots[at]


def made(**changes):
    plain = {"title": "t", "kind": "lines", "x": [1, 2, 3], "series": [{"name": "a", "y": [1, None, 3]}]}
    (found,) = read({"plots": [plain | changes]}).plots
    return found


def test_bars_with_intervals():
    drawn = figure(plot_of(lab_runs.QUALIFY))
    p, limit = drawn.data
    assert list(p.y) == [0.29, 0.742, 0.82]
    assert p.error_y.array == pytest.approx([0.02, 0.028, 0.01])
    assert p.error_y.arrayminus == pytest.approx([0.02, 0.032, 0.01])
    assert p.text[0] == "p<br>scenario fault_report: 0.29 (0.27 to 0.31)"
    assert limit.error_y.array is None
    assert {p.marker.pattern.shape, limit.marker.pattern.shape} == {"", "/"}, "also by their look"
    assert [shape.y0 for shape in drawn.layout.shapes] == [0.65]
    assert drawn.layout.yaxis.rangemode == "tozero"
    assert drawn.layout.showlegend


def test_lines_with_bands_and_gaps():
    drawn = figure(plot_of(lab_runs.SWEEP))
    first, second, measured, ideal = drawn.data
    # The band ends at the k without a value, and begins again behind it.
    assert list(first.x) == [1, 2, 2, 1]
    assert list(first.y) == [1.34, 1.6, 1.5, 1.28]
    assert list(second.x) == [4, 5, 6, 6, 5, 4]
    assert first.fillcolor == f"{COLOURS[0]}33"
    assert measured.y[2] is None
    assert not measured.connectgaps
    assert {(each.line.dash, each.marker.symbol) for each in (measured, ideal)} == {
        ("solid", "circle"),
        ("dash", "square"),
    }
    assert measured.text[2] == "measured<br>k 3: no data"
    assert list(drawn.layout.xaxis.tickvals) == [1, 2, 3, 4, 5, 6]


def test_a_point_alone_has_a_band_that_is_seen():
    drawn = figure(made(series=[{"name": "a", "y": [1, None, 3], "low": [0, None, 2], "high": [2, None, 4]}]))
    assert [trace.line.width for trace in drawn.data[:2]] == [2, 2]


def test_marks_of_moments_are_points():
    """A line of single points would not be seen, as of where a soak found a change."""
    drawn = figure(plot_of(lab_runs.SOAK))
    assert [trace.mode for trace in drawn.data] == ["lines", "lines", "markers"]
    assert drawn.data[2].marker.size > 10
    short = figure(made(series=[{"name": "a", "y": [1, 2, None]}]))
    assert short.data[0].mode == "lines+markers"
    assert not short.layout.showlegend


def test_heat():
    drawn = figure(plot_of(lab_runs.QUALIFY, 1))
    cells, values = drawn.data
    assert [list(row) for row in cells.z] == [[0.61, 0.2, 0.1, None], [0.1, 0.05, 0.03, 0.02]]
    assert list(cells.y) == ["fault_report", "address_confirmat…"]
    assert cells.text[0][3] == "fault_report<br>position 4: no data"
    assert list(values.text) == ["0.61", "0.20", "0.10", "0.10", "0.05", "0.03", "0.02"]
    assert list(values.textfont.color[:2]) == ["#000000", "#FFFFFF"], "black on yellow, white on blue"
    wide = figure(made(kind="heat", x=list(range(40)), series=[{"name": "a", "y": [1] * 40}]))
    assert len(wide.data) == 1, "no room for values"


@pytest.mark.parametrize("kind", ["lines", "bars", "heat"])
@pytest.mark.parametrize(
    "changes",
    [
        {"x": [], "series": []},
        {"series": []},
        {"series": [{"name": "a", "y": [1e300, -1e300, 0]}]},
        {"x": ["a", 1, 2.5]},
        {"x": [0.0, 0.0, 1.0], "mark": 0.5},
        {"series": [{"name": "", "y": [None, None, None]}] * 9},
        {"x_title": "<b>{y}", "y_title": "<i>", "series": [{"name": "<script>{x}", "y": [1, 2, 3]}]},
    ],
)
def test_odd_plots(kind, changes):
    text = figure(made(kind=kind, **changes)).to_json()
    assert "<script" not in text
    assert "\\u003cscript" not in text
    assert "<b>" not in text


def test_names_are_cut_but_never_alike():
    assert labels(["a" * 30, "b"]) == ["a" * 17 + "…", "b"]
    alike = ["a" * 30 + "1", "a" * 30 + "2"]
    assert labels(alike) == alike
    assert labels(["<b>", "{x}"]) == ["&lt;b&gt;", "&#123;x}"]
