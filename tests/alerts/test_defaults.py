"""The shipped rules: each is sound, fires at its mark, stays silent beside it and without data."""

import pytest

from alerts.config import load
from alerts.definitions import Rule, faults, shipped
from alerts.model import Severity
from alerts.readings import READINGS, SAMPLE_SIZES
from alerts.rules import Evaluator

RULES = shipped()

#: By rule: readings at which it just fires, and others at which it just does not.
MARKS: dict[str, tuple[dict[str, float], list[dict[str, float]]]] = {
    "SpecwatchAcceptanceLow": (
        {"acceptance_rate": 0.649, "window_requests": 50},
        [{"acceptance_rate": 0.65, "window_requests": 50}, {"acceptance_rate": 0.1, "window_requests": 49}],
    ),
    "SpecwatchSimilarityCritical": (
        {"similarity": 0.749, "similarity_pairs": 50},
        [{"similarity": 0.75, "similarity_pairs": 50}, {"similarity": 0.1, "similarity_pairs": 49}],
    ),
    "SpecwatchTokenizersMisaligned": ({"tokenizers_misaligned": 1}, [{"tokenizers_misaligned": 0}]),
    "SpecwatchDraftsTimeOut": ({"late_streams": 3}, [{"late_streams": 2}]),
    "SpecwatchFallbackIneffective": ({"ineffective": 1}, [{"ineffective": 0}]),
    "SpecwatchErrors": (
        {"error_rate": 0.11, "requests": 50},
        [{"error_rate": 0.1, "requests": 50}, {"error_rate": 1.0, "requests": 49}],
    ),
    "SpecwatchUpstreamDown": ({"upstream_up": 0}, [{"upstream_up": 1}]),
    "SpecwatchAcceptanceLowInScenario": (
        {"acceptance_rate_high": 0.649, "window_requests": 20},
        [{"acceptance_rate_high": 0.65, "window_requests": 20}, {"acceptance_rate_high": 0.1, "window_requests": 19}],
    ),
    "SpecwatchSimilarityLow": (
        {"similarity": 0.819, "similarity_pairs": 50},
        [{"similarity": 0.82, "similarity_pairs": 50}, {"similarity": 0.8, "similarity_pairs": 49}],
    ),
    "SpecwatchLatencyGoalMissed": (
        {"latency_under_800ms_ratio": 0.949, "p95_latency_under_800ms_ratio": 0.949, "latency_requests": 100},
        [
            {"latency_under_800ms_ratio": 0.95, "p95_latency_under_800ms_ratio": 0.5, "latency_requests": 100},
            {"latency_under_800ms_ratio": 0.5, "p95_latency_under_800ms_ratio": 0.95, "latency_requests": 100},
            {"latency_under_800ms_ratio": 0.5, "p95_latency_under_800ms_ratio": 0.5, "latency_requests": 99},
        ],
    ),
    "SpecwatchSlowerThanPlain": ({"latency_ratio": 1.01}, [{"latency_ratio": 1.0}]),
    "SpecwatchFallbackFlapping": ({"switches": 6}, [{"switches": 5}]),
    "SpecwatchCoverageLow": ({"coverage": 0.89}, [{"coverage": 0.9}]),
    "SpecwatchRecordsDropped": ({"records_dropped": 1}, [{"records_dropped": 0}]),
    "SpecwatchDatabaseDown": ({"database_up": 0}, [{"database_up": 1}]),
    "SpecwatchRepetition": (
        {"repetition_share": 0.05, "p_near_one_share": 0.05, "quality_replies": 50},
        [
            {"repetition_share": 0.04, "p_near_one_share": 0.5, "quality_replies": 50},
            {"repetition_share": 0.5, "p_near_one_share": 0.04, "quality_replies": 50},
            {"repetition_share": 0.5, "p_near_one_share": 0.5, "quality_replies": 49},
        ],
    ),
    "SpecwatchGarble": (
        {"garble_share": 0.05, "quality_replies": 50},
        [{"garble_share": 0.04, "quality_replies": 50}, {"garble_share": 1.0, "quality_replies": 49}],
    ),
    "SpecwatchFiguresMissing": (
        {"not_drafted_share": 0.51, "not_drafted_requests": 50},
        [
            {"not_drafted_share": 0.5, "not_drafted_requests": 50},
            {"not_drafted_share": 1.0, "not_drafted_requests": 49},
        ],
    ),
    "SpecwatchEngineFeedLost": (
        {"feed_connected": 0, "requests": 1, "autoregressive": 0},
        [
            {"feed_connected": 1, "requests": 1, "autoregressive": 0},
            {"feed_connected": 0, "requests": 0, "autoregressive": 0},
            {"feed_connected": 0, "requests": 1, "autoregressive": 1},
        ],
    ),
    "SpecwatchTapFailures": ({"tap_failures": 1}, [{"tap_failures": 0}]),
    "SpecwatchNotificationsFail": ({"notifications_failed": 1}, [{"notifications_failed": 0}]),
    "SpecwatchFellBack": ({"fell_back": 1}, [{"fell_back": 0}]),
    "SpecwatchSliceFellBack": ({"open_slices": 1}, [{"open_slices": 0}]),
    "SpecwatchCertificateInvalid": ({"certificate_valid": 0}, [{"certificate_valid": 1}]),
    "SpecwatchFirstPositionTruncations": (
        {"first_position_share": 0.151, "truncation_rate": 0.051, "window_requests": 50},
        [
            {"first_position_share": 0.15, "truncation_rate": 1.0, "window_requests": 50},
            {"first_position_share": 1.0, "truncation_rate": 0.05, "window_requests": 50},
            {"first_position_share": 1.0, "truncation_rate": 1.0, "window_requests": 49},
        ],
    ),
    "SpecwatchTruncationsMany": (
        {"truncation_rate": 0.351, "window_requests": 50},
        [{"truncation_rate": 0.35, "window_requests": 50}, {"truncation_rate": 1.0, "window_requests": 49}],
    ),
}


