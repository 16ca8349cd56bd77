"""Each check over facts: named cases of what it says, and of what it does not say."""

from pathlib import Path
from typing import Any

import pytest
from specwatch_engine.plugin.compat import hooks
from support.doctor import AWAY, NOW, at, drafted, engine, facts, row, side, told

from sidecar.control.engine import EngineState, Events
from sidecar.doctor import lengths
from sidecar.doctor.checks import context, drafts, latency, plugin, replies, serving, waits
from sidecar.doctor.facts import LogFacts, Machine, Unseen
from sidecar.doctor.findings import run
from sidecar.settings import Settings

GOOD, BAD = (1, 1, 2, 2, 14), (12, 4, 2, 1, 1)
PLAIN = {"arm": "baseline", "acceptance_quality": "unknown", "acceptance_reason": "served without speculation"}


def rows(*groups: tuple[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """So many of each, newest first."""
    return [row(**{"started_at": at(-1 - i), **group}) for number, group in groups for i in range(number)]


# ---- drafts


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([(GOOD, "a", 40)], {"acceptance": "fine"}),
        ([(BAD, "a", 40)], {"acceptance-low": "fault"}),
        ([(GOOD, "a", 40), (BAD, "b", 40)], {"acceptance-low-in-scenario": "fault"}),
        ([(GOOD, "a", 90), (BAD, "b", 10)], {"acceptance": "fine", "acceptance-low-in-scenario": "fault"}),
        ([(BAD, "a", 40), (BAD, "b", 40)], {"acceptance-low": "fault"}),
        ([(GOOD, "a", 5)], {"acceptance": "unseen"}),
        ([], {"acceptance": "unseen"}),
    ],
    ids=["good", "low", "low in one scenario", "hidden by the whole", "low in both", "too few", "none"],
)
def test_acceptance(groups: list[tuple[tuple[int, ...], str, int]], expected: dict[str, str]) -> None:
    found = [drafted(steps, scenario=name) for steps, name, number in groups for _ in range(number)]
    assert told([drafts.CHECKS[0]], facts(rows=found)) == expected


def test_acceptance_is_judged_by_the_mark_of_its_k_and_of_the_present_engine() -> None:
    settings = Settings(fallback_below_by={"k=4": 0.1})
    before = [drafted(GOOD, fingerprint="another") for _ in range(40)]
    now = [drafted(BAD) for _ in range(40)]
    assert told([drafts.CHECKS[0]], facts(rows=now + before, settings=settings)) == {"acceptance": "fine"}
    assert told([drafts.CHECKS[0]], facts(rows=now + before)) == {"acceptance-low": "fault"}


@pytest.mark.parametrize(
    ("steps", "cost", "expected", "title"),
    [
        # p of 0.8 throughout: the guide's 35 % are passed, and k is good all the same.
        ((200, 160, 128, 102, 410), None, {"draft-length": "fine", "truncations": "note"}, ""),
        ((200, 160, 128, 102, 410), 0.1, {"draft-length": "fine", "truncations": "note"}, ""),
        ((200, 160, 128, 102, 410), 0.5, {"draft-too-long": "warning"}, "and 2 would do"),
        # p of 0.5: of eight, the second is the last that a quarter of the steps accepts.
        (
            (500, 250, 125, 62, 31, 16, 8, 4, 4),
            None,
            {"draft-too-long": "warning"},
            "8 tokens are drafted, and 2 would",
        ),
        ((500, 250, 125, 62, 31, 16, 8, 4, 4), 0.02, {"draft-length": "fine", "truncations": "note"}, ""),
        ((10, 10, 10, 10, 960), None, {"draft-length": "fine"}, ""),
        ((1, 1, 1, 1, 1), None, {"draft-length": "unseen"}, ""),
    ],
    ids=["good", "good, cost known", "an expensive draft", "poor", "poor and cheap", "very good", "too few steps"],
)
def test_draft_length(steps: tuple[int, ...], cost: float | None, expected: dict[str, str], title: str) -> None:
    made = facts(rows=[drafted(steps)], settings=Settings(draft_cost=cost))
    assert told([drafts.CHECKS[1]], made) == expected
    assert title in run([drafts.CHECKS[1]], made).findings[0].title if title else True


