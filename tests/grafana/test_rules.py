"""rules.yml under promtool: each alert fires, and does not where all is well, where there is no data, and where the
sidecar is gone; and each of its parts is needed for that."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.rule_cases import CASES, HEALTHY, IDLE, STEP_S, Case, Series, firing, input_series, notation
from support.stack import missing, run

ROOT = Path(__file__).parents[2]
RULES = ROOT / "grafana" / "rules.yml"
DEFAULTS = {rule["alert"]: rule for rule in yaml.safe_load((ROOT / "alerts" / "defaults.yaml").read_text())["rules"]}
#: Without it promtool's order is any, and an alert may see records of one look before.
ORDER = [group["name"] for group in yaml.safe_load(RULES.read_text())["groups"]]
DOWN = {"alertname": "SpecwatchSidecarDown", "severity": "critical", "job": "specwatch", "instance": "s1"}

needs_promtool = pytest.mark.skipif(missing("promtool") is not None, reason=str(missing("promtool")))


def rule(alert: str) -> dict[str, Any]:
    found = [
        each
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for each in group["rules"]
        if each.get("alert") == alert
    ]
    assert len(found) == 1, alert
    return found[0]  # type: ignore[no-any-return]


def labels(alert: str, **more: str) -> dict[str, str]:
    return {"alertname": alert, **rule(alert)["labels"], "job": "specwatch", "instance": "s1", **more}


def told(alert: str, case: Case) -> list[Mapping[str, str]]:
    return [labels(alert, **case.labels), *map(labels, case.beside)]


def unit_tests(alert: str, case: Case, *, quiet: bool = True) -> list[dict[str, Any]]:
    """That it fires, and does not where all is well or nothing is known, as promtool's tests.

    `quiet`: with those of a sidecar on which all is well, or idle, which are the same for every alert.
    """

    def one(name: str, series: Series, check: dict[str, Any]) -> dict[str, Any]:
        return _unit_test(f"{alert}: {name}", input_series(series, case.minutes), check)

    at = case.minutes
    beside = [labels(each) for each in case.near_raises]
    unknown = {name.partition("{")[0] for name in case.bad}
    known = {name: value for name, value in HEALTHY.items() if name.partition("{")[0] not in unknown}
    return [
        one("fires", {**HEALTHY, **case.bad}, firing(told(alert, case), at)),
        *([one("healthy", HEALTHY, firing([], at)), one("no traffic", IDLE, firing([], at))] if quiet else []),
        *(one("near", {**HEALTHY, **near}, firing(beside, at)) for near in case.near),
        *(one("too few", {**HEALTHY, **few}, firing([], at)) for few in case.few),
        one("no data", known, firing([], at)),
    ]


def goes_with_its_sidecar(alert: str, case: Case) -> dict[str, Any]:
    """The alert fires, and is over once its windows are empty: that the sidecar is gone is all that is told."""
    at, gone = case.minutes, case.minutes + case.over_after
    series = input_series({**HEALTHY, **case.bad}, at, case.over_after + 1)
    before, after = firing([labels(alert, **case.labels)], at), firing([DOWN], gone)
    return _unit_test(f"{alert}: sidecar gone", series, before, after)


def _unit_test(name: str, series: list[dict[str, str]], *checks: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "interval": f"{STEP_S}s", "input_series": series, "promql_expr_test": list(checks)}


def only(*alerts: str) -> str:
    """rules.yml with these alerts alone, and the records that they need."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    needed = " ".join(rule(alert)["expr"] for alert in alerts)
    for group in reversed(groups):
        kept = []
        for each in reversed(group["rules"]):
            if each["alert"] in alerts if "alert" in each else each["record"] in needed:
                kept.append(each)
                needed += each["expr"]
        group["rules"] = kept[::-1]
    return yaml.safe_dump({"groups": [group for group in groups if group["rules"]]}, sort_keys=False, width=1000)


def promtool(folder: Path, tests: list[dict[str, Any]], rules_text: str | None = None) -> tuple[int, str]:
    """Exit code and words of `promtool test rules`, by default of the rules that are shipped."""
    (folder / "rules.yml").write_text(RULES.read_text() if rules_text is None else rules_text)
    file = folder / "tests.yml"
    whole = {
        "rule_files": ["rules.yml"],
        "group_eval_order": ORDER,
        "evaluation_interval": f"{STEP_S}s",
        "tests": tests,
    }
    file.write_text(json.dumps(whole))
    return run("promtool", "test", "rules", file)


