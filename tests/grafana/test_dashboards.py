"""The dashboards: what is checked in is what the code makes, and nothing of it is dead, unnamed or misleading. C31."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from specwatch_grafana import generate
from support.board_faults import faults
from support.panels import DASHBOARDS, boards, expressions, targets

Board = dict[str, Any]
BOARDS = {board["uid"]: board for board in boards()}
TITLES = {uid: [panel["title"] for panel in board["panels"]] for uid, board in BOARDS.items()}


def test_what_is_checked_in_is_what_the_code_makes() -> None:
    assert generate.differing(generate.files(), generate.ROOM) == [], "run python -m specwatch_grafana.generate"


def test_check_names_what_differs_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {"dashboards/a.json": "{}\n", "rules.yml": "groups: []\n"}
    monkeypatch.setattr(generate, "ROOM", tmp_path)
    monkeypatch.setattr(generate, "PARTS", (lambda: made,))
    monkeypatch.setattr("sys.argv", ["generate"])
    assert generate.main() == 0
    assert {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*.*")} == made
    (tmp_path / "rules.yml").write_text("groups: [mine]\n")
    (tmp_path / "dashboards" / "old.json").write_text("{}")
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["generate", "--check"])
    assert generate.main() == 1
    assert capsys.readouterr().out.split() == ["dashboards/old.json", "rules.yml"]
    assert (tmp_path / "rules.yml").read_text() == "groups: [mine]\n"


@pytest.mark.parametrize("uid", BOARDS)
def test_boards_have_no_faults(uid: str) -> None:
    assert faults(BOARDS[uid]) == []


def test_files_are_named_by_uid_and_titles_differ() -> None:
    assert {path.stem for path in DASHBOARDS.iterdir()} == set(BOARDS)
    assert len({board["title"] for board in BOARDS.values()}) == len(BOARDS)


def test_the_promise_comes_first_and_is_the_largest() -> None:
    first, *others = BOARDS["specwatch-overview"]["panels"]
    assert first["title"] == "p95_latency_under_800ms_ratio"
    assert first["gridPos"]["x"] == first["gridPos"]["y"] == 0
    assert all(_area(panel) < _area(first) for panel in others)


@pytest.mark.parametrize(
    ("uid", "kinds"),
    [
        ("specwatch-overview", {"stat", "timeseries", "table"}),
        ("specwatch-truncation", {"heatmap", "bargauge"}),
        ("specwatch-scenarios", {"timeseries", "bargauge"}),
        ("specwatch-latency", {"heatmap", "timeseries"}),
        ("specwatch-quality", {"heatmap", "state-timeline"}),
        ("specwatch-fallback", {"state-timeline", "timeseries"}),
        ("specwatch-cost", {"stat", "timeseries"}),
        ("specwatch-vllm", {"heatmap", "timeseries"}),
        ("specwatch-runbook", {"text"}),
    ],
)
def test_each_board_shows_what_it_is_for(uid: str, kinds: set[str]) -> None:
    assert kinds <= {panel["type"] for panel in BOARDS[uid]["panels"]}


def test_plain_vllm_needs_no_sidecar() -> None:
    for _, target in targets(BOARDS["specwatch-vllm"]):
        assert "specwatch_" not in target["expr"]


def test_fallback_is_marked_from_both_stores() -> None:
    for uid in ("specwatch-fallback", "specwatch-overview", "specwatch-latency"):
        tagged, queried = BOARDS[uid]["annotations"]["list"]
        assert tagged["target"]["tags"] == ["specwatch"]
        assert "specwatch_fallback_transitions_total" in queried["expr"]


def test_expressions_have_no_macros_left() -> None:
    found = expressions()
    assert {uid for uid, *_ in found} == set(BOARDS) - {"specwatch-runbook"}
    assert [expr for *_, expr in found if "$" in expr.replace('"0$1"', "").replace('"$1.0"', "")] == []


def _area(panel: Board) -> int:
    width, height = panel["gridPos"]["w"], panel["gridPos"]["h"]
    return int(width * height)


def _panel(board: Board, title: str) -> Board:
    found: Board = next(panel for panel in board["panels"] if panel["title"] == title)
    return found


def _target(board: Board) -> Board:
    found: Board = board["panels"][0]["targets"][0]
    return found


def _rewrite(old: str, new: str) -> Callable[[Board], None]:
    """Of the board's first expression."""

    def change(board: Board) -> None:
        target = _target(board)
        assert old in target["expr"]
        target["expr"] = target["expr"].replace(old, new, 1)

    return change


