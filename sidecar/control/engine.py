"""Orders to the plugin inside the engine, over the control route of the engine's own HTTP server."""

import re
from typing import Any, TypeVar

import httpx
import msgspec

PATH = "/specwatch/v1"

#: A swap reads a checkpoint and waits for the step under way; a cap waits for that step alone, s.
ASK_S, CAP_S, SWAP_S = 5.0, 30.0, 900.0


_quoted = re.compile(r"bytearray|b?[\"']")


def unanswered(error: Exception) -> str:
    """Why a server gave no answer, less what h11 quotes of bytes that are no HTTP."""
    words = str(error)
    if isinstance(error, httpx.ProtocolError):
        words = _quoted.split(words, maxsplit=1)[0].rstrip(" :")
    return words or type(error).__name__


#: What reading an answer that is none of the plugin's raises.
_FOREIGN = (msgspec.DecodeError, ValueError, RecursionError)

T = TypeVar("T")


class EngineError(Exception):
    """Why an engine cannot be asked, or did not obey: a sentence with the remedy.

    `status` is that of an HTTP answer in these words, `param` the field of the order at fault.
    """

    def __init__(self, message: str, code: str, status: int = 502, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.param = param

    @property
    def stands_down(self) -> bool:
        """The plugin is there and does not work: it may be no better at what needs no order."""
        return self.code in ("refused", "engine_failed")

    @property
    def unanswered(self) -> bool:
        """Nothing was learnt of the engine."""
        return self.code in ("engine_unreachable", "engine_silent")


class Events(msgspec.Struct, frozen=True):
    """Steps that an engine core sent to its listener, and those that it could not send."""

    sent: int = 0
    dropped: int = 0
    connected: bool = False


class EngineState(msgspec.Struct, frozen=True):
    """One engine core. Unknown fields are ignored, so that newer plugins can be asked.

    `method` is None where nothing is drafted, as the engine is not configured to or the plugin has failed there.
    """

    engine: int
    cap: int | None = None
    mode: str | None = None
    #: What a cap of 0 spares, in a sentence.
    at_zero: str | None = None
    vllm: str | None = None
    method: str | None = None
    num_speculative_tokens: int | None = None
    step: int = 0
    running: int = 0
    waiting: int = 0
    #: Requests in flight that asked for no speculation.
    opted_out: int = 0
    target_model: str | None = None
    draft_model: str | None = None
    #: Of the content of both models' checkpoints; None where the plugin cannot read them.
    target_digest: str | None = None
    draft_digest: str | None = None
    #: The accelerator's or processor's name, and how many there are.
    device: str | None = None
    events: Events = Events()


class SwapWorker(msgspec.Struct, frozen=True):
    """Checksums of one worker's draft weights, and how long staging and loading took, s."""

    before: str | None = None
    after: str | None = None
    stage_s: float | None = None
    commit_s: float | None = None


class Swap(msgspec.Struct, frozen=True):
    """What a swap did to one engine core; it stood still for `still_s` seconds."""

    engine: int
    workers: list[SwapWorker]
    still_s: float


class _Engines(msgspec.Struct, frozen=True):
    engines: list[EngineState]


class _Swaps(msgspec.Struct, frozen=True):
    engines: list[Swap]


class _Error(msgspec.Struct, frozen=True):
    message: str
    type: str
    code: str = "engine_failed"
    param: str | None = None


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error


class EngineControl:
    """The control route of the engine at `url`; `client` is whose connections are used.

    Every method raises EngineError.
    """

    def __init__(self, client: httpx.AsyncClient, url: str, token: str | None) -> None:
        self._client = client
        self._url = url
        self._token = token

    async def states(self) -> list[EngineState]:
        """Every engine core as it is; never empty."""
        return _some((await self._ask("GET", "/engine", _Engines, ASK_S)).engines, self._url)

    async def set_cap(self, cap: int | None, mode: str | None) -> list[EngineState]:
        """Have at most `cap` tokens drafted a step, None: the engine's default. `mode` None: as it is."""
        order = {"cap": cap} if mode is None else {"cap": cap, "mode": mode}
        return _some((await self._ask("PUT", "/speculation", _Engines, CAP_S, order)).engines, self._url)

    async def swap(self, checkpoint: str) -> list[Swap]:
        """Load other weights into the draft model: those in the folder `checkpoint` on the engine's machine."""
        return (await self._ask("PUT", "/draft", _Swaps, SWAP_S, {"checkpoint": checkpoint})).engines

    async def _ask(self, method: str, path: str, kind: type[T], timeout_s: float, order: Any = None) -> T:
        if self._token is None:
            raise EngineError(
                "engine_token is not set here: set it, and SPECWATCH_ENGINE_TOKEN at the engine to the same value",
                "no_engine_token",
                409,
            )
        headers = {"authorization": f"Bearer {self._token}"}
        try:
            answer = await self._client.request(
                method, f"{self._url}{PATH}{path}", json=order, headers=headers, timeout=timeout_s
            )
        except httpx.TimeoutException:
            raise EngineError(f"the engine at {self._url} did not answer in {timeout_s:g} s", "engine_silent") from None
        except httpx.HTTPError as error:
            reason = unanswered(error)
            raise EngineError(f"the engine at {self._url} cannot be reached: {reason}", "engine_unreachable") from None
        if answer.status_code == 200:
            try:
                return msgspec.json.decode(answer.content, type=kind)
            except _FOREIGN:
                words = f"the server at {self._url} answered {method} {PATH}{path}, but not as the engine plugin does"
                raise EngineError(words, "no_plugin") from None
        raise await self._refused(answer)

    async def _refused(self, answer: httpx.Response) -> EngineError:
        try:
            said = msgspec.json.decode(answer.content, type=_Refusal).error
        except _FOREIGN:
            said = None
        status = answer.status_code
        if said is None or said.type != "specwatch_engine":
            return await self._no_plugin(status)
        if status == 401:
            return EngineError(
                f"the engine at {self._url} has another SPECWATCH_ENGINE_TOKEN than the engine_token set here",
                "wrong_engine_token",
            )
        if status == 403:
            return EngineError(
                f"the engine at {self._url} was started without SPECWATCH_ENGINE_TOKEN, so that it takes no orders",
                "no_engine_token",
            )
        # Its own words name the fields of the order, which are ours.
        return EngineError(said.message, said.code, {400: 422, 409: 409}.get(status, 502), said.param)

    async def _no_plugin(self, status: int) -> EngineError:
        """Who answers without knowing the control route."""
        try:
            about = await self._client.get(f"{self._url}/version", timeout=ASK_S)
            version = about.json()["version"] if about.status_code == 200 else None
        except (httpx.HTTPError, ValueError, KeyError, TypeError, RecursionError):
            version = None
        if version is None:
            return EngineError(
                f"the server at {self._url} is no vLLM (it answered {status}, and has no /version), so that it cannot "
                "be steered",
                "not_vllm",
            )
        return EngineError(
            f"vLLM {version} at {self._url} has no control route (it answered {status}): start it with `specwatch "
            "engine`, or with --middleware specwatch_engine.plugin.control.Control",
            "no_plugin",
        )


def _some(engines: list[EngineState], url: str) -> list[EngineState]:
    if not engines:
        raise EngineError(f"the engine at {url} tells of no engine core", "no_plugin")
    return engines
