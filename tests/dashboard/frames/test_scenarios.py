"""Every figure of each slice, in a row."""

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.html_tables import cells, links
from support.payloads import STEPS, TIMES, law, no_nan, over_the_wire
from support.positions import AT, point, truncation_series

from dashboard import shapes
from dashboard.frames import scenarios as frames
from dashboard.frames.plots import MAX_STEPS, grid
from dashboard.frames.scenarios import Slice
from sidecar.api import models

HOUR = {"window": "1h"}


def state(*slices, of_all="speculative"):
    known = {
        "mode": "auto", "state": of_all, "since": AT, "reason": "of all", "trigger": "probes", "evidence": None,
        "can_fall_back": True, "effective": True, "dry_run": False, "until": None, "fleet": None, "shared": None,
        "decided_by": "a",
        "slices": [{"slice": name, "state": each, "since": AT, "reason": "its own"} for name, each in slices],
    }  # fmt: skip
    return msgspec.convert(known, shapes.FallbackState)


def of(shape, **known):
    """With what is not named not known."""
    fields = {field.name: None for field in msgspec.structs.fields(shape)}
    return shape(**fields | known)


def p_of(p, group="a", **known):
    return of(shapes.AcceptancePoint, group=group, p=p, requests=9, draft_tokens=90, accepted_tokens=9, **known)


def traffic_of(requests, group="a", **known):
    return of(shapes.TrafficPoint, group=group, requests=requests, **known)


def test_slices_of_all_answers_that_name_them(sample):
    answers = [
        over_the_wire(model.model_validate(payload), shape)
        for model, shape, payload in (
            (models.TrafficSeries, shapes.TrafficSeries, sample.board.traffic("scenario")),
            (models.AcceptanceSeries, shapes.AcceptanceSeries, sample.acceptance("scenario")),
            (models.TruncationSeries, shapes.TruncationSeries, sample.truncation("scenario")),
            (models.LatencySeries, shapes.LatencySeries, sample.latency("scenario")),
            (models.SimilaritySeries, shapes.SimilaritySeries, sample.board.similarity({"by": "scenario"})),
        )
    ]
    answers[4].points.append(of(shapes.SimilarityPoint, group="chat", kind="replay", mean=0.1))
    found = {each.name: each for each in frames.slices(*answers)}
    assert list(found) == ["chat", "code", "summarise", "translate", "untested"]
    assert found["chat"].similarity.mean == 0.96, "of drafts"
    assert found["untested"].truncation is None
    assert frames.slices(*answers[:4], None)[0].similarity is None


def test_worst_first_and_unknown_last():
    found = [
        Slice("good", acceptance=p_of(0.9)),
        Slice("silent", traffic_of(3)),
        Slice("below", acceptance=p_of(0.64)),
        Slice("loud", traffic_of(9)),
        Slice("nothing", acceptance=p_of(0.0)),
        Slice("level", acceptance=p_of(0.65)),
    ]
    assert [each.name for each in frames.worst_first(found)] == ["nothing", "below", "level", "good", "loud", "silent"]
    assert [each.name for each in frames.worst_first(found, ["good"])][:2] == ["good", "nothing"], "it fell back"


def test_the_worst_has_a_name_of_its_own():
    pooled = Slice("other", acceptance=p_of(0.1))
    assert frames.worst([pooled, Slice("b", acceptance=p_of(0.5)), Slice("a", acceptance=p_of(0.4))]).name == "a"
    assert frames.worst([pooled, Slice("silent")]) is None


def row_of(each, by="scenario", fallback=None, **others):
    """The texts of its row by the heads."""
    html = frames.slice_table([each], by, fallback or state(), HOUR)
    heads, row = cells(html)
    return dict(zip([head.replace("\u00a0", " ") for head in heads], row, strict=True))


def test_no_data_is_told_from_zero():
    unknown = row_of(Slice("a"))
    assert {value for head, value in unknown.items() if head not in ("scenario", "speculation")} == {"no data"}
    zero = row_of(
        Slice(
            "a",
            traffic_of(0, latency_under_800ms_ratio=0.0, coverage=0.0),
            p_of(0.0, mean_acceptance_length=1.0),
            point(steps=10, cut=0, rejected=[0], reached=[10]),
            similarity=of(shapes.SimilarityPoint, mean=0.0),
        )
    )
    assert list(zero.values())[1:7] == ["0", "✗ 0.000", "1.00", "0.0 %", "no data", "none"]
    assert (zero["within 800 ms"], zero["similarity (≥ 0.82)"], zero["coverage"]) == ("0.0 %", "✗ 0.000", "0.0 %")


def cut_at(*rejected, reached=(20, 18), **known):
    return Slice(
        "a",
        truncation=point(steps=reached[0], cut=sum(rejected), rejected=list(rejected), reached=list(reached), **known),
    )


RATE, FIRST = "truncation rate (≤ 35 %)", "first-position share (≤ 15 %)"


