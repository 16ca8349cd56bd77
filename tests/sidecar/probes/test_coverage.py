"""Counters beside records: what a request made alone, what share records tell, whether an engine drafts. C02, C08."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.counting import Counting
from support.records import NOW, figures, record

from sidecar.probes.counters import Growth, Meter, read
from sidecar.probes.coverage import SPAN_S, Coverage
from sidecar.record import Acceptance, Record


class Watched:
    """An engine under a test's control whose counters are read when the test says so. `at` is s after NOW."""

    def __init__(self, **counting: Any) -> None:
        self.engine = Counting(**counting)
        self.coverage = Coverage()
        self._meter = Meter()

    def scrape(self, at: float) -> None:
        scrape = read(self.engine.text)
        self.coverage.scraped(scrape, self._meter.add(scrape), NOW + at, 1000 + at)

    def serve(self, began: float, ended: float, accepted: list[int], **fields: Any) -> Record:
        """A request that the engine has served in full, and its record."""
        self.engine.step(accepted)
        self.engine.engines[0].finished += 1
        return self.tell(began, ended, **fields)

    def tell(self, began: float, ended: float, **fields: Any) -> Record:
        made = record(started_at=NOW + began, latency_ms=1e3 * (ended - began), **fields)
        self.coverage.add(made)
        return made

    def alone(self, now: float) -> list[tuple[str, float | None]]:
        return [(found.request_id, growth.p) for found, growth in self.coverage.alone(NOW + now)]

    def server(self) -> float | None:
        """p of the server as a whole."""
        covered = self.coverage.covered(NOW + 30)
        return None if covered is None else covered.counted.p

    def ratio(self, now: float) -> float | None:
        covered = self.coverage.covered(NOW + now)
        return None if covered is None else covered.ratio


#: Of a request whose reply told none, and of one that drafted so many tokens.
NONE = Acceptance()


def told(*accepted: int) -> Acceptance:
    """What `accepted` steps of four drafted tokens look like in a record."""
    return figures(tuple(accepted.count(j) for j in range(5)))


def test_c02_a_request_that_was_alone_has_what_the_counters_grew_by() -> None:
    watched = Watched()
    watched.engine.step([4] * 175 + [0] * 75)
    watched.scrape(0)
    made = watched.serve(1, 5, [4] * 70 + [0] * 30, acceptance=NONE)
    watched.scrape(15)
    assert watched.alone(15) == []  # records that are on their way
    assert watched.alone(17) == [(made.request_id, pytest.approx(0.70))]
    assert watched.alone(30) == []
    assert watched.server() == pytest.approx(0.70)


def test_c02_of_two_that_overlap_neither_has() -> None:
    watched = Watched()
    watched.scrape(0)
    watched.serve(1, 5, [4] * 35 + [0] * 15, acceptance=NONE)
    watched.serve(2, 6, [4] * 35 + [0] * 15, acceptance=NONE)
    watched.scrape(15)
    assert watched.alone(30) == []
    assert watched.server() == pytest.approx(0.70)


@pytest.mark.parametrize(
    ("began", "ended", "change"),
    [
        (-1, 5, {}),
        (1, 16, {}),
        (1, 5, {"running": 1}),
        (1, 5, {"waiting": 1}),
        (1, 5, {"unseen": 1}),
        (1, 5, {"restarts": True}),
        (1, 5, {"stats": False}),
    ],
    ids=[
        "began before",
        "ended after",
        "another runs",
        "another waits",
        "another passed by",
        "restart",
        "nothing told",
    ],
)
def test_c02_who_may_not_have_been_alone_has_nothing(began: float, ended: float, change: dict[str, Any]) -> None:
    watched = Watched()
    watched.scrape(0)
    if change.pop("restarts", False):
        watched.engine.restart()
    watched.engine.step([4, 2])
    watched.engine.engines[0].finished += 1 + change.pop("unseen", 0)
    for name, value in change.items():
        setattr(watched.engine, name, value)
    watched.scrape(15)
    watched.tell(began, ended, acceptance=NONE)
    watched.scrape(30)
    assert watched.alone(60) == []


