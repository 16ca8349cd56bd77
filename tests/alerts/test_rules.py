"""The state machine of a rule and a group: named cases, and laws that hold for any readings."""

import dataclasses
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.definitions import Rule, filled, shipped
from alerts.expression import Expression, parse
from alerts.model import Alert, Event, Happening, Severity, Status
from alerts.rules import GIVEN_UP_S, MOST_GROUPS, Evaluator

LOW = Rule(
    "Low",
    parse("acceptance_rate < 0.65"),
    for_s=30.0,
    keep_firing_for_s=30.0,
    severity=Severity.CRITICAL,
    labels={"team": "ml"},
    annotations={"summary": "p is {{ value }} for {{ team }}", "gone": ""},
)
AT_ONCE = dataclasses.replace(LOW, for_s=0.0, keep_firing_for_s=0.0)
BY_SCENARIO = dataclasses.replace(AT_ONCE, by="scenario", annotations={"summary": "{{ scenario }}: {{ value }}"})

LETTERS = {"b": 0.5, "g": 0.9, ".": None}


def statuses(rule: Rule, looks: str, every_s: float = 15.0) -> tuple[str, list[str]]:
    """Looks: b bad, g good, . no data. The status after each (- P F), and the events with the look they came at."""
    evaluator = Evaluator([rule], instance="one")
    line, events = "", []
    for place, letter in enumerate(looks):
        found = evaluator.evaluate({("", ""): {"acceptance_rate": LETTERS[letter]}}, 1000.0 + place * every_s)
        events += [f"{event.what} {place}" for event in found]
        (alert,) = evaluator.alerts() or [None]
        line += "-" if alert is None else alert.status[0].upper()
    return line, events


@pytest.mark.parametrize(
    ("name", "rule", "looks", "expected", "events"),
    [
        ("it holds for `for`", LOW, "gbbbb", "-PPFF", ["firing 3"]),
        ("a good look before that ends it", LOW, "bbgbbb", "PP-PPF", ["firing 5"]),
        ("and is kept for keep_firing_for", LOW, "bbbgggg", "PPFFF--", ["firing 2", "resolved 5"]),
        ("a bad look meanwhile starts that anew", LOW, "bbbggbggg", "PPFFFFFF-", ["firing 2", "resolved 8"]),
        ("it fires again", LOW, "bbbgggbbb", "PPFFF-PPF", ["firing 2", "resolved 5", "firing 8"]),
        ("without `for`", AT_ONCE, "gbbg", "-FF-", ["firing 1", "resolved 3"]),
        ("no data is no alarm", LOW, "....", "----", []),
        ("no data is no recovery", LOW, "bbb.....", "PPFFFFFF", ["firing 2"]),
        ("it does not fire without data", LOW, "bb......", "PPPPPPPP", []),
        ("time without data does not count", LOW, "b....bb.b.bb", "PPPPPPPPPPPF", ["firing 11"]),
        ("nor towards recovery", LOW, "bbbg....g.gg", "PPFFFFFFFFFF", ["firing 2"]),
        ("until it was good for keep_firing_for", LOW, "bbbg....gg.ggg", "PPFFFFFFFFFF--", ["firing 2", "resolved 12"]),
        ("a good look after no data ends what was pending", LOW, "b..g", "PPP-", []),
    ],
)
def test_a_rule_goes_through(name: str, rule: Rule, looks: str, expected: str, events: list[str]) -> None:
    assert statuses(rule, looks) == (expected, events), name


def test_what_an_alert_tells() -> None:
    evaluator = Evaluator([LOW], instance="one")
    assert evaluator.evaluate({("", ""): {"acceptance_rate": 0.512345}}, 1000) == []
    (pending,) = evaluator.alerts()
    assert pending == Alert(
        labels={"alertname": "Low", "severity": "critical", "instance": "one", "team": "ml"},
        annotations={"summary": "p is 0.512 for ml"},
        status=Status.PENDING,
        starts_at=1000,
        value=0.512345,
    )
    (fired,) = evaluator.evaluate({("", ""): {"acceptance_rate": 0.25}}, 1030)
    assert fired == Event(1030, Happening.FIRING, evaluator.alerts()[0])
    assert (fired.alert.starts_at, fired.alert.value, fired.alert.ends_at) == (1000, 0.25, None)
    evaluator.evaluate({}, 1045)
    assert evaluator.alerts() == [dataclasses.replace(fired.alert, stale=True)]
    # While it is kept, its texts are those of when it held.
    evaluator.evaluate({("", ""): {"acceptance_rate": 0.9}}, 1060)
    assert evaluator.alerts() == [fired.alert]
    (ended,) = evaluator.evaluate({("", ""): {"acceptance_rate": 0.9}}, 1090)
    assert ended == Event(1090, Happening.RESOLVED, dataclasses.replace(fired.alert, status="resolved", ends_at=1090))


