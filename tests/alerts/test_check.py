"""`specwatch alerts check` and `test`: what is said of a sound file, and tests of rules that pass and fail rightly."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.check import Failure, _series, check, run_tests
from alerts.config import ConfigError
from alerts.definitions import shipped
from alerts.model import Severity

CONFIG = """
rules:
- {alert: SpecwatchSlowerThanPlain, for: 1m}
- {alert: SpecwatchGarble, enabled: false}
- alert: BillingSlow
  by: scenario
  expr: acceptance_rate < 0.7 and window_requests >= 20
  for: 30s
  keep_firing_for: 30s
  labels: {team: ml}
receivers:
- {name: hook, type: webhook, url: "http://127.0.0.1:1"}
- {name: spare, type: webhook, url: "http://127.0.0.1:1"}
route:
  receiver: hook
  routes:
  - {match: {severity: critical}, receiver: ""}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "alerts.yaml"
    file.write_text(CONFIG)
    return file


def test_check_says_how_many_there_are_and_who_is_told(config: Path) -> None:
    criticals = [name for name, rule in shipped().items() if rule.severity is Severity.CRITICAL]
    warnings = [name for name, rule in shipped().items() if rule.severity is Severity.WARNING]
    # One shipped rule is switched off, and one is added.
    count = len(shipped())
    assert check(config) == [
        f"rules: {count} (1 of your own, 1 of the shipped ones changed); receivers: 2",
        f"hook: {', '.join(warnings[:5])} and {len(warnings) - 5} more",
        "spare: nothing, as no route leads there",
        f"nobody is told of {', '.join(criticals[:5])} and {count - len(warnings) - 5} more",
    ]
    assert check(None)[0] == f"rules: {count} (0 of your own, 0 of the shipped ones changed); receivers: 0"
    config.write_text("rules: 1")
    with pytest.raises(ConfigError):
        check(config)


BILLING = """
config: alerts.yaml
tests:
- name: billing gets slow and recovers
  interval: 15s
  by: {scenario: billing}
  readings:
    acceptance_rate: "0.8x2 0.6x5 _x2 0.8x4"
    window_requests: 100x13
  only: [BillingSlow]
  expect:
  - {at: 15s, alerts: []}
  - {at: 30s, alerts: [{alert: BillingSlow, status: pending, value: 0.6}]}
  - {at: 60s, alerts: [{alert: BillingSlow, status: firing, labels: {team: ml, scenario: billing, severity: warning}}]}
  - {at: 2m, alerts: [{alert: BillingSlow}]}
  - {at: 2m30s, alerts: [{alert: BillingSlow}]}
  - {at: 2m45s, alerts: []}
"""


def failures(folder: Path, text: str) -> list[Failure]:
    (folder / "tests.yaml").write_text(text)
    return run_tests(folder / "tests.yaml")


def test_a_right_expectation_passes(config: Path) -> None:
    assert failures(config.parent, BILLING) == []


@pytest.mark.parametrize(
    ("was", "now_is", "expected", "got"),
    [
        ("{at: 15s, alerts: []}", "{at: 30s, alerts: []}", "no alert", "BillingSlow{scenario=billing} pending (0.6)"),
        (
            "{at: 2m30s, alerts: [{alert: BillingSlow}]}",
            "{at: 165, alerts: [{alert: BillingSlow}]}",
            "BillingSlow firing",
            "no alert",
        ),
        (
            "status: firing, labels: {team: ml,",
            "status: firing, labels: {team: ops,",
            "BillingSlow{team=ops, scenario=billing, severity=warning} firing",
            "BillingSlow{scenario=billing} firing (0.6)",
        ),
        (
            "status: pending",
            "status: firing",
            "BillingSlow firing (0.6)",
            "BillingSlow{scenario=billing} pending (0.6)",
        ),
        ("value: 0.6}", "value: 0.7}", "BillingSlow pending (0.7)", "BillingSlow{scenario=billing} pending (0.6)"),
        (
            "{at: 2m, alerts: [{alert: BillingSlow}]}",
            "{at: 2m, alerts: [{alert: BillingSlow}, {alert: BillingSlow}]}",
            "BillingSlow firing, BillingSlow firing",
            "BillingSlow{scenario=billing} firing (0.6)",
        ),
    ],
)
def test_a_wrong_one_fails_and_says_how(was: str, now_is: str, expected: str, got: str, config: Path) -> None:
    assert was in BILLING
    (failure,) = failures(config.parent, BILLING.replace(was, now_is))
    assert (failure.expected, failure.got) == (expected, got)
    assert str(failure).startswith(f"billing gets slow and recovers: at {failure.at_s:g} s expected {expected}; got ")


