"""What is known of the servers behind the proxy, and an operator's orders to the engine that speculates."""

import asyncio
import logging
from collections.abc import Callable, Mapping

import httpx
from pydantic import SecretStr

from .control.engine import EngineControl, EngineError, EngineState, Swap
from .control.facts import facts_of, read_server
from .tap.tap import Facts

_log = logging.getLogger(__name__)

_NO_FACTS = Facts()
#: What every core of an engine has alike.
_IDENTITY = ("target_digest", "draft_digest", "device")
#: Fields of a certificate's fingerprint, by those of a core.
_FINGERPRINT = {
    "vllm": "vllm",
    "method": "method",
    "k": "num_speculative_tokens",
    "device": "device",
    "target_digest": "target_digest",
    "draft_digest": "draft_digest",
    "target": "target_model",
    "draft": "draft_model",
}


class Steering:
    """One per process.

    `urls` are the servers' by name, `configured` what is known of them unasked; `token` is the control routes',
    `steered` names the server that takes orders. `changed` is called after each order that was carried out, with what
    was done and why, `swapped` with the checkpoint after each swap, and `noticed` with the name of a server each time
    that it was asked what it is and all of that is known.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        urls: Mapping[str, str],
        configured: Mapping[str, Facts],
        token: SecretStr | None,
        steered: str,
        changed: Callable[[str], None],
        swapped: Callable[[str], None] = lambda checkpoint: None,
        noticed: Callable[[str], None] = lambda upstream: None,
    ) -> None:
        self._client = client
        self._urls = urls
        self._configured = configured
        self._can_ask = token is not None
        secret = None if token is None else token.get_secret_value()
        self._controls = {name: EngineControl(client, url, secret) for name, url in urls.items()}
        self.steered = steered
        self._changed = changed
        self._swapped = swapped
        self._noticed = noticed
        #: Of every server, by name.
        self.facts = {name: configured.get(name, _NO_FACTS) for name in urls}
        #: Served model names.
        self.models: set[str] = set()
        self._served: dict[str, list[str]] = {}
        self._versions: dict[str, str | None] = {}
        #: Engine cores by server, as they last answered; none where the plugin said that it does not work.
        self._known: dict[str, list[EngineState]] = {}
        #: Servers whose plugin has answered, or which turned out to have none.
        self._looked_at: set[str] = set()
        self._complaints: dict[str, str] = {}
        #: Versions that rows tell of, or that were the first.
        self._told_version: dict[str, str] = {}

    @property
    def obeys(self) -> bool | None:
        """Whether the plugin is at work in every core of the steered engine; None: the engine did not tell."""
        states = self._known.get(self.steered)
        if states is None:
            return None
        return bool(states) and all(state.method is not None for state in states)

    @property
    def cap(self) -> int | None:
        """The lowest cap of the steered engine's cores, as they last answered; None: there is none."""
        return min((each.cap for each in self._known.get(self.steered, ()) if each.cap is not None), default=None)

    def what_runs(self, name: str) -> dict[str, str | int | None]:
        """What a server is, by what is told of it; None: not known."""
        facts, models = self.facts[name], ", ".join(sorted(self._served.get(name, ())))
        cores = self._known.get(name, ())
        return {
            "vllm": self._versions.get(name),
            "models": models or None,
            "draft_model": facts.draft_model,
            "num_speculative_tokens": facts.num_speculative_tokens,
            **{each: next((told for core in cores if (told := getattr(core, each))), None) for each in _IDENTITY},
        }

    def fingerprint(self, name: str) -> dict[str, list[str | int]] | None:
        """What a certificate is held against: the values that a server's cores tell, by field; None: not asked yet."""
        if name not in self._versions or (self._can_ask and name not in self._looked_at):
            return None
        cores, facts = self._known.get(name, ()), self.facts[name]
        found = {
            field: list(dict.fromkeys(told for core in cores if (told := getattr(core, of)) is not None))
            for field, of in _FINGERPRINT.items()
        }
        if not cores:
            itself = {"vllm": self._versions[name], "draft": facts.draft_model, "k": facts.num_speculative_tokens}
            found |= {field: [told] for field, told in itself.items() if told is not None}
        return found

    async def look_round(self) -> bool:
        """Ask every server what it is. Returns whether every one has answered by now."""
        for name, url in self._urls.items():
            found = await read_server(self._client, url)
            if found is not None:
                self._versions[name], self._served[name] = found
                self.models.update(found[1])
            if self._can_ask:
                answer = await self._look(name)
                complaint = str(answer) if isinstance(answer, EngineError) and not answer.unanswered else ""
                if complaint and self._complaints.get(name) != complaint:
                    _log.warning("upstream %s cannot be steered: %s", name, complaint)
                self._complaints[name] = complaint
            self._set_facts(name)
        return len(self._versions) == len(self._urls)

    async def look(self) -> dict[str, list[EngineState] | EngineError]:
        """Every engine by its server's name as it is now, or why it cannot be asked."""
        return dict(zip(self._urls, await asyncio.gather(*map(self._look, self._urls)), strict=True))

    async def _look(self, name: str) -> list[EngineState] | EngineError:
        """An engine that does not answer is taken to be as it was."""
        try:
            states = await self._controls[name].states()
        except EngineError as error:
            if error.stands_down:
                self._known[name] = []
            elif not error.unanswered:
                self._known.pop(name, None)
            if not error.unanswered:
                self._looked_at.add(name)
            return error
        self._known[name] = states
        self._looked_at.add(name)
        self._set_facts(name)
        return states

    def _set_facts(self, name: str) -> None:
        configured = self._configured.get(name, _NO_FACTS)
        found = facts_of(self._versions.get(name), configured, self._known.get(name, ()))
        before = self.facts[name]
        if found != before:
            _log.info("upstream %s: %s", name, found.fingerprint)
            self.facts[name] = found
        known = self._told_version.get(name)
        version = self._versions.get(name)
        if version is not None and version != known:
            self._told_version[name] = version
            if known is not None:
                self._changed(f"the upstream {name} is vLLM {version} now, and was {known}")
        # Before its plugin was asked, the settings would be told in place of what it knows better.
        if name in self._versions and (name in self._looked_at or not self._can_ask):
            self._noticed(name)

    async def set_cap(self, cap: int | None, mode: str | None, reason: str) -> list[EngineState]:
        """Have at most `cap` tokens drafted a step, None: the engine's default. Raises EngineError."""
        states = self._known[self.steered] = await self._controls[self.steered].set_cap(cap, mode)
        self._set_facts(self.steered)
        done = "draft tokens no longer capped" if cap is None else f"draft tokens capped at {cap} ({states[0].mode})"
        self._changed(f"{done}: {reason}")
        return states

    async def swap(self, checkpoint: str, reason: str) -> list[Swap]:
        """Load other weights into the draft model. Raises EngineError."""
        swaps = await self._controls[self.steered].swap(checkpoint)
        self._swapped(checkpoint)
        await self._look(self.steered)
        self._changed(f"draft model swapped for {checkpoint}: {reason}")
        return swaps
