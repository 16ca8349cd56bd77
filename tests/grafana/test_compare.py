"""What counts as the same rule group, however a Grafana spells it."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_grafana.compare import group_differences, not_kept, seconds
from support import grafana_package
from support.grafana_bodies import spelt
from support.grafana_server import RELEASES, GrafanaServer

Group = dict[str, Any]


def shipped() -> Group:
    return grafana_package.group("acceptance", grafana_package.rule("AcceptanceLow"), grafana_package.rule("Slow"))


def stored(group: Group, release: str = "13") -> Group:
    server = GrafanaServer(RELEASES[release])
    server.store_group("specwatch", "acceptance", group)
    return server.groups["specwatch", "acceptance"]


@pytest.mark.parametrize("release", RELEASES)
def test_what_grafana_stores_of_it_is_the_same(release: str) -> None:
    assert group_differences(shipped(), stored(shipped(), release)) == set()


CHANGES: list[tuple[str, Callable[[Group], Any]]] = [
    ("interval", lambda g: g.update(interval=30)),
    ("rules", lambda g: g["rules"].pop()),
    ("rules", lambda g: g["rules"].reverse()),
    ("rules", lambda g: g["rules"][0].update(uid="specwatch-other")),
    ("title", lambda g: g["rules"][1].update(title="Slower")),
    ("for", lambda g: g["rules"][1].update({"for": "91s"})),
    ("keep_firing_for", lambda g: g["rules"][0].update(keep_firing_for="0s")),
    ("labels", lambda g: g["rules"][0].pop("labels")),
    ("labels", lambda g: g["rules"][0]["labels"].update(team="ml")),
    ("annotations", lambda g: g["rules"][0]["annotations"].update(summary="x")),
    ("noDataState", lambda g: g["rules"][0].update(noDataState="OK")),
    ("execErrState", lambda g: g["rules"][0].update(execErrState="Error")),
    ("condition", lambda g: g["rules"][0].update(condition="A")),
    ("data", lambda g: g["rules"][0]["data"].pop()),
    ("data", lambda g: g["rules"][0]["data"][0]["model"].update(expr="up < 2")),
    ("data", lambda g: g["rules"][0]["data"][0]["model"].update(maxDataPoints=100)),
    ("data", lambda g: g["rules"][0]["data"][0]["model"].update(refId="Z")),
    ("data", lambda g: g["rules"][0]["data"][0]["relativeTimeRange"].update({"from": 300})),
    ("data", lambda g: g["rules"][0]["data"][0].update(datasourceUid="other")),
    ("notification_settings", lambda g: g["rules"][0].update(notification_settings={"receiver": "on-call"})),
]


@pytest.mark.parametrize(("differs", "change"), CHANGES)
def test_each_change_is_seen(differs: str, change: Callable[[Group], Any]) -> None:
    there = stored(shipped())
    changed = copy.deepcopy(there)
    change(changed)
    assert group_differences(shipped(), changed) == {differs}


def test_spellings_that_mean_the_same() -> None:
    routing = {"receiver": "on-call", "repeat_interval": "24h", "group_by": []}
    ours, theirs = shipped(), stored(shipped())
    ours["rules"][0]["notification_settings"] = routing
    theirs["rules"][0]["notification_settings"] = {"receiver": "on-call", "repeat_interval": "1d"}
    theirs["rules"][0]["data"][1]["datasourceUid"] = "-100"
    theirs["rules"][1].update(isPaused=True, annotations={"summary": "Few drafts are accepted."}, guid="x", record=None)
    assert group_differences(ours, theirs) == set()


def test_a_field_that_grafana_does_not_know_is_no_difference_but_told() -> None:
    ours, theirs = shipped(), stored(shipped(), "10.4")
    assert group_differences(ours, theirs) == set()
    assert not_kept(ours["rules"][0], theirs["rules"][0]) == {"keep_firing_for"}
    ours["rules"][0]["keep_firing_for"] = "0s"
    assert not_kept(ours["rules"][0], theirs["rules"][0]) == set()


def test_nothing_there_differs() -> None:
    assert group_differences(shipped(), {}) == {"interval", "rules"}


@pytest.mark.parametrize(
    ("duration", "wanted"),
    [
        ("1m30s", 90),
        ("0s", 0),
        ("1w2d", 777600),
        ("500ms", 0.5),
        (90, 90),
        (None, 0),
        ("", 0),
        ("soon", "soon"),
        ("1", "1"),
    ],
)
def test_seconds(duration: Any, wanted: Any) -> None:
    assert seconds(duration) == wanted


@given(st.integers(0, 40_000_000))
def test_seconds_of_a_duration_as_prometheus_spells_it(number: int) -> None:
    assert seconds(f"{number}s") == seconds(spelt(f"{number}s")) == number


@given(st.text() | st.integers() | st.none() | st.lists(st.text()))
def test_seconds_takes_anything(value: Any) -> None:
    seconds(value)
