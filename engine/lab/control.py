"""The control route of the engine plugin: what state an engine is in, and how many tokens it may draft."""

from __future__ import annotations

import os
import ssl
from functools import cache
from typing import Any

import httpx

#: The variable that holds the plugin's token, here as at the engine.
TOKEN = "SPECWATCH_ENGINE_TOKEN"  # noqa: S105 - the name of a variable

_PATH = "/specwatch/v1"
#: A cap waits for the step under way, s.
_LIMIT_S = 30.0


class ControlError(Exception):
    """Why an engine cannot be steered: a sentence with the remedy. `code` is the plugin's own, or what came instead:
    unreachable, no_plugin, no_token."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Control:
    """One engine's route. Calls block: they are for between the batches, not among the requests of one."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = url.rstrip("/")
        self._token = token

    def state(self) -> list[dict[str, Any]]:
        """Every engine core as the plugin tells it; never empty. Raises ControlError."""
        return self._ask("GET", "/engine")

    def cap(self, n: int | None, mode: str | None = None) -> None:
        """Have at most `n` tokens drafted a step from the next one on, None: as many as the engine is configured to.

        `mode` None: as it is. Raises ControlError, also where a core then has another cap than was asked for.
        """
        order = {"cap": n} if mode is None else {"cap": n, "mode": mode}
        for each in self._ask("PUT", "/speculation", order):
            if each.get("cap") != n:
                words = f"engine core {each.get('engine')} at {self._url} has a cap of {each.get('cap')}, not {n}"
                raise ControlError(f"{words}: does something else steer it?", "not_obeyed")

    def in_force(self) -> int | None:
        """Draft tokens a step may have now, of the cores the fewest; 0 where none are drafted. Raises ControlError."""
        limits = [limit_of(each) for each in self.state()]
        return None if None in limits else min(limit for limit in limits if limit is not None)

    def _ask(self, method: str, path: str, order: Any = None) -> list[dict[str, Any]]:
        if self._token is None:
            raise ControlError(
                f"{TOKEN} is not set here: set it to the value that the engine was started with", "no_token"
            )
        headers = {"authorization": f"Bearer {self._token}"}
        what = f"{method} {_PATH}{path}"
        try:
            answer = httpx.request(
                method,
                f"{self._url}{_PATH}{path}",
                json=order,
                headers=headers,
                timeout=_LIMIT_S,
                trust_env=False,
                verify=tls(),
            )
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise ControlError(f"the engine at {self._url} does not answer {what}: {why}", "unreachable") from error
        try:
            body = answer.json()
        except (ValueError, RecursionError):
            body = None
        said = body.get("error") if isinstance(body, dict) else None
        if isinstance(said, dict) and said.get("type") == "specwatch_engine":
            raise self._refused(answer.status_code, said)
        engines = body.get("engines") if isinstance(body, dict) else None
        if answer.status_code != 200 or not isinstance(engines, list) or not engines:
            raise ControlError(
                f"the server at {self._url} answered {what} with {answer.status_code}, not as the engine plugin does: "
                "start it with `specwatch engine`, or with --middleware specwatch_engine.plugin.control.Control",
                "no_plugin",
            )
        return [each for each in engines if isinstance(each, dict)]

    def _refused(self, status: int, said: dict[str, Any]) -> ControlError:
        code = str(said.get("code"))
        if status == 401:
            words = f"the engine at {self._url} has another {TOKEN} than is set here: set it to that of the engine"
            return ControlError(words, code)
        if status == 403:
            words = f"the engine at {self._url} was started without {TOKEN}: start it with one, and set it here too"
            return ControlError(words, code)
        return ControlError(f"the engine at {self._url} refuses: {said.get('message')}", code)


def limit_of(state: dict[str, Any]) -> int | None:
    """Draft tokens a step of one core may have; None where the plugin does not say."""
    if not state.get("method"):
        return 0
    cap, k = state.get("cap"), state.get("num_speculative_tokens")
    found = k if cap is None else cap
    return found if isinstance(found, int) else None


@cache
def tls() -> ssl.SSLContext:
    """What httpx would make anew for each client, which takes longer than a batch should begin."""
    return httpx.create_ssl_context(trust_env=False)


def token() -> str | None:
    """The plugin's token as the environment has it; None where it is not set, or empty."""
    return os.environ.get(TOKEN) or None
