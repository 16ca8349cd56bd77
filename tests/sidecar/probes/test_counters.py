"""An upstream's own counters: what a text tells, and what they grew by. C02, C03, C04."""

import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.openmetrics import exposition
from support.counting import Counting

from sidecar.probes.counters import _ACCEPTED_AT, _FAMILIES, _GAUGES, Growth, Meter, read, total

PREFIX = "vllm:spec_decode_num_"


def growth(*texts: bytes) -> Growth:
    """Of the last text since the one before."""
    meter = Meter()
    for text in texts[:-1]:
        meter.add(read(text))
    grown = meter.add(read(texts[-1]))
    assert grown is not None
    return grown


def counters(total: str = "_total", engine: str = "0", **values: int) -> bytes:
    """With the names as they are in `Growth`, and `posN`."""
    lines = []
    for name, value in values.items():
        if name.startswith("pos"):
            labels = f'engine="{engine}",model_name="m",position="{name[3:]}"'
            lines.append(f"{PREFIX}accepted_tokens_per_pos{total}{{{labels}}} {value}")
        else:
            lines.append(f'{PREFIX}{name}{total}{{engine="{engine}",model_name="m"}} {value}')
            lines.append(f'{PREFIX}{name}_created{{engine="{engine}",model_name="m"}} 1.79e+09')
    return "\n".join([*lines, ""]).encode()


@pytest.mark.parametrize("suffix", ["", "_total"])
def test_c02_p_of_a_span_is_that_of_what_was_added(suffix: str) -> None:
    then = counters(suffix, draft_tokens=1000, accepted_tokens=700)
    now = counters(suffix, draft_tokens=1400, accepted_tokens=980)
    grown = growth(then, now)
    assert (grown.draft_tokens, grown.accepted_tokens, grown.p) == (400, 280, pytest.approx(0.70))
    assert not grown.reset


def test_c02_a_counter_that_goes_down_begins_anew() -> None:
    then = counters(draft_tokens=1400, accepted_tokens=980)
    grown = growth(then, counters(draft_tokens=60, accepted_tokens=45))
    assert (grown.draft_tokens, grown.accepted_tokens, grown.p) == (60, 45, pytest.approx(0.75))
    assert grown.reset
    after = growth(then, counters(draft_tokens=60, accepted_tokens=45), counters(draft_tokens=100, accepted_tokens=75))
    assert (after.draft_tokens, after.accepted_tokens, after.reset) == (40, 30, False)


def test_where_one_counter_of_an_engine_went_down_all_of_it_began_anew() -> None:
    """Not the other engine's: a frontend may count for several processes."""
    then = counters(draft_tokens=100, accepted_tokens=5) + counters(engine="1", draft_tokens=10, accepted_tokens=5)
    now = counters(draft_tokens=60, accepted_tokens=45) + counters(engine="1", draft_tokens=30, accepted_tokens=15)
    grown = growth(then, now)
    assert (grown.draft_tokens, grown.accepted_tokens, grown.reset) == (60 + 20, 45 + 10, True)


def test_a_new_process_is_a_reset_even_where_it_has_counted_further() -> None:
    counting = Counting()
    counting.step([2])
    then = counting.text
    counting.restart()
    counting.step([4, 4, 4])
    assert growth(then, counting.text).reset
    assert growth(then, counting.text).draft_tokens == 12


def test_c03_engines_are_added_up_in_any_order() -> None:
    """The per-position counts too: (8 + 18) / (10 + 20) = 0.8667, where overwriting gives 0.60."""
    then = Counting(engines=2)
    before = then.text
    now = Counting(engines=2)
    now.step([1] * 8 + [0] * 2, engine=0)
    now.step([1] * 18 + [0] * 2, engine=1)
    for seed in range(5):
        lines = now.text.splitlines(keepends=True)
        random.Random(seed).shuffle(lines)
        grown = growth(before, b"".join(lines))
        assert grown.engines == 2
        assert grown.drafts == 30
        assert grown.accepted_per_position == (26, 0, 0, 0)
        assert grown.accepted_per_position[0] / grown.drafts == pytest.approx(0.8667, abs=5e-5)
        assert grown.mean_acceptance_length == pytest.approx(1 + 26 / 30)
        assert grown.disagreement is None


