import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from specwatch_engine.lab.load import NO_FIGURES, Reply
from specwatch_engine.lab.progress import Say
from specwatch_engine.lab.prompts import CHAT, Prompt
from specwatch_engine.lab.qualify.gates import PlainKind, Steps
from specwatch_engine.lab.qualify.measure import (
    PAIRS,
    TRIALS,
    Measure,
    asked,
    choose,
    parts,
    steps_of,
)
from specwatch_engine.lab.qualify.similarity import Similarity
from specwatch_engine.lab.qualify.step_plan import StepPlan
from specwatch_engine.lab.run import Run
from specwatch_engine.lab.stand import Engine, StandError
from support.records import figures, record
from support.steered_engine import TOKEN
from support.upstream import running

from sidecar.record import Acceptance, Outcome, Record

PROMPT = Prompt("p", "code", {"messages": []}, CHAT)


def timed(**changes: Any) -> Record:
    # Of 4 steps 1 accepts two tokens and 3 none.
    plain = {"latency_ms": 300.0, "ttft_ms": 100.0, "completion_tokens": 7, "acceptance": figures((3, 0, 1))}
    return record(**plain | changes)


@pytest.mark.parametrize(
    ("name", "found", "plain", "expected"),
    [
        ("verify steps", timed(), False, Steps(200.0, 4, 100.0)),
        ("a step at the end drafted nothing", timed(completion_tokens=9), False, Steps(200.0, 6, 100.0)),
        ("the end was cut off", timed(completion_tokens=6), False, Steps(200.0, 4, 100.0)),
        ("plain", timed(acceptance=Acceptance()), True, Steps(200.0, 6, 100.0)),
        ("one token", timed(completion_tokens=1, acceptance=Acceptance()), True, None),
        ("no figures", timed(acceptance=Acceptance()), False, None),
        ("failed", timed(outcome=Outcome.TIMEOUT), False, None),
        ("no first token", timed(ttft_ms=None), True, None),
        ("tokens not told", timed(completion_tokens=None), True, None),
    ],
)
def test_steps_are_those_after_the_first_token(name: str, found: Record, plain: bool, expected: Steps | None) -> None:
    assert steps_of(found, plain=plain) == expected


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (timed(), None),
        (timed(acceptance=Acceptance(reason="the reply was cut")), "the reply was cut"),
        (timed(acceptance=Acceptance()), "nothing was drafted"),
    ],
)
def test_a_row_tells_what_counts_or_why_nothing_does(found: Record, reason: str | None) -> None:
    row = asked(Reply(PROMPT, found, "secret", None, 2))
    assert row.reason == reason
    counts = row.counted()
    assert (counts is None) == (reason is not None)
    if counts is not None:
        assert (counts.verify_steps, counts.draft_tokens, counts.accepted_tokens) == (4, 8, 2)
        assert counts.rejected_at == [3, 0]


def test_pairs_are_of_each_scenario_or_of_all() -> None:
    sample = [Prompt(f"p{i}", "rare" if i % 10 == 0 else "common", {}, CHAT) for i in range(200)]
    chosen = choose(sample, 10, 4)
    assert sum(each.scenario == "rare" for each in chosen) == 11
    assert sum(each.scenario == "common" for each in chosen) == 11
    assert choose(sample, None, 4) == sample[:64]
    assert choose(sample, None, 32) == sample[:128]


@pytest.mark.parametrize("concurrency", [1, 4, 8, 16, 32])
def test_parts_are_of_even_number_and_nearly_of_one_size(concurrency: int) -> None:
    for number in (1, 2, 17, 55, 64, 4 * concurrency, 400):
        sample = [Prompt(f"p{i}", "s", {}, CHAT) for i in range(number)]
        found = parts(sample, concurrency)
        assert [prompt for part in found for prompt in part] == sample
        assert len(found) % 2 == 0
        sizes = [len(part) for part in found]
        assert max(sizes) <= max(16, 4 * concurrency)
        assert max(sizes) - min(sizes) <= 1


def some(number: int) -> list[Prompt]:
    message = {"role": "user", "name": "billing"}
    return [
        Prompt(f"p{i}", "billing", {"messages": [message | {"content": f"q{i}"}], "max_tokens": 64}, CHAT)
        for i in range(number)
    ]


