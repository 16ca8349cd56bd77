"""Every reading against a value worked by hand, and None where it cannot be known."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.counting import Counting
from support.records import figures, record
from support.scripted_engine import GREETING, ScriptedEngine, until
from support.tapped import STREAM, Run

from alerts.readings import KINDS, READINGS
from sidecar.control.circuit import Change, State, Trigger
from sidecar.engine_request import EngineRequest
from sidecar.probes.alignment import State as AlignmentState
from sidecar.probes.embedder import Embedder
from sidecar.probes.similarity import Kind
from sidecar.readings import Recent, Sources, aligned, collect
from sidecar.record import Acceptance, Arm, Outcome, Record
from sidecar.recorder import AUTOREGRESSIVE, SPECULATIVE, Recorder
from sidecar.settings import load

from .test_counters import TOLD, ended, serving, settled, watching
from .test_recorder import NO_TRAFFIC
from .test_similarity import Made

#: Steps of three draft tokens: 75 of 120 accepted, 20 of 40 truncated, half of these at the first.
BILLING = record(scenario="billing", acceptance=figures((10, 5, 5, 20)))
#: Steps of one: 8 of 10 accepted.
CHAT = record(scenario="chat", acceptance=figures((2, 8)), temperature=0.0, prompt_tokens=600, concurrency=3)
#: Nothing is told of its single steps.
UNTOLD = record(scenario="plain", acceptance=figures((5, 0, 5), histogram=None, rejected_at=None, reached=None))
Found = dict[str, float | None]


class Scene:
    """A sidecar that has not been started."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        plain = {"database_url": f"sqlite:///{folder}/specwatch.db", "similarity": "none", "fallback_triggers": []}
        self.down: list[str] = []
        self.starting: list[str] = []
        urls = {SPECULATIVE: "http://127.0.0.1:9", AUTOREGRESSIVE: "http://127.0.0.1:9"}
        made = self.recorder = Recorder(
            load(**plain | settings), urls, lambda: NO_TRAFFIC, down=lambda: self.down, starting=lambda: self.starting
        )
        self.sources = made.sources

    def ended(self, *records: Record) -> None:
        for each in records:
            self.recorder.tap.sink(each)

    def all(self, kind: str = "", value: str = "", now: float | None = None) -> Found:
        return dict(collect(self.sources, now or time.time(), time.monotonic())[kind, value])

    def readings(self, *names: str, kind: str = "", value: str = "", now: float | None = None) -> list[float | None]:
        found = self.all(kind, value, now)
        return [found[name] for name in names]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


# ---- the table


def test_each_kind_of_group_has_the_readings_of_the_table(scene: Scene) -> None:
    scene.ended(BILLING)
    found = collect(scene.sources, time.time(), time.monotonic())
    for kind in KINDS:
        groups = [names.keys() for (of, _), names in found.items() if of == kind]
        assert groups, kind
        assert all(names == {each.name for each in READINGS.values() if kind in each.kinds} for names in groups), kind
    assert {kind for kind, _ in found} == set(KINDS)


def test_what_nobody_has_told_is_not_known(scene: Scene) -> None:
    assert {name: value for name, value in scene.all().items() if value is not None} == {
        "window_requests": 0,
        "window_draft_tokens": 0,
        "autoregressive": 0,
        "probing": 0,
        "ineffective": 0,
        "fell_back": 0,
        "open_slices": 0,
        "switches": 0,
        "similarity_pairs": 0,
        "replay_pairs": 0,
        "not_drafted_requests": 0,
        "quality_replies": 0,
        "latency_requests": 0,
        "requests": 0,
        "records_dropped": 0,
        "tap_failures": 0,
        "similarity_dropped": 0,
        "notifications_failed": 0,
        "database_up": 0,
        "failed_tasks": 0,
    }
    assert scene.all("upstream", SPECULATIVE) == {"upstream_up": 1, "coverage": None, "engine_acceptance_rate": None}