def test_c02_several_replies_of_one_request_are_alone_together() -> None:
    watched = Watched()
    watched.scrape(0)
    watched.engine.engines[0].finished += 2
    made = watched.serve(1, 5, [4, 4, 0], acceptance=NONE, replies=3)
    watched.scrape(15)
    assert watched.alone(17) == [(made.request_id, pytest.approx(8 / 12))]


def test_coverage_is_the_share_that_records_tell() -> None:
    watched = Watched()
    watched.scrape(0)
    assert watched.ratio(1) is None
    watched.serve(1, 2, [4, 0], acceptance=told(4, 0))
    watched.serve(3, 4, [1, 1], acceptance=NONE)
    watched.scrape(15)
    covered = watched.coverage.covered(NOW + 17)
    assert covered is not None
    assert (covered.ratio, covered.draft_tokens, covered.accepted_tokens) == (0.5, 8, 4)
    assert (covered.counted.draft_tokens, covered.counted.accepted_tokens, covered.span_s) == (16, 6, 15)


def test_nothing_drafted_is_no_coverage() -> None:
    watched = Watched()
    watched.scrape(0)
    watched.scrape(15)
    covered = watched.coverage.covered(NOW + 17)
    assert covered is not None
    assert covered.ratio is None
    watched.engine.speculates = False
    watched.scrape(30)
    watched.scrape(45)
    assert watched.ratio(50) is None


def test_a_request_over_a_scrape_is_whole_on_both_sides() -> None:
    """What it drafted before is counted then, and told at its end: between two scrapes that it spans nothing fits."""
    watched = Watched()
    watched.scrape(0)
    watched.engine.step([4, 4, 4])
    watched.engine.running = 1
    watched.scrape(15)
    assert watched.ratio(17) == 0  # it is not over: nothing better is known
    watched.engine.step([4])
    watched.engine.running = 0
    watched.tell(1, 20, acceptance=told(4, 4, 4, 4))
    watched.scrape(30)
    watched.engine.step([0, 0, 0])
    watched.engine.running = 1
    watched.scrape(45)
    assert watched.ratio(47) == 1


def test_on_a_busy_engine_all_that_passed_counts() -> None:
    watched = Watched()
    watched.engine.running = 1
    for at in range(0, 600, 15):
        watched.scrape(at)
        watched.serve(at + 1, at + 20, [4] * 10, acceptance=told(*[4] * 10))
    assert watched.ratio(620) == pytest.approx(1, abs=0.05)


def test_an_old_quiet_time_does_not_speak_for_now() -> None:
    watched = Watched()
    watched.scrape(0)
    watched.serve(1, 2, [4], acceptance=told(4))
    watched.scrape(15)
    watched.engine.running = 1
    for at in range(30, 90, 15):
        watched.engine.step([4] * 10)
        watched.scrape(at)
    assert watched.ratio(100) == pytest.approx(4 / (4 + 160))


def test_coverage_begins_anew_with_the_engine() -> None:
    """What it drafted between the last scrape and its end is lost, and the records have it."""
    watched = Watched()
    watched.scrape(0)
    watched.serve(1, 2, [4] * 50, acceptance=told(*[4] * 50))
    watched.engine.restart()
    watched.scrape(15)
    assert watched.ratio(17) is None
    watched.serve(18, 19, [4, 4], acceptance=told(4, 4))
    watched.scrape(30)
    assert watched.ratio(32) == 1


def test_memory_is_that_of_the_span() -> None:
    watched = Watched()
    for at in range(0, int(4 * SPAN_S), 15):
        watched.scrape(at)
        watched.serve(at + 1, at + 2, [4], acceptance=told(4))
    assert len(watched.coverage._intervals) <= SPAN_S / 15 + 3
    watched.tell(-100, 1, acceptance=told(4))  # too late to count
    assert watched.ratio(4 * SPAN_S) == 1