async def measured(
    stand: Engine, prompts: Sequence[Prompt], folder: Path, phase: Callable[[Measure], Coroutine[Any, Any, None]]
) -> Run:
    """The run in `folder` after one phase; calls of the engine's route would keep its server from answering."""
    run = Run.create("qualify", {}, folder)
    try:
        await asyncio.to_thread(lambda: asyncio.run(phase(Measure(stand, run, prompts, Say()))))
    finally:
        run.close()
    return run


def pairs(prompts: Sequence[Prompt], concurrency: int = 2) -> Callable[[Measure], Coroutine[Any, Any, None]]:
    return lambda measure: measure.pairs(concurrency, prompts, Similarity("none"))


async def test_sides_take_turns_on_warm_prompts_and_the_plain_one_is_under_a_cap_of_0(
    drafting: Any, tmp_path: Path
) -> None:
    async with running(drafting.handler) as upstream:
        stand = Engine(upstream.url, "m", TOKEN, k=4)
        run = await measured(stand, some(24), tmp_path / "run", pairs(some(24)))
    drafts, plain = (64, (None, "hard")), (64, (0, "hard"))
    warm = (1, (None, "hard"))
    assert drafting.limits == [*[warm] * 12, *[drafts] * 12, *[plain] * 12, *[warm] * 12, *[plain] * 12, *[drafts] * 12]
    rows = run.rows(PAIRS)
    assert len(rows) == 24
    assert all(row["plain"] is not None for row in rows)
    assert drafting.cap is None


async def test_an_engine_apart_is_as_warm_as_the_other(drafting: Any, tmp_path: Path) -> None:
    other = type(drafting)()
    other.cap = 0
    async with running(drafting.handler) as one, running(other.handler) as two:
        stand = Engine(one.url, "m", TOKEN, k=4, plain_url=two.url)
        await measured(stand, some(24), tmp_path / "run", pairs(some(24)))
    for engine in (drafting, other):
        assert [limit for limit, _ in engine.limits] == [*[1] * 12, *[64] * 12] * 2
    # The engine under test was not capped for what another one answers.
    assert all(cap is None for _, (cap, _) in drafting.limits)


async def test_an_engine_apart_that_speculates_itself_is_named(drafting: Any, tmp_path: Path) -> None:
    async with running(drafting.handler) as one, running(type(drafting)().handler) as two:
        stand = Engine(one.url, "m", TOKEN, k=4, plain_url=two.url)
        with pytest.raises(StandError, match=f"--plain: the engine at {two.url} speculates itself"):
            await measured(stand, some(24), tmp_path / "run", pairs(some(24)))


async def test_a_cap_that_is_lifted_under_plain_decoding_ends_the_phase(drafting: Any, tmp_path: Path) -> None:
    answer = drafting._control

    def lifted(method: str, path: str, head: bytes, body: bytes) -> bytes:
        if method == "GET":
            drafting.cap = None
        return bytes(answer(method, path, head, body))

    drafting._control = lifted
    async with running(drafting.handler) as upstream:
        with pytest.raises(StandError, match="the engine's cap was set to 0 and is 4 now"):
            await measured(Engine(upstream.url, "m", TOKEN, k=4), some(24), tmp_path / "run", pairs(some(24)))
    assert drafting.cap is None


async def test_replies_without_figures_end_the_run_at_once(drafting: Any, tmp_path: Path) -> None:
    drafting.tells = False
    async with running(drafting.handler) as upstream:
        stand = Engine(upstream.url, "m", TOKEN, k=4)
        with pytest.raises(StandError) as raised:
            await measured(stand, some(100), tmp_path / "run", lambda measure: measure.acceptance(2))
    assert str(raised.value) == NO_FIGURES
    assert 20 <= len(drafting.asked) <= 22


async def test_steps_are_given_up_where_no_prompt_tells_them(drafting: Any, tmp_path: Path) -> None:
    drafting.tells = False
    plan = StepPlan((1, 4), "hard", PlainKind.DISABLED_DRAFT_RUNS)
    async with running(drafting.handler) as upstream:
        run = await measured(
            Engine(upstream.url, "m", TOKEN, k=4),
            some(60),
            tmp_path / "run",
            lambda measure: measure.steps(plan, 48, 0.3),
        )
    assert run.rows(TRIALS) == []
    assert len(drafting.asked) == 20
    assert drafting.cap is None