def test_each_group_has_an_alert_of_its_own() -> None:
    evaluator = Evaluator([BY_SCENARIO, LOW], instance="one")
    looked = {
        ("", ""): {"acceptance_rate": 0.9},
        ("scenario", "code"): {"acceptance_rate": 0.5},
        ("scenario", "billing"): {"acceptance_rate": 0.6},
        ("scenario", "chat"): {"acceptance_rate": 0.9},
        ("model", "code"): {"acceptance_rate": 0.1},
    }
    events = evaluator.evaluate(looked, 1000)
    assert [event.alert.labels["scenario"] for event in events] == ["code", "billing"]
    assert [event.alert.annotations["summary"] for event in events] == ["code: 0.500", "billing: 0.600"]
    assert len({event.alert.fingerprint for event in events}) == 2
    # A group that vanished is as one without data.
    assert evaluator.evaluate({("scenario", "code"): {"acceptance_rate": 0.9}}, 1015)[0].what is Happening.RESOLVED
    (left,) = evaluator.alerts()
    assert (left.labels["scenario"], left.stale, left.status) == ("billing", True, Status.FIRING)


def test_a_rule_has_data_or_has_not() -> None:
    evaluator = Evaluator([LOW, dataclasses.replace(BY_SCENARIO, alert="Other")], instance="one")
    assert evaluator.health() == {"Low": None, "Other": None}
    evaluator.evaluate({("", ""): {"acceptance_rate": 0.9}}, 1000)
    assert evaluator.health() == {"Low": True, "Other": False}
    evaluator.evaluate({("", ""): {}, ("scenario", "a"): {}, ("scenario", "b"): {"acceptance_rate": 0.9}}, 1015)
    assert evaluator.health() == {"Low": False, "Other": True}


def test_after_a_day_without_data_an_alert_is_given_up_and_that_is_told() -> None:
    evaluator = Evaluator([AT_ONCE, dataclasses.replace(LOW, alert="Pending")], instance="one")
    evaluator.evaluate({("", ""): {"acceptance_rate": 0.5}}, 1000)
    assert evaluator.evaluate({}, 1000 + GIVEN_UP_S - 1) == []
    (ended,) = evaluator.evaluate({}, 1000 + GIVEN_UP_S)
    assert (ended.what, ended.alert.name, ended.detail) == (Happening.RESOLVED, "Low", "no data for a day")
    assert ended.alert.annotations == {"summary": "p is 0.500 for ml", "given_up": "no data for a day"}
    assert evaluator.alerts() == []


def test_groups_that_fire_are_bounded() -> None:
    evaluator = Evaluator([BY_SCENARIO], instance="one")
    looked = {("scenario", str(n)): {"acceptance_rate": 0.5} for n in range(MOST_GROUPS + 10)}
    assert len(evaluator.evaluate(looked, 1000)) == len(evaluator.alerts()) == MOST_GROUPS
    assert len(evaluator.evaluate({("scenario", "0"): {"acceptance_rate": 0.9}}, 1015)) == 1
    assert len(evaluator.evaluate(looked, 1030)) == 1


def test_groups_that_vanished_keep_no_place_from_others() -> None:
    evaluator = Evaluator([BY_SCENARIO], instance="one")
    names = [str(n) for n in range(MOST_GROUPS)]
    for at, seen in ((1000, names[:1]), (1015, names[1:]), (1030, names[2:])):
        evaluator.evaluate({("scenario", name): {"acceptance_rate": 0.5} for name in seen}, at)
    new = {("scenario", "billing"): {"acceptance_rate": 0.5}}
    ended, fired = evaluator.evaluate({("scenario", "2"): {"acceptance_rate": 0.5}, **new}, 1045)
    assert (ended.what, ended.alert.labels["scenario"]) == (Happening.RESOLVED, "0"), "the one longest without data"
    assert ended.alert.annotations["given_up"] == "no data, and others need its place"
    assert (fired.what, fired.alert.labels["scenario"]) == (Happening.FIRING, "billing")
    assert len(evaluator.alerts()) == MOST_GROUPS


