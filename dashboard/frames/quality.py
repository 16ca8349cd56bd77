"""Quality: whether drafts and replies mean the same, and whether replies look broken. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from dashboard import shapes
from dashboard.frames.base import Tile, count, judged, percent, ratio, utc
from dashboard.frames.now import similarity_tile
from dashboard.frames.table import NONE, Cell, Row, link, table
from dashboard.words import EVENTS_YAML, NO_DATA, SIMILARITY_CRITICAL, SIMILARITY_MIN, define

KINDS = {"draft": "draft and reply", "replay": "replies with and without speculation"}
FLAGS = {
    "repetition": ("Repetition", "repetition"),
    "garble": ("Garble", "garble"),
    "p_near_one": ("p near one", "p near one"),
}
#: A request may be as much older than what was told of it.
LONGEST_REQUEST = timedelta(hours=1)


class Remedy(NamedTuple):
    #: In Markdown, besides the reason.
    words: str
    #: Lines for the sidecar's YAML file, or for a shell; empty where no setting helps.
    code: str
    language: str = "yaml"


def remedy(reason: str) -> Remedy:
    """What to do where nothing is compared, by the sidecar's reason."""
    if "specwatch[similarity]" in reason:
        return Remedy(
            "Install what compares texts, and start the sidecar again:", "pip install 'specwatch[similarity]'", "shell"
        )
    if "similarity is none" in reason:
        return Remedy(
            "Set what compares them (`universal-sentence-encoder` also knows Chinese), and start the sidecar again:",
            "similarity: sentence-transformers",
        )
    if "engine_events" in reason:
        return Remedy(
            "Set where the engine's plugin tells what it drafted, or a share of requests to be replayed, and start the "
            "sidecar again:",
            f"{EVENTS_YAML}\nreplay_share: 0.01",
        )
    if "similarity_model" in reason:
        return Remedy("Name a folder that holds a sentence-transformers model, or leave `similarity_model` out.", "")
    return Remedy("", "")


# Tiles


def state_tile(state: shapes.SimilarityState) -> Tile:
    """Of the last 100 pairs; says what is not compared."""
    tile = similarity_tile(state)
    if not state.dropped:
        return tile
    dropped = f"{count(state.dropped, 'sampled pair')} not compared: beyond similarity_per_minute, or too many waited."
    return replace(tile, note=f"{tile.note} {dropped}")


def range_tiles(whole: shapes.SimilaritySeries) -> list[Tile]:
    """Of the pairs of drafts and replies in the time range: mean, and how many lie low."""
    points = [point for point in whole.points if point.kind == "draft"]
    names = ("Similarity in this time range", "Critical pairs in this time range")
    helped = define("similarity"), define("similarity", "p10 of similarity")
    if not points or points[0].mean is None or not points[0].pairs:
        return [
            Tile(name, NO_DATA, text, note="No pair has a score here.")
            for name, text in zip(names, helped, strict=True)
        ]
    point, mean = points[0], points[0].mean
    tenth = "" if point.p10 is None else f" A tenth is at or below {ratio(point.p10)}."
    unknown = f" {count(point.unknown, 'pair')} without a score." if point.unknown else ""
    note = f"Mean of {count(point.pairs, 'pair')}.{tenth}{unknown}"
    goal = f"at least {SIMILARITY_MIN}"
    low = f"{point.critical:,} critical, {point.warning:,} more are warnings, of {count(point.pairs, 'pair')}."
    return [
        judged(names[0], ratio(mean, SIMILARITY_MIN), helped[0], mean >= SIMILARITY_MIN, goal, note),
        Tile(names[1], percent(point.critical / point.pairs), helped[1], note=low),
    ]


def replay_tile(state: shapes.SimilarityState) -> Tile:
    label, helped = "Replays equal to the letter", define("replay")
    if state.replay_equal is None:
        note = "No request was replayed: replay_share, 0 unless it is set, is the share that is."
        return Tile(label, NO_DATA, helped, note=note)
    note = "With and without speculation, of the last 100 replayed requests."
    if state.replay.mean is not None:
        note += f" Similarity of the replies: {ratio(state.replay.mean)}, {state.replay.critical:,} critical."
    return Tile(label, percent(state.replay_equal), helped, note=note)


def flag_tiles(quality: shapes.QualitySummary) -> list[Tile]:
    made = []
    for flag in quality.flags:
        name, term = FLAGS[flag.flag]
        note = f"Of the last 100 replies. Since the start: {flag.total:,} of {count(quality.requests, 'reply')}."
        note = note.replace("replys", "replies")
        share = NO_DATA if flag.share is None else percent(flag.share)
        made.append(Tile(name, share, define(term), note=note))
    return made


# Tables, as HTML


