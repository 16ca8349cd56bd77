"""The engine under test: one that is started for the run, or one that runs already."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from . import control
from .control import Control, ControlError
from .progress import Say
from .run import Run

#: Answers of a server that does nothing but tell of itself, s.
_ASK_S = 10.0
#: How long the start of an engine may take, s.
READY_S = 900.0
DEFAULT_K = 4
#: What of an engine its figures depend on.
FINGERPRINT = ("vllm", "target", "target_digest", "draft", "draft_digest", "method", "k", "device")


class StandError(Exception):
    """An engine that cannot be measured: a sentence with the remedy."""


@dataclass(frozen=True)
class Engine:
    """The engine under test."""

    url: str
    model: str
    token: str | None
    """The plugin's; None: it cannot be steered."""
    target: str | None = None
    draft: str | None = None
    """Folders or names."""
    k: int | None = None
    """Draft tokens a step as it is configured; 0 where it does not speculate; None: not known."""
    vllm: str | None = None
    plain_url: str | None = None
    """An engine of the same target without speculation."""
    plain_model: str | None = None
    """What that one calls the model."""
    process: int | None = None
    """Process id of the launcher, where the lab started it."""
    log: Path | None = None
    events: Path | None = None
    """The socket that its plugin tells its steps to, where the lab started it; nobody listens there by itself."""
    fingerprint: dict[str, Any] = field(default_factory=dict)
    """`FINGERPRINT` by name, as the plugin tells it; None what is not told."""

    @property
    def control(self) -> Control:
        return Control(self.url, self.token)

    @property
    def baseline(self) -> str:
        """What a plain arm is: of an engine that never speculates, or of one that was asked not to. Never mixed."""
        return "spec_disabled" if self.plain_url is None else "true_ar"


@dataclass(frozen=True)
class EngineOptions:
    """Which engine; exactly one of `engine`, `config`, and `target` with `draft`."""

    engine: str | None = None
    config: Path | None = None
    target: str | None = None
    draft: str | None = None
    k: int = DEFAULT_K
    plain: str | None = None
    ready_s: float = READY_S

    @classmethod
    def of(cls, args: argparse.Namespace, k: int = DEFAULT_K) -> EngineOptions:
        """From the command line; `k` where that names none. Raises StandError where it names no engine, or two."""
        config = None if args.config is None else Path(args.config)
        if args.k is not None and (args.engine or config):
            raise StandError("--k: goes with --target and --draft; the k of another engine is in its configuration")
        found = cls(args.engine, config, args.target, args.draft, k if args.k is None else args.k, args.plain)
        found.check()
        return found

    def check(self) -> None:
        """Raises StandError."""
        pair = self.target is not None or self.draft is not None
        ways = [name for name, there in (("--engine", self.engine), ("-c", self.config), ("--target", pair)) if there]
        if not ways:
            raise StandError(
                "no engine is named: give --engine URL of one that runs, -c FILE of one to start, or --target and "
                "--draft"
            )
        if len(ways) > 1:
            raise StandError(f"{' and '.join(ways)}: an engine is named more than once: give one of them")
        if pair and (self.target is None or self.draft is None):
            missing = "--target" if self.target is None else "--draft"
            raise StandError(f"{missing} is missing: --target and --draft go together, each a folder or a name")
        for name, url in (("--engine", self.engine), ("--plain", self.plain)):
            if url is not None and not url.startswith(("http://", "https://")):
                raise StandError(f"{name}: {url!r} is no URL: write it as http://127.0.0.1:8200")
        if self.k < 1:
            raise StandError(f"--k: must be at least 1, not {self.k}")