@pytest.mark.parametrize(
    ("each", "head", "text"),
    [
        (Slice("a", acceptance=p_of(0.65)), "p (≥ 0.65)", "0.650"),
        (Slice("a", acceptance=p_of(0.6499)), "p (≥ 0.65)", "✗ 0.6499"),
        (Slice("a", acceptance=p_of(0.7, p_low=0.611, p_high=0.789)), "p (≥ 0.65)", "0.700 (0.61 to 0.79)"),
        (cut_at(1, 6, reached=(20, 19)), RATE, "35.0 %"),
        (cut_at(1, 7, reached=(20, 19)), RATE, "✗ 40.0 %"),
        (cut_at(1, 7, reached=(20, 19)), FIRST, "12.5 %"),
        (cut_at(2, 6), FIRST, "✗ 25.0 %"),
        (cut_at(2, 6), "worst position", "2 (33.3 %)"),
        (cut_at(8, reached=(9,), cliff=1), "worst position", "✗ 1 (88.9 %) cliff"),
        (Slice("a", truncation=point(steps=9, cut=8)), "worst position", "no data"),
        (Slice("a", similarity=of(shapes.SimilarityPoint, mean=0.82)), "similarity (≥ 0.82)", "0.820"),
    ],
)
def test_figures_against_their_limits(each, head, text):
    assert row_of(each)[head] == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.8, "0.800"), (1.0, "1.000"), (1.25, "✗ 1.250 slower"), (None, "no data")]
)
def test_latencies(ratio, text):
    sides = {
        name: of(shapes.LatencyFigures, p95_ms=p95) for name, p95 in (("speculative", 500.0), ("autoregressive", None))
    }
    row = row_of(Slice("a", latency=shapes.LatencyPoint(at=None, group="a", ratio=ratio, **sides)))
    assert (row["p95 speculative"], row["p95 baseline"], row["ratio"]) == ("500 ms", "no data", text)


@pytest.mark.parametrize(
    ("by", "fallback", "text"),
    [
        ("scenario", state(), "on"),
        ("scenario", state(of_all="ineffective"), "off, in vain"),
        ("scenario", state(("scenario=a", "autoregressive")), "off"),
        ("scenario", state(("scenario=ab", "autoregressive"), ("temperature=a", "autoregressive")), "on"),
        ("temperature", state(("temperature=a", "probing"), of_all="autoregressive"), "probing"),
    ],
)
def test_whether_a_slice_is_served_with_speculation(by, fallback, text):
    assert row_of(Slice("a"), by, fallback)["speculation"] == text


def test_the_worst_is_marked_and_scenarios_lead_on():
    found = [
        Slice("a b&c", acceptance=p_of(0.5)),
        Slice("<i>", acceptance=p_of(0.9)),
        Slice("other", acceptance=p_of(0.1)),
    ]
    html = frames.slice_table(found, "scenario", state(), HOUR)
    assert [row[0] for row in cells(html)] == ["scenario", "▼ worst: a b&c", "<i>", "other"]
    assert html.count('class="sw-marked"') == 1
    assert "<i>" not in html
    assert links(html) == [f"truncation?scenario={name}&window=1h" for name in ("a+b%26c", "%3Ci%3E")]
    html = frames.slice_table(found, "k", state(), HOUR)
    assert not links(html)
    assert "similarity" not in cells(html)[0], "which scenarios alone have"
    alone = frames.slice_table(found[:1], "scenario", state(), HOUR)
    assert "worst:" not in alone, "the only one is not the worst"


def acceptance(*minutes, since=0, until=5, step_s=60):
    return shapes.AcceptanceSeries(
        exact=True, resolution_s=None, since=AT + timedelta(minutes=since), until=AT + timedelta(minutes=until),
        window_s=300, step_s=step_s, by="scenario",
        points=[of(shapes.AcceptancePoint, at=AT + timedelta(minutes=at), group=group) for at, group in minutes],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("series", "minutes"),
    [
        (acceptance((1, "a"), (1, "b"), (3, "b")), [0, 1, 2, 3, 4]),
        (acceptance((0, "a"), (4, "b")), [0, 1, 2, 3, 4]),
        (acceptance((0, "a"), since=0.5, until=1.5), [0, 1]),
        (acceptance(), []),
        (acceptance((2, "a"), step_s=None), [2]),
    ],
)
def test_every_step_of_the_time_range(series, minutes):
    assert grid(series) == [AT + timedelta(minutes=minute) for minute in minutes]


def any_of(model, shape, **known):
    return st.none() | st.builds(model, **known).map(lambda each: over_the_wire(each, shape))


SLICES = st.builds(
    Slice,
    st.sampled_from(["a", "b", "other"]),
    any_of(models.TrafficPoint, shapes.TrafficPoint, outcomes=st.just({})),
    any_of(models.AcceptancePoint, shapes.AcceptancePoint),
    truncation_series().map(lambda each: over_the_wire(each.total, shapes.TruncationPoint)),
    any_of(models.LatencyPoint, shapes.LatencyPoint),
    any_of(models.SimilarityPoint, shapes.SimilarityPoint),
)


@law
@given(st.lists(SLICES, max_size=3))
def test_any_slices(found):
    html = frames.slice_table(frames.worst_first(found), "scenario", state(), HOUR)
    no_nan(*(text for row in cells(html) for text in row[1:]))


@law
@given(st.lists(TIMES, max_size=4), TIMES, TIMES, STEPS)
def test_any_steps(times, since, until, step_s):
    series = acceptance(step_s=step_s)
    series.since, series.until = since, until
    series.points = [of(shapes.AcceptancePoint, at=at, group="a") for at in times]
    steps = grid(series)
    assert set(times) <= set(steps)
    assert steps == sorted(steps)
    assert len(steps) <= 3 * MAX_STEPS + 1