def test_c03_a_position_that_one_engine_leaves_out_shows() -> None:
    counting = Counting(engines=2)
    before = counting.text
    for engine in (0, 1):
        counting.step([4, 4, 1], engine=engine)

    def without_one() -> bytes:
        lines = counting.text.splitlines(keepends=True)
        return b"".join(line for line in lines if b'engine="1"' not in line or b'position="3"' not in line)

    gap = without_one()
    grown = growth(before, gap)
    assert grown.accepted_per_position == (6, 4, 4, 2)
    assert grown.disagreement == "18 tokens accepted, but 16 by position"
    # When it is back, what it had before is not counted again.
    assert growth(before, counting.text, gap, counting.text).accepted_per_position == (0, 0, 0, 0)


def test_c03_models_are_not_added_up() -> None:
    counting, other = Counting(), Counting()
    other.model = "another"
    both = read(counting.text + other.text)
    assert both.unknown == "it tells of 2 models, whose figures are not added up"
    assert growth(counting.text + other.text, counting.text + other.text).draft_tokens is None


def test_c04_no_counters_is_not_zero() -> None:
    counting = Counting()
    counting.speculates = False
    scrape = read(counting.text)
    assert scrape.unknown == "it does not speculate: it has no vllm:spec_decode counters"
    assert scrape.never_speculates
    grown = growth(counting.text, counting.text)
    assert (grown.draft_tokens, grown.accepted_tokens, grown.p, grown.generation_tokens) == (None, None, None, 0)
    counting.stats = False
    scrape = read(counting.text)
    assert scrape.unknown is not None
    assert "--disable-log-stats" in scrape.unknown
    assert not scrape.never_speculates
    assert read(b"").unknown == scrape.unknown


def test_c04_counters_that_stand_still_have_no_p() -> None:
    counting = Counting()
    counting.step([3, 4])
    grown = growth(counting.text, counting.text)
    assert (grown.draft_tokens, grown.p, grown.mean_acceptance_length, grown.disagreement) == (0, None, None, None)


def test_more_accepted_than_drafted_is_no_p() -> None:
    grown = Growth(draft_tokens=129, accepted_tokens=130)
    assert grown.p is None
    assert grown.disagreement == "130 tokens accepted of 129 drafted"


def test_a_first_scrape_is_no_growth() -> None:
    assert Meter().add(read(counters(draft_tokens=1000, accepted_tokens=700))) is None


@pytest.mark.parametrize("started", [None, 1_790_000_000.0])
def test_an_engine_that_comes_late_counts_from_zero(started: float | None) -> None:
    alone, both = Counting(engines=1), Counting(engines=2)
    alone.started = both.started = started
    both.step([4, 4], engine=1)
    assert growth(alone.text, both.text).draft_tokens == 8


def test_a_family_that_comes_late_counts_from_zero_where_the_process_was_there() -> None:
    silent, counting = Counting(), Counting()
    silent.speculates = False
    counting.step([4, 4])
    assert growth(silent.text, counting.text).draft_tokens == 8
    silent.started = counting.started = None
    meter = Meter()
    meter.add(read(silent.text))
    assert meter.add(read(counting.text)) is None
    counting.step([1])
    grown = meter.add(read(counting.text))
    assert grown is not None
    assert grown.draft_tokens == 4


def test_servers_that_take_turns_are_not_compared() -> None:
    older, younger = Counting(), Counting()
    assert older.started is not None
    younger.started = older.started + 5
    meter = Meter()
    meter.add(read(older.text))
    meter.add(read(younger.text))
    assert meter.add(read(older.text)) is None
    assert meter.mixed
    assert meter.add(read(older.text)) is None


def test_gauges_are_added_up_over_engines() -> None:
    counting = Counting(engines=2)
    counting.running, counting.waiting = 3, 1
    scrape = read(counting.text)
    assert (scrape.running, scrape.waiting, scrape.idle) == (3, 1, False)
    assert not read(counters(draft_tokens=1)).idle


