"""The windows of an upstream: whole and by slice, bounded. C04, C10."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.records import figures, record, records

from sidecar.probes.acceptance import CountWindow
from sidecar.probes.slices import DIMENSIONS, slices_of
from sidecar.probes.windows import MOST_SLICES, Windows
from sidecar.record import Acceptance, Arm, Outcome, Record

NOW = 1.8e9


def p(windows: Windows, dimension: str = "", value: str = "") -> float | None:
    found = windows.figures(dimension, value)
    return None if found is None else found.p


@given(st.lists(records, max_size=60), st.integers(1, 10))
def test_each_slice_has_its_last_requests(items: list[Record], size: int) -> None:
    windows = Windows(size)
    plain: defaultdict[tuple[str, str], CountWindow] = defaultdict(lambda: CountWindow(size))
    for item in items:
        counts = plain["", ""].add(item)
        assert windows.add(item, NOW) is counts
        if counts:
            for name in zip(DIMENSIONS, slices_of(item), strict=True):
                plain[name].add(item)
    found = {(dimension, value): window.figures() for dimension, value, window in windows}
    assert found == {name: window.figures() for name, window in plain.items()} | {("", ""): windows.whole.figures()}
    assert windows.hour.figures(NOW).requests >= windows.whole.figures().requests


def test_c04_requests_that_did_not_speculate_are_shown_and_do_not_count() -> None:
    windows = Windows()
    nothing = Acceptance(reason="nothing was drafted for this request")
    for _ in range(200):
        assert not windows.add(record(acceptance=nothing), NOW)
    assert p(windows) is None
    for _ in range(20):
        assert windows.add(record(acceptance=figures((1, 0, 0, 0, 4))), NOW)
    assert p(windows) == pytest.approx(0.8)
    assert windows.not_drafted() == (100, 80, {"nothing was drafted for this request": 80})
    for arm in (Arm.BASELINE, Arm.AUTOREGRESSIVE):
        windows.add(record(arm=arm, acceptance=nothing), NOW)
    windows.add(record(outcome=Outcome.CLIENT_ABORT, acceptance=nothing), NOW)
    assert windows.not_drafted().requests == 100


def test_c10_a_collapse_in_one_slice_shows_there() -> None:
    windows = Windows()
    short = record(prompt_tokens=1000, acceptance=figures((3, 7)))
    long = record(prompt_tokens=120_000, acceptance=figures((84, 16)))
    for item in [short] * 40 + [long] * 10:
        windows.add(item, NOW)
    assert p(windows, "prompt_length", "513-2048") == pytest.approx(0.7)
    assert p(windows, "prompt_length", "32769-131072") == pytest.approx(0.16)
    assert p(windows, "prompt_length", "1-512") is None


def test_the_slice_unheard_of_for_longest_goes() -> None:
    windows = Windows()
    for i in range(10 * MOST_SLICES):
        windows.add(record(scenario="steady"), NOW)
        windows.add(record(scenario=f"s{i}", model=f"m{i}"), NOW)
    names = [value for dimension, value, _ in windows if dimension == "scenario"]
    assert len(names) == MOST_SLICES
    assert {"steady", f"s{10 * MOST_SLICES - 1}"} < set(names)
    assert len([*windows]) <= 1 + MOST_SLICES * len(DIMENSIONS)


def test_probes_count_too() -> None:
    windows = Windows()
    assert windows.add(replace(record(), arm=Arm.PROBE), NOW)