# ---- acceptance


def test_acceptance_of_all_traffic_and_of_slices(scene: Scene) -> None:
    scene.ended(BILLING, CHAT)
    names = (
        "acceptance_rate",
        "acceptance_rate_per_token",
        "window_requests",
        "window_draft_tokens",
        "mean_acceptance_length",
        "truncation_rate",
        "first_position_share",
    )
    assert scene.readings(*names) == [83 / 130, 83 / 105, 2, 130, 1 + 83 / 50, 22 / 50, 12 / 22]
    billing = [75 / 120, 75 / 95, 1, 120, 1 + 75 / 40, 20 / 40, 10 / 20]
    assert scene.readings(*names, kind="scenario", value="billing") == billing
    chat = [8 / 10, 8 / 10, 1, 10, 1 + 8 / 10, 2 / 10, 1.0]
    slices = {"scenario": "chat", "temperature": "0", "prompt_length": "513-2048", "concurrency": "2-4"}
    for kind, value in slices.items():
        assert scene.readings(*names, kind=kind, value=value) == chat
    assert scene.readings(*names, kind="model", value="target") == scene.readings(*names)


def test_the_interval_takes_two_requests(scene: Scene) -> None:
    scene.ended(BILLING, CHAT)
    # p = 83/130; both lie 1.615 tokens off; the standard error is sqrt(2 * 5.219) / 130 = 0.02485; Student's t of one
    # degree of freedom, by two terms, is 7.155.
    assert scene.readings("acceptance_rate_high") == [pytest.approx(83 / 130 + 7.155 * 0.02485, abs=1e-4)]
    assert scene.readings("acceptance_rate_high", kind="scenario", value="billing") == [None]


def test_single_steps_are_those_of_the_requests_that_tell(scene: Scene) -> None:
    names = ("truncation_rate", "first_position_share")
    scene.ended(UNTOLD)
    assert scene.readings(*names) == [None, None]
    scene.ended(BILLING)
    assert scene.readings(*names) == [20 / 40, 10 / 20]
    scene.ended(*[record(acceptance=figures((0, 0, 5)))] * 99)
    assert scene.readings(*names) == [20 / 535, 10 / 20]
    scene.ended(record(acceptance=figures((0, 0, 5))))
    assert scene.readings(*names) == [0.0, None], "of a hundred requests"


def test_requests_without_figures(scene: Scene) -> None:
    silent = record(acceptance=Acceptance(reason="no usage"))
    scene.ended(BILLING, silent, silent, replace_arm(silent), record(outcome=Outcome.CLIENT_ABORT))
    assert scene.readings("not_drafted_share", "not_drafted_requests") == [2 / 3, 3]


def replace_arm(plain: Record) -> Record:
    return record(acceptance=plain.acceptance, arm=Arm.BASELINE)


# ---- the state


def test_the_cost_of_a_draft_is_where_speculation_breaks_even(tmp_path: Path) -> None:
    assert Scene(tmp_path, draft_cost=0.2).readings("break_even_rate") == [0.2]


def decided(name: str, after: State, ago: float) -> Change:
    return Change(name, State.SPECULATIVE, after, time.time() - ago, Trigger.ACCEPTANCE, "p is low", {})


STATES = ("autoregressive", "probing", "ineffective", "fell_back", "open_slices", "switches")


def test_a_fallback_its_probes_and_its_return(tmp_path: Path) -> None:
    scene = Scene(tmp_path, fallback_slices=["scenario"])
    controller, now = scene.recorder.controller, time.time()
    scene.sources.fallback.restore(None, [decided("", State.AUTOREGRESSIVE, 61)])
    assert scene.readings(*STATES) == [1, 0, 0, 1, 0, 0], "what was before the start is no change"
    for _ in range(3):
        scene.sources.fallback.served_plain(drafted=True)
    assert scene.readings(*STATES) == [0, 0, 1, 1, 0, 0]
    scene.sources.fallback.counted(0)
    controller.tick(now, 0.0)
    assert scene.readings(*STATES) == [0, 1, 0, 1, 0, 0], "a probe is no return"
    controller.set_mode("speculative", "drill")
    assert scene.readings(*STATES, now=now + 10) == [0, 0, 0, 0, 0, 1]
    controller.set_mode("auto", "over")
    assert scene.readings(*STATES, now=now + 20) == [0, 0, 0, 0, 0, 1]
    assert scene.readings("switches", now=now + 3600) == [1]
    assert scene.readings("switches", now=now + 7200) == [0]


