"""What records, wherever the requests pass: behind the proxy, or inside the server.

A recorder's tap makes records; they go to the writer, the window and the metrics, and the admin port tells of them.
"""

import asyncio
import contextlib
import logging
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import PurePath
from typing import Protocol

import httpx
import uvicorn
from prometheus_client import CollectorRegistry

from .api.app import create_app
from .api.deps import ApiDeps
from .api.models import FallbackState
from .control.fallback import Decision, Fallback, Mode, State
from .engine_feed.feed import EngineFeed, FeedError
from .engine_feed.join import Joiner
from .metrics import CONTENT_TYPE, FeedCounts, Live, Metrics
from .probes.acceptance import CountWindow
from .probes.alignment import Moved
from .probes.alignment import State as AlignmentState
from .proposals import Proposals, Texts
from .record import Arm, Outcome, Record
from .settings import Settings, SettingsError, split_address
from .steering import Steering
from .store.engine import DatabaseUrlError, check_url
from .store.queries import DatabaseUnavailable, Reader
from .store.rows import MovedToken, Transition
from .store.writer import Writer
from .tap.tap import Facts, Tap, TapContext
from .tasks import Tasks

_log = logging.getLogger(__name__)

SPECULATIVE, AUTOREGRESSIVE = "speculative", "autoregressive"

_FACTS_EVERY_S = 15.0
#: The same until every upstream has answered once.
_FACTS_FIRST_S = 1.0
#: Requests that end within this time are read together, which is cheaper.
_READ_AFTER_S = 0.005
_WRITER_CLOSE_S = 5.0
_ADMIN_CLOSE_S = 5.0


class StartError(Exception):
    """What the settings ask for cannot be had here and now; the message names the setting and the remedy."""


class Traffic(Protocol):
    """Where the requests pass; counts are since the start."""

    @property
    def outcomes(self) -> Mapping[Outcome, int]: ...

    @property
    def refused(self) -> int: ...

    @property
    def in_flight(self) -> int: ...