GUARDED = dataclasses.replace(AT_ONCE, expr=parse("acceptance_rate < 0.65 and window_requests >= 50"))


@pytest.mark.parametrize(
    ("name", "expr", "fires_by", "then", "status"),
    [
        ("bad, of too few", GUARDED.expr, (0.3, 100), (0.3, 3), "stale"),
        ("good, of too few", GUARDED.expr, (0.3, 100), (0.9, 3), "over"),
        ("good, of enough", GUARDED.expr, (0.3, 100), (0.9, 50), "over"),
        ("bad, of enough", GUARDED.expr, (0.3, 100), (0.3, 50), "firing"),
        ("a rule about their number", parse("window_requests > 50"), (0.3, 100), (0.3, 3), "over"),
        ("for few alone", parse("acceptance_rate < 0.65 and window_requests < 50"), (0.3, 3), (0.3, 99), "over"),
    ],
)  # fmt: skip
def test_too_few_requests_are_no_recovery(
    name: str, expr: Expression, fires_by: tuple[float, float], then: tuple[float, float], status: str
) -> None:
    evaluator = Evaluator([dataclasses.replace(GUARDED, expr=expr)], instance="one")
    for at, (rate, requests) in ((1000, fires_by), (1015, then)):
        evaluator.evaluate({("", ""): {"acceptance_rate": rate, "window_requests": requests}}, at)
    (alert,) = evaluator.alerts() or [None]
    assert ("over" if alert is None else "stale" if alert.stale else alert.status) == status, name


def test_a_clock_set_back_makes_nothing_wait_for_longer() -> None:
    evaluator = Evaluator([LOW], instance="one")
    low, well = {("", ""): {"acceptance_rate": 0.5}}, {("", ""): {"acceptance_rate": 0.9}}
    assert evaluator.evaluate(low, 90_015) == []
    assert evaluator.evaluate(low, 15) == [], "a day back, by which nothing is older"
    assert evaluator.evaluate(low, 30) == []
    (fired,) = evaluator.evaluate(low, 45)
    assert fired.alert.starts_at == 15
    evaluator.evaluate(well, 60)
    evaluator.evaluate(well, 10)
    assert evaluator.evaluate(well, 39) == []
    assert [event.what for event in evaluator.evaluate(well, 40)] == [Happening.RESOLVED]


def test_a_clock_set_back_ends_no_alert_before_it_began() -> None:
    evaluator = Evaluator([AT_ONCE], instance="one")
    evaluator.evaluate({("", ""): {"acceptance_rate": 0.5}}, 1000)
    (ended,) = evaluator.evaluate({("", ""): {"acceptance_rate": 0.9}}, 500)
    assert ended.alert.ends_at == 1000


def test_a_value_from_outside_is_text_and_no_placeholder() -> None:
    assert filled("{{a}} {{ b }} {{ c }}", {"a": "{{ b }}", "b": "x"}) == "{{ b }} x {{ c }}"