def test_sums_leave_out_what_is_not_known() -> None:
    parts = [
        Growth(engines=1, draft_tokens=4, accepted_per_position=(1, 1)),
        Growth(engines=2, draft_tokens=8, accepted_per_position=(2, 1, 1), reset=True),
        Growth(generation_tokens=7),
    ]
    assert total(parts) == Growth(
        engines=2, draft_tokens=12, accepted_per_position=(3, 2, 1), generation_tokens=7, reset=True
    )
    assert total([]) == Growth()


_labels = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


@given(
    st.dictionaries(st.tuples(_labels, st.integers(0, 3)), st.integers(0, 2**50), min_size=1, max_size=5),
    _labels,
    st.booleans(),
)
def test_what_exporters_write_is_read(drafted: dict[tuple[str, int], int], model: str, openmetrics: bool) -> None:
    """Whatever stands in a label, in either format."""
    registry = CollectorRegistry()
    tokens = Counter(f"{PREFIX}draft_tokens", "x", ["model_name", "engine"], registry=registry)
    accepted = Counter(f"{PREFIX}accepted_tokens_per_pos", "x", ["model_name", "position", "engine"], registry=registry)
    running = Gauge("vllm:num_requests_running", "x", ["engine"], registry=registry)
    for (engine, place), value in drafted.items():
        tokens.labels(model, f"{engine}/{place}").inc(value)
        accepted.labels(model, str(place), engine).inc(value)
        running.labels(f"{engine}/{place}").set(2)
    text = exposition.generate_latest(registry) if openmetrics else generate_latest(registry)
    scrape = read(text)
    by_family: dict[str, list[int]] = {}
    for (_, family, _), value in scrape.counts.items():
        by_family.setdefault(family, []).append(value)
    assert sorted(by_family["spec_decode_num_draft_tokens"]) == sorted(drafted.values())
    assert sorted(by_family["spec_decode_num_accepted_tokens_per_pos"]) == sorted(drafted.values())
    assert scrape.running == 2 * len(drafted)


_PIECES = (
    b'\n|vllm:|spec_decode_num_|draft_tokens|_total|_created|{engine="|"|,|position=|} |1.0|NaN|-3|1e400|\\| # {}|\xff|'
    b"process_start_time_seconds |\r"
)
_pieces = st.sampled_from(_PIECES.split(b"|"))


@given(st.lists(_pieces, max_size=40).map(b"".join) | st.binary(max_size=200))
def test_nothing_breaks_the_reader(text: bytes) -> None:
    scrape = read(text)
    assert all(value >= 0 for value in scrape.counts.values())
    meter = Meter()
    meter.add(scrape)
    meter.add(read(text + b"\nvllm:spec_decode_num_draft_tokens 3\n"))


_steps = st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=2, max_size=3)


@given(st.lists(st.tuples(_steps, st.booleans(), st.randoms(use_true_random=False)), max_size=12))
def test_what_scrapes_tell_adds_up_to_what_was_done(rounds: list[tuple[list[list[int]], bool, Any]]) -> None:
    """But for what an engine did between its last scrape and its end; and nothing is ever negative."""
    counting, meter = Counting(engines=3), Meter()
    meter.add(read(counting.text))
    told, done = [], Growth(draft_tokens=0, accepted_tokens=0)
    for steps, restarts, order in rounds:
        if restarts:
            counting.restart()
        for engine, accepted in enumerate(steps):
            counting.step(accepted, engine=engine)
            done = total([done, Growth(draft_tokens=4 * len(accepted), accepted_tokens=sum(accepted))])
        lines = counting.text.splitlines(keepends=True)
        order.shuffle(lines)
        grown = meter.add(read(b"".join(lines)))
        assert grown is not None
        assert grown.reset is restarts
        assert grown.disagreement is None
        told.append(grown)
    sums = total([Growth(draft_tokens=0, accepted_tokens=0), *told])
    assert (sums.draft_tokens, sums.accepted_tokens) == (done.draft_tokens, done.accepted_tokens)


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_the_names_are_vllms() -> None:
    """As its source has them; without importing it."""
    (folder,) = find_spec("vllm").submodule_search_locations  # type: ignore[union-attr, misc]
    sources = [Path(folder, "v1", name).read_text() for name in ("spec_decode/metrics.py", "metrics/loggers.py")]
    for name in (*_FAMILIES.values(), _ACCEPTED_AT, *_GAUGES):
        assert any(f'"vllm:{name}"' in source for source in sources), name