def test_the_cost_is_bounded_by_latencies_where_it_is_not_set() -> None:
    """A verify step takes 30 ms at k=8, a token without speculation 15: c is at most (2 - 1) / 8."""
    steps = (500, 250, 125, 62, 31, 16, 8, 4, 4)
    ours = [drafted(steps, ttft_ms=50.0, latency_ms=50.0 + 30 * 999) for _ in range(20)]
    plain = rows((20, PLAIN | {"tpot_ms": 15.0}))
    assert lengths.cost_bound(ours, ours + plain) == pytest.approx(1 / 8)
    assert lengths.cost_bound(ours, ours) is None
    (finding,) = run([drafts.CHECKS[1]], facts(rows=ours + plain)).findings
    assert "at most 0.125 of a verify step" in finding.seen[-1]
    assert finding.id == "draft-too-long"


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (GOOD, "positions"),
        ((40, 30, 25, 200, 5, 0, 0), "acceptance-cliff"),
        ((700, 20, 20, 20, 20), "first-token-missed"),
    ],
)
def test_positions(steps: tuple[int, ...], expected: str) -> None:
    found = told([drafts.CHECKS[2]], facts(rows=[drafted(steps) for _ in range(20)]))
    assert list(found) == [expected]


# ---- serving


@pytest.mark.parametrize(
    ("reason", "share", "expected"),
    [
        ("no usage was asked for: load the engine plugin", 0.9, {"no-usage": "fault"}),
        ("no usage was asked for: load the engine plugin", 0.3, {"no-usage": "warning"}),
        ("no usage was asked for: load the engine plugin", 0.02, {"coverage": "fine"}),
        ("the client declined usage: load the engine plugin", 0.3, {"usage-declined": "warning"}),
        ("the usage event has no acceptance block: is", 0.9, {"no-block": "fault"}),
        ("nothing was drafted for this request", 0.9, {"nothing-drafted": "fault"}),
        ("acceptance block of unknown shape: x", 0.9, {"unknown-block": "fault"}),
        ("something new", 0.9, {"figures-missing": "fault"}),
    ],
)
def test_replies_without_figures(reason: str, share: float, expected: dict[str, str]) -> None:
    without = round(100 * share)
    found = rows(
        (without, {"acceptance_quality": "unknown", "acceptance_reason": reason}),
        (100 - without, {}),
        # What is served without speculation has none, as is right.
        (50, PLAIN),
    )
    assert told([serving.CHECKS[1]], facts(rows=found)) == expected


def state(**fields: Any) -> dict[str, Any]:
    return {
        "mode": "auto",
        "state": "speculative",
        "since": at(-60),
        "reason": "started",
        "trigger": "operator",
        "evidence": None,
        "can_fall_back": True,
        "effective": None,
        "dry_run": False,
        "until": None,
        "slices": [],
        "fleet": None,
        "shared": None,
        "decided_by": "one",
        "certificate": None,
    } | fields


SLICE = {"slice": "scenario=b", "state": "autoregressive", "reason": "p is low", "trigger": "acceptance"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"fallback": "fine"}),
        ({"state": "autoregressive", "trigger": "acceptance"}, {"fell-back": "warning"}),
        ({"state": "autoregressive", "mode": "autoregressive"}, {"speculation-off": "warning"}),
        ({"state": "ineffective", "effective": False}, {"fallback-ineffective": "fault"}),
        ({"effective": False}, {"opt-out-ineffective": "warning"}),
        ({"slices": [SLICE]}, {"fallback": "fine", "slice-fell-back": "warning"}),
        ({"can_fall_back": False}, {"fallback": "fine", "cannot-fall-back": "note"}),
        ({"dry_run": True}, {"fallback": "fine", "dry-run": "note"}),
        (
            {"certificate": {"state": "other_engine", "words": "k is 4 there"}},
            {"fallback": "fine", "certificate-of-another-engine": "warning"},
        ),
        ({"certificate": {"state": "valid", "words": "well"}}, {"fallback": "fine"}),
    ],
)
def test_how_requests_are_served(fields: dict[str, Any], expected: dict[str, str]) -> None:
    assert told([serving.CHECKS[0]], facts(sidecar=side(fallback=state(**fields)))) == expected


def test_coverage_by_the_engines_own_counters() -> None:
    def summary(ratio: float | None) -> dict[str, Any]:
        figures = {"rows_draft_tokens": 10, "draft_tokens": 20, "span_s": 60.0, "reason": "idle"}
        return {"coverage": {"engines": [{"upstream": "speculative", "coverage": ratio, **figures}]}}

    for ratio, severity in ((0.5, "warning"), (0.97, "fine"), (1.02, "fine"), (None, "unseen")):
        found = told([serving.CHECKS[2]], facts(sidecar=side(summary=summary(ratio))))
        assert list(found.values()) == [severity]