class TestRestart:
    def before(self, rule: Rule) -> Alert:
        evaluator = Evaluator([rule], instance="one")
        for at in (1000, 1030):
            evaluator.evaluate({("", ""): {"acceptance_rate": 0.5}, ("scenario", "x"): {"acceptance_rate": 0.5}}, at)
        (alert,) = evaluator.alerts()
        # As a database gives it back.
        return dataclasses.replace(alert, labels=json.loads(json.dumps(alert.labels)))

    @pytest.mark.parametrize("rule", [LOW, BY_SCENARIO], ids=["all traffic", "a group"])
    def test_a_firing_alert_goes_on(self, rule: Rule) -> None:
        before = self.before(rule)
        group = ("scenario", "x") if rule.by else ("", "")
        evaluator = Evaluator([rule], instance="one")
        assert evaluator.restore([before], 5000) == []
        assert evaluator.alerts() == [dataclasses.replace(before, stale=True)]
        assert evaluator.evaluate({}, 5015) == []
        assert evaluator.evaluate({group: {"acceptance_rate": 0.5}}, 5030) == []
        assert evaluator.alerts() == [before]
        events = [
            event for at in (5045, 5060, 5075) for event in evaluator.evaluate({group: {"acceptance_rate": 0.9}}, at)
        ]
        assert [event.what for event in events] == [Happening.RESOLVED]
        assert events[0].alert.starts_at == 1000

    def test_it_may_come_after_the_first_looks(self) -> None:
        before = self.before(LOW)
        evaluator = Evaluator([LOW], instance="one")
        evaluator.evaluate({("", ""): {"acceptance_rate": 0.4}}, 5000)
        assert evaluator.restore([before], 5001) == []
        (alert,) = evaluator.alerts()
        assert (alert.status, alert.starts_at, alert.value) == (Status.FIRING, 1000, 0.4)
        assert evaluator.evaluate({("", ""): {"acceptance_rate": 0.4}}, 5030) == []

    @pytest.mark.parametrize(
        "now_is",
        [
            dataclasses.replace(LOW, alert="Other"),
            dataclasses.replace(LOW, labels={}),
            dataclasses.replace(LOW, severity=Severity.WARNING),
            dataclasses.replace(LOW, by="scenario"),
        ],
        ids=["gone", "other labels", "other severity", "other groups"],
    )
    def test_what_no_rule_makes_any_more_ends(self, now_is: Rule) -> None:
        evaluator = Evaluator([now_is], instance="one")
        (ended,) = evaluator.restore([self.before(LOW)], 5000)
        assert (ended.what, ended.alert.ends_at) == (Happening.RESOLVED, 5000)
        assert ended.alert.annotations["given_up"] == "its rule is gone, or has other labels"
        assert evaluator.alerts() == []

    def test_only_firing_ones_are_taken_up(self) -> None:
        evaluator = Evaluator([LOW], instance="one")
        resolved = dataclasses.replace(self.before(LOW), status=Status.RESOLVED, ends_at=1100)
        assert evaluator.restore([resolved], 5000) == []
        assert evaluator.alerts() == []


RULES = st.builds(
    lambda hold, keep, by: dataclasses.replace(BY_SCENARIO, for_s=hold, keep_firing_for_s=keep, by=by),
    st.sampled_from([0.0, 15.0, 40.0]),
    st.sampled_from([0.0, 15.0, 40.0]),
    st.sampled_from(["", "scenario"]),
)
#: Seconds since the look before, and what each of two groups is found to be; a missing one vanished.
LOOKS = st.lists(
    st.tuples(st.sampled_from([1, 15, 60, 3600, 86_400]), st.text("bg. ", min_size=2, max_size=2)), max_size=40
)


def played(
    rule: Rule, looks: list[tuple[int, str]]
) -> Iterator[tuple[float, dict[str, str], dict[str, Alert], list[Event]]]:
    """Of each look: when it was, what each group was found to be, the alerts after it and its events."""
    evaluator = Evaluator([dataclasses.replace(rule, annotations={})], instance="one")
    groups = ["x", "y"] if rule.by else [""]
    now = 1000.0
    for pause, letters in looks:
        now += pause
        found = dict(zip(groups, letters, strict=False))
        readings = {(rule.by, name): {"acceptance_rate": LETTERS[seen]} for name, seen in found.items() if seen != " "}
        events = evaluator.evaluate(readings, now)
        yield now, found, {alert.labels.get(rule.by, ""): alert for alert in evaluator.alerts()}, events


@given(RULES, LOOKS)
def test_law_nothing_fires_before_it_has_held_for_as_long_as_for(rule: Rule, looks: list[tuple[int, str]]) -> None:
    held_since: dict[str, float] = {}
    for now, found, _, events in played(rule, looks):
        for group, seen in found.items():
            if seen == "b":
                held_since.setdefault(group, now)
            elif seen == "g":
                held_since.pop(group, None)
        for event in events:
            if event.what is Happening.FIRING:
                group = event.alert.labels.get(rule.by, "")
                assert found[group] == "b"
                assert now - held_since[group] >= rule.for_s


@given(RULES, LOOKS)
def test_law_a_look_without_data_changes_no_status(rule: Rule, looks: list[tuple[int, str]]) -> None:
    before: dict[str, Alert] = {}
    known_at: dict[str, float] = {}
    for now, found, after, events in played(rule, looks):
        for group, seen in found.items():
            if seen in "bg":
                known_at[group] = now
                assert group not in after or not after[group].stale
            elif group in before and now - known_at[group] < GIVEN_UP_S:
                assert after[group] == dataclasses.replace(before[group], stale=True)
                assert group not in [event.alert.labels.get(rule.by, "") for event in events]
            else:
                assert group not in after
        before = after