def test_by_an_order_nothing_speculates_and_what_was_before_says_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.ended(*[BILLING] * 50)
    names = ("acceptance_rate", "window_requests", "not_drafted_share")
    known = [75 / 120, 50, 0.0]
    assert scene.readings(*names) == known
    scene.recorder.controller.set_mode("autoregressive", "drill")
    assert scene.readings(*names) == [None] * 3
    assert scene.readings(*names[:2], kind="scenario", value="billing") == [None] * 2
    assert scene.readings("autoregressive", "fell_back", "quality_replies") == [1, 0, 0]
    scene.recorder.controller.set_mode("auto", "over")
    assert scene.readings(*names) == known


def test_slices_are_counted_apart(tmp_path: Path) -> None:
    scene = Scene(tmp_path, fallback_slices=["scenario"])
    changes = [decided(f"scenario={name}", State.AUTOREGRESSIVE, 61) for name in ("billing", "chat")]
    scene.sources.fallback.restore(None, changes)
    scene.recorder.controller.tick(time.time(), 0.0)
    assert b'to="probing"} 2.0' in scene.recorder.metrics.render()
    assert scene.readings(*STATES) == [0, 0, 0, 0, 2, 0]
    assert b"specwatch_fallback_open_slices 2.0" in scene.recorder.metrics.render()
    scene.down.append(AUTOREGRESSIVE)
    assert scene.readings(*STATES) == [0, 0, 0, 0, 0, 0], "nothing could serve them without speculation"
    assert b"specwatch_fallback_open_slices 0.0" in scene.recorder.metrics.render()


def test_a_certificate_is_told_of_where_one_is_set_and_the_engine_is_known(scene: Scene, tmp_path: Path) -> None:
    assert scene.readings("certificate_valid") == [None]
    lost = Scene(tmp_path, certificate=tmp_path / "away.json")
    assert lost.readings("certificate_valid") == [0]
    assert b"specwatch_certificate_valid 0.0" in lost.recorder.metrics.render()


def test_in_a_dry_run_nothing_has_fallen_back(tmp_path: Path) -> None:
    scene = Scene(tmp_path, fallback_slices=["scenario"], fallback_dry_run=True)
    changes = [decided(name, State.AUTOREGRESSIVE, 1) for name in ("", "scenario=billing")]
    scene.sources.fallback.restore(None, changes)
    assert scene.readings(*STATES) == [0, 0, 0, 0, 0, 0]


# ---- what comes out


async def test_similarity_of_drafts_and_of_replays(scene: Scene) -> None:
    made = Made(Embedder("universal-sentence-encoder", None))
    scene.sources = replace(scene.sources, similarity=made.similarity)
    made.compare(("one text", "one text"), ("another", "another"))
    made.compare(("a reply", "a reply"), (None, "a reply"), kind=Kind.REPLAY)
    await made.told(4)
    names = ("similarity", "similarity_pairs", "replay_similarity", "replay_pairs")
    assert scene.readings(*names) == [pytest.approx(1), 2, pytest.approx(1), 1]
    made.similarity.dropped["budget"] += 2
    made.similarity.dropped["queue"] += 1
    now = time.time()
    assert scene.readings("similarity_dropped", now=now + 10) == [3]
    assert scene.readings("similarity_dropped", now=now + 311) == [0]
    await made.close()


