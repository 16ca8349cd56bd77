"""Gates and tables of a run of the lab, and two runs side by side."""

import pytest
from support import lab_runs
from support.html_tables import cells

from dashboard.frames import lab_tables as frames
from dashboard.frames.lab_summary import Gate, Summary, Table, read


def test_failed_gates_come_first_and_say_so():
    html = frames.gates_table(read(lab_runs.QUALIFY).gates)
    head, *rows = cells(html)
    assert head == ["gate", "result", "value", "limit", "in words"]
    assert [row[:4] for row in rows] == [
        # Rounded to three figures it would be 0.650, its limit.
        ["p of fault_report", "✗ failed", "0.6497", "0.650"],
        ["similarity", "? cannot tell", "no data", "0.820"],
        ["draft step", "✓ passed", "0.104", "0.333"],
        ["acceptance rate p", "✓ passed", "0.713", "0.650"],
        ["tokenizers", "✓ passed", "–", "–"],
    ]
    assert rows[0][4].startswith("p is 0.6497, below 0.65")
    assert html.count('class="sw-marked"') == 1


@pytest.mark.parametrize(
    ("value", "limit", "shown"),
    [
        (0.0, 0.01, ["0.0000", "0.0100"]),
        (0, 0, ["0", "0"]),
        (1234.5, 1000.0, ["1,234", "1,000"]),
        (0.65, 0.65, ["0.650", "0.650"]),
        (1e-12, 1e-11, ["0.000000000", "0.000000000"]),
        (None, None, ["no data", "–"]),
    ],
)
def test_figures_of_a_gate(value, limit, shown):
    (_, row) = cells(frames.gates_table([Gate(name="g", value=value, limit=limit)]))
    assert row[2:4] == shown


def test_tables():
    scenarios, latency = frames.tables(read(lab_runs.QUALIFY))
    assert (scenarios.title, scenarios.more) == ("Scenarios, worst first", 0)
    assert cells(scenarios.html) == [
        ["scenario", "certified", "p", "low", "high", "requests", "why"],
        ["fault_report", "no", "0.290", "0.270", "0.310", "150", "p is below 0.65"],
        ["billing", "yes", "0.742", "0.710", "0.770", "300", "–"],
        ["address_confirmation", "yes", "0.820", "0.810", "0.830", "550", "–"],
    ]
    assert '<abbr title="Accepted draft tokens' in scenarios.html
    assert cells(latency.html)[1:] == [["1", "512", "948", "0.540"], ["8", "1,380", "1,410", "0.979"]]
    long = Table(title="<b>", columns=["x"], rows=[["<i>"]] * 205)
    (drawn,) = frames.tables(Summary(tables=[long, Table(title="none", columns=[], rows=[])]))
    assert drawn.more == 5
    assert len(cells(drawn.html)) == 201
    assert "<i>" not in drawn.html


def test_two_runs_side_by_side():
    one, other = (read(lab_runs.whole(name)["summary"]) for name in ("qualify-2", "qualify-1"))
    gates, scenarios = frames.compared(one, other)
    found = {row[0]: row[1:] for row in cells(gates.html)}
    assert found["gate"] == ["limit", "this run", "this run, value", "the other", "the other, value"]
    assert found["acceptance rate p"] == ["0.650", "✓ passed", "0.713", "✗ failed", "0.410"]
    assert found["similarity"] == ["0.820", "? cannot tell", "no data", "–", "–"]
    assert scenarios.title == "Scenarios, worst first: what differs"
    head, *rows = cells(scenarios.html)
    assert head[:5] == ["scenario", "certified, this run", "certified, the other", "p, this run", "p, the other"]
    assert not any(name.startswith("why") for name in head), "sentences are not compared"
    assert [row[:5] for row in rows] == [
        ["fault_report", "no", "no", "0.290", "0.290"],
        ["billing", "yes", "–", "0.742", "–"],
        ["address_confirmation", "yes", "no", "0.820", "0.400"],
    ]
    assert [each.title for each in frames.compared(one, one)] == ["Gates of both"], "no table differs"
    assert frames.compared(one, Summary()) == []
