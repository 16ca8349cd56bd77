"""Token buckets: how much passes, and how many are known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.api.limit import Buckets, network

rates = st.floats(0.01, 1000)
bursts = st.floats(0.1, 2000)
#: Seconds between one request and the next: at once, soon, and after long.
pauses = st.sampled_from((0.0, 0.0, 1e-6, 0.001)) | st.floats(0, 10)
starts = st.sampled_from((0.0, 1e6, 1.8e9))


@given(rates, bursts, starts, st.lists(pauses, max_size=200))
def test_never_more_than_burst_and_rate(rate: float, burst: float, now: float, steps: list[float]) -> None:
    """From any request on, and at once: however they come, and whatever was refused before."""
    buckets = Buckets(rate, burst)
    passed: list[float] = []
    for step in steps:
        now += step
        wait_s = buckets.take("a", now)
        assert wait_s >= 0
        if not wait_s:
            passed.append(now)
    for first, begun in enumerate(passed):
        for count, at in enumerate(passed[first:], 1):
            assert count <= max(burst, 1) + rate * (at - begun) + 1e-3


@given(rates, bursts, starts, st.lists(pauses, max_size=50))
def test_who_waits_as_long_as_told_passes(rate: float, burst: float, now: float, steps: list[float]) -> None:
    buckets = Buckets(rate, burst)
    for step in steps:
        now += step
        if wait_s := buckets.take("a", now):
            now += wait_s
            assert not buckets.take("a", now)


@given(rates, bursts, st.lists(st.tuples(pauses, st.integers(0, 40)), max_size=300))
def test_memory_is_bounded_and_who_asks_is_known(rate: float, burst: float, asked: list[tuple[float, int]]) -> None:
    """The last `most` that asked are known, so that nobody gets a full bucket back by asking on."""
    buckets, alone, now, last = Buckets(rate, burst, most=10), Buckets(rate, burst), 0.0, []
    for step, key in asked:
        now += step
        known = key in last[-10:]
        last = [each for each in last if each != key] + [key]
        took = buckets.take(key, now)
        if not known:
            alone = Buckets(rate, burst) if key == 0 else alone
        if key == 0:
            assert took == alone.take(key, now)
        assert len(buckets) <= 10


def test_a_full_burst_then_the_rate() -> None:
    buckets = Buckets(10 / 60, 10)
    assert [bool(buckets.take("a", 1e6)) for _ in range(12)] == [False] * 10 + [True] * 2
    assert buckets.take("a", 1e6) == pytest.approx(6)
    assert not buckets.take("b", 1e6)
    assert not buckets.take("a", 1e6 + 6.001)
    assert buckets.take("a", 1e6 + 6.002)


@pytest.mark.parametrize(
    ("host", "counted_as"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "::"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::"),
        ("", ""),
        ("testclient", "testclient"),
    ],
)
def test_what_of_an_address_is_counted(host: str, counted_as: str) -> None:
    assert network(host) == counted_as