@needs_promtool
@pytest.mark.parametrize("alert", CASES)
def test_each_alert_fires_alone_and_not_near_its_mark_nor_without_data(alert: str, tmp_path: Path) -> None:
    code, words = promtool(tmp_path, unit_tests(alert, CASES[alert], quiet=False))
    assert code == 0, words


@needs_promtool
@pytest.mark.parametrize("series", [HEALTHY, IDLE], ids=["healthy", "idle"])
def test_no_alert_fires_or_waits_on_a_sidecar_that_is_well(series: Series, tmp_path: Path) -> None:
    at = max(case.minutes for case in CASES.values())
    none = [{"expr": "ALERTS", "eval_time": f"{minute}m", "exp_samples": []} for minute in (1, 3, 10, 30, at)]
    restarted = {
        name: f"{notation(value, 30)} {notation(value, 2 * at - 31)}" if isinstance(value, str) else value
        for name, value in series.items()
        if value is not None
    }
    looks = [(name, input_series(each, at)) for name, each in (("well", series), ("restarted", restarted))]
    code, words = promtool(tmp_path, [_unit_test(name, scraped, *none) for name, scraped in looks])
    assert code == 0, words


@needs_promtool
@pytest.mark.parametrize("alert", CASES)
def test_each_alert_ends_with_its_sidecar_and_that_is_told(alert: str, tmp_path: Path) -> None:
    rules_text = only(alert, "SpecwatchSidecarDown")
    code, words = promtool(tmp_path, [goes_with_its_sidecar(alert, CASES[alert])], rules_text)
    assert code == 0, words


@needs_promtool
@pytest.mark.parametrize("file", sorted((Path(__file__).parent / "rules").glob("*.yml")), ids=lambda file: file.stem)
def test_rule_tests_written_by_hand(file: Path) -> None:
    code, words = run("promtool", "test", "rules", file)
    assert code == 0, words


