"""Quality: similarities and their limits, links to requests, and what to set where there is nothing."""

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.html_tables import cells, links
from support.payloads import STEPS, TIMES, law, no_nan, numbers, over_the_wire, texts

from dashboard import shapes
from dashboard.frames import quality as frames
from dashboard.frames import quality_plots as plots
from dashboard.words import NO_DATA
from sidecar.api import models

AT = datetime(2026, 11, 29, 18, 0, tzinfo=UTC)
ANSWERED = {"exact": True, "resolution_s": None, "since": AT, "until": AT + timedelta(hours=1), "window_s": 3600}


def point(mean, group=None, kind="draft", minute=None, pairs=10, **changes):
    at = None if minute is None else AT + timedelta(minutes=minute)
    whole = {"at": at, "group": group, "kind": kind, "pairs": pairs, "mean": mean, "p10": mean and mean - 0.1}
    return whole | {"warning": 2, "critical": 1, "unknown": 0} | changes


def series(sample, *points, step=None, **state):
    whole = ANSWERED | {"step_s": step, "by": None, "last_100": sample.summary()["similarity"] | state}
    return msgspec.convert(whole | {"points": list(points)}, shapes.SimilaritySeries)


def state(sample, **changes):
    return series(sample, **changes).last_100


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("similarity is none: nothing is compared", "similarity: sentence-transformers"),
        ("engine_events is not set, so that no engine tells its drafts, and replay_share is 0", "engine_events: /run/"),
        (
            "similarity: No module named 'torch': install specwatch[similarity], or set similarity to none",
            "pip install",
        ),
        ("similarity_model: /m cannot be used: no such file", ""),
        ("something else", ""),
    ],
)
def test_what_to_do_where_nothing_is_compared(reason, code):
    found = frames.remedy(reason)
    assert found.code.startswith(code)
    assert bool(found.words) == (reason != "something else")
    assert found.language == ("shell" if code == "pip install" else "yaml")


@pytest.mark.parametrize(
    ("mean", "values", "met"),
    [(0.82, ("0.820", "10.0 %"), True), (0.8199, ("0.8199", "10.0 %"), False), (None, (NO_DATA, NO_DATA), None)],
)
def test_the_pairs_of_a_time_range(sample, mean, values, met):
    whole = series(sample, point(0.1, kind="replay"), point(mean, pairs=10 if mean else 0, unknown=3))
    tiles = frames.range_tiles(whole)
    assert tuple(tile.value for tile in tiles) == values
    assert tiles[0].met is met
    if mean is not None:
        assert tiles[0].note == f"Mean of 10 pairs. A tenth is at or below {mean - 0.1:.3f}. 3 pairs without a score."
        assert tiles[1].note == "1 critical, 2 more are warnings, of 10 pairs."


def test_replays(sample):
    assert frames.replay_tile(state(sample)).value == NO_DATA
    assert "replay_share" in frames.replay_tile(state(sample)).note
    replay = {"pairs": 20, "mean": 0.97, "p10": 0.9, "warning": 1, "critical": 3}
    tile = frames.replay_tile(state(sample, replay=replay, replay_equal=0.0))
    assert tile.value == "0.0 %"
    assert tile.note.endswith("Similarity of the replies: 0.970, 3 critical.")


def test_what_was_not_compared_is_told(sample):
    assert frames.state_tile(state(sample, dropped=12)).note.endswith(
        "12 sampled pairs not compared: beyond similarity_per_minute, or too many waited."
    )
    assert "not compared" not in frames.state_tile(state(sample)).note


def test_scenarios_worst_first(sample):
    points = [
        point(0.9, "code"),
        point(None, "empty"),
        point(0.5, "chat"),
        point(0.0, "none alike"),
        point(0.78, "<b>"),
    ]
    rows = cells(frames.scenario_table(series(sample, *points)))
    assert rows[0][:2] == ["scenario", "similarity"]
    assert [row[0] for row in rows[1:]] == ["none alike", "chat", "<b>", "code", "empty"]
    assert [row[1] for row in rows[1:]] == ["✗ 0.000 critical", "✗ 0.500 critical", "✗ 0.780 warning", "0.900", NO_DATA]
    rows = cells(frames.scenario_table(series(sample, *points, point(0.3, "chat", kind="replay"))))
    assert rows[0][1] == "compared"
    assert rows[2][:3] == ["chat", "replies with and without speculation", "✗ 0.300 critical"]


def pair(**changes):
    whole = {"at": AT, "reply_id": "chatcmpl-a&b c", "kind": "draft", "score": 0.7499, "level": "critical"}
    return msgspec.convert(whole | {"first_divergence": None, "scenario": "chat"} | changes, shapes.SimilarityPair)


