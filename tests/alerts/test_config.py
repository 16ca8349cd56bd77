"""The alerts' file: what it may say, and errors that name the key path and the remedy and never a secret."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from alerts.config import Alertmanager, Apprise, Command, Config, ConfigError, Grafana, Webhook, load
from alerts.definitions import shipped
from alerts.document import parse
from alerts.fields import seconds
from alerts.model import Severity
from alerts.receivers import Route

WHOLE = """
interval: 30s
rules:
  - alert: SpecwatchAcceptanceLow
    expr: acceptance_rate < 0.6 and window_requests >= 50
    annotations: {runbook: https://wiki/p}
  - alert: SpecwatchFirstPositionTruncations
    enabled: false
  - alert: SpecwatchLatencyGoalMissed
    labels: {action: ""}
  - alert: BillingSlow
    by: scenario
    expr: acceptance_rate < 70% and window_requests >= 20
    for: 1m
    keep_firing_for: 1h30m
    severity: warning
    labels: {team: ml}
    annotations: {summary: slow, description: "p {{ value }} in {{scenario}} of {{ instance }} for {{ team }}"}
receivers:
  - {name: chat, type: apprise, url: "json://localhost/SECRET"}
  - {name: hook, type: webhook, url: "https://h/SECRET", headers: {X-Key: SECRET}, token: SECRET, timeout: 500ms}
  - {name: am, type: alertmanager, url: "http://127.0.0.1:9093/am/"}
  - {name: marks, type: grafana, url: "http://[::1]:3000", token_file: token, send_resolved: false}
  - {name: retrain, type: command, command: [./retrain.sh, --now], min_interval: 6h, timeout: 2h}
route:
  receiver: chat
  group_by: [alertname, scenario]
  group_wait: 5s
  group_interval: 2m
  repeat_interval: 1d
  routes:
    - {match: {severity: info}, receiver: marks}
    - {match: {team: [ml, ops], severity: critical}, receiver: retrain, continue: true, group_by: [], group_wait: 0}
    - {match: {alertname: BillingSlow}, receiver: ""}
    - {receiver: am, continue: true}
    - {match: {severity: [warning, info]}}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beside it is what WHOLE names."""
    folder = tmp_path_factory.mktemp("config")
    (folder / "token").write_text("SECRET\n")
    (folder / "retrain.sh").write_text("#!/bin/sh\n")
    (folder / "retrain.sh").chmod(0o755)
    return folder / "alerts.yaml"


def written(folder: Path, text: str) -> Path:
    file = folder / "alerts.yaml"
    file.write_text(text)
    return file


@pytest.fixture
def whole(file: Path) -> Config:
    return load(written(file.parent, WHOLE))


class TestRules:
    def test_a_shipped_rule_keeps_what_is_not_given(self, whole: Config) -> None:
        rules = {rule.alert: rule for rule in whole.rules}
        was, is_now = shipped()["SpecwatchAcceptanceLow"], rules["SpecwatchAcceptanceLow"]
        assert str(is_now.expr) == "acceptance_rate < 0.6 and window_requests >= 50"
        assert (is_now.for_s, is_now.keep_firing_for_s, is_now.severity) == (30, 120, Severity.CRITICAL)
        assert is_now.annotations == {**was.annotations, "runbook": "https://wiki/p"}
        assert rules["SpecwatchErrors"] == shipped()["SpecwatchErrors"]

    def test_one_is_off_and_one_is_new(self, whole: Config) -> None:
        expected = [*shipped(), "BillingSlow"]
        expected.remove("SpecwatchFirstPositionTruncations")
        assert [rule.alert for rule in whole.rules] == expected
        own = whole.rules[-1]
        assert (own.by, own.for_s, own.keep_firing_for_s, own.severity) == ("scenario", 60, 5400, Severity.WARNING)
        assert (own.labels, str(own.expr)) == ({"team": "ml"}, "acceptance_rate < 0.7 and window_requests >= 20")

    def test_an_empty_label_is_none(self, whole: Config) -> None:
        (rule,) = [rule for rule in whole.rules if rule.alert == "SpecwatchLatencyGoalMissed"]
        assert rule.labels == {}

    def test_without_the_shipped_ones(self, tmp_path: Path) -> None:
        file = written(tmp_path, "{defaults: false, rules: [{alert: SpecwatchX, expr: database_up < 1}]}")
        (rule,) = load(file).rules
        assert (rule.alert, rule.for_s, rule.severity, rule.by) == ("SpecwatchX", 0, Severity.WARNING, "")

    def test_an_empty_file_says_nothing(self, tmp_path: Path) -> None:
        assert load(written(tmp_path, "# nothing\n")) == load(None)


class TestReceivers:
    def test_they_are_as_given(self, whole: Config) -> None:
        chat, hook, am, marks, retrain = whole.receivers
        assert isinstance(chat, Apprise)
        assert chat.url.get_secret_value() == "json://localhost/SECRET"
        assert (chat.send_resolved, chat.timeout_s) == (True, 10)
        assert isinstance(hook, Webhook)
        assert hook.token is not None
        assert (hook.token.get_secret_value(), hook.timeout_s) == ("SECRET", 0.5)
        assert {name: value.get_secret_value() for name, value in hook.headers.items()} == {"X-Key": "SECRET"}
        assert isinstance(am, Alertmanager)
        assert am.url.get_secret_value() == "http://127.0.0.1:9093/am"
        assert isinstance(marks, Grafana)
        assert marks.token is not None
        assert (marks.token.get_secret_value(), marks.send_resolved) == ("SECRET", False)
        assert isinstance(retrain, Command)
        assert (retrain.min_interval_s, retrain.timeout_s, retrain.send_resolved) == (21_600, 7200, False)

    def test_a_program_is_found_beside_the_file(self, whole: Config, file: Path) -> None:
        retrain = whole.receivers[-1]
        assert isinstance(retrain, Command)
        assert [Path(retrain.command[0]).resolve(), *retrain.command[1:]] == [
            (file.parent / "retrain.sh").resolve(),
            "--now",
        ]

    def test_they_show_no_secrets(self, whole: Config) -> None:
        assert "SECRET" not in repr(whole)
        assert "SECRET" not in str([receiver.model_dump() for receiver in whole.receivers])


class TestRoutes:
    def test_what_a_branch_leaves_out_is_as_in_the_first(self, whole: Config) -> None:
        route = whole.route
        assert (route.receiver, route.group_by, route.group_wait_s) == ("chat", ("alertname", "scenario"), 5)
        assert (route.group_interval_s, route.repeat_interval_s) == (120, 86_400)
        second, last = route.routes[1], route.routes[-1]
        assert (second.receiver, second.group_by, second.group_wait_s) == ("retrain", (), 0)
        assert (second.group_interval_s, second.continue_) == (120, True)
        assert second.match == {"team": ("ml", "ops"), "severity": ("critical",)}
        assert (last.receiver, last.group_by) == ("chat", ("alertname", "scenario"))

    @pytest.mark.parametrize(
        ("name", "labels", "receivers"),
        [
            ("the first that matches", {"severity": "info", "team": "ml"}, ["marks"]),
            ("and on with continue", {"severity": "critical", "team": "ml"}, ["retrain", "am"]),
            ("all labels must match", {"severity": "critical"}, ["am"]),
            ("to nobody", {"severity": "critical", "alertname": "BillingSlow"}, [""]),
            ("a branch without match takes all", {"severity": "warning"}, ["am", "chat"]),
        ],
    )
    def test_alerts_take(self, name: str, labels: dict[str, str], receivers: list[str], whole: Config) -> None:
        assert [route.receiver for route in whole.route.matching(labels)] == receivers, name

    def test_what_no_branch_takes_takes_the_first_route(self) -> None:
        route = Route("chat", routes=(Route("other", match={"team": ("ml",)}),))
        assert route.matching({"severity": "critical"}) == (route,)

    def test_info_is_sent_nowhere_unless_a_route_names_it(self) -> None:
        everything = Route("all", match={}, continue_=True)
        team = Route("team", match={"team": ("ml",)}, continue_=True)
        quiet = {"severity": "info", "team": "ml"}
        assert Route("chat", routes=(everything, team)).matching(quiet) == ()
        named = Route("named", match={"severity": ("warning", "info")})
        assert Route("chat", routes=(everything, team, named)).matching(quiet) == (named,)
        assert Route("chat", routes=(everything, team, named)).matching({"severity": "warning"}) == (everything, named)


RECEIVER = "receivers: [{name: x, %s}]"


def _errors() -> list[tuple[str, str, str]]:
    """Name, file and error, as `config_errors.txt` has them."""

    found = []
    for part in Path(__file__).with_name("config_errors.txt").read_text().split("\n--- ")[1:]:
        name, _, rest = part.partition("\n")
        text, _, message = rest.strip().partition("\n=> ")
        found.append((name, text, message))
    return found


NESTED = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in pairwise("abcdefg"))
EXPLODES = (
    "anchors that explode",
    f"a: &a [{', '.join('x' * 10)}]\n{NESTED}",
    "holds itself, or more than can be read",
)
DEEP = ("depth", "a: " + "[" * 1200, "is nested too deeply")


@pytest.mark.parametrize(("name", "text", "message"), [*_errors(), EXPLODES, DEEP])
def test_errors_name_the_key_path_and_the_remedy(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text(" \n")
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert f"{file}: {message}" in str(caught.value)


def test_all_errors_are_told_a_line_each(tmp_path: Path) -> None:
    file = written(tmp_path, "{interval: 0, rules: [{alert: A, fro: 1, expr: 5}], rute: 1}")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(caught.value).splitlines() == [
        f"{file}: interval: must be at least 1",
        f"{file}: rules[0].expr: must be text; put it in quotes",
        f"{file}: rules[0].fro: no such key; did you mean for?",
        f"{file}: rute: no such key; did you mean route?",
    ]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.yaml: No such file or directory"):
        load(tmp_path / "none.yaml")
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="latin: is no UTF-8 text"):
        load(tmp_path / "latin")
    (tmp_path / "long").write_bytes(b" " * 1_048_577)
    with pytest.raises(ConfigError, match="long: is longer than"):
        load(tmp_path / "long")


def test_anchors_and_merged_keys_may_be_used(tmp_path: Path) -> None:
    text = """
rules:
  - &base {alert: A, expr: database_up < 1, labels: {team: ml}}
  - {<<: *base, alert: B}
"""
    assert [rule.alert for rule in load(written(tmp_path, text)).rules[-2:]] == ["A", "B"]


#: Faults of every kind, each with the secret where a user might have put it. `S` stands for it.
LEAKS = [
    RECEIVER % "type: webhook, url: 'S'",
    RECEIVER % "type: webhook, url: 'ftp://S'",
    RECEIVER % "type: webhook, url: 'http://h:S/'",
    RECEIVER % "type: webhook, url: 'http://[S/'",
    RECEIVER % "type: webhook, url: 'http://h/S x'",
    RECEIVER % "type: webhook, url: [S]",
    RECEIVER % "type: webhook, url: {S: S}",
    RECEIVER % "type: webhook, url: 'http://h', token: 'S\\ud83d\\n '",
    RECEIVER % "type: webhook, url: 'http://h', token: ' S'",
    RECEIVER % "type: webhook, url: 'http://h', token: [S]",
    RECEIVER % "type: webhook, url: 'http://h', headers: {X: ' S'}",
    RECEIVER % "type: webhook, url: 'http://h', headers: S",
    RECEIVER % "type: webhook, url: 'http://h', headers: ['X: S']",
    RECEIVER % "type: webhook, url: 'http://h', headers: {'X: S': ' a'}",
    RECEIVER % "type: webhook, url: 'http://h', timeout: S",
    RECEIVER % "type: webhook, url: 'http://h', send_resolved: S",
    RECEIVER % "type: apprise, url: 'S'",
    RECEIVER % "type: apprise, url: 'S://a'",
    RECEIVER % "type: apprise, url: 'discord://S'",
    RECEIVER % "type: apprise, url: 'tgram://S/S'",
    RECEIVER % "type: apprise, url_file: S",
    RECEIVER % "type: apprise, url_file: secret",
    RECEIVER % "type: alertmanager, url: 'http://h/?S'",
    RECEIVER % "type: grafana, url: 'http://h', token_file: [S]",
    RECEIVER % "type: command, command: S",
    RECEIVER % "type: command, command: [S, S]",
    RECEIVER % "type: command, command: [ls, S], min_interval: S",
    "receivers: S",
    "receivers: [S]",
    "receivers: {S: S}",
    # Where a quote, a bracket or a space is missing.
    "receivers: [{name: x, type: webhook, url: S: S}]",
    "receivers: [{name: x, type: webhook, 'http://h/S'}]",
    "receivers: [{name: x, type: webhook, hunter2ABC}]",
    "receivers: [{name: x, type: webhook, tokenS}]",
    "receivers: [{name: x, type: webhook, url: 'S}]",
    'receivers: [{name: x, type: webhook, token: "S\\q"}]',
    "receivers: [{name: x, type: webhook, token: *S}]",
    "receivers: [{name: x, type: webhook, token: &S }]",
    "receivers: [{name: x, type: webhook, token: !S a}]",
    "receivers: [{name: x, type: webhook, token: !<S a}]",
    "receivers: [{name: x, type: webhook, token: %S}]",
    "receivers: [{name: x, type: webhook, token: @S}]",
    "receivers:\n- name: x\n  url: S\n token: S",
    "receivers:\n- name: x\n  url:S\n  token: S",
    "receivers: [{name: x, S: 1, S: 2}]",
    "%S\n---\na: 1",
    "S",
    "route: {receiver: 'S'}",
]


@pytest.mark.parametrize("text", LEAKS)
def test_errors_show_no_secret(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    secret = "xoxb-17-hunter2"
    (tmp_path / "secret").write_text(secret)
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text.replace("S", secret)))
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in caplog.text
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("15s", 15), ("1m", 60), ("2h", 7200), ("1d", 86_400), ("500ms", 0.5), ("1h30m", 5400), ("1m500ms", 60.5),
        ("0s", 0), (0, 0), (2.5, 2.5), ("1d2h3m4s5ms", 93_784.005),
    ],
)  # fmt: skip
def test_durations(text: object, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text", ["", "5", "s", "1.5h", "1s1m", "-1s", "1 h", "1H", "367d", 1e300, True, None, float("nan"), [], "1s" * 30]
)
def test_no_durations(text: object) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        seconds(text)


@given(st.integers(0, 300), st.integers(0, 50), st.integers(0, 99), st.integers(0, 99), st.integers(0, 9999))
def test_durations_add_up(d: int, h: int, m: int, s: int, ms: int) -> None:
    parts = [(d, "d", 86_400), (h, "h", 3600), (m, "m", 60), (s, "s", 1), (ms, "ms", 0.001)]
    text = "".join(f"{n}{unit}" for n, unit, _ in parts if n)
    if text:
        assert seconds(text) == pytest.approx(sum(n * factor for n, _, factor in parts))


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
KEYS = st.sampled_from(
    [
        "interval",
        "rules",
        "receivers",
        "route",
        "alert",
        "expr",
        "name",
        "type",
        "url",
        "match",
        "routes",
        "labels",
        "command",
        "by",
        "for",
    ]
) | st.text(max_size=4)
TREES: st.SearchStrategy[Any] = st.recursive(
    SCALARS | st.sampled_from(["webhook", "command", "acceptance_rate < 1", "http://h", "1m", "info"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, TREES, max_size=4))
@example({"route": {"routes": [{"match": {"severity": ["info"]}}]}})
def test_any_document_is_a_config_or_a_config_error(file: Path, document: dict[str, Any]) -> None:
    check(file, yaml.safe_dump(document, allow_unicode=True))


@given(st.text(max_size=60) | st.text("ab:[]{}&*!|>'\"%@`#,-? \n\t0", max_size=60))
def test_any_text_is_a_document_or_a_config_error(text: str) -> None:
    try:
        parse(text, "a.yaml")
    except ConfigError as error:
        assert str(error).startswith("a.yaml: ")


@given(st.integers(0, len(WHOLE)), st.integers(0, 30), st.text(max_size=6))
def test_a_damaged_file_is_a_config_or_a_config_error(file: Path, start: int, length: int, text: str) -> None:
    check(file, WHOLE[:start] + text + WHOLE[start + length :])


def check(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8", errors="replace")
    try:
        load(file)
    except ConfigError as error:
        assert all(re.match(rf"{re.escape(str(file))}: .", line) for line in str(error).split("\n"))
        assert "SECRET" not in str(error)