@given(RULES, LOOKS)
def test_law_firing_and_resolved_take_turns_in_order(rule: Rule, looks: list[tuple[int, str]]) -> None:
    told: dict[str, list[Event]] = {}
    last = 0.0
    for now, _, after, events in played(rule, looks):
        for event in events:
            assert last <= event.at == now
            last = event.at
            told.setdefault(event.alert.fingerprint, []).append(event)
        firing = {alert.fingerprint for alert in after.values() if alert.status is Status.FIRING}
        assert firing == {name for name, history in told.items() if history[-1].what is Happening.FIRING}
    for history in told.values():
        for place, event in enumerate(history):
            assert event.what is (Happening.RESOLVED if place % 2 else Happening.FIRING)
            if place % 2:
                assert event.alert.starts_at == history[place - 1].alert.starts_at
                assert event.alert.ends_at is not None
                assert event.alert.ends_at >= event.alert.starts_at


@given(RULES, LOOKS, st.integers(0, 39))
def test_law_a_restart_tells_nothing_twice(rule: Rule, looks: list[tuple[int, str]], cut: int) -> None:
    """What is firing at a restart is not told as firing again before it is told as resolved."""
    *_, last = [*played(rule, looks[:cut]), (1000.0, {}, {}, [])][-1:]
    now, _, alerts, _ = last
    firing = {alert.fingerprint for alert in alerts.values() if alert.status is Status.FIRING}
    evaluator = Evaluator([rule], instance="one")
    evaluator.restore(alerts.values(), now)
    for pause, letters in looks[cut:]:
        now += pause
        found = zip(["x", "y"] if rule.by else [""], letters, strict=False)
        for event in evaluator.evaluate(
            {(rule.by, name): {"acceptance_rate": LETTERS[seen]} for name, seen in found if seen != " "}, now
        ):
            if event.what is Happening.FIRING:
                assert event.alert.fingerprint not in firing
                firing.add(event.alert.fingerprint)
            else:
                firing.remove(event.alert.fingerprint)


def looked_at(looks: list[dict[str, float | None]], every_s: float = 15.0) -> list[Event]:
    """All shipped rules, by the readings of all traffic."""
    evaluator = Evaluator(shipped().values(), instance="one")
    return [
        event
        for place, readings in enumerate(looks)
        for event in evaluator.evaluate({("", ""): readings}, 1000 + place * every_s)
    ]


NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "readings"),
    [
        (
            "no traffic, not known",
            {"acceptance_rate": None, "window_requests": 0, "latency_ratio": None, "requests": 0},
        ),
        ("no traffic, 0 / 0", {"acceptance_rate": NAN, "window_requests": 0, "error_rate": NAN, "latency_ratio": NAN}),
        ("no readings at all", {}),
        ("three requests, all bad", {"acceptance_rate": 0.0, "window_requests": 3, "error_rate": 1.0, "requests": 3}),
        (
            "three requests, all slow",
            {"latency_under_800ms_ratio": 0.0, "p95_latency_under_800ms_ratio": 0.0, "latency_requests": 3},
        ),
        ("three pairs", {"similarity": 0.1, "similarity_pairs": 3}),
        (
            "three replies",
            {"repetition_share": 1.0, "p_near_one_share": 1.0, "garble_share": 1.0, "quality_replies": 3},
        ),
        ("three without figures", {"not_drafted_share": 1.0, "not_drafted_requests": 3}),
    ],
)
def test_c31_no_traffic_and_few_requests_are_no_alarm(name: str, readings: dict[str, float | None]) -> None:
    assert looked_at([readings] * 60) == [], name


def test_c31_nan_is_no_recovery_either() -> None:
    bad: dict[str, float | None] = {"acceptance_rate": 0.3, "window_requests": 100}
    idle: dict[str, float | None] = {"acceptance_rate": NAN, "window_requests": 0}
    events = looked_at([bad] * 5 + [idle] * 100 + [bad] * 5)
    assert [(event.what, event.alert.name) for event in events] == [(Happening.FIRING, "SpecwatchAcceptanceLow")]


def test_c29_a_database_that_is_away_is_one_alert_and_one_recovery() -> None:
    # Five minutes away; it answers once in between, and goes again.
    up: dict[str, float | None] = {"database_up": 1.0, "records_dropped": 0.0}
    down: dict[str, float | None] = {"database_up": 0.0, "records_dropped": 0.0}
    events = looked_at([up] * 4 + [down] * 10 + [up] + [down] * 10 + [up] * 20)
    assert [(event.what, event.alert.name) for event in events] == [
        (Happening.FIRING, "SpecwatchDatabaseDown"),
        (Happening.RESOLVED, "SpecwatchDatabaseDown"),
    ]