def proposals(misaligned: bool, state: AlignmentState) -> Any:
    alignment = SimpleNamespace(state=lambda: (state, "why"))
    return SimpleNamespace(misaligned=(misaligned, "why"), alignment=alignment)


@pytest.mark.parametrize(
    ("told", "known", "reading"),
    [
        (None, None, None),
        (SimpleNamespace(misaligned=(False, ""), alignment=None), None, None),
        (proposals(False, AlignmentState.UNKNOWN), None, None),
        (proposals(False, AlignmentState.ALIGNED), True, 0),
        (proposals(True, AlignmentState.UNKNOWN), False, 1),
        (proposals(True, AlignmentState.ALIGNED), False, 1),
    ],
)
def test_tokenizers(scene: Scene, told: Any, known: bool | None, reading: float | None) -> None:
    assert aligned(told) is known
    scene.sources = replace(scene.sources, proposals=told)
    assert scene.readings("tokenizers_misaligned") == [reading]


def reply(finish_reason: str = "stop", steps: int = 0, accepted: int = 0) -> EngineRequest:
    """Verify steps of four draft tokens; no token is there twice."""
    made = EngineRequest("chatcmpl-a-01234567", "chatcmpl-a", GREETING, 9)
    for step in range(steps):
        made.add([0] * 4, [10 * step + place for place in range(accepted + 1)], 0, 100_000)
    made.output_tokens, made.finish_reason = steps * (accepted + 1), finish_reason
    return made


def test_broken_replies(scene: Scene) -> None:
    names = ("repetition_share", "garble_share", "p_near_one_share", "quality_replies")
    quality = scene.sources.quality
    for each in (reply("repetition"), reply("repetition"), reply("repetition"), reply(), reply("length"), reply()):
        quality.add(each, 0.0)
    quality.add(reply(steps=256), 0.0)  # as garble has it
    quality.add(reply(steps=128, accepted=4), 0.0)  # and so has this one, of 512 draft tokens that were all accepted
    assert scene.readings(*names) == [3 / 8, 2 / 8, 1 / 8, 8]
    for _ in range(200):
        quality.add(reply(), 0.0)
    assert scene.readings(*names) == [0.0, 0.0, 0.0, 100]


# ---- latency and errors


def test_the_goal_is_that_of_the_last_hour(scene: Scene) -> None:
    now = time.time()
    fast = record(started_at=now - 10, latency_ms=800.0)
    scene.ended(*[fast] * 3, record(started_at=now - 1000, latency_ms=900.0), record(started_at=now - 3700))
    names = ("latency_under_800ms_ratio", "p95_latency_under_800ms_ratio", "latency_requests")
    assert scene.readings(*names, now=now) == [0.75, 0.5, 4]


@pytest.mark.parametrize(("minutes", "known"), [(0, False), (14, False), (15, True), (59, True)])
def test_an_engine_that_warms_up_tells_nothing_of_the_goal(scene: Scene, minutes: int, known: bool) -> None:
    now = 60 * 29_000_000 + 1
    slow = [record(started_at=now - 60 * ago - 1, latency_ms=5000.0) for ago in range(minutes + 1)]
    for each in slow:
        scene.sources.recent.add(each, now)
    expected = [0.0, 0.0] if known else [None, None]
    names = ("latency_under_800ms_ratio", "p95_latency_under_800ms_ratio", "latency_requests")
    assert scene.readings(*names, now=now) == [*expected, minutes + 1]


@pytest.mark.parametrize(("baseline", "expected"), [(50, 1.5), (49, None)])
def test_the_ratio_takes_fifty_a_side(scene: Scene, baseline: int, expected: float | None) -> None:
    scene.ended(*[record(latency_ms=1500.0)] * 50, *[record(latency_ms=1000.0, arm=Arm.BASELINE)] * baseline)
    assert scene.readings("latency_ratio") == [expected]
    text = scene.recorder.metrics.render()
    told = [line for line in text.splitlines() if line.startswith(b"specwatch_latency_ratio ")]
    assert told == ([] if expected is None else [b"specwatch_latency_ratio 1.5"])