#: Alert -> text of its rule, or of a record it needs, and what that is changed to; a test above must then fail.
MUTATIONS = [
    ("SpecwatchAcceptanceLow", "< 0.65", "< 0.64"),
    ("SpecwatchAcceptanceLow", "< 0.65", "<= 0.65"),
    ("SpecwatchAcceptanceLow", 'window="100"', 'window="50"'),
    ("SpecwatchAcceptanceLow", "without (window)", "without (instance)"),
    ("SpecwatchAcceptanceLow", ">= 50", ">= 49"),
    ("SpecwatchAcceptanceLow", "and specwatch_window_requests >= 50", ""),
    ("SpecwatchAcceptanceLowInScenario", "< 0.65", "< 0.6"),
    ("SpecwatchAcceptanceLowInScenario", "< 0.65", "< 0.7"),
    ("SpecwatchAcceptanceLowInScenario", "1.96", "0"),
    ("SpecwatchAcceptanceLowInScenario", ">= 20", ">= 10"),
    ("SpecwatchAcceptanceLowInScenario", "accepted_tokens_total[30m]", "accepted_tokens_total[1m]"),
    ("SpecwatchAcceptanceLowInScenario", "sum without (upstream)", "sum without (upstream, scenario)"),
    ("SpecwatchFirstPositionTruncations", "> 0.15", "> 0.14"),
    ("SpecwatchFirstPositionTruncations", 'position="1"', 'position="2"'),
    ("SpecwatchFirstPositionTruncations", "> 0.05", "> 0.04"),
    ("SpecwatchFirstPositionTruncations", ">= 50", ">= 5"),
    ("SpecwatchTruncationsMany", "> 0.35", "> 0.34"),
    ("SpecwatchTruncationsMany", "accepted_length_tokens_count", "accepted_length_tokens_sum"),
    ("SpecwatchTruncationsMany", ">= 50", ">= 5"),
    ("SpecwatchTokenizersMisaligned", "< 1", "<= 1"),
    ("SpecwatchDraftsTimeOut", ">= 3", ">= 2"),
    ("SpecwatchDraftsTimeOut", ">= 3", ">= 4"),
    ("SpecwatchDraftsTimeOut", "[1m]", "[2m]"),
    ("SpecwatchFiguresMissing", "> 0.5", "> 0.48"),
    ("SpecwatchFiguresMissing", ">= 50", ">= 5"),
    ("SpecwatchFiguresMissing", "without (quality)", "without (job)"),
    ("SpecwatchFallbackIneffective", '"ineffective"', '"probing"'),
    ("SpecwatchFallbackFlapping", ">= 6", ">= 5"),
    ("SpecwatchFallbackFlapping", ">= 6", ">= 7"),
    ("SpecwatchFallbackFlapping", '"speculative"', '"probing"'),
    ("SpecwatchFallbackFlapping", "[1h]", "[5m]"),
    ("SpecwatchFellBack", "> 0", "> 1"),
    ("SpecwatchSliceFellBack", "> 0", "> 1"),
    ("SpecwatchCertificateInvalid", "< 1", "<= 1"),
    ("SpecwatchSimilarityCritical", "< 0.75", "< 0.82"),
    ("SpecwatchSimilarityCritical", '"draft"', '"replay"'),
    ("SpecwatchSimilarityCritical", ">= 50", ">= 5"),
    ("SpecwatchSimilarityLow", "< 0.82", "< 0.84"),
    ("SpecwatchSimilarityLow", ">= 50", ">= 5"),
    ("SpecwatchRepetition", 'flag="p_near_one"', 'flag="repetition"'),
    ("SpecwatchRepetition", 'flag="repetition"', 'flag="p_near_one"'),
    ("SpecwatchRepetition", ">= 50", ">= 5"),
    ("SpecwatchRepetition", 'fate="joined"', 'fate="unjoined"'),
    ("SpecwatchGarble", ">= 0.05", ">= 0.04"),
    ("SpecwatchGarble", ">= 0.05", ">= 0.06"),
    ("SpecwatchGarble", ">= 50", ">= 5"),
    ("SpecwatchGarble", 'flag="garble"', 'flag="repetition"'),
    ("SpecwatchLatencyGoalMissed", "rate1h < 0.95", "rate1h < 0.98"),
    ("SpecwatchLatencyGoalMissed", ">= bool 0.95", ">= bool 0.9"),
    ("SpecwatchLatencyGoalMissed", ">= 100", ">= 50"),
    ("SpecwatchLatencyGoalMissed", 'le="0.8"', 'le="1.0"'),
    ("SpecwatchLatencyGoalMissed", "action: retrain", "action: train"),
    ("SpecwatchSlowerThanPlain", "> 1", ">= 1"),
    ("SpecwatchErrors", "> 0.1", "> 0.09"),
    ("SpecwatchErrors", ">= 50", ">= 5"),
    ("SpecwatchErrors", "failures_total[5m]", "failures_total[1m]"),
    ("SpecwatchUpstreamDown", "< 1", "<= 1"),
    ("SpecwatchCoverageLow", "< 0.9", "<= 0.9"),
    ("SpecwatchRecordsDropped", "> 0", "> 2"),
    ("SpecwatchDatabaseDown", "< 1", "< 0"),
    ("SpecwatchEngineFeedLost", "and instance:specwatch_requests:increase5m > 0", ""),
    ("SpecwatchEngineFeedLost", "cores < 1", "cores < 2"),
    ("SpecwatchEngineFeedLost", 'state="autoregressive"', 'state="ineffective"'),
    ("SpecwatchNotificationsFail", "> 0", "> 2"),
    ("SpecwatchNotificationsFail", '!="sent"', '="sent"'),
    ("SpecwatchTapFailures", "> 0", "> 2"),
    ("SpecwatchLatencyBudgetFastBurn", "rate5m < 0.28", "rate5m < 0.2"),
    ("SpecwatchLatencyBudgetFastBurn", "rate1h < 0.28", "rate1h < 0.2"),
    ("SpecwatchLatencyBudgetFastBurn", "< 0.28", "< 0.32"),
    ("SpecwatchLatencyBudgetFastBurn", ">= 100", ">= 50"),
    ("SpecwatchLatencyBudgetSlowBurn", "< 0.7", "< 0.72"),
    ("SpecwatchLatencyBudgetSlowBurn", ">= 100", ">= 10"),
    ("SpecwatchLatencyBudgetTicket", "< 0.95", "< 0.96"),
    ("SpecwatchLatencyBudgetTicket", ">= 100", ">= 10"),
]


@needs_promtool
@pytest.mark.parametrize(("alert", "old", "new"), MUTATIONS)
def test_no_part_of_a_rule_can_change_unnoticed(alert: str, old: str, new: str, tmp_path: Path) -> None:
    text = only(alert)
    assert old in text, text
    tests = unit_tests(alert, replace(CASES[alert], beside=(), near_raises=()))
    code, words = promtool(tmp_path, tests, text.replace(old, new))
    assert code == 1, f"nobody noticed {old} -> {new}"
    assert "FAILED" in words


@needs_promtool
@pytest.mark.parametrize("alert", CASES)
def test_the_unchanged_rule_alone_passes(alert: str, tmp_path: Path) -> None:
    tests = unit_tests(alert, replace(CASES[alert], beside=(), near_raises=()))
    code, words = promtool(tmp_path, tests, only(alert))
    assert code == 0, words