def scenario_table(series: shapes.SimilaritySeries) -> str:
    """Worst first; those without a score last."""
    points = sorted(series.points, key=lambda each: (each.mean is None, each.mean or 0.0, each.group or ""))
    replays = any(each.kind == "replay" for each in points)
    heads: list[tuple[str, Sequence[str]]] = [
        ("scenario", ()),
        *([("compared", ("similarity", "replay"))] if replays else []),
        ("similarity", ("similarity",)),
        ("p10", ("p10 of similarity",)),
        ("pairs", ()),
        ("warnings", ("similarity",)),
        ("critical", ("similarity",)),
        ("without a score", ()),
    ]
    return table(heads, [_scenario(each, replays) for each in points], "Similarity by scenario, worst first")


def _scenario(point: shapes.SimilarityPoint, replays: bool) -> Row:
    low = point.mean is not None and point.mean < SIMILARITY_MIN
    return Row(
        [
            Cell(point.group or "(none)"),
            *([Cell(KINDS[point.kind])] if replays else []),
            score_cell(point.mean),
            NONE if point.p10 is None else Cell(ratio(point.p10)),
            Cell(f"{point.pairs:,}"),
            Cell(f"{point.warning:,}"),
            Cell(f"{point.critical:,}"),
            Cell(f"{point.unknown:,}"),
        ],
        marked=low,
    )


def score_cell(score: float | None) -> Cell:
    """With the level in words, by the limits of the board."""
    if score is None:
        return NONE
    if score < SIMILARITY_CRITICAL:
        return Cell(f"✗ {ratio(score, SIMILARITY_CRITICAL)} critical", "bad")
    if score < SIMILARITY_MIN:
        return Cell(f"✗ {ratio(score, SIMILARITY_MIN)} warning", "bad")
    return Cell(ratio(score))


def pairs_table(pairs: Sequence[shapes.SimilarityPair]) -> str:
    """Lowest score first, as the API gives them; drafts lead to their request."""
    replays = any(each.kind == "replay" for each in pairs)
    heads: list[tuple[str, Sequence[str]]] = [
        ("similarity", ("similarity",)),
        *([("compared", ("replay",)), ("replies part after", ())] if replays else []),
        ("scenario", ()),
        ("compared at (UTC)", ()),
        ("reply id", ("reply id",)),
    ]
    return table(heads, [_pair(each, replays) for each in pairs], "Pairs of lowest similarity")


def _pair(pair: shapes.SimilarityPair, replays: bool) -> Row:
    parted = NONE if pair.first_divergence is None else Cell(count(pair.first_divergence, "character"))
    # A replay is no request of a client, and has no row.
    href = reply_link(pair.reply_id, pair.at) if pair.kind == "draft" else None
    return Row(
        [
            score_cell(pair.score),
            *([Cell(KINDS[pair.kind]), parted] if replays else []),
            NONE if pair.scenario is None else Cell(pair.scenario),
            Cell(f"{utc(pair.at):%Y-%m-%d %H:%M:%S}"),
            Cell(pair.reply_id, href=href),
        ]
    )


def flagged_table(replies: Sequence[shapes.FlaggedReply]) -> str:
    """Newest first, as the API gives them."""
    heads: list[tuple[str, Sequence[str]]] = [
        ("seen at (UTC)", ()),
        ("looks like", ("repetition", "garble", "p near one")),
        ("because", ()),
        ("reply id", ("reply id",)),
    ]
    rows = [
        Row(
            [
                Cell(f"{utc(each.at):%Y-%m-%d %H:%M:%S}"),
                Cell(FLAGS[each.flag][0] if each.flag in FLAGS else each.flag),
                Cell(each.evidence),
                Cell(each.request_id, href=reply_link(each.request_id, each.at)),
            ]
        )
        for each in replies
    ]
    return table(heads, rows, "Replies that look broken, newest first")


def reply_link(reply_id: str, at: datetime) -> str:
    """The page Requests, with the request of a reply of which something was told `at` a time."""
    return link("requests", reply_id=reply_id, **around(at))


def around(at: datetime) -> dict[str, str]:
    """`since` and `until` of the request of which something was told `at` a time."""
    end = utc(at).replace(microsecond=0)
    # The calendar ends somewhere.
    since = end - min(LONGEST_REQUEST, end - datetime.min.replace(tzinfo=end.tzinfo))
    until = end + min(timedelta(minutes=1), datetime.max.replace(tzinfo=end.tzinfo) - end)
    return {name: f"{each:%Y-%m-%dT%H:%M:%S}Z" for name, each in (("since", since), ("until", until))}


def pair_words(pair: shapes.SimilarityPair) -> str:
    score = NO_DATA if pair.score is None else ratio(pair.score)
    return f"{score} · {pair.scenario or 'no scenario'} · {utc(pair.at):%H:%M:%S} UTC · {pair.reply_id}"
