"""Summaries of the lab, as the lab writes them and as no lab does."""

import msgspec
import pytest
from specwatch_engine.lab import summary as written
from support import lab_runs

from dashboard.frames import lab_summary
from dashboard.frames.lab import unread
from dashboard.frames.lab_summary import read


@pytest.mark.parametrize("summary", [lab_runs.QUALIFY, lab_runs.SWEEP, lab_runs.SOAK], ids=lambda each: each["title"])
def test_samples_are_such_as_the_lab_writes(summary):
    """And all of it is understood."""
    told = written.read(summary).json()
    found = read(told)
    assert found.unread == {}
    assert found.files == told["files"]
    assert [msgspec.to_builtins(each) for each in found.gates] == told["gates"]
    assert [msgspec.to_builtins(each) for each in found.tables] == told["tables"]
    assert [msgspec.to_builtins(each) for each in found.plots] == told["plots"]


@pytest.mark.parametrize("name", ["Gate", "Table", "Series", "Plot"])
def test_the_lab_writes_these_fields(name):
    """A field that it renames breaks here."""
    ours = {field.name for field in msgspec.structs.fields(getattr(lab_summary, name))}
    assert ours == {field.name for field in msgspec.structs.fields(getattr(written, name))}


def test_nothing_is_nothing():
    assert read(None) == read({}) == read({"gates": None, "tables": [], "files": 5})


def test_what_is_not_understood_is_counted():
    found = read(
        {
            "gates": [{"name": "p"}, {"passed": True}, "x", {"name": "q", "value": "much"}],
            "tables": {"title": "no list"},
            "plots": [{"title": "t", "kind": "pie", "x": [], "series": []}],
            "files": {"a": "b", "c": 5},
        }
    )
    assert [(gate.name, gate.result) for gate in found.gates] == [("p", "cannot tell")]
    assert (found.tables, found.plots, found.files) == ([], [], {"a": "b"})
    assert found.unread == {"gates": 3, "tables": 1, "plots": 1}
    assert unread(found) == (
        "Left out, as this dashboard does not know its shape: 3 gates, 1 table, 1 plot. The lab is of another version."
    )


def test_uneven_parts_are_evened():
    table = {"title": "t", "columns": ["a", "b"], "rows": [[1], [1, 2, 3], [{"x": 1}, None]]}
    series = [
        {"name": "short", "y": [1.0]},
        {"name": "long", "y": [1, 2, 3, 4], "low": [0, 0, 0, 0], "high": [9, 9]},
        {"name": "half", "y": [1, 2, 3], "low": [0, 0, 0]},
    ]
    plot = {"title": "t", "kind": "lines", "x": [1, 2, 3], "series": series}
    found = read({"tables": [table], "plots": [plot]})
    assert found.tables[0].rows == [[1, None], [1, 2], ["{'x': 1}", None]]
    drawn = found.plots[0].series
    assert [each.y for each in drawn] == [[1.0, None, None], [1, 2, 3], [1, 2, 3]]
    assert [each.high for each in drawn] == [None, [9, 9, None], None]
    assert [each.low for each in drawn] == [None, [0, 0, 0], None]