def test_engines_side_by_side_and_one_after_the_other() -> None:
    after = rows((30, {"fingerprint": "new"}), (30, {"fingerprint": "old"}))
    mixed = [row(fingerprint="new" if i % 2 else "old") for i in range(60)]
    assert told([serving.CHECKS[3]], facts(rows=after)) == {"fingerprints-changed": "note"}
    assert told([serving.CHECKS[3]], facts(rows=mixed)) == {"fingerprints-mixed": "warning"}
    assert told([serving.CHECKS[3]], facts(rows=rows((9, {})))) == {"fingerprints": "fine"}


@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        ((1, {"outcome": "upstream_error", "status": 500}), {"outcomes": "fine"}),
        ((10, {"outcome": "upstream_error", "status": 500}), {"requests-fail": "warning"}),
        ((10, {"outcome": "bad_gateway", "status": 502}), {"requests-fail": "warning"}),
        ((60, {"outcome": "truncated", "status": 200}), {"requests-fail": "fault"}),
        # Of the clients' own doing.
        ((60, {"outcome": "upstream_error", "status": 400}), {"outcomes": "fine"}),
        ((60, {"outcome": "client_abort", "status": 200}), {"outcomes": "fine"}),
    ],
)
def test_requests_that_fail(failed: tuple[int, dict[str, Any]], expected: dict[str, str]) -> None:
    assert told([serving.CHECKS[4]], facts(rows=rows((100, {}), failed))) == expected


# ---- latency


def timed(ours: float, theirs: float, concurrency: int = 1, number: int = 60, **plain: Any) -> list[dict[str, Any]]:
    """Both spread by 5 % to each side."""
    spread = [0.95 + 0.1 * i / number for i in range(number)]
    return [row(latency_ms=ours * each, concurrency=concurrency) for each in spread] + [
        row(**{**PLAIN, "latency_ms": theirs * each, "concurrency": concurrency, **plain}) for each in spread
    ]


@pytest.mark.parametrize(
    ("found", "expected", "words"),
    [
        (timed(500, 900), {"latency-ratio": "fine"}, "ratio 0.56"),
        (timed(900, 500), {"slower-than-plain": "fault"}, "ratio 1.80"),
        (timed(502, 500), {"perhaps-slower-than-plain": "warning"}, "ratio 1.00"),
        # C09: p is fine throughout, and speculation loses at 32.
        (timed(1750, 3000) + timed(9000, 6000, 32), {"slower-under-load": "warning"}, "ratio 1.50"),
        (timed(900, 500, number=10), {"latency-ratio": "unseen"}, ""),
        ([], {"latency-ratio": "unseen"}, ""),
        (timed(500, 900, upstream="autoregressive"), {"latency-ratio": "fine"}, "an engine without a draft"),
    ],
    ids=["faster", "slower", "perhaps", "C09", "too few", "none", "true_ar"],
)
def test_the_latency_ratio(found: list[dict[str, Any]], expected: dict[str, str], words: str) -> None:
    made = facts(rows=found)
    assert told([latency.CHECKS[0]], made) == expected
    assert any(words in each for each in run([latency.CHECKS[0]], made).findings[0].seen) if words else True


def test_the_rule_of_batch_sizes_is_named() -> None:
    made = facts(rows=timed(1750, 3000) + timed(500, 900, 4) + timed(9000, 6000, 32))
    (finding,) = run([latency.CHECKS[0]], made).findings
    assert finding.remedy.startswith("speculation_max_batch_size: 4 ")


@pytest.mark.parametrize(
    ("first", "before", "expected"),
    [
        (9000.0, True, {"first-request-slow": "warning"}),
        (90.0, True, {"first-request": "fine"}),
        (900.0, True, {"first-request": "fine"}),
        # The engine ran for long before there was anybody to record it.
        (9000.0, False, {"first-request": "unseen"}),
    ],
)
def test_the_first_request_after_a_start(first: float, before: bool, expected: dict[str, str]) -> None:
    found = [row(started_at=at(-100 + i), ttft_ms=50.0 if i else first) for i in range(30)][::-1]
    found += [row(started_at=at(-500))] if before else []
    text = f"process_start_time_seconds {NOW - 200}\n"
    assert told([latency.CHECKS[1]], facts(rows=found, engines={"speculative": engine(text)})) == expected