@pytest.mark.parametrize(
    ("outcome", "status", "is_error"),
    [
        (Outcome.OK, 200, 0),
        (Outcome.CLIENT_ABORT, None, 0),
        (Outcome.UPSTREAM_ERROR, 400, 0),
        (Outcome.UPSTREAM_ERROR, 429, 0),
        (Outcome.UPSTREAM_ERROR, 500, 1),
        (Outcome.UPSTREAM_ERROR, None, 1),
        (Outcome.UPSTREAM_ERROR, 200, 1),
        (Outcome.TRUNCATED, 200, 1),
        (Outcome.BAD_GATEWAY, 502, 1),
        (Outcome.TIMEOUT, 504, 1),
    ],
)
def test_errors_are_those_of_the_engine(scene: Scene, outcome: Outcome, status: int | None, is_error: int) -> None:
    scene.ended(record(), record(outcome=outcome, status=status))
    assert scene.readings("error_rate", "requests") == [is_error / 2, 2]
    assert b"specwatch_failures_total %d.0" % is_error in scene.recorder.metrics.render()


def test_errors_are_forgotten_after_five_minutes(scene: Scene) -> None:
    recent = scene.sources.recent
    recent.add(record(outcome=Outcome.TIMEOUT), 1000.0)
    recent.add(record(), 1200.0)
    names = ("error_rate", "requests")
    assert scene.readings(*names, now=1294.0) == [0.5, 2]
    assert scene.readings(*names, now=1300.0) == [0.0, 1]
    assert scene.readings(*names, now=1500.0) == [None, 0]


SLOW: dict[str, Any] = {"stream": True, "ttft_ms": 2000.1}


@pytest.mark.parametrize(
    ("fields", "is_late"),
    [
        (SLOW, 1),
        (SLOW | {"arm": Arm.PROBE}, 1),
        (SLOW | {"outcome": Outcome.CLIENT_ABORT}, 1),
        (SLOW | {"ttft_ms": 2000.0}, 0),
        (SLOW | {"ttft_ms": None}, 0),
        (SLOW | {"stream": False}, 0),
        (SLOW | {"arm": Arm.BASELINE}, 0),
        (SLOW | {"arm": Arm.AUTOREGRESSIVE, "upstream": AUTOREGRESSIVE}, 0),
    ],
)
def test_late_streams_are_those_with_speculation(tmp_path: Path, fields: dict[str, Any], is_late: int) -> None:
    scene = Scene(tmp_path, first_byte_limit_s=2.0)
    scene.ended(record(**fields))
    assert scene.readings("late_streams") == [is_late]
    assert scene.readings("late_streams", now=time.time() + 61) == [0]
    assert b"specwatch_late_streams_total %d.0" % is_late in scene.recorder.metrics.render()


def test_streams_that_wait_are_late_already(tmp_path: Path) -> None:
    scene = Scene(tmp_path, first_byte_limit_s=2.0)
    scene.sources = replace(scene.sources, tap=Run(STREAM).context)
    scene.ended(record(**SLOW))
    now = time.time()
    for monotonic, expected in ((12.0, 1), (12.1, 2)):
        assert collect(scene.sources, now, monotonic)["", ""]["late_streams"] == expected
    scene.sources = replace(scene.sources, tap=Run(STREAM, arm=Arm.BASELINE).context)
    assert collect(scene.sources, now, 12.1)["", ""]["late_streams"] == 1, "nothing is drafted for that one"


def test_without_a_limit_no_stream_is_late() -> None:
    recent = Recent(None)
    recent.add(record(stream=True, ttft_ms=9e9), 1000.0)
    assert (recent.late_streams, recent.late.total(1000.0)) == (0, 0)


# ---- the sidecar itself, and the upstreams

Losing = Callable[[Sources], None]


