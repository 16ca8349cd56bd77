import asyncio
from typing import Any

import pytest
from specwatch_engine.lab.control import ControlError
from specwatch_engine.lab.qualify.gates import PlainKind
from specwatch_engine.lab.qualify.step_plan import StepPlan, step_plan
from specwatch_engine.lab.stand import Engine
from support.steered_engine import TOKEN, SteeredEngine
from support.upstream import running


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


@pytest.mark.parametrize(
    ("name", "device", "plain_url", "every_k", "caps", "unlike"),
    [
        ("on a CPU", "cpu: X x 4", None, False, (1, 4), False),
        ("with k of one graph", "NVIDIA H200", None, False, (1, 4), True),
        ("with every k in its table", "NVIDIA H200", None, True, (1, 4), False),
        ("beside another, only its own k", "NVIDIA H200", "http://x", False, (4,), False),
        ("beside another, every k", "NVIDIA H200", "http://x", True, (1, 4), False),
    ],
)
async def test_steps_with_other_cuda_graphs_are_not_compared(
    name: str, device: str, plain_url: str | None, every_k: bool, caps: tuple[int, ...], unlike: bool
) -> None:
    async with running(Scripted().handler) as upstream:
        stand = Engine(upstream.url, "m", TOKEN, k=4, plain_url=plain_url, fingerprint={"device": device})
        plan = await asyncio.to_thread(step_plan, stand, every_k=every_k)
    assert (plan.caps, plan.unlike) == (caps, unlike)


async def test_a_refusal_that_is_no_answer_is_an_error() -> None:
    engine = Scripted()
    engine.stands_down = "the plugin has failed"
    async with running(engine.handler) as upstream:
        with pytest.raises(ControlError):
            await _in_thread(Engine(upstream.url, "m", TOKEN, k=4))


async def _in_thread(stand: Engine) -> StepPlan:
    return await asyncio.to_thread(step_plan, stand)