def url(text: str) -> str:
    """An option that may be one. It goes to run.json and to reports, where no password has any business."""
    with suppress(ValueError):
        parts = urlsplit(text)
        if parts.scheme in ("http", "https") and (parts.username is not None or parts.password is not None):
            raise argparse.ArgumentTypeError(
                "must have no user or password in it, as it is written into the run's files: leave it out, and set "
                "VLLM_API_KEY where the engine wants a key"
            )
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that name an engine."""
    group = parser.add_argument_group("the engine under test (one of three ways)")
    group.add_argument(
        "--engine", type=url, metavar="URL", help="one that runs; SPECWATCH_ENGINE_TOKEN is the plugin's token"
    )
    group.add_argument("-c", "--config", metavar="FILE", help="start the one of this speculative_config.yaml")
    group.add_argument("--target", metavar="MODEL", help="start this target model (a folder or a name) …")
    group.add_argument("--draft", metavar="MODEL", help="… with this draft model")
    group.add_argument("--k", type=int, metavar="N", help="draft tokens a step of --target and --draft")
    group.add_argument(
        "--plain", type=url, metavar="URL", help="an engine of the same target without speculation, to compare with"
    )


@contextmanager
def engine(options: EngineOptions, run: Run, say: Say) -> Iterator[Engine]:
    """The engine while the block runs; one that the lab started is stopped after it, one that ran before has its cap
    put back.

    Raises StandError where there is none, or it does not start.
    """
    options.check()
    if options.engine is not None:
        with _as_it_was(attached(options, say), say) as found:
            yield found
        return
    from .started import started

    with started(options, run, say) as child:
        about = attached(options, say, url=child.url, token=child.token)
        yield _with(about, process=child.process, log=child.log, events=child.events, **_named(options, about))


def same_engine(engine: Engine, began: Mapping[str, Any]) -> None:
    """Raises StandError where a run that began with the fingerprint `began` would go on with another engine."""
    for name, had in began.items():
        now = engine.fingerprint.get(name)
        if now != had:
            raise StandError(f"the engine has {name} {now}, the run began with {had}: begin a new run")


def attached(options: EngineOptions, say: Say, url: str | None = None, token: str | None = None) -> Engine:
    """What is known of a running engine. Raises StandError."""
    url = (url or options.engine or "").rstrip("/").removesuffix("/v1")
    token = token or control.token()
    served = _models(url, "--engine")
    version = _version(url)
    states = _states(url, token, say) if token is not None else []
    if token is None:
        say(
            "SPECWATCH_ENGINE_TOKEN is not set: the engine is measured as it stands, without changing its draft "
            "length, and requests cannot opt out of speculation"
        )
    state = states[0] if states else {}
    if any(each.get("cap") is not None for each in states):
        say(f"the engine has a cap of {state.get('cap')} draft tokens now: figures are of that, until it is changed")
    k = state.get("num_speculative_tokens") if state.get("method") else (0 if states else None)
    fingerprint: dict[str, Any] = {
        "vllm": state.get("vllm") or version,
        "target": state.get("target_model") or served.get("root"),
        "target_digest": state.get("target_digest"),
        "draft": state.get("draft_model"),
        "draft_digest": state.get("draft_digest"),
        "method": state.get("method"),
        "k": k,
        "device": state.get("device"),
    }
    plain_url = None if options.plain is None else options.plain.rstrip("/").removesuffix("/v1")
    return Engine(
        url=url,
        model=str(served["id"]),
        token=token if states else None,
        target=fingerprint["target"],
        draft=fingerprint["draft"],
        k=k,
        vllm=fingerprint["vllm"],
        plain_url=plain_url,
        plain_model=None if plain_url is None else str(_models(plain_url, "--plain")["id"]),
        fingerprint=fingerprint,
    )


def _models(url: str, option: str) -> dict[str, Any]:
    """The first model that a server lists."""
    key = os.environ.get("VLLM_API_KEY")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.get(f"{url}/v1/models", timeout=_ASK_S, trust_env=False, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        why = str(error) or type(error).__name__
        raise StandError(f"{option}: nothing answers at {url} ({why}): start the engine, or correct the URL") from error
    if answer.status_code == 401:
        raise StandError(f"{option}: {url} wants an API key: set VLLM_API_KEY")
    try:
        served: dict[str, Any] = answer.json()["data"][0]
        served["id"]
    except (ValueError, LookupError, TypeError, RecursionError):
        words = f"{url}/v1/models answered {answer.status_code} and names no model"
        raise StandError(f"{option}: {words}: give the URL of vLLM itself, without a path") from None
    return served


def _version(url: str) -> str | None:
    try:
        return str(httpx.get(f"{url}/version", timeout=_ASK_S, trust_env=False).json()["version"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _states(url: str, token: str, say: Say) -> list[dict[str, Any]]:
    """The plugin's; none where there is no plugin at work. Raises StandError where the token is wrong."""
    try:
        return Control(url, token).state()
    except ControlError as error:
        if error.code in ("unauthorized", "no_token", "unreachable"):
            raise StandError(str(error)) from error
        say(f"the engine cannot be steered, and is measured as it stands: {error}")
        return []


@contextmanager
def _as_it_was(found: Engine, say: Say) -> Iterator[Engine]:
    """Puts the cap back that the engine had."""
    if found.token is None:
        yield found
        return
    try:
        before = found.control.state()[0]
    except ControlError as error:
        raise StandError(str(error)) from error
    try:
        yield found
    finally:
        try:
            now = found.control.state()[0]
            if (now.get("cap"), now.get("mode")) != (before.get("cap"), before.get("mode")):
                found.control.cap(before.get("cap"), before.get("mode"))
        except ControlError as error:
            say(f"the engine's cap could not be put back to {before.get('cap')}: {error}")


def _named(options: EngineOptions, found: Engine) -> Mapping[str, Any]:
    """What the command line says where the plugin does not."""
    given = {"target": options.target, "draft": options.draft}
    return {name: value for name, value in given.items() if value is not None and getattr(found, name) is None}


def _with(found: Engine, **changes: Any) -> Engine:
    fingerprint = found.fingerprint | {name: value for name, value in changes.items() if name in FINGERPRINT}
    return Engine(**{**vars(found), **changes, "fingerprint": fingerprint})
