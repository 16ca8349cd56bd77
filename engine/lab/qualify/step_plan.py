"""How the steps of an engine are measured: by which caps, and against what plain steps."""

from dataclasses import dataclass

from ..control import ControlError
from ..stand import Engine
from .gates import PlainKind


@dataclass(frozen=True)
class StepPlan:
    """How the steps of an engine are measured."""

    #: Draft tokens a step, each measured; None: as the engine is configured, whose k is not known.
    caps: tuple[int | None, ...]
    #: How the engine's own route is told them; None: it has none.
    mode: str | None
    plain: PlainKind | None
    #: Why something of it is missing.
    reason: str | None = None
    #: Whether a GPU may lack CUDA graphs for steps of one number of draft tokens that it has for another.
    unlike: bool = False


def step_plan(engine: Engine, *, every_k: bool = False) -> StepPlan:
    """What the engine allows; `every_k`: its table has each k that is measured, for which vLLM then has CUDA graphs.

    Leaves the cap as the engine is configured.
    """
    apart = PlainKind.TRUE_AR if engine.plain_url is not None else None
    if engine.token is None or not engine.k:
        why = (
            None if apart else "there is no plain decoding to measure with: set SPECWATCH_ENGINE_TOKEN, or give --plain"
        )
        return StepPlan((None,), None, apart, why)
    state = engine.control.state()[0]
    if state.get("mode") == "soft":
        # Whatever the cap, all is drafted: neither the steps of two caps nor a cap of 0 tell what drafting takes.
        why = None if apart else "this engine drafts whatever the cap, so that it has no plain step: give --plain"
        return StepPlan((engine.k,), None, apart, why)
    unlike = _on_gpu(engine) and not every_k
    # Steps of one k, and those of an engine apart, have graphs each: a bound that holds.
    caps = (1, engine.k) if engine.k > 1 and not (unlike and apart) else (engine.k,)
    return StepPlan(caps, "hard", apart or _plain_of(engine), unlike=unlike and apart is None)


def _on_gpu(engine: Engine) -> bool:
    """As far as the plugin tells."""
    device = engine.fingerprint.get("device")
    return device is not None and not str(device).startswith("cpu")


def _plain_of(engine: Engine) -> PlainKind:
    """By asking: only the engine knows whether its draft can be left out."""
    control = engine.control
    try:
        control.cap(0, "cold")
        kind = PlainKind.DISABLED
    except ControlError as error:
        if error.code != "refused":
            raise
        control.cap(0, "hard")
        runs = "runs" in str(control.state()[0].get("at_zero"))
        kind = PlainKind.DISABLED_DRAFT_RUNS if runs else PlainKind.DISABLED
    control.cap(None, "hard")
    return kind