def test_low_pairs_lead_to_their_requests():
    table = frames.pairs_table([pair(), pair(kind="replay", score=0.8, first_divergence=37, reply_id="chatcmpl-r")])
    assert cells(table)[1:] == [
        ["✗ 0.7499 critical", "draft and reply", NO_DATA, "chat", "2026-11-29 18:00:00", "chatcmpl-a&b c"],
        [
            "✗ 0.800 warning",
            "replies with and without speculation",
            "37 characters",
            "chat",
            "2026-11-29 18:00:00",
            "chatcmpl-r",
        ],
    ]
    (href,) = links(table)
    assert urlsplit(href).path == "requests"
    assert parse_qs(urlsplit(href).query) == {
        "reply_id": ["chatcmpl-a&b c"],
        "since": ["2026-11-29T17:00:00Z"],
        "until": ["2026-11-29T18:01:00Z"],
    }
    assert cells(frames.pairs_table([pair()]))[0] == ["similarity", "scenario", "compared at (UTC)", "reply id"]


def test_flagged_replies(sample):
    quality = msgspec.convert(sample.board.quality(), shapes.Quality)
    assert [(tile.label, tile.value) for tile in frames.flag_tiles(quality)] == [
        ("Repetition", "2.0 %"),
        ("Garble", "0.0 %"),
        ("p near one", "0.0 %"),
    ]
    quality.flags[0].share = None
    assert frames.flag_tiles(quality)[0].value == NO_DATA
    assert frames.flag_tiles(quality)[0].note == "Of the last 100 replies. Since the start: 3 of 473 replies."
    quality.recent[0].evidence = "<script>"
    table = frames.flagged_table(quality.recent)
    assert cells(table)[1][1:3] == ["Repetition", "<script>"]
    assert "<script>" not in table
    assert links(table)[0].startswith("requests?reply_id=chatcmpl-0aa61d09b&since=2026-11-29T17%3A26%3A00Z")


def test_similarity_over_time(sample):
    points = [point(0.9, minute=0), point(None, minute=1), point(0.8, minute=4), point(0.99, kind="replay", minute=0)]
    figure = plots.over_time(series(sample, *points, step=60), None)
    lines = {trace.name: trace.y for trace in figure.data}
    assert lines["draft and reply, mean"] == (0.9, None, None, None, 0.8)
    assert set(lines) == {f"{kind}, {word}" for kind in frames.KINDS.values() for word in ("mean", "p10")}
    assert sorted(shape.y0 for shape in figure.layout.shapes) == [0.75, 0.82]
    assert figure.layout.yaxis.range == pytest.approx((0.68, 1.02))
    assert len(plots.over_time(series(sample, *points[:3], step=60), None).data) == 2
    assert plots.over_time(series(sample, point(0.3, minute=0), step=60), None).layout.yaxis.range[0] < 0.2


def test_the_histogram_begins_with_the_lowest_pair(sample):
    spread = msgspec.convert(sample.board.histogram(), shapes.SimilarityHistogram)
    figure = plots.histogram(spread)
    (bars,) = figure.data
    assert (sum(bars.y), bars.customdata[-1], bars.text[-1]) == (168, "0.95 to 1.00", "26")
    assert figure.layout.xaxis.range == (0.5, 1)
    assert sorted(shape.x0 for shape in figure.layout.shapes) == [0.75, 0.82]
    spread.replay = [0] * 39 + [5]
    assert len(plots.histogram(spread).data) == 2


# The law, on any payload that the API can give.

NAMES = st.sampled_from(["chat", "unknown", "<b>", ""])
GROUPS = st.none() | NAMES
STATES = st.builds(models.SimilarityState, model=GROUPS, reason=GROUPS)


@law
@given(
    st.builds(
        models.SimilaritySeries,
        step_s=STEPS,
        last_100=STATES,
        points=st.lists(st.builds(models.SimilarityPoint, group=GROUPS), max_size=6),
    )
)
def test_any_similarity(model):
    found = over_the_wire(model, shapes.SimilaritySeries)
    figure = plots.over_time(found, None)
    for trace in figure.data:
        numbers(trace.y)
    figure.to_json()
    no_nan(*texts(frames.range_tiles(found)), *texts([frames.replay_tile(found.last_100)]))
    no_nan(*(text for row in cells(frames.scenario_table(found)) for text in row))


@law
@given(st.builds(models.SimilarityHistogram))
def test_any_histogram(model):
    plots.histogram(over_the_wire(model, shapes.SimilarityHistogram)).to_json()


@law
@given(
    st.lists(st.builds(models.SimilarityPair, at=TIMES, reply_id=NAMES, scenario=GROUPS), max_size=4),
    st.builds(
        models.Quality,
        recent=st.lists(st.builds(models.FlaggedReply, request_id=NAMES, flag=st.just("x"), evidence=st.just("y"))),
    ),
)
def test_any_pairs_and_flags(pair_models, quality_model):
    pairs = [over_the_wire(each, shapes.SimilarityPair) for each in pair_models]
    no_nan(*(text for row in cells(frames.pairs_table(pairs)) for text in row), *map(frames.pair_words, pairs))
    quality = over_the_wire(quality_model, shapes.Quality)
    no_nan(*texts(frames.flag_tiles(quality)))
    assert len(cells(frames.flagged_table(quality.recent))) == len(quality.recent) + 1