def test_c08_an_engine_that_goes_on_drafting_is_seen() -> None:
    """One that ignores what it is asked answers 200 and drafts; only its counters tell."""
    watched = Watched()
    watched.scrape(0)
    asked = 1005.0
    assert watched.coverage.drafted_since(asked) is None
    watched.engine.step([4])  # what was in flight
    watched.scrape(15)
    assert watched.coverage.drafted_since(asked) is None
    watched.engine.step([4, 2])
    watched.scrape(30)
    assert watched.coverage.drafted_since(asked) == 8


def test_c08_an_engine_that_obeys_drafts_nothing() -> None:
    watched = Watched()
    for at in (0, 15, 30):
        watched.engine.step([4])
        watched.scrape(at)
    watched.scrape(45)
    watched.scrape(60)
    assert watched.coverage.drafted_since(1025) == 0
    assert watched.coverage.drafted_since(1005) == 4


def test_c08_what_is_not_known_is_not_zero() -> None:
    watched = Watched()
    watched.scrape(0)
    watched.engine.restart()
    watched.scrape(15)
    assert watched.coverage.drafted_since(1000) is None
    watched.engine.step([4])
    watched.scrape(30)
    assert watched.coverage.drafted_since(1000) == 4
    watched.engine.stats = False
    watched.scrape(45)
    watched.scrape(60)
    assert watched.coverage.drafted_since(1030) is None


def test_c08_an_engine_without_a_draft_model_drafts_nothing() -> None:
    watched = Watched()
    watched.engine.speculates = False
    watched.scrape(0)
    watched.engine.step([0, 0])
    watched.scrape(15)
    assert watched.coverage.drafted_since(1000) == 0
    found = watched.coverage.covered(NOW + 30)
    assert found is not None
    assert found.counted == Growth(engines=1, generation_tokens=2, finished=0)


_times = st.integers(0, 300)


@given(st.lists(st.tuples(_times, _times), max_size=20), st.sets(_times, min_size=1, max_size=12))
def test_each_record_counts_once_in_the_interval_of_its_end(requests: list[tuple[int, int]], scrapes: set[int]) -> None:
    watched = Watched()
    for at in sorted(scrapes):
        watched.scrape(at)
    for times in requests:
        watched.tell(min(times), max(times), acceptance=told(4))
    for interval in watched.coverage._intervals:
        before, after = interval.before.at, float("inf") if interval.after is None else interval.after.at
        inside = [times for times in requests if before < NOW + max(times) <= after]
        assert interval.draft_tokens == 4 * len(inside)
        assert interval.before.quiet is not any(NOW + min(each) <= before < NOW + max(each) for each in requests)


_request = st.tuples(_times, _times, st.lists(st.integers(0, 4), max_size=6))


@given(st.lists(_request, max_size=15))
def test_once_all_is_over_every_token_is_covered(requests: list[tuple[int, int, list[int]]]) -> None:
    """Whatever spans which scrape, and however late a record is told."""
    watched = Watched()
    watched.scrape(-1)
    steps = [
        (min(times) + abs(times[1] - times[0]) * number // len(each), accepted)
        for *times, each in requests
        for number, accepted in enumerate(each)
    ]
    for at in range(0, 330, 15):
        watched.engine.step([accepted for when, accepted in steps if at - 15 <= when < at])
        watched.engine.running = sum(min(times) < at <= max(times) for *times, _ in requests)
        watched.scrape(at)
    for one, other, each in requests:
        watched.tell(min(one, other), max(one, other), acceptance=told(*each))
    assert watched.ratio(400) == (1 if steps else None)


def test_a_clock_that_is_set_back_keeps_no_interval_for_longer() -> None:
    watched = Watched()
    for number in range(200):
        # A year back after ten scrapes; monotonic time goes on.
        scrape, back = read(watched.engine.text), 0 if number < 10 else 365 * 86_400
        watched.coverage.scraped(scrape, watched._meter.add(scrape), NOW + 15 * number - back, 15.0 * number)
    assert len(watched.coverage._intervals) <= SPAN_S / 15 + 2