def test_the_queue_of_the_engine() -> None:
    slow = rows((30, {"queue_ms": 800.0, "ttft_ms": 900.0}))
    assert told([latency.CHECKS[2]], facts(rows=slow)) == {"engine-queue": "warning"}
    assert told([latency.CHECKS[2]], facts(rows=rows((30, {})))) == {"engine-queue": "fine"}


# ---- time-outs

CUT = {"outcome": "timeout", "latency_ms": 2010.0}


@pytest.mark.parametrize(
    ("settings", "found", "expected"),
    [
        ({}, rows((30, {})), {"timeouts": "fine"}),
        ({"idle_timeout_s": 10}, rows((30, {})), {"timeouts": "fine"}),
        ({"idle_timeout_s": 0.06}, rows((30, {})), {"idle-timeout-near": "warning"}),
        (
            {"idle_timeout_s": 2},
            rows((95, {}), (5, CUT)),
            {"idle-timeout-short": "fault"},
        ),
        # Of an earlier, shorter setting.
        (
            {"idle_timeout_s": 60},
            rows((95, {}), (5, CUT)),
            {"timeouts": "fine"},
        ),
        (
            {"client_timeout_s": 5},
            rows((30, {}), (4, {"outcome": "client_abort", "latency_ms": 5500.0})),
            {"client-timeout-short": "warning"},
        ),
        ({}, rows((30, {}), (4, {"outcome": "client_abort", "latency_ms": 500.0})), {"timeouts": "fine"}),
        ({}, rows((30, {}), (4, {"outcome": "bad_gateway", "latency_ms": 5010.0})), {"connect-timeout": "warning"}),
        ({"first_byte_limit_s": 0.055}, rows((30, {})), {"first-byte-limit-short": "warning"}),
        ({"first_byte_limit_s": 0.04}, rows((30, {})), {"first-byte-limit-short": "fault"}),
        ({"first_byte_limit_s": 3}, rows((30, {})), {"timeouts": "fine"}),
    ],
)
def test_timeouts(settings: dict[str, Any], found: list[dict[str, Any]], expected: dict[str, str]) -> None:
    assert told(waits.CHECKS, facts(rows=found, settings=Settings(**settings))) == expected


def test_the_engines_own_timeout() -> None:
    made = facts(rows=rows((30, {"latency_ms": 9000.0})), engine_files={"engine": {"request_timeout_s": 10.0}})
    assert told(waits.CHECKS, made) == {"request-timeout-near": "warning"}


# ---- contexts


@pytest.mark.parametrize(
    ("on", "long", "expected"),
    [
        ("True", 20, {"prefix-cache": "fine"}),
        ("False", 20, {"prefix-caching-off": "warning"}),
        ("False", 0, {"prefix-caching-off-short": "note"}),
    ],
)
def test_prefix_cache(on: str, long: int, expected: dict[str, str]) -> None:
    text = f'vllm:cache_config_info{{enable_prefix_caching="{on}",engine="0"}} 1.0\n'
    made = facts(rows=rows((30, {}), (long, {"prompt_tokens": 3000})), engines={"speculative": engine(text)})
    assert told([context.CHECKS[0]], made) == expected


def test_acceptance_that_falls_with_length() -> None:
    """C10."""
    found = [drafted(GOOD) for _ in range(40)] + [drafted(BAD, prompt_tokens=120_000) for _ in range(10)]
    assert told([context.CHECKS[1]], facts(rows=found)) == {"acceptance-falls-with-length": "warning"}
    alike = [drafted(GOOD, prompt_tokens=100 if i % 2 else 3000) for i in range(60)]
    assert told([context.CHECKS[1]], facts(rows=alike)) == {"long-prompts": "fine"}


def test_near_the_longest_context() -> None:
    near, far = {"prompt_tokens": 4000, "completion_tokens": 95}, {}
    assert told([context.CHECKS[2]], facts(rows=rows((90, far), (10, near)))) == {"near-max-model-len": "warning"}
    assert told([context.CHECKS[2]], facts(rows=rows((90, far), (1, near)))) == {"context-end": "fine"}


# ---- replies


def quality(**shares: float) -> dict[str, Any]:
    flags = [
        {"flag": name, "total": 9, "share": shares.get(name, 0.0)} for name in ("repetition", "garble", "p_near_one")
    ]
    return {"requests": 100, "flags": flags, "recent": [{"evidence": "a loop of 3 tokens"}]}