def _set(value: object, *path: str | int) -> Callable[[Board], None]:
    def change(board: Board) -> None:
        place: Any = board
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


def _drop(*path: str | int) -> Callable[[Board], None]:
    def change(board: Board) -> None:
        place: Any = board
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return change


OVERVIEW, LATENCY, TRUNCATION = "specwatch-overview", "specwatch-latency", "specwatch-truncation"
_FIRST = ("panels", 0)
_DEFAULTS = (*_FIRST, "fieldConfig", "defaults")

#: What somebody may break -> (board, how, what is said of it).
MUTATIONS: dict[str, tuple[str, Callable[[Board], None], str]] = {
    "a wrong type": (OVERVIEW, _set("14", *_FIRST, "gridPos", "w"), "is not of type"),
    "an unknown key": (OVERVIEW, _set(True, "editabel"), "'editabel' was unexpected"),
    "a misspelt option of a heat map": (TRUNCATION, _set(1, *_FIRST, "options", "cellGapp"), "'cellGapp'"),
    "a misspelt option of a stat": (OVERVIEW, _set("area", *_FIRST, "options", "graphModus"), "'graphModus'"),
    "an unknown key of a query": (OVERVIEW, _set("x", *_FIRST, "targets", 0, "query"), "'query' was unexpected"),
    "a type of panel that nobody knows": (OVERVIEW, _set("graph", *_FIRST, "type"), "no schema of the type graph"),
    "an id of the database": (OVERVIEW, _set(7, "id"), "id: Grafana gives it"),
    "a schema of Grafana 9": (OVERVIEW, _set(36, "schemaVersion"), "schemaVersion 36"),
    "a uid of its own": (OVERVIEW, _set("aBc123", "uid"), "uid 'aBc123'"),
    "no tag": (OVERVIEW, _set([], "tags"), "linked by the tag"),
    "no links": (OVERVIEW, _set([], "links"), "none to the other boards"),
    "a placeholder of an import": (OVERVIEW, _set("${DS_PROMETHEUS}", *_FIRST, "datasource", "uid"), "${DS_"),
    "a uid of a data source": (OVERVIEW, _set("prometheus", *_FIRST, "datasource", "uid"), "data source"),
    "a uid of a data source in a query": (
        OVERVIEW,
        _set("P1809F7CD0C75ACF3", *_FIRST, "targets", 0, "datasource", "uid"),
        "data source",
    ),
    "a uid of a data source in a variable": (OVERVIEW, _set("p", "templating", "list", 1, "datasource", "uid"), "job"),
    "no variable of the data source": (OVERVIEW, _drop("templating", "list", 0), "datasource: no such variable"),
    "a variable that is not there": (OVERVIEW, _rewrite('job=~"$job"', 'job=~"$jobs"'), "$jobs: no such variable"),
    "a variable of no metric": (
        OVERVIEW,
        _set("label_values(specwatch_nothing{}, job)", "templating", "list", 1, "query"),
        "no metric specwatch_nothing",
    ),
    "a mark by no tag": (OVERVIEW, _set([], "annotations", "list", 0, "target", "tags"), "mark Alerts"),
    "one id twice": (OVERVIEW, _set(1, "panels", 1, "id"), "ids of panels"),
    "panels on each other": (OVERVIEW, _set(0, "panels", 1, "gridPos", "x"), "overlaps"),
    "a panel beside the grid": (OVERVIEW, _set(20, *_FIRST, "gridPos", "x"), "outside the grid"),
    "no title": (OVERVIEW, _set("", *_FIRST, "title"), "no title"),
    "no description": (OVERVIEW, _drop(*_FIRST, "description"), "no description"),
    "an unknown unit": (OVERVIEW, _set("percent01", *_DEFAULTS, "unit"), "unit 'percent01'"),
    "an unknown unit of an axis": (TRUNCATION, _set("tokenz", *_FIRST, "options", "yAxis", "unit"), "unit 'tokenz'"),
    "no text for no data": (OVERVIEW, _drop(*_DEFAULTS, "noValue"), "no text for where there is no data"),
    "a first threshold with a value": (
        OVERVIEW,
        _set(0, *_DEFAULTS, "thresholds", "steps", 0, "value"),
        "first threshold",
    ),
    "a threshold without a value": (OVERVIEW, _drop(*_DEFAULTS, "thresholds", "steps", 0, "value"), "'value' is a req"),
    "no query": (OVERVIEW, _set([], *_FIRST, "targets"), "no query"),
    "no PromQL": (OVERVIEW, _rewrite("[1h:1m]", "[1h:1m"), "p95_latency_under_800ms_ratio A: "),
    "a metric that is not there": (OVERVIEW, _rewrite("latency_seconds_count", "latency_count"), "no metric"),
    "a label that is not there": (OVERVIEW, _rewrite('le="0.8"', 'upstream="a"'), "has no label upstream"),
    "a bound that is not there": (OVERVIEW, _rewrite('le="0.8"', 'le="0.800"'), "has no le=0.800"),
    "sidecars that are not picked": (OVERVIEW, _rewrite('job=~"$job",', ""), "not picked"),
    "a division by what may be 0": (OVERVIEW, _rewrite(" > 0) >= bool", ") >= bool"), "divides by what may be 0"),
    "a rate of a gauge": (
        OVERVIEW,
        lambda board: _panel(board, "State")["targets"][0].update(
            expr='sum(rate(specwatch_window_requests{job=~"$job",instance=~"$instance"}[$__rate_interval]))'
        ),
        "which is no counter",
    ),
    "a window that is not told of": (OVERVIEW, _rewrite("[5m]", "[7m]"), "the window 7m"),
    "a legend of no label": (
        OVERVIEW,
        lambda board: _panel(board, "Requests/s by outcome")["targets"][0].update(legendFormat="{{scenario}}"),
        "the legend names scenario",
    ),
    "grouped by what was summed away": (
        OVERVIEW,
        lambda board: _panel(board, "Requests/s by outcome")["targets"][0].update(
            expr='sum by (outcome) (sum(specwatch_requests_total{job=~"$job",instance=~"$instance"}))'
        ),
        "by outcome",
    ),
    "a heat map of lines": (TRUNCATION, _set("time_series", *_FIRST, "targets", 0, "format"), "a heat map of format"),
    "the whole range at every moment": (
        TRUNCATION,
        lambda board: _panel(board, "p")["targets"][0].update(instant=False, range=True),
        "at every moment",
    ),
    "C31: a clamped quantile shown as if it were one": (
        LATENCY,
        lambda board: _panel(board, "Latency without")["fieldConfig"]["defaults"].pop("mappings"),
        "a quantile beyond 120",
    ),
    "C31: a ratio of clamped quantiles": (
        LATENCY,
        lambda board: _panel(board, "Ratio of the p95, last hour")["targets"][0].update(
            expr=_panel(board, "Ratio of the p95, last hour")["targets"][0]["expr"].replace("< 120", "> 0")
        ),
        "a quantile beyond 120",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_are_caught(name: str) -> None:
    uid, change, said = MUTATIONS[name]
    board = copy.deepcopy(BOARDS[uid])
    change(board)
    assert board != BOARDS[uid]
    found = faults(board)
    assert any(said in fault for fault in found), found