def statuses(rule: Rule, looks: list[dict[str, float | None]], every_s: float = 5.0) -> list[str]:
    evaluator = Evaluator([rule], instance="one")
    group = (rule.by, "x" if rule.by else "")
    found = []
    for place, readings in enumerate(looks):
        evaluator.evaluate({group: readings}, 1000 + place * every_s)
        found.append(next((alert.status.value for alert in evaluator.alerts()), "inactive"))
    return found


def test_each_rule_has_its_marks_here() -> None:
    assert list(MARKS) == list(RULES)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
class TestShipped:
    def test_it_is_sound(self, rule: Rule) -> None:
        assert not list(faults(rule))
        assert rule.alert.startswith("Specwatch")
        assert set(rule.annotations) == {"summary", "description", "runbook"}
        assert rule.annotations["runbook"] == f"RUNBOOK.md#{rule.alert.lower()}"
        assert "{{" not in rule.annotations["summary"]
        # What Prometheus has no labels for.
        assert "{{ instance }}" not in rule.annotations["description"]

    def test_it_fires_at_its_mark_after_for_and_not_before(self, rule: Rule) -> None:
        bad = {name: float(value) for name, value in MARKS[rule.alert][0].items()}
        assert set(bad) == set(rule.expr.readings)
        looks = int(rule.for_s / 5) + 3
        found = statuses(rule, [bad] * looks)
        assert found == ["pending"] * (looks - 3) + ["firing"] * 3

    def test_beside_its_mark_it_stays_silent_and_it_recovers_there(self, rule: Rule) -> None:
        bad, beside = MARKS[rule.alert]
        looks, kept = int(rule.for_s / 5) + 1, int(rule.keep_firing_for_s / 5)
        for good in beside:
            assert set(statuses(rule, [good] * (looks + 2))) == {"inactive"}
            found = statuses(rule, [bad] * looks + [good] * (kept + 1))
            # Too few requests are no recovery.
            too_few = any(name in SAMPLE_SIZES and good[name] < bad[name] for name in good)
            assert found[looks - 1 :] == ["firing"] * (kept + 1) + ["firing" if too_few else "inactive"]

    def test_no_data_is_neither_alarm_nor_recovery(self, rule: Rule) -> None:
        bad: dict[str, float | None] = {**MARKS[rule.alert][0]}
        looks = int(rule.for_s / 5) + 1
        nothing: list[dict[str, float | None]] = [
            {}, dict.fromkeys(bad), dict.fromkeys(bad, float("nan")),
            # As of a sidecar that has just begun: counts are 0, all else is not known.
            {name: 0.0 if READINGS[name].unit == "requests" else None for name in bad},
        ]  # fmt: skip
        assert set(statuses(rule, nothing * looks)) == {"inactive"}
        assert set(statuses(rule, [bad] * looks + nothing * 100)[looks - 1 :]) == {"firing"}


def test_severities() -> None:
    by_severity = {level: [name for name, rule in RULES.items() if rule.severity is level] for level in Severity}
    assert by_severity[Severity.CRITICAL] == [
        "SpecwatchAcceptanceLow", "SpecwatchSimilarityCritical", "SpecwatchTokenizersMisaligned",
        "SpecwatchDraftsTimeOut", "SpecwatchFallbackIneffective", "SpecwatchErrors", "SpecwatchUpstreamDown",
    ]  # fmt: skip
    assert by_severity[Severity.INFO] == [
        "SpecwatchFirstPositionTruncations", "SpecwatchTruncationsMany",
    ]  # fmt: skip


def test_retrain_is_an_action_of_the_latency_goal_alone() -> None:
    assert [name for name, rule in RULES.items() if rule.labels.get("action") == "retrain"] == [
        "SpecwatchLatencyGoalMissed"
    ]


def test_without_a_file_they_are_all_looked_at_and_nobody_is_told() -> None:
    config = load(None)
    assert config.rules == tuple(RULES.values())
    assert (config.interval_s, config.receivers, config.route.receiver) == (15.0, (), "")