def test_repeated_and_garbled_replies() -> None:
    check = [replies.CHECKS[0]]
    assert told(check, facts(sidecar=side(quality=quality()))) == {"output-flags": "fine"}
    assert told(check, facts(sidecar=side(quality=quality(repetition=0.2)))) == {"replies-repetition": "fault"}
    assert told(check, facts(sidecar=side(quality=quality(garble=0.2)))) == {"replies-garble": "fault"}
    # A draft that is hardly ever wrong is none by itself.
    assert told(check, facts(sidecar=side(quality=quality(p_near_one=0.9)))) == {"output-flags": "fine"}
    assert told(check, facts(sidecar=side(quality={"requests": 0, "flags": [], "recent": []}))) == {
        "output-flags": "unseen"
    }


@pytest.mark.parametrize(("mean", "expected"), [(0.9, "fine"), (0.8, "warning"), (0.7, "fault")])
def test_similarity(mean: float, expected: str) -> None:
    found = {"reason": None, "draft": {"mean": mean, "pairs": 50, "critical": 3}}
    made = facts(sidecar=side(summary={"similarity": found}))
    assert list(told([replies.CHECKS[1]], made).values()) == [expected]


CPU_LOG = LogFacts(Path("e.log"), 1, 1.0, ("… device_config=cpu, …",), AWAY)


@pytest.mark.parametrize(
    ("groups", "cpu", "expected"),
    [
        ([(GOOD, 0.0, 40)], True, {"temperature": "fine"}),
        ([(GOOD, 0.5, 40)], False, {"temperature": "fine"}),
        ([(GOOD, 0.5, 40)], True, {"temperature-on-cpu": "warning"}),
        ([(GOOD, 0.5, 40), (GOOD, 1.0, 40)], False, {"temperature-above": "note"}),
        ([(GOOD, 0.5, 40), (BAD, 1.0, 40)], False, {"temperature-high": "warning"}),
        ([(GOOD, None, 40)], True, {"temperature": "fine"}),
    ],
)
def test_temperature(groups: list[Any], cpu: bool, expected: dict[str, str]) -> None:
    found = [drafted(steps, temperature=value) for steps, value, number in groups for _ in range(number)]
    made = facts(rows=found, logs=[CPU_LOG] if cpu else [], machine=Machine())
    assert told([replies.CHECKS[2]], made) == expected


# ---- the plugin


def test_the_known_versions_are_the_plugins() -> None:
    assert set(plugin.KNOWN) == set(hooks.KNOWN)


@pytest.mark.parametrize(
    ("code", "token", "expected"),
    [
        ("no_engine_token", None, {"engine-control": "unseen"}),
        ("no_engine_token", "t", {"engine-token": "fault"}),
        ("wrong_engine_token", "t", {"engine-token": "fault"}),
        ("no_plugin", "t", {"no-plugin": "warning"}),
        ("refused", "t", {"plugin-fails": "fault"}),
        ("engine_failed", "t", {"plugin-fails": "fault"}),
        ("engine_silent", "t", {"engine-control": "unseen"}),
    ],
)
def test_the_control_route(code: str, token: str | None, expected: dict[str, str]) -> None:
    made = facts(
        settings=Settings(engine_token=token),
        engines={"speculative": engine(cores=Unseen("words of the engine", code))},
    )
    assert told([plugin.CHECKS[1]], made) == expected


FEED = "specwatch_engine_feed_"


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (f"{FEED}connected_cores 1\n{FEED}steps_total 900\n", {"engine-events": "fine"}),
        (f"{FEED}connected_cores 0\n{FEED}steps_total 0\n", {"engine-events-missing": "fault"}),
        (
            f"{FEED}connected_cores 1\n{FEED}steps_total 900\n{FEED}steps_dropped_total 90\n",
            {"engine-events-lost": "warning"},
        ),
        ("", {"engine-events-unset": "note"}),
    ],
)
def test_the_engines_events(metrics: str, expected: dict[str, str]) -> None:
    made = facts(settings=Settings(engine_events="/run/e.sock"), sidecar=side(metrics))
    assert told([plugin.CHECKS[2]], made) == expected


def test_events_that_nobody_wants_or_that_go_elsewhere() -> None:
    def core(connected: bool) -> EngineState:
        return EngineState(engine=0, method="draft_model", events=Events(connected=connected))

    for connected, expected in ((True, "engine-events-elsewhere"), (False, "engine-events-unheard")):
        made = facts(engines={"speculative": engine(cores=[core(connected)])})
        assert told([plugin.CHECKS[2]], made) == {expected: "note"}
