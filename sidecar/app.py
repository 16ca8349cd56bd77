"""The composition root: builds the parts, starts and stops them. Only this file knows all of them."""

import asyncio
import contextlib
import gc
import logging
import re
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import httpx
import uvicorn
import uvloop
from prometheus_client import CollectorRegistry

from .api.app import create_app
from .api.deps import ApiDeps
from .api.models import FallbackState
from .control.facts import read_facts
from .control.fallback import Decision, Fallback, Mode, State
from .metrics import CONTENT_TYPE, Live, Metrics
from .probes.acceptance import CountWindow
from .record import Arm, Record
from .relay.server import Relay
from .relay.upstream import Choice, Upstream
from .settings import Settings, split_address
from .store.engine import DatabaseUrlError, check_url
from .store.queries import DatabaseUnavailable, Reader
from .store.rows import Transition
from .store.upgrade import upgrade
from .store.writer import Writer
from .tap.tap import Facts, TapContext
from .tasks import Tasks

_log = logging.getLogger(__name__)

_FACTS_EVERY_S = 15.0
#: The same until every upstream has answered once.
_FACTS_FIRST_S = 1.0
_WRITER_CLOSE_S = 5.0


class StartError(Exception):
    """The sidecar cannot start; the message names the setting and the remedy."""


class Sidecar:
    """One process: the relay on `listen`, the admin API on `admin`, one writer behind both."""

    def __init__(self, settings: Settings) -> None:
        """Must run inside the event loop. Raises StartError."""
        self.settings = settings
        try:
            check_url(settings.database_url)
            self.writer = Writer(settings.database_url, capacity=settings.queue_records)
            self.reader = Reader(settings.database_url)
        except DatabaseUrlError as error:
            raise StartError(str(error)) from None
        self.tasks = Tasks()
        self.window = CountWindow()
        urls = {"speculative": settings.upstream, "autoregressive": settings.fallback_upstream}
        self._upstreams = {
            name: Upstream(name, url, connect_timeout_s=settings.connect_timeout_s)
            for name, url in urls.items()
            if url is not None
        }
        self.facts = {
            "speculative": Facts(settings.draft_model, settings.num_speculative_tokens),
            "autoregressive": Facts(),
        }
        self.fallback = Fallback(
            Decision(Mode.AUTO, State.SPECULATIVE, time.time(), "started"),
            can_fall_back="autoregressive" in self._upstreams,
            baseline_share=settings.baseline_share,
        )
        self._restored = False
        self.tap = TapContext(
            instance=settings.instance,
            sink=self._record,
            facts=self.facts,
            scenario_header=settings.scenario_header.lower().encode("latin-1"),
            scenario_rules=[(name, re.compile(rule.encode())) for name, rule in settings.scenario_rules.items()],
            hold=settings.hold_bytes,
            add_usage=settings.add_usage,
            add_headers=settings.add_headers,
        )
        self.relay = Relay(
            self._choose,
            self.tap.watch,
            self.tasks.spawn,
            idle_timeout_s=settings.idle_timeout_s,
            hidden=frozenset() if settings.forward_scenario_header else frozenset((self.tap.scenario_header,)),
        )
        self.metrics = Metrics(CollectorRegistry(), self._live, upstreams=self._upstreams, scenarios=settings.scenarios)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain. Raises StartError if a port cannot be had."""
        settings = self.settings
        self.writer.start()
        await self._restore()
        admin = self._admin()
        try:
            try:
                await admin.start()
                host, port = split_address(settings.listen)
                port = await self.relay.start(host, port)
            except OSError as error:
                raise StartError(f"listen or admin: {error.strerror or error}; free the port or change it") from None
            self.tasks.spawn(self._keep_facts(), "facts")
            # What start-up made lives as long as the process: the collector need not look at it again.
            gc.collect()
            gc.freeze()
            _log.info("proxy on %s:%d for %s, admin on %s", host, port, settings.upstream, settings.admin)
            await stop.wait()
            cut = await self.relay.drain(settings.drain_s)
            _log.info("drained; %d replies were cut", cut)
        finally:
            for upstream in self._upstreams.values():
                upstream.close_idle()
            await self.tasks.close()
            await admin.stop()
            await asyncio.to_thread(self.writer.close, _WRITER_CLOSE_S)

    # ---- per request

    def _choose(self) -> list[Choice]:
        arm = self.fallback.arm()
        speculative = self._upstreams["speculative"]
        plain = self._upstreams.get("autoregressive")
        if plain is None:
            return [Choice(speculative, Arm.SPECULATIVE)]
        if arm is Arm.SPECULATIVE:
            return [Choice(speculative, arm), Choice(plain, Arm.AUTOREGRESSIVE)]
        return [Choice(plain, arm), Choice(speculative, Arm.SPECULATIVE)]

    def _record(self, record: Record) -> None:
        self.writer.put(record)
        self.window.add(record)
        self.metrics.observe(record)

    # ---- control (what the API calls the fallback port)

    def state(self) -> FallbackState:
        decision = self.fallback.decision
        return FallbackState(
            mode=decision.mode.value,
            state=decision.state.value,
            since=datetime.fromtimestamp(decision.at, UTC),
            reason=decision.reason,
            can_fall_back=self.fallback.can_fall_back,
        )

    def set_mode(self, mode: str, reason: str) -> None:
        """An operator's order. Raises CannotFallBack."""
        self._restored = True
        before = self.fallback.decision
        decision = self.fallback.set_mode(Mode(mode), reason or "ordered by an operator", time.time())
        instance = self.settings.instance
        self.writer.put_transition(
            Transition(decision.at, instance, decision.mode, before.state, decision.state, decision.reason)
        )
        if before.state is not decision.state:
            self.metrics.transition(before.state, decision.state, "manual")
        _log.warning("mode %s, serving %s: %s", decision.mode, decision.state, decision.reason)

    def _last_order(self) -> Decision | None:
        """What was last ordered here. Raises DatabaseUnavailable."""
        last = self.reader.last_transition(self.settings.instance)
        if last is None:
            return None
        at: datetime = last["at"]
        return Decision(Mode(last["mode"]), State(last["to_state"]), at.timestamp(), last["reason"])

    async def _restore(self) -> None:
        """An operator's order holds over a restart, also where the database comes later."""
        if self._restored:
            return
        try:
            decision = await asyncio.to_thread(self._last_order)
        except DatabaseUnavailable:
            return
        if not self._restored and decision is not None:
            self.fallback.restore(decision)
        self._restored = True

    async def _keep_facts(self) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
            unknown = set(self._upstreams)
            while True:
                for name, upstream in self._upstreams.items():
                    known = self.facts[name]
                    found = await read_facts(client, upstream.url, known.draft_model, known.num_speculative_tokens)
                    if found is not None:
                        if found[0] != known:
                            _log.info("upstream %s: %s", name, found[0].fingerprint)
                        self.facts[name] = found[0]
                        self.metrics.models.update(found[1])
                        unknown.discard(name)
                await self._restore()
                await asyncio.sleep(_FACTS_FIRST_S if unknown else _FACTS_EVERY_S)

    # ---- admin

    def _admin(self) -> "_Admin":
        token = self.settings.admin_token
        deps = ApiDeps(
            instance=self.settings.instance,
            version=version("specwatch"),
            reader=self.reader,
            fallback=self,
            database_ok=lambda: self.writer.healthy,
            records_dropped=lambda: self.writer.dropped,
            failed_tasks=lambda: self.tasks.failed,
            render_metrics=lambda: (self.metrics.render(), CONTENT_TYPE),
            admin_token=token.get_secret_value() if token is not None else None,
        )
        return _Admin(create_app(deps), *split_address(self.settings.admin))

    def _live(self) -> Live:
        state = self.fallback.decision.state
        return Live(
            outcomes=self.relay.outcomes,
            refused=self.relay.refused,
            in_flight=self.relay.in_flight,
            tap_failures=self.tap.failures,
            dropped={"queue": self.writer.dropped, "refused": self.writer.refused},
            queue_length=self.writer.queue_length,
            database_up=self.writer.healthy,
            acceptance_rate=self.window.acceptance_rate,
            mean_acceptance_length=self.window.mean_acceptance_length,
            window_requests=len(self.window),
            states={each.value: each is state for each in State},
        )