def test_every_alert_has_cases_and_mutations() -> None:
    alerts = {
        each["alert"]
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for each in group["rules"]
        if "alert" in each
    }
    assert alerts == {*CASES, "SpecwatchSidecarDown"}
    assert {alert for alert, _, _ in MUTATIONS} == set(CASES)


#: File of tests written by hand, text of rules.yml, and what that is changed to.
RECORD_MUTATIONS = [
    ("c31", "histogram_quantile(0.95, rate", "histogram_quantile(0.9, rate"),
    ("c31", 'arm="baseline"}[1h]))) > 0)', 'arm="speculative"}[1h]))) > 0)'),
    (
        "c31",
        'and (sum without (arm) (increase(specwatch_request_latency_seconds_count{arm="baseline"}[1h])) >= 50)',
        "",
    ),
    (
        "c31",
        'and (sum without (arm) (increase(specwatch_request_latency_seconds_count{arm="speculative"}[1h])) >= 50)',
        "",
    ),
    (
        "c31",
        "(rate(specwatch_request_latency_seconds_count[5m])) > 0)",
        "(rate(specwatch_request_latency_seconds_count[5m])))",
    ),
    ("c31", "(rate(specwatch_draft_tokens_total[5m])) > 0)", "(rate(specwatch_draft_tokens_total[5m])))"),
    ("c31", "(rate(specwatch_truncations_total[30m])) > 0)", "(rate(specwatch_truncations_total[30m])))"),
    ("c31", "(rate(specwatch_similarity_count[30m]) > 0)", "rate(specwatch_similarity_count[30m])"),
    ("c31", "(instance:specwatch_replies:increase30m > 0)", "instance:specwatch_replies:increase30m"),
    (
        "records",
        "sum without (upstream, scenario) (rate(specwatch_accepted",
        "sum without (upstream) (rate(specwatch_accepted",
    ),
    ("records", "sum without (upstream, scenario)", "sum without (upstream, scenario, instance)"),
    ("records", 'arm=~"speculative|probe"', 'arm=~"speculative|probe|baseline"'),
    ("records", 'arm=~"speculative|probe",outcome="ok"', 'arm=~"speculative|probe"'),
    ("records", 'position="1"', 'position="2"'),
    ("records", 'fate="joined"', 'fate=~".*joined"'),
    ("records", "without (arm, le)", "without (le)"),
    ("records", 'le="0.8"', 'le="1.0"'),
    ("records", ">= bool 0.95", ">= bool 0.5"),
    ("records", "1.96", "1.64"),
    ("sidecar", "or absent", "unless absent"),
    ("sidecar", 'job="specwatch"', 'job="other"'),
    ("sidecar", "rate(specwatch_similarity_sum", "deriv(specwatch_similarity_sum"),
    ("sidecar", "%.3f", "%.2f"),
    ("burn", "and instance:specwatch_latency_under_800ms:ratio_rate5m < 0.28", ""),
    (
        "burn",
        "instance:specwatch_latency_under_800ms:ratio_rate1h < 0.28",
        "instance:specwatch_latency_under_800ms:ratio_rate5m < 0.28",
    ),
    ("burn_long", "and instance:specwatch_latency_under_800ms:ratio_rate30m < 0.7", ""),
    (
        "burn_long",
        "instance:specwatch_latency_under_800ms:ratio_rate6h < 0.7",
        "instance:specwatch_latency_under_800ms:ratio_rate30m < 0.7",
    ),
    ("burn_long", "and instance:specwatch_latency_under_800ms:ratio_rate6h < 0.95", ""),
    (
        "burn_long",
        "instance:specwatch_latency_under_800ms:ratio_rate3d < 0.95",
        "instance:specwatch_latency_under_800ms:ratio_rate6h < 0.95",
    ),
]


@needs_promtool
@pytest.mark.parametrize(("tests", "old", "new"), RECORD_MUTATIONS)
def test_nor_can_a_part_of_a_record(tests: str, old: str, new: str, tmp_path: Path) -> None:
    text = RULES.read_text()
    assert old in text
    (tmp_path / "rules.yml").write_text(text.replace(old, new))
    written = (Path(__file__).parent / "rules" / f"{tests}.yml").read_text()
    assert "../../../grafana/rules.yml" in written
    file = tmp_path / "tests.yml"
    file.write_text(written.replace("../../../grafana/rules.yml", "rules.yml"))
    code, words = run("promtool", "test", "rules", file)
    assert code == 1, f"nobody noticed {old} -> {new}"
    assert "FAILED" in words
