"""`/api/v1/engine`: what the plugin in the engine tells, and the orders it takes."""

from collections.abc import Sequence

import msgspec
from fastapi import APIRouter, Response

from sidecar.control.engine import EngineError, EngineState

from . import errors, models
from .deps import ApiDeps, EnginePort
from .models import as_json


def router(deps: ApiDeps) -> APIRouter:
    made = APIRouter()
    engines: EnginePort = deps.engines

    @made.get("/engine", response_model=models.Engines)
    async def look() -> Response:
        """Every engine core behind the proxy as it is now, or why it cannot be asked."""
        found = [_engine(name, answer) for name, answer in (await engines.look()).items()]
        return as_json(models.Engines(engines=found))

    @made.put("/engine", response_model=models.Engine)
    async def cap(order: models.CapOrder) -> Response:
        """Cap the draft tokens of the speculating engine, from its next step on."""
        try:
            states = await engines.set_cap(order.cap, order.mode, order.reason or "ordered by an operator")
        except EngineError as error:
            raise _refused(error) from None
        return as_json(_engine(engines.steered, states))

    @made.put("/engine/draft", response_model=models.Swaps)
    async def swap(order: models.DraftOrder) -> Response:
        """Load other weights into the draft model; takes as long as reading them does."""
        try:
            swaps = await engines.swap(order.checkpoint, order.reason or "ordered by an operator")
        except EngineError as error:
            raise _refused(error) from None
        cores = [models.Swap(**msgspec.to_builtins(swap)) for swap in swaps]
        return as_json(models.Swaps(upstream=engines.steered, checkpoint=order.checkpoint, cores=cores))

    return made


def _engine(name: str, answer: Sequence[EngineState] | EngineError) -> models.Engine:
    if isinstance(answer, EngineError):
        return models.Engine(upstream=name, reachable=False, reason=str(answer), cores=[])
    cores = [models.EngineCore(**msgspec.to_builtins(state)) for state in answer]
    return models.Engine(upstream=name, reachable=True, reason=None, cores=cores)


def _refused(error: EngineError) -> errors.ApiError:
    if error.status >= 500:
        kind = "specwatch_engine_unavailable"
        return errors.ApiError(error.status, str(error), code=error.code, param=error.param, kind=kind)
    return errors.ApiError(error.status, str(error), code=error.code, param=error.param)
