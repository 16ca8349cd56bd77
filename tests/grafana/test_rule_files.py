"""rules.yml as a file: by promtool, by the metrics there are, by what the sidecar's own alerts say; burn rates."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from specwatch_grafana import burn, recording, rules
from specwatch_grafana.compare import seconds
from support import metric_names
from support.stack import missing, run

from sidecar.metrics import Metrics

ROOT = Path(__file__).parents[2]
RULES = ROOT / "grafana" / "rules.yml"
DEFAULTS = {rule["alert"]: rule for rule in yaml.safe_load((ROOT / "alerts" / "defaults.yaml").read_text())["rules"]}
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = {each["alert"]: each for group in GROUPS for each in group["rules"] if "alert" in each}
RECORDS = {each["record"]: each["expr"] for group in GROUPS for each in group["rules"] if "record" in each}

needs_promtool = pytest.mark.skipif(missing("promtool") is not None, reason=str(missing("promtool")))


@needs_promtool
def test_promtool_has_nothing_to_say_of_the_rules() -> None:
    code, words = run("promtool", "check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert code == 0, words


@needs_promtool
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sum without (position)", "sum without position"),
        ("for: 30s", "for: 30 s"),
        ("keep_firing_for:", "keep_firing:"),
        ("$value }}", "$value"),
        ("specwatch_acceptance:ratio_rate5m", "specwatch-acceptance:ratio_rate5m"),
        ("record: instance:specwatch_requests:increase5m", "record: instance:specwatch_replies:increase30m"),
    ],
)
def test_promtool_notices_a_file_that_is_wrong(old: str, new: str, tmp_path: Path) -> None:
    text = RULES.read_text()
    assert old in text
    file = tmp_path / "rules.yml"
    # The last one makes two rules alike.
    file.write_text(
        text.replace(
            "sum without (upstream, model, scenario, arm, outcome) (increase(specwatch_requests_total[5m]))",
            'sum without (fate) (increase(specwatch_engine_feed_requests_total{fate="joined"}[30m]))',
        )
        if "replies" in new
        else text
    )
    file.write_text(file.read_text().replace(old, new))
    code, words = run("promtool", "check", "rules", "--lint=all", "--lint-fatal", file)
    assert code != 0, words


@needs_promtool
def test_promtool_has_nothing_to_say_of_the_metrics() -> None:
    text = metrics_text()
    code, words = run("promtool", "check", "metrics", input_text=text)
    # These two are about counters.
    meant = ["specwatch_engine_counter_disagreements_total", "specwatch_engine_counter_resets_total"]
    said = [line.split(" ", 1) for line in words.splitlines()]
    assert [name for name, _ in said] == meant, words
    assert {fault for _, fault in said} == {"metric name should not include type 'counter'"}
    code, words = run(
        "promtool", "check", "metrics", input_text=text.replace("specwatch_window_requests", "specwatchWindow")
    )
    assert code != 0
    assert "camelCase" in words


def metrics_text() -> str:
    metrics = Metrics(
        CollectorRegistry(), lambda: metric_names._FULL, upstreams=("speculative",), scenarios=("billing",)
    )
    metrics.observe(metric_names._RECORD)
    metrics.transition("speculative", "autoregressive", "acceptance")
    return metrics.render().decode()


@pytest.mark.parametrize("name", [*RECORDS, *ALERTS])
def test_expressions_read_metrics_that_there_are_and_divide_by_nothing_that_may_be_0(name: str) -> None:
    expr = RECORDS.get(name) or ALERTS[name]["expr"]
    assert list(expression_faults(expr)) == []


@pytest.mark.parametrize(
    ("expr", "said"),
    [
        ("specwatch_nothing", "no metric specwatch_nothing"),
        ('specwatch_similarity_count{sort="draft"}', "specwatch_similarity_count has no label sort"),
        ('specwatch_similarity_count{kind="drafts"}', "specwatch_similarity_count has no kind=drafts"),
        (
            'specwatch_request_latency_seconds_bucket{le="0.75"}',
            "specwatch_request_latency_seconds_bucket has no le=0.75",
        ),
        ("sum without (stages) (specwatch_records_dropped_total)", "nothing below has stages"),
        ("specwatch_window_requests / specwatch_window_requests", "divides by what may be 0"),
        ("instance:specwatch_nothing:ratio_rate5m", "no record instance:specwatch_nothing:ratio_rate5m"),
        ("increase(specwatch_window_requests[5m])", "increase of specwatch_window_requests, which is no counter"),
        ("delta(specwatch_draft_tokens_total[5m])", "delta of specwatch_draft_tokens_total"),
    ],
)
def test_what_is_wrong_with_an_expression_is_said(expr: str, said: str) -> None:
    assert [fault for fault in expression_faults(expr) if fault.startswith(said)]


def expression_faults(expr: str) -> Iterator[str]:
    known = metric_names.sidecar()
    for node in _nodes(promql.parse(recording.inline(expr) if _records_are_known(expr) else expr)):
        if isinstance(node, promql.VectorSelector) and node.name != "up":
            if node.name not in known:
                yield f"no {'record' if ':' in node.name else 'metric'} {node.name}"
                continue
            for matcher in node.matchers.matchers:
                values = known[node.name].values.get(matcher.name)
                if values is None:
                    yield f"{node.name} has no label {matcher.name}"
                elif (
                    matcher.name in ("le", "kind", "state", "position")
                    and str(matcher.op) == "MatchOp.Equal"
                    and matcher.value not in values
                ):
                    yield f"{node.name} has no {matcher.name}={matcher.value}"
        elif isinstance(node, promql.AggregateExpr):
            labels = {
                label for each in _names(node.expr) for label in known.get(each, metric_names.Known(set())).labels
            }
            for label in set(node.modifier.labels) - labels:
                yield f"nothing below has {label}"
        elif isinstance(node, promql.BinaryExpr) and str(node.op) == "/":
            if not (isinstance(node.rhs, promql.NumberLiteral) or _above_zero(node.rhs)):
                yield f"divides by what may be 0: {node.rhs}"
        elif isinstance(node, promql.Call) and isinstance(node.args[0], promql.MatrixSelector):
            name, counts = node.args[0].vector_selector.name, ("_total", "_count", "_bucket")
            if node.func.name in ("rate", "increase") and not name.endswith(("_sum", *counts)):
                yield f"{node.func.name} of {name}, which is no counter"
            if node.func.name == "delta" and name.endswith(("_sum", *counts)):
                yield f"delta of {name}, which is a counter"


def _records_are_known(expr: str) -> bool:
    return set(re.findall(r"instance\w*:\w+:\w+", expr)) <= set(RECORDS)


def _above_zero(node: Any) -> bool:
    return isinstance(node, promql.ParenExpr) and re.search(r"> 0\)$", str(node)) is not None


def _names(node: Any) -> Iterator[str]:
    return (each.name for each in _nodes(node) if isinstance(each, promql.VectorSelector))


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for name in ("lhs", "rhs", "expr", "args", "vector_selector"):
        below = getattr(node, name, None)
        for each in below if isinstance(below, list) else [] if below is None else [below]:
            yield from _nodes(each)


@pytest.mark.parametrize("name", DEFAULTS)
def test_each_alert_of_the_sidecar_is_one_here_with_the_same_marks(name: str) -> None:
    ours, theirs = ALERTS[name], DEFAULTS[name]
    for key in ("for", "keep_firing_for"):
        assert ours.get(key) == theirs.get(key)
    assert ours["labels"] == {"severity": theirs["severity"], **theirs.get("labels", {})}
    assert set(ours["annotations"]) == set(theirs["annotations"])
    assert ours["annotations"]["runbook"] == theirs["annotations"]["runbook"]
    # Marks and least numbers are the same, for whatever the figures are called.
    assert marks(ours["expr"]) == marks(theirs["expr"]) or name in OTHERWISE


#: What is 0 or 1 in the sidecar and the other way round here: misaligned > 0; aligned < 1.
OTHERWISE = {"SpecwatchTokenizersMisaligned"}


def marks(expr: str) -> list[tuple[str, float]]:
    found = re.findall(r"(?<!bool )(<=|>=|<|>) (\d+(?:\.\d+)?)(?!\))", expr)
    return sorted((op, float(number)) for op, number in found)


def test_nothing_is_here_alone_but_what_is_seen_from_outside() -> None:
    assert set(ALERTS) - set(DEFAULTS) == {alert.name for alert in rules.OUTSIDE}


def test_each_record_is_explained_above_it() -> None:
    lines = RULES.read_text().splitlines()
    at = [number for number, line in enumerate(lines) if line.startswith("      - record: ")]
    assert len(at) == len(RECORDS)
    assert all(lines[number - 1].startswith("      # ") for number in at)


def test_windows_of_days_are_not_read_at_each_look() -> None:
    """A look at the shares of 6 h and 3 d reads some 70,000 samples of each sidecar."""
    for group in GROUPS:
        long = [each for each in group["rules"] if re.search(r"\[(6h|[1-9]d)\]", each["expr"])]
        assert (long != []) == ("interval" in group), group["name"]
        # With 5 minutes or more a series would have gaps.
        assert seconds(group.get("interval", "15s")) < 300


def test_placeholders_are_those_of_prometheus() -> None:
    text = RULES.read_text()
    assert set(re.findall(r"\{\{.*?\}\}", text)) == {
        '{{ printf "%.3f" $value }}',
        '{{ printf "%.0f" $value }}',
        "{{ $labels.scenario }}",
        "{{ $labels.upstream }}",
    }


class TestBurnRates:
    def test_thresholds(self) -> None:
        # 14.4 x 5 %, 6 x 5 %, 1 x 5 %.
        assert [burn.threshold(0.95, factor) for factor in (14.4, 6, 1)] == [0.72, 0.3, 0.05]

    @pytest.mark.parametrize(("objective", "factor"), [(0.9, 14.4), (0.5, 2), (0.8, 6)])
    def test_one_that_could_never_fire_is_refused(self, objective: float, factor: float) -> None:
        with pytest.raises(ValueError, match=r"can never be exceeded .*take a smaller factor, or an objective above"):
            burn.threshold(objective, factor)

    @pytest.mark.parametrize(("objective", "factor"), [(0, 1), (1, 1), (1.5, 1), (-0.1, 1), (0.95, 0), (0.95, -1)])
    def test_so_is_what_makes_no_sense(self, objective: float, factor: float) -> None:
        with pytest.raises(ValueError, match=r"is no share|is not above 0"):
            burn.threshold(objective, factor)

    @given(st.floats(0.001, 0.999), st.floats(0.01, 100))
    def test_what_is_not_refused_can_fire(self, objective: float, factor: float) -> None:
        try:
            share = burn.threshold(objective, factor)
        except ValueError:
            assert factor * (1 - objective) > 0.999999
        else:
            assert 0 < share < 1

    def test_each_of_the_rules_can(self) -> None:
        for each in burn.BURNS:
            assert burn.threshold(burn.OBJECTIVE, each.factor) < 1
            assert each.long in recording.LONG_WINDOWS + recording.SHORT_WINDOWS
            # A twelfth, as the workbook has it.
            assert seconds(each.long) == 12 * seconds(each.short)
