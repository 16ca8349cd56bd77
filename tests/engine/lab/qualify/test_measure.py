import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from specwatch_engine.lab.control import ControlError
from specwatch_engine.lab.load import Reply
from specwatch_engine.lab.prompts import CHAT, Prompt
from specwatch_engine.lab.qualify import measure
from specwatch_engine.lab.qualify.gates import PlainKind, Steps
from specwatch_engine.lab.qualify.measure import Similarity, asked, choose, step_plan, steps_of
from specwatch_engine.lab.qualify.outputs import Outputs
from specwatch_engine.lab.stand import Engine
from support.records import figures, record
from support.steered_engine import TOKEN, SteeredEngine
from support.upstream import running

from sidecar.probes.child import ChildError
from sidecar.probes.embedder import Compared, NoModel
from sidecar.record import Acceptance, Outcome, Record

PROMPT = Prompt("p", "code", {"messages": []}, CHAT)


def timed(**changes: Any) -> Record:
    # Of 4 steps 1 accepts two tokens and 3 none.
    plain = {"latency_ms": 300.0, "ttft_ms": 100.0, "completion_tokens": 7, "acceptance": figures((3, 0, 1))}
    return record(**plain | changes)


@pytest.mark.parametrize(
    ("name", "found", "plain", "expected"),
    [
        ("verify steps", timed(), False, Steps(200.0, 4)),
        ("a step at the end drafted nothing", timed(completion_tokens=9), False, Steps(200.0, 6)),
        ("the end was cut off", timed(completion_tokens=6), False, Steps(200.0, 4)),
        ("plain", timed(acceptance=Acceptance()), True, Steps(200.0, 6)),
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
    chosen = choose(sample, 10)
    assert sum(each.scenario == "rare" for each in chosen) == 11
    assert sum(each.scenario == "common" for each in chosen) == 11
    assert choose(sample, None) == sample[:64]


class Scripted(SteeredEngine):
    """Refuses what a test wants it to."""

    def __init__(self, *, cold: bool = True, mode: str = "hard", at_zero: str = "the draft does not run") -> None:
        super().__init__()
        self.cold, self.at_zero = cold, at_zero
        self.mode = mode

    def state(self, number: int = 0) -> dict[str, Any]:
        return super().state(number) | {"at_zero": self.at_zero}

    def _control(self, method: str, path: str, head: bytes, body: bytes) -> bytes:
        self.refuses = "mode: cold is not possible" if b"cold" in body and not self.cold else ""
        return super()._control(method, path, head, body)


@pytest.mark.parametrize(
    ("name", "engine", "changes", "caps", "plain"),
    [
        ("cold", Scripted(), {}, (1, 4), PlainKind.DISABLED),
        ("the draft runs", Scripted(cold=False, at_zero="the draft model runs once a step"), {}, (1, 4),
         PlainKind.DISABLED_DRAFT_RUNS),
        ("by look-up", Scripted(cold=False, at_zero="nothing is drafted"), {}, (1, 4), PlainKind.DISABLED),
        ("one token", Scripted(), {"k": 1}, (1,), PlainKind.DISABLED),
        ("always drafts", Scripted(mode="soft"), {}, (4,), None),
        ("always drafts, beside another", Scripted(mode="soft"), {"plain_url": "http://x"}, (4,), PlainKind.TRUE_AR),
        ("beside another", Scripted(), {"plain_url": "http://x"}, (1, 4), PlainKind.TRUE_AR),
        ("no plugin", Scripted(), {"token": None}, (None,), None),
        ("no plugin, beside another", Scripted(), {"token": None, "plain_url": "http://x"}, (None,), PlainKind.TRUE_AR),
    ],
)  # fmt: skip
async def test_steps_are_measured_as_the_engine_allows(
    name: str, engine: Scripted, changes: dict[str, Any], caps: tuple[int | None, ...], plain: PlainKind | None
) -> None:
    async with running(engine.handler) as upstream:
        stand = Engine(**{"url": upstream.url, "model": "m", "token": TOKEN, "k": 4} | changes)
        plan = await _in_thread(stand)
    assert (plan.caps, plan.plain) == (caps, plain)
    assert (plan.reason is None) == (plain is not None)
    # Whatever was tried, the engine drafts as before.
    assert engine.cap is None


async def test_a_refusal_that_is_no_answer_is_an_error() -> None:
    engine = Scripted()
    engine.stands_down = "the plugin has failed"
    async with running(engine.handler) as upstream:
        with pytest.raises(ControlError):
            await _in_thread(Engine(upstream.url, "m", TOKEN, k=4))


async def _in_thread(stand: Engine) -> measure.StepPlan:
    return await asyncio.to_thread(step_plan, stand)


class Embedding:
    """In the place of the process."""

    def __init__(self, *answers: list[Compared] | Exception) -> None:
        self.answers = list(answers)

    def compare(self, pairs: Sequence[tuple[str, str]]) -> list[Compared]:
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        assert len(found) == len(pairs)
        return found

    def close(self) -> None:
        pass


async def test_only_replies_that_differ_are_embedded_and_a_missing_model_is_no_failure() -> None:
    rows = [Outputs("same", "s", True), *(Outputs(f"d{i}", "s", False, 1) for i in range(3))]
    texts = {f"d{i}": ("a", "b") for i in range(3)}
    similarity = Similarity("sentence-transformers")
    scores = [Compared(0.9, False), Compared(None, False), Compared(0.1, False)]
    similarity._embedder = Embedding(scores, ChildError("gave no answer"), NoModel("install it"))  # type: ignore[assignment]
    found = await similarity.of(rows, texts)
    assert [(each.similarity, each.reason) for each in found] == [
        (None, None),
        (0.9, None),
        (None, "a reply is empty"),
        (0.1, None),
    ]
    found = await similarity.of(rows, texts)
    assert found[1].reason == "the process that compares texts gave no answer"
    for _ in range(2):  # it is asked once only
        assert (await similarity.of(rows, texts))[3].reason == "install it"
    assert (await Similarity("none").of(rows, texts))[1].reason == "--similarity is none"