class Recorder:
    """One per process. `tap.watch` gives the watcher of a request, `arm` tells how it is served."""

    def __init__(
        self,
        settings: Settings,
        urls: Mapping[str, str],
        traffic: Callable[[], Traffic],
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`urls` are the servers' by name; `transport` reaches them, None: sockets. Raises SettingsError."""
        self.settings = settings
        try:
            check_url(settings.database_url)
            self.writer = Writer(settings.database_url, capacity=settings.queue_records)
            self.reader = Reader(settings.database_url)
        except DatabaseUrlError as error:
            raise SettingsError(str(error)) from None
        self.tasks = Tasks()
        self.window = CountWindow()
        #: What the engine tells by itself; None where nobody asked for it.
        self.feed = None if settings.engine_events is None else EngineFeed(settings.engine_events)
        #: What is made of the drafts it tells.
        self.proposals = None if self.feed is None else self._new_proposals(self.feed)
        self._urls = urls
        self._traffic = traffic
        self._http = httpx.AsyncClient(transport=transport, trust_env=False, timeout=5)
        configured = {SPECULATIVE: Facts(settings.draft_model, settings.num_speculative_tokens)}
        self.steering = Steering(
            self._http, urls, configured, settings.engine_token, SPECULATIVE, self._steered, self._swapped
        )
        self.fallback = Fallback(
            Decision(Mode.AUTO, State.SPECULATIVE, time.time(), "started"),
            can_fall_back=self._can_fall_back,
            baseline_share=settings.baseline_share,
        )
        self._restored = False
        self._arm_failed = False
        #: When the engine took orders, and what was done, while it was not known what mode is in force.
        self._untold: list[tuple[float, str]] = []
        #: As the log last said it.
        self._served = State.SPECULATIVE
        self.joiner: Joiner | None = None
        if self.feed is not None:
            feed = self.feed
            self.joiner = Joiner(
                feed.ledger,
                lambda: feed.connected,
                self._record,
                opt_out_failed=lambda: self.tap.opt_out_failed(),
                draft_model=self._draft_model,
            )
        self.tap = TapContext(
            instance=settings.instance,
            sink=self._record if self.joiner is None else self.joiner.put,
            facts=self.steering.facts,
            scenario_header=settings.scenario_header.lower().encode("latin-1"),
            scenario_rules=[(name, re.compile(rule.encode())) for name, rule in settings.scenario_rules.items()],
            hold=settings.hold_bytes,
            add_usage=settings.add_usage,
            add_headers=settings.add_headers,
            can_opt_out=self._can_opt_out,
        )
        self.metrics = Metrics(CollectorRegistry(), self._live, upstreams=urls, scenarios=settings.scenarios)
        self.metrics.models = self.steering.models
        self._admin: tuple[_Server, asyncio.Task[None]] | None = None

    def start(self) -> None:
        """Start writing, and asking the servers what they are. Must run in the event loop."""
        self.writer.start()
        self.tap.later = partial(asyncio.get_running_loop().call_later, _READ_AFTER_S)
        self.tasks.spawn(self._keep_facts(), "facts")

    def start_feed(self) -> None:
        """Listen on `engine_events`, where that is set. Raises StartError if the socket cannot be had."""
        if self.feed is not None:
            try:
                self.feed.start()
            except FeedError as error:
                raise StartError(str(error)) from None

    def start_admin(self) -> None:
        """Listen on `admin`. Raises StartError if the address cannot be had."""
        listener = _listen("admin", self.settings.admin)
        config = uvicorn.Config(create_app(self._api()), log_config=None, lifespan="off")
        # Given to Config, it would silence the access log of every other uvicorn of the process.
        config.access_log = False
        server = _Server(config)
        # Given an address instead of a socket, uvicorn would end the process where it cannot bind.
        self._admin = server, self.tasks.spawn(server.serve([listener]), "admin")

    async def stop(self) -> None:
        """Stop serving the admin port, then write what is queued. Takes some 12 s at most, mostly none."""
        if self._admin is not None:
            server, task = self._admin
            server.should_exit = True
            await asyncio.wait((task,), timeout=_ADMIN_CLOSE_S)
        self.tap.later = None
        self.tap.finish()
        if self.joiner is not None:
            await self.joiner.settle()
        await self.tasks.close()
        await self._http.aclose()
        if self.feed is not None and self.joiner is not None:
            self.feed.stop()
            self.joiner.flush()
        if self.proposals is not None:
            self.proposals.close()
        await asyncio.to_thread(self.writer.close, _WRITER_CLOSE_S)
        self.reader.close()

    def arm(self, tap: Tap | None, concurrency: int) -> Arm:
        """How a request is served; `tap` has read it, None: no generation.

        `concurrency`: how many requests the upstream that speculates would have in flight with it. Never raises.
        """
        try:
            return self.fallback.arm()
        except Exception:
            if not self._arm_failed:
                self._arm_failed = True
                _log.exception("it cannot be decided how requests are served; they go to the upstream that speculates")
            return Arm.SPECULATIVE

    def _record(self, record: Record) -> None:
        self.writer.put(record)
        self.window.add(record)
        self.metrics.observe(record)

    def _new_proposals(self, feed: EngineFeed) -> Proposals:
        settings = self.settings
        made = Proposals(
            settings.target_tokenizer,
            settings.draft_tokenizer,
            recent=settings.recent_drafts,
            spawn=self.tasks.spawn,
            told=self._moved,
        )
        feed.finished.append(made.add)
        return made

    def _draft_model(self, upstream: str) -> str | None:
        """What drafts there: as its control route or the settings tell, else as its events do."""
        known = self.steering.facts.get(upstream, Facts()).draft_model
        told = {core.draft_model for core in self.feed.cores} if self.feed is not None else set()
        name = told.pop() if len(told) == 1 else None
        return known if known is not None or name is None else PurePath(name).name

    def _moved(self, draft_model: str | None, moved: Moved, texts: Texts) -> None:
        self.writer.put_moved(
            MovedToken(
                at=time.time(),
                instance=self.settings.instance,
                upstream=SPECULATIVE,
                draft_model=draft_model or "",
                kind=moved.kind,
                target_id=moved.target_id,
                draft_id=moved.draft_id,
                target_text=texts[0],
                draft_text=texts[1],
                count=moved.count,
                share=moved.share,
                first_seen=moved.first_seen,
            )
        )

    # ---- control (what the API calls the fallback port)

    def _can_opt_out(self) -> bool:
        """Whether the engine serves a request without speculation where its body asks for that."""
        told = self.steering.obeys
        return told if told is not None else self.feed is not None and self.feed.connected > 0

    def _can_fall_back(self) -> bool:
        return AUTOREGRESSIVE in self._urls or (self.settings.hold_bytes > 0 and self._can_opt_out())

    def state(self) -> FallbackState:
        decision, cap = self.fallback.in_force, self.steering.cap
        reason = decision.reason
        if cap is not None:
            reason += (
                f" (the engine's cap is {cap}: {'nothing is' if not cap else f'at most {cap} tokens are'} drafted)"
            )
        return FallbackState(
            mode=decision.mode.value,
            state=decision.state.value,
            since=datetime.fromtimestamp(decision.at, UTC),
            reason=reason,
            can_fall_back=self.fallback.can_fall_back,
        )

    def set_mode(self, mode: str, reason: str) -> None:
        """An operator's order. Raises CannotFallBack."""
        self._begin_telling()
        before = self.fallback.in_force
        decision = self.fallback.set_mode(Mode(mode), reason or "ordered by an operator", time.time())
        instance = self.settings.instance
        self.writer.put_transition(
            Transition(decision.at, instance, decision.mode, before.state, decision.state, decision.reason)
        )
        self._served = decision.state
        if before.state is not decision.state:
            self.metrics.transition(before.state, decision.state, "manual")
        _log.warning("mode %s, serving %s: %s", decision.mode, decision.state, decision.reason)

    async def restore(self) -> None:
        """An operator's order holds over a restart, also where the database comes later."""
        if self._restored:
            return
        try:
            decision = await asyncio.to_thread(self._last_order)
        except DatabaseUnavailable:
            return
        if not self._restored and decision is not None:
            self.fallback.decision = decision
        self._begin_telling()

    def _last_order(self) -> Decision | None:
        """What was last ordered here. Raises DatabaseUnavailable."""
        rows = self.reader.transitions(instance=self.settings.instance)
        if not rows:
            return None
        # A row that changes neither mode nor state tells of something else, as of the engine's cap.
        orders = [
            row
            for row, before in pairwise([*rows, {"mode": Mode.AUTO}])
            if row["from_state"] != row["to_state"] or row["mode"] != before["mode"]
        ]
        last = orders[0] if orders else rows[-1]
        at: datetime = last["at"]
        return Decision(Mode(last["mode"]), State(last["to_state"]), at.timestamp(), last["reason"])

    def _steered(self, what: str) -> None:
        """The engine took an order."""
        self._untold.append((time.time(), what))
        if self._restored:
            self._begin_telling()
        _log.warning("%s", what)

    def _begin_telling(self) -> None:
        """It is known what is in force, which each row tells: one with another mode would be taken for an order."""
        self._restored = True
        decision, untold, self._untold = self.fallback.decision, self._untold, []
        for at, what in untold:
            self.writer.put_transition(
                Transition(at, self.settings.instance, decision.mode, decision.state, decision.state, what)
            )

    def _swapped(self, checkpoint: str) -> None:
        if self.proposals is not None:
            self.proposals.swapped(checkpoint)

    async def _keep_facts(self) -> None:
        while True:
            complete = await self.steering.look_round()
            await self.restore()
            decision = self.fallback.in_force
            if decision.state is not self._served:
                self._served = decision.state
                _log.warning("mode %s, serving %s: %s", decision.mode, decision.state, decision.reason)
            await asyncio.sleep(_FACTS_EVERY_S if complete else _FACTS_FIRST_S)

    # ---- what the admin port tells

    def _api(self) -> ApiDeps:
        token = self.settings.admin_token
        return ApiDeps(
            instance=self.settings.instance,
            version=version("specwatch"),
            reader=self.reader,
            fallback=self,
            engines=self.steering,
            database_ok=lambda: self.writer.healthy,
            records_dropped=lambda: self.writer.dropped,
            failed_tasks=lambda: self.tasks.failed,
            render_metrics=lambda: (self.metrics.render(), CONTENT_TYPE),
            admin_token=token.get_secret_value() if token is not None else None,
            alignment=None if self.proposals is None else self.proposals.state,
            drafts=None if self.proposals is None or not self.settings.recent_drafts else self.proposals.drafts,
        )

    def _feed_counts(self) -> FeedCounts:
        if self.feed is None or self.joiner is None:
            return FeedCounts()
        self.feed.ledger.expire(time.monotonic())
        ledger = self.feed.ledger
        return FeedCounts(
            self.feed.connected,
            ledger.steps,
            ledger.steps_dropped,
            ledger.joined,
            ledger.unjoined,
            ledger.incomplete,
            self.feed.malformed,
            self.joiner.disagreements,
        )

    def _live(self) -> Live:
        traffic, state = self._traffic(), self.fallback.in_force.state
        alignment = None if self.proposals is None else self.proposals.alignment
        aligned = AlignmentState.UNKNOWN if alignment is None else alignment.state()[0]
        return Live(
            outcomes=traffic.outcomes,
            refused=traffic.refused,
            in_flight=traffic.in_flight,
            tap_failures=self.tap.failures,
            dropped={"queue": self.writer.dropped, "refused": self.writer.refused},
            queue_length=self.writer.queue_length,
            database_up=self.writer.healthy,
            acceptance_rate=self.window.acceptance_rate,
            mean_acceptance_length=self.window.mean_acceptance_length,
            window_requests=len(self.window),
            states={each.value: each is state for each in State},
            opt_out_ineffective=self.tap.ineffective,
            feed=self._feed_counts(),
            aligned=None if aligned is AlignmentState.UNKNOWN else aligned is AlignmentState.ALIGNED,
            same_text_other_id=None if alignment is None else alignment.same_text_other_id,
        )


def _listen(setting: str, address: str) -> socket.socket:
    """A socket that listens on `address`, the value of `setting`. Raises StartError."""
    host, port = split_address(address)
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise StartError(f"{setting}: {address}: {error.strerror or error}; free the port or change it") from None


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are for the process as a whole
