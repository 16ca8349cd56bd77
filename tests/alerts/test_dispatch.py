import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.alerts import T0, alert, config, webhook

from alerts.config import Alertmanager, Command, Route
from alerts.dispatch import ALERTMANAGER_REPEAT_S, MOST_AT_ONCE, RESOLVED_KEPT_S, Dispatcher, Told
from alerts.message import Notification, Why
from alerts.model import Alert, Event, Happening, Status
from alerts.notifiers.error import NotifyError, Reason

DOWN = NotifyError(Reason.UNREACHABLE, "cannot be connected to")
REFUSED = NotifyError(Reason.REJECTED, "answered 401", recoverable=False)
FIRING, RESOLVED = Status.FIRING, Status.RESOLVED


def names(notification: Notification) -> list[tuple[str, str]]:
    return [(each.name, each.status.value) for each in notification.alerts]


class Run:
    """A dispatcher and its time, s after `T0`."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.events: list[Event] = []

    def tell(self, at: float, *alerts: Alert) -> None:
        self.dispatcher.update(alerts, T0 + at)

    def due(self, at: float) -> list[Notification]:
        return self.dispatcher.due(T0 + at)

    def send(self, at: float, error: NotifyError | None = None) -> list[Notification]:
        """All that is due, and how it ended."""
        sent = self.due(at)
        for each in sent:
            self.events += self.dispatcher.done(each, error, T0 + at)
        return sent

    def first(self, after: float, until: float, step: float = 1.0) -> tuple[float, Notification] | None:
        """The first notification that is due after a time, and when."""
        for n in range(int((until - after) / step)):
            at = after + (n + 1) * step
            if sent := self.send(at):
                return at, sent[0]
        return None


def run(**route: object) -> Run:
    return Run(Dispatcher(config(webhook(), **route)))


def test_a_group_waits_then_tells_all_it_holds_at_once() -> None:
    r = run()
    r.tell(0, alert("Slow", scenario="a"))
    r.tell(5, alert("Slow", scenario="b"))
    assert r.send(9.9) == []
    (sent,) = r.send(10)
    assert (sent.why, len(sent.alerts), sent.group_labels) == (Why.FIRST, 2, {"alertname": "Slow"})


def test_each_value_of_group_by_is_a_group() -> None:
    r = run(group_by=("alertname", "scenario"), group_wait_s=0)
    r.tell(0, alert(scenario="a"), alert(scenario="b"), alert())
    assert sorted(each.group for each in r.send(0)) == [
        '{}:{alertname="Slow", scenario="a"}',
        '{}:{alertname="Slow", scenario="b"}',
        '{}:{alertname="Slow"}',
    ]


def test_pending_alerts_are_nobodys_business() -> None:
    r = run(group_wait_s=0)
    r.tell(0, alert(status=Status.PENDING))
    assert r.send(100) == []


CHANGES: list[tuple[str, list[Alert], Why | None, list[tuple[str, str]]]] = [
    ("nothing", [], None, []),
    ("the same again", [alert("A", group="g")], None, []),
    ("another one", [alert("B", group="g")], Why.NEW_ALERTS, [("A", "firing"), ("B", "firing")]),
    ("it is over", [alert("A", RESOLVED, group="g")], Why.RESOLVED, [("A", "resolved")]),
    (
        "it is over, another one",
        [alert("A", RESOLVED, group="g"), alert("B", group="g")],
        Why.NEW_ALERTS,
        [("B", "firing"), ("A", "resolved")],
    ),
    ("another one came and went", [alert("B", group="g"), alert("B", RESOLVED, group="g")], None, []),
    ("it went and came back", [alert("A", RESOLVED, group="g"), alert("A", group="g")], None, []),
]


@pytest.mark.parametrize(("change", "why", "told"), [case[1:] for case in CHANGES], ids=[case[0] for case in CHANGES])
def test_what_a_change_after_the_first_notification_leads_to(
    change: list[Alert], why: Why | None, told: list[tuple[str, str]]
) -> None:
    r = run(group_by=("group",), group_wait_s=0)
    r.tell(0, alert("A", group="g"))
    assert len(r.send(0)) == 1
    for each in change:
        r.tell(20, each)
    found = r.first(20, 1000)
    if why is None:
        assert found is None
    else:
        assert found is not None
        assert (found[0], found[1].why, names(found[1])) == (60, why, told)


def test_an_unchanged_group_is_told_again_after_repeat_interval_and_not_before() -> None:
    r = run(group_wait_s=0, group_interval_s=60, repeat_interval_s=3600)
    r.tell(0, alert())
    r.send(0)
    for minute in range(200):
        r.tell(minute * 60, replace(alert(), value=float(minute)))
        sent = r.send(minute * 60)
        assert [each.why for each in sent] == ([Why.REPEAT] if minute in (60, 120, 180) else []), minute


def test_what_comes_back_soon_is_told_when_the_group_is_looked_at_next() -> None:
    r = run(group_wait_s=0)
    r.tell(0, alert())
    r.send(0)
    r.tell(30, alert(status=RESOLVED))
    assert [each.why for each in r.send(60)] == [Why.RESOLVED]
    r.tell(65, alert())
    found = r.first(65, 1000)
    assert found is not None
    assert (found[0], found[1].why) == (120, Why.FIRST)


def test_a_receiver_that_wants_no_ends_is_told_of_the_next_start() -> None:
    r = Run(Dispatcher(config(webhook(send_resolved=False), group_wait_s=0)))
    r.tell(0, alert())
    r.send(0)
    r.tell(30, alert(status=RESOLVED))
    assert r.first(30, 200) is None
    r.tell(300, alert())
    assert [each.why for each in r.send(300)] == [Why.FIRST]


def test_no_end_is_told_of_what_never_arrived() -> None:
    r = run(group_wait_s=0)
    r.tell(0, alert())
    assert len(r.send(0, DOWN)) == 1
    r.tell(0.5, alert(status=RESOLVED))
    assert r.first(0.5, 1000) is None


def test_what_ends_while_its_start_is_on_its_way_is_told_if_that_arrives() -> None:
    for error, expected in ((None, [("Slow", "resolved")]), (DOWN, None)):
        r = run(group_wait_s=0)
        r.tell(0, alert())
        (sent,) = r.due(0)
        r.tell(1, alert(status=RESOLVED))
        assert r.due(500) == [], "one at a time"
        r.dispatcher.done(sent, error, T0 + 2)
        found = r.first(2, 500)
        assert (found and names(found[1])) == expected


def test_an_end_is_kept_for_a_receiver_that_is_away_but_not_for_ever() -> None:
    for away_s, arrives in ((3600, True), (RESOLVED_KEPT_S + 120, False)):
        r = run(group_wait_s=0)
        r.tell(0, alert())
        r.send(0)
        r.tell(60, alert(status=RESOLVED, ends_at=T0 + 60))
        at = 60.0
        while at < away_s:
            r.send(at, DOWN)
            at += 60
        assert [names(each) for each in r.send(at + 60)] == ([[("Slow", "resolved")]] if arrives else [])


def test_pauses_between_tries_double_up_to_a_minute() -> None:
    r = run(group_wait_s=0)
    r.tell(0, alert())
    tries = [at for at in range(400) if r.send(at, DOWN)]
    assert [b - a for a, b in pairwise(tries)] == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60]
    assert [(each.what, each.reason, each.detail) for each in r.events] == [
        (Happening.FAILED, "unreachable", "cannot be connected to")
    ], "one of an outage"
    assert r.first(400, 500) is not None
    assert [each.what for each in r.events] == [Happening.FAILED, Happening.NOTIFIED]
    r.tell(600, alert("Other"))
    r.send(600, DOWN)
    assert [each.what for each in r.events] == [Happening.FAILED, Happening.NOTIFIED, Happening.FAILED]


def test_a_receiver_that_asks_for_a_pause_gets_it_for_all_its_groups() -> None:
    slow_down = NotifyError(Reason.THROTTLED, "answered 429", retry_after_s=30)
    r = run(group_wait_s=0)
    r.tell(0, alert("A"))
    r.send(0, slow_down)
    r.tell(1, alert("B"))
    assert [at for at in range(1, 31) if r.send(at)] == [30]
    for_ever = NotifyError(Reason.THROTTLED, "answered 429", retry_after_s=1e9)
    r.tell(40, alert("C"))
    r.send(40, for_ever)
    found = r.first(40, 5000, 10)
    assert found is not None
    assert found[0] == 3640


def test_what_is_refused_waits_for_a_change_or_the_next_repeat() -> None:
    r = run(group_by=(), group_wait_s=0, repeat_interval_s=3600)
    r.tell(0, alert("A"))
    tries = []
    for minute in range(150):
        if minute == 10:
            r.tell(600, alert("B"))
        tries += [minute] if r.send(minute * 60, REFUSED) else []
    assert tries == [0, 10, 70, 130]
    assert len(r.events) == 1


def test_receivers_that_fail_or_hang_hold_nobody_else_up() -> None:
    three = [webhook("dead"), webhook("hung"), webhook("well")]
    routes = tuple(Route(each.name, group_wait_s=0, continue_=True) for each in three)
    r = Run(Dispatcher(config(*three, routes=routes)))
    told = []
    for second in range(600):
        if second % 60 == 0:
            r.tell(second, alert(f"Alert{second}"))
        for each in r.due(second):
            if each.receiver == "well":
                told.append((second, each.alerts[0].name))
            if each.receiver != "hung":
                error = DOWN if each.receiver == "dead" else None
                r.events += r.dispatcher.done(each, error, T0 + second)
    assert told == [(second, f"Alert{second}") for second in range(0, 600, 60)]
    assert [each.receiver for each in r.events if each.what is Happening.FAILED] == ["dead"]


def test_a_receiver_has_a_few_notifications_in_flight_and_the_oldest_first() -> None:
    r = run(group_wait_s=0)
    for n in range(10):
        r.tell(n, alert(f"A{n}"))
    first = r.due(20)
    assert [each.alerts[0].name for each in first] == [f"A{n}" for n in range(MOST_AT_ONCE)]
    r.dispatcher.done(first[0], None, T0 + 21)
    assert [each.alerts[0].name for each in r.due(21)] == [f"A{MOST_AT_ONCE}"]


def test_a_storm_is_one_notification_and_one_recovery() -> None:
    r = run()
    sent: list[Notification] = []
    for n in range(10_000):
        at = n * 0.006
        r.tell(at, replace(alert(), value=float(n)))
        sent += r.send(at)
    r.tell(61, alert(status=RESOLVED))
    for second in range(61, 2000):
        sent += r.send(second)
    assert [(each.why, names(each)) for each in sent] == [
        (Why.FIRST, [("Slow", "firing")]),
        (Why.RESOLVED, [("Slow", "resolved")]),
    ]
    assert [each.what for each in r.events] == [Happening.NOTIFIED, Happening.NOTIFIED]
    assert r.dispatcher._groups == {}, "nothing is left of it"


def test_a_storm_of_flapping_is_one_notification_an_interval_at_most() -> None:
    r = run(group_wait_s=10, group_interval_s=60)
    times = []
    for second in range(3600):
        r.tell(second, alert(status=FIRING if second % 7 < 4 else RESOLVED, starts_at=T0 + second))
        times += [second] if r.send(second) else []
    assert all(b - a >= 60 for a, b in pairwise(times))


def test_only_news_is_recorded_and_a_repeat_of_all_of_it() -> None:
    r = run(group_by=(), group_wait_s=0, repeat_interval_s=600)
    r.tell(0, alert("A"))
    r.send(0)
    r.tell(1, alert("B"))
    r.send(60)
    r.send(660)
    assert [(each.alert.name, each.detail) for each in r.events] == [
        ("A", "first"),
        ("B", "new alerts"),
        ("A", "repeat"),
        ("B", "repeat"),
    ]


def alertmanager() -> Alertmanager:
    return Alertmanager.model_validate({"name": "am", "url": "http://127.0.0.1:9"})


def test_alertmanager_is_told_at_once_of_all_and_again_each_minute() -> None:
    r = Run(Dispatcher(config(alertmanager(), group_wait_s=30, group_interval_s=300)))
    r.tell(0, alert("A"), alert("B"))
    sent = [(second, each) for second in range(200) for each in r.send(second)]
    assert [(second, len(each.alerts)) for second, each in sent] == [(0, 2), (60, 2), (120, 2), (180, 2)]
    assert ALERTMANAGER_REPEAT_S == 60
    assert len(r.events) == 2, "its repeats are no news"
    r.tell(200, alert("A", RESOLVED), alert("C"))
    (change,) = r.send(201)
    assert names(change) == [("B", "firing"), ("C", "firing"), ("A", "resolved")]
    assert names(r.send(262)[0]) == [("B", "firing"), ("C", "firing")]


def command(**fields: object) -> Command:
    fields = {"name": "retrain", "command": [sys.executable], "min_interval": "6h", **fields}
    return Command.model_validate(fields)


def test_a_command_runs_one_at_a_time_and_not_again_before_min_interval() -> None:
    r = Run(Dispatcher(config(command(), group_wait_s=0, group_interval_s=60, repeat_interval_s=60)))
    r.tell(0, alert("A"), alert("B"), alert("C"))
    runs = []
    for minute in range(24 * 60):
        runs += [(minute, each.alerts[0].name) for each in r.send(minute * 60)]
    assert [minute for minute, _ in runs] == [0, 360, 720, 1080]
    assert {name for _, name in runs[:3]} == {"A", "B", "C"}, "each has its turn"


def test_a_command_that_waits_for_its_turn_runs_for_nothing_that_is_over() -> None:
    r = Run(Dispatcher(config(command(), group_wait_s=0)))
    r.tell(0, alert("A"), alert("B"))
    r.send(0)
    r.tell(60, alert("A", RESOLVED), alert("B", RESOLVED))
    assert r.first(60, 50_000, 60) is None


def at(seconds: float) -> float:
    return T0 + seconds


def knows(seconds: float, starts_at: float = T0, over: bool = False) -> Told:
    return Told(at(seconds), starts_at, over)


OVER = alert(status=RESOLVED, ends_at=at(100))
RESTARTS: list[tuple[str, Alert, dict[str, Told], list[tuple[float, Why]]]] = [
    ("told before", alert(), {"hook": knows(10)}, [(310, Why.REPEAT)]),
    ("told before, by a clock that was ahead", alert(), {"hook": knows(90_000)}, [(510, Why.REPEAT)]),
    ("not told before", alert(), {}, [(210, Why.FIRST)]),
    ("told of its last end", alert(starts_at=at(50)), {"hook": knows(40, over=True)}, [(210, Why.FIRST)]),
    ("began anew, and its end was not told", alert(starts_at=at(50)), {"hook": knows(10)}, [(310, Why.REPEAT)]),
    ("another was told", alert(), {"other": knows(10)}, [(210, Why.FIRST)]),
    ("over, and not told so", OVER, {"hook": knows(10)}, [(210, Why.RESOLVED)]),
    ("over, while it was told that it fires", OVER, {"hook": knows(101)}, [(210, Why.RESOLVED)]),
    ("over, and told so", OVER, {"hook": knows(130, over=True)}, []),
    ("over, and never told", OVER, {}, []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "known", "sent"), [case[1:] for case in RESTARTS], ids=[case[0] for case in RESTARTS]
)
def test_after_a_restart_nobody_is_told_twice_and_nothing_is_left_open(
    before: Alert, known: dict[str, Told], sent: list[tuple[float, Why]]
) -> None:
    r = run(group_wait_s=10, group_interval_s=50, repeat_interval_s=300)
    r.dispatcher.restore([before], {(before.fingerprint, name): each for name, each in known.items()}, at(200))
    found = r.first(200, 550, 10)
    assert ([(found[0], found[1].why)] if found else []) == sent


def test_after_a_restart_one_that_hears_of_no_ends_is_told_of_each_start() -> None:
    for starts_at, sent in ((T0, 0), (at(50), 1)):
        r = Run(Dispatcher(config(webhook(send_resolved=False), group_wait_s=0)))
        before = alert(starts_at=starts_at)
        r.dispatcher.restore([before], {(before.fingerprint, "hook"): knows(10)}, at(200))
        assert len(r.send(200)) == sent


def test_after_a_restart_a_command_still_waits() -> None:
    r = Run(Dispatcher(config(command(), group_wait_s=0)))
    r.dispatcher.restore([], {("0123456789abcdef", "retrain"): knows(0)}, at(60))
    r.tell(60, alert())
    found = r.first(60, 50_000, 60)
    assert found is not None
    assert found[0] == 6 * 3600


def test_a_clock_set_back_makes_nothing_wait_for_longer() -> None:
    day = 86_400
    r = Run(Dispatcher(config(webhook(), command(), group_wait_s=10, group_interval_s=60, repeat_interval_s=300)))
    r.tell(day, alert("A"))
    assert r.first(day, day + 60, 10) is not None
    r.tell(15, alert("A"), alert("B"))
    found = r.first(15, 600, 5)
    assert found is not None
    assert found[0] <= 80, "as if the clock had gone on"


def test_groups_of_two_routes_are_told_apart_and_named_the_same_after_a_restart() -> None:
    def sent() -> list[tuple[str, str]]:
        routes = (
            Route("a", match={"team": ("ml", "ops")}, group_wait_s=0, continue_=True),
            Route("b", match={"team": ("ml", "ops")}, group_wait_s=0),
            Route("", match={"team": ("none",)}),
        )
        r = Run(Dispatcher(config(webhook("a"), webhook("b"), routes=routes)))
        r.tell(0, alert(team="ml"), alert(team="none"))
        return [(each.receiver, each.group) for each in r.send(0)]

    assert sent() == [
        ("a", '{}/0/{team="ml|ops"}:{alertname="Slow"}'),
        ("b", '{}/1/{team="ml|ops"}:{alertname="Slow"}'),
    ]
    assert sent() == sent()


KEYS = [("A", "a"), ("A", "b"), ("B", "a"), ("C", "b")]
ERRORS = st.sampled_from([None, None, None, DOWN, REFUSED, NotifyError(Reason.THROTTLED, "429", retry_after_s=90)])


class Laws(RuleBasedStateMachine):
    """Whatever happens, in whatever order. Each receiver keeps what it believes from what it was sent."""

    @initialize(
        wait=st.sampled_from([0, 10]),
        interval=st.sampled_from([1, 60]),
        repeat=st.sampled_from([30, 300]),
        resolved=st.booleans(),
    )
    def begin(self, wait: float, interval: float, repeat: float, resolved: bool) -> None:
        receivers = [webhook("hook", send_resolved=resolved), alertmanager(), command(min_interval="2m")]
        rest = {"group_interval_s": interval, "repeat_interval_s": repeat, "continue_": True}
        routes = tuple(Route(each.name, group_wait_s=wait, **rest) for each in receivers)
        self.dispatcher = Dispatcher(config(*receivers, routes=routes))
        self.repeat = {"hook": repeat, "am": 60, "retrain": repeat}
        self.now = T0
        self.truth: dict[str, Alert] = {}
        self.in_flight: list[Notification] = []
        #: (receiver, group) -> fingerprints it believes to fire, and when it was told last.
        self.believed: dict[tuple[str, str], set[str]] = {}
        self.told_at: dict[tuple[str, str], float] = {}
        self.started_at: float | None = None

    def wants_ends(self, receiver: str) -> bool:
        return self.dispatcher._receivers[receiver].send_resolved

    def _tell(self, one: Alert) -> None:
        self.truth[one.fingerprint] = one
        self.dispatcher.update([one], self.now)

    @rule(key=st.sampled_from(KEYS))
    def fires(self, key: tuple[str, str]) -> None:
        known = self.truth.get(alert(key[0], scenario=key[1]).fingerprint)
        same = known is not None and known.status is FIRING
        self._tell(known if same and known else alert(key[0], scenario=key[1], starts_at=self.now))

    @rule(key=st.sampled_from(KEYS))
    def ends(self, key: tuple[str, str]) -> None:
        known = self.truth.get(alert(key[0], scenario=key[1]).fingerprint)
        if known is not None and known.status is FIRING:
            self._tell(replace(known, status=RESOLVED, ends_at=self.now))
            for (receiver, _), believed in self.believed.items():
                if not self.wants_ends(receiver):
                    believed.discard(known.fingerprint)

    @rule(seconds=st.sampled_from([0.0, 1.0, 10.0, 59.0, 61.0, 400.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def sends(self) -> None:
        for each in self.dispatcher.due(self.now):
            who = each.receiver, each.group
            assert who not in {(one.receiver, one.group) for one in self.in_flight}, "two of one group in flight"
            believed = self.believed.setdefault(who, set())
            firing = {one.fingerprint for one in each.firing}
            over = {one.fingerprint for one in each.resolved}
            assert each.alerts
            assert firing or over
            assert over <= believed, "an end without a start that was sent"
            if firing <= believed and not over:
                assert each.why is Why.REPEAT
                assert self.now - self.told_at[who] >= self.repeat[each.receiver], "too early for an unchanged group"
            if each.receiver == "retrain":
                assert self.started_at is None or self.now - self.started_at >= 120
                self.started_at = self.now
            self.in_flight.append(each)
        for name in self.repeat:
            most = 1 if name == "retrain" else MOST_AT_ONCE
            assert sum(each.receiver == name for each in self.in_flight) <= most

    @precondition(lambda self: self.in_flight)
    @rule(error=ERRORS, which=st.integers(0, 9))
    def arrives(self, error: NotifyError | None, which: int) -> None:
        each = self.in_flight.pop(which % len(self.in_flight))
        self.dispatcher.done(each, error, self.now)
        if error is None:
            who = each.receiver, each.group
            # Who wants no ends is not told of one that came while the start was on its way.
            self.believed[who] |= {
                one.fingerprint
                for one in each.firing
                if self.wants_ends(each.receiver) or self.truth[one.fingerprint].status is FIRING
            }
            self.believed[who] -= {one.fingerprint for one in each.resolved}
            self.told_at[who] = self.now

    @invariant()
    def what_is_kept_is_bounded(self) -> None:
        for group in getattr(self, "dispatcher", Dispatcher(config()))._groups.values():
            assert group.told <= set(group.alerts)
            assert len(group.alerts) <= len(KEYS)

    @rule()
    def all_ends_and_arrives(self) -> None:
        for key in KEYS:
            self.ends(key)
        for _ in range(12):
            for _ in range(20):
                self.sends()
                if not self.in_flight:
                    break
                self.arrives(None, 0)
            self.now += 400
        assert not any(self.believed.values()), "nobody is left believing that an alert fires"
        assert not self.dispatcher._groups


TestLaws: Callable[[], None] = Laws.TestCase