class _Admin:
    """The admin application on uvicorn, in the loop of the process."""

    def __init__(self, app: Any, host: str, port: int) -> None:
        self._server = _Server(uvicorn.Config(app, host, port, log_config=None, access_log=False, lifespan="off"))
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once it listens. Raises OSError."""
        config = self._server.config
        # uvicorn would end the process where it cannot bind; asked first, the port can be named.
        loop = asyncio.get_running_loop()
        probe = await loop.create_server(asyncio.Protocol, config.host, config.port)
        probe.close()
        await probe.wait_closed()
        self._task = loop.create_task(self._server.serve(), name="admin")
        while not self._server.started:
            if self._task.done():
                await self._task
                raise OSError(f"the admin port {config.port} cannot be served")
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=5)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are for the process as a whole


def serve(settings: Settings) -> None:
    """Run a sidecar until SIGINT or SIGTERM, then drain. Raises StartError."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("httpx", "alembic", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        await Sidecar(settings).run(stop)

    uvloop.run(main())


def upgrade_database(settings: Settings) -> None:
    """Bring the tables to this version's. Raises StartError."""
    try:
        check_url(settings.database_url)
        upgrade(settings.database_url)
    except DatabaseUrlError as error:
        raise StartError(str(error)) from None
    except Exception as error:
        raise StartError(f"database_url: {' '.join(str(error).split())[:300]}") from None