def test_all_alerts_are_looked_at_where_none_are_named(config: Path) -> None:
    text = BILLING.replace("  only: [BillingSlow]\n", "")
    # SpecwatchAcceptanceLowInScenario reads acceptance_rate_high, which is not known here.
    assert failures(config.parent, text) == []
    text = text.replace("  readings:\n", "  readings:\n    acceptance_rate_high: 0.6x20\n")
    assert len(failures(config.parent, text)) == 6


def test_the_shipped_rules_are_tested_where_no_config_is_named(tmp_path: Path) -> None:
    text = """
tests:
- name: one
  readings: {database_up: "1 0x30"}
  expect:
  - {at: 60, alerts: [{alert: SpecwatchDatabaseDown, status: pending}]}
  - {at: 75, alerts: [{alert: SpecwatchDatabaseDown, value: 0}]}
"""
    assert failures(tmp_path, text) == []


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ("1", [1]),
        (1, [1]),
        ("1 2 -3", [1, 2, -3]),
        ("1x3", [1, 1, 1]),
        ("1x0", []),
        ("_", [None]),
        ("_x2 1", [None, None, 1]),
        ("1+1x3", [1, 2, 3, 4]),
        ("1-0.5x2", [1, 0.5, 0]),
        ("1--1x1", [1, 2]),
        (".5 1e-3", [0.5, 0.001]),
        ("", []),
    ],
)
def test_series(series: object, expected: list[float | None]) -> None:
    assert list(_series(series)) == expected


@pytest.mark.parametrize(
    ("name", "was", "now_is", "message"),
    [
        ("unknown key", "interval: 15s", "intervall: 15s", "tests[0].intervall: no such key; did you mean interval?"),
        ("no such config", "config: alerts.yaml", "config: none.yaml", "none.yaml: No such file or directory"),
        ("no values", "100x13", "100y13", "tests[0].readings.window_requests: '100y13' is no value: write 0.8, 0.8x10"),
        ("a step without times", "100x13", "1+1", "'1+1' is no value"),
        ("too many", "100x13", "1x999999", "is longer than 20000 values"),
        (
            "unknown reading",
            "window_requests:",
            "window_request:",
            "tests[0].readings: there is no reading window_request; did you mean",
        ),
        (
            "not of this group",
            "window_requests:",
            "similarity:",
            "tests[0].readings.similarity: is not known by scenario",
        ),
        (
            "unknown kind",
            "by: {scenario:",
            "by: {scenari:",
            "tests[0].by: there is no such kind of groups; did you mean scenario?",
        ),
        ("two groups", "by: {scenario: billing}", "by: {scenario: a, model: b}", "tests[0].by: may have 1 at most"),
        (
            "unknown rule",
            "{alert: BillingSlow}",
            "{alert: BilingSlow}",
            "tests[0].expect[3].alerts: there is no rule BilingSlow; did you mean BillingSlow?",
        ),
        (
            "unknown rule alone",
            "only: [BillingSlow]",
            "only: [Billing]",
            "tests[0].only: there is no rule Billing; did you mean BillingSlow?",
        ),
        (
            "a status that is not seen",
            "status: firing",
            "status: resolved",
            "tests[0].expect[2].alerts[0].status: must be one of pending or firing",
        ),
        ("too far away", "{at: 15s,", "{at: 300d,", "tests[0].expect[0].at: is more than 20000 looks away"),
    ],
)
def test_errors_name_the_key_path(name: str, was: str, now_is: str, message: str, config: Path) -> None:
    assert was in BILLING
    with pytest.raises(ConfigError) as caught:
        failures(config.parent, BILLING.replace(was, now_is))
    assert message in str(caught.value), name


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("check")
    (folder / "alerts.yaml").write_text(CONFIG)
    return folder / "tests.yaml"


@given(st.integers(0, len(BILLING)), st.integers(0, 20), st.text("0123456789x+-_. e{}[]:\n", max_size=6))
def test_a_damaged_file_has_failures_or_a_config_error(file: Path, start: int, length: int, text: str) -> None:
    file.write_text(BILLING[:start] + text + BILLING[start + length :])
    try:
        run_tests(file)
    except ConfigError as error:
        assert str(error)