def lose_records(sources: Sources) -> None:
    sources.writer.lose_text()
    sources.writer.lose_text()
    sources.writer.refused += 1


def lose_taps(sources: Sources) -> None:
    sources.tap.failures += 3


def lose_steps(sources: Sources) -> None:
    assert sources.feed is not None
    sources.feed.ledger.steps_dropped += 3


LOSSES = {"records_dropped": lose_records, "tap_failures": lose_taps, "feed_steps_dropped": lose_steps}


@pytest.mark.parametrize(("name", "lose"), LOSSES.items())
def test_losses_are_those_of_the_last_five_minutes(tmp_path: Path, name: str, lose: Losing) -> None:
    scene = Scene(tmp_path, engine_events=tmp_path / "events.sock")
    lose(scene.sources)
    assert scene.readings(name, now=1000.0) == [3], "since the start"
    assert scene.readings(name, now=1200.0) == [3]
    lose(scene.sources)
    assert scene.readings(name, now=1290.0) == [6]
    assert scene.readings(name, now=1300.0) == [3]
    assert scene.readings(name, now=1600.0) == [0]


def test_parts_of_the_sidecar(scene: Scene) -> None:
    names = ("database_up", "failed_tasks")
    scene.sources.writer.healthy = True
    scene.sources.tasks.failed.append("facts")
    assert scene.readings(*names) == [1, 1]


async def test_the_feed(tmp_path: Path) -> None:
    scene = Scene(tmp_path, engine_events=tmp_path / "events.sock")
    feed = scene.sources.feed
    assert feed is not None
    assert scene.readings("feed_connected") == [0]
    feed.start()
    engine = ScriptedEngine(tmp_path / "events.sock")
    await until(lambda: feed.connected > 0)
    assert scene.readings("feed_connected") == [1]
    engine.close()
    await until(lambda: feed.connected == 0)
    assert scene.readings("feed_connected") == [0]
    feed.stop()


def test_upstreams_that_are_away(scene: Scene) -> None:
    scene.down.append(AUTOREGRESSIVE)
    assert [scene.readings("upstream_up", kind="upstream", value=name) for name in (SPECULATIVE, AUTOREGRESSIVE)] == [
        [1],
        [0],
    ]
    assert b'specwatch_upstream_up{upstream="autoregressive"} 0.0' in scene.recorder.metrics.render()


def test_an_upstream_that_may_be_loading_is_neither_up_nor_down(scene: Scene) -> None:
    scene.down.append(AUTOREGRESSIVE)
    scene.starting.append(AUTOREGRESSIVE)
    assert scene.readings("upstream_up", kind="upstream", value=AUTOREGRESSIVE) == [None]
    assert b'specwatch_upstream_up{upstream="autoregressive"}' not in scene.recorder.metrics.render()


def test_notifications_that_failed(scene: Scene) -> None:
    unsent = 0
    scene.sources = replace(scene.sources, unsent=lambda: unsent)
    now = time.time()
    assert scene.readings("notifications_failed", now=now) == [0]
    unsent = 3
    assert scene.readings("notifications_failed", now=now + 15) == [3]
    assert scene.readings("notifications_failed", now=now + 400) == [0]


async def test_what_upstreams_count_themselves(scene: Scene) -> None:
    counting, other = Counting(), Counting()
    async with watching(serving(counting), serving(other)) as (made, _, look):
        scene.sources = replace(scene.sources, counters=made, up=lambda: {"a": True, "b": True})
        await look()
        counting.step([2, 3, 4, 0])
        counting.step([2, 3, 4, 0])
        made.add(ended(acceptance=TOLD))
        await look()
        await settled()
        await look()
        # 32 draft tokens, 18 accepted; 16 of them in the record.
        assert scene.all("upstream", "a") == {"upstream_up": 1, "coverage": 0.5, "engine_acceptance_rate": 18 / 32}
        assert scene.all("upstream", "b") == {"upstream_up": 1, "coverage": None, "engine_acceptance_rate": None}
