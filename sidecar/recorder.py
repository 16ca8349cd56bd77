"""What records, wherever the requests pass: behind the proxy, or inside the server.

A recorder's tap makes records; they go to the writer, the window and the metrics, and the admin port tells of them.
"""

import asyncio
import contextlib
import logging
import re
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import PurePath
from typing import Protocol

import httpx
import uvicorn
from prometheus_client import CollectorRegistry

from alerts.config import Config as AlertsConfig
from alerts.config import ConfigError
from alerts.config import load as load_alerts

from .alerting import Alerting
from .api import connection
from .api.app import create_app
from .api.deps import ApiDeps
from .control.circuit import Readings, State
from .controller import Controller
from .counters import Counters
from .engine_feed.feed import EngineFeed, FeedError
from .engine_feed.join import Joiner
from .engine_request import EngineRequest
from .lag import LoopLag
from .metrics import CONTENT_TYPE, FeedCounts, Live, Metrics
from .probes.alignment import Moved
from .probes.embedder import Embedder
from .probes.latency import Latencies
from .probes.quality import Flag, Quality
from .probes.similarity import Limits
from .probes.truncation import Places
from .probes.windows import Windows
from .proposals import Proposals, Texts
from .readings import Recent, Sources, aligned, collect
from .record import Outcome, Record
from .replay import Replays, Ways
from .settings import Settings, SettingsError, split_address
from .sharing import Sharing
from .similarity import Similarity
from .steering import Steering
from .store.engine import DatabaseUrlError, check_url
from .store.keeper import Keeper
from .store.queries import Reader
from .store.rows import MovedToken, SimilarityRow
from .store.shared import SharedStates
from .store.spool import Spool, SpoolError
from .store.writer import Writer
from .tap.tap import Facts, TapContext
from .tasks import Tasks
from .texts.keeper import Transcripts
from .versions import Versions

_log = logging.getLogger(__name__)

SPECULATIVE, AUTOREGRESSIVE = "speculative", "autoregressive"

_FACTS_EVERY_S = 15.0
#: The same until every upstream has answered once.
_FACTS_FIRST_S = 1.0
#: Requests that end within this time are read together, which is cheaper.
_READ_AFTER_S = 0.005
_KEEPER_CLOSE_S = 1.0
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
        down: Callable[[], Collection[str]] = tuple,
        starting: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """`urls` are the servers' by name, `down` those of them that cannot be reached now, `starting` those that never
        could, and may still be loading; `transport` reaches them, None: sockets. Raises SettingsError.
        """
        self.settings = settings
        rules = _rules(settings)
        try:
            check_url(settings.database_url)
            self.keeper = Keeper(settings.database_url, settings.retention)
            self.reader = Reader(settings.database_url)
            self.writer = Writer(settings.database_url, capacity=settings.queue_records, spool=_spool(settings))
        except DatabaseUrlError as error:
            raise SettingsError(str(error)) from None
        self.tasks = Tasks()
        self.windows = Windows()
        self.places = Places()
        self.latencies = Latencies()
        self.recent = Recent(settings.first_byte_limit_s)
        self.lag = LoopLag()
        #: What the engine tells by itself; None where nobody asked for it.
        self.feed = None if settings.engine_events is None else EngineFeed(settings.engine_events)
        #: What is made of the drafts it tells.
        self.proposals = None if self.feed is None else self._new_proposals(self.feed)
        self.quality = Quality()
        self.similarity = self._new_similarity()
        self._urls = urls
        self._traffic = traffic
        self._down = down
        self._starting = starting
        self._wants_apart = AUTOREGRESSIVE in urls and settings.fallback_actuator in ("auto", "upstream")
        self._http = httpx.AsyncClient(transport=transport, trust_env=False, timeout=5)
        configured = {SPECULATIVE: Facts(settings.draft_model, settings.num_speculative_tokens)}
        self.steering = Steering(
            self._http,
            urls,
            configured,
            settings.engine_token,
            SPECULATIVE,
            lambda what: self.controller.steered(what),
            self._swapped,
            self._noticed,
        )
        #: What runs, and rows of it.
        self.versions = Versions(settings.instance, self.writer.put_version)
        self.joiner: Joiner | None = None
        if self.feed is not None:
            feed = self.feed
            self.joiner = Joiner(
                feed.ledger,
                lambda: feed.connected,
                self._record,
                opted_out=lambda drafted: self.tap.opted_out(drafted),
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
            served_plain=lambda drafted: self.controller.fallback.served_plain(drafted=drafted),
        )
        #: What is kept of prompts and replies; None where none is.
        self.transcripts = self._new_transcripts() if settings.store_text else None
        self.tap.transcript = self.transcripts
        # Inside the server, a replay would come by here as any other request.
        if settings.replay_share and transport is None:
            self.tap.sample = Replays(
                settings.replay_share,
                settings.replay_per_minute,
                self._http,
                ways=self._replay_ways,
                in_flight=lambda: self._traffic().in_flight,
                spawn=self.tasks.spawn,
                done=self.similarity.compare,
            ).sample
        self.counters = Counters(
            self._http, urls, settings.instance, self.writer.put_counters, inside=transport is not None
        )
        self.metrics = Metrics(CollectorRegistry(), self._live, upstreams=urls, scenarios=settings.scenarios)
        self.metrics.models = self.steering.models
        self.controller = Controller(
            settings,
            self.writer,
            self.reader,
            self.metrics,
            self.steering,
            can_fall_back=self._can_fall_back,
            outage=self._outage,
            readings=self._readings,
            forget=self._forget,
            drafted_since=self.counters.drafted_since,
            speculates=self.tap.speculates,
            plain_upstream=AUTOREGRESSIVE if self._wants_apart else SPECULATIVE,
        )
        self.sharing = self._new_sharing()
        #: What alert rules are looked at by.
        self.sources = Sources(
            settings=settings,
            up=self._up,
            speculative=SPECULATIVE,
            windows=self.windows,
            recent=self.recent,
            latencies=self.latencies,
            similarity=self.similarity,
            quality=self.quality,
            counters=self.counters,
            fallback=self.controller.fallback,
            metrics=self.metrics,
            writer=self.writer,
            tap=self.tap,
            tasks=self.tasks,
            feed=self.feed,
            proposals=self.proposals,
            unsent=lambda: self.alerting.unsent,
            certificate_valid=lambda: self.controller.certificate_valid,
        )
        self.alerting = Alerting(
            rules, settings.instance, self.writer, self.reader, self.tasks.spawn, partial(collect, self.sources)
        )
        self._admin: tuple[_Server, asyncio.Task[None]] | None = None

    def start(self) -> None:
        """Start writing, and asking the servers what they are. Must run in the event loop."""
        self.writer.start()
        self.versions.started(version("specwatch"), self.settings, time.time())
        self.keeper.start()
        self.tap.later = partial(asyncio.get_running_loop().call_later, _READ_AFTER_S)
        self.tasks.spawn(self._keep_facts(), "facts")
        self.tasks.spawn(self.controller.run(), "controller")
        self.tasks.spawn(self.controller.keep_certificate(), "certificate")
        if self.sharing is not None:
            self.tasks.spawn(self.sharing.run(), "sharing")
        self.tasks.spawn(self.alerting.run(), "alerting")
        self.tasks.spawn(self.lag.run(), "lag")
        if self.settings.counters_every_s:
            self.tasks.spawn(self.counters.keep(self.settings.counters_every_s), "counters")

    async def restore(self) -> None:
        """Go on as before a restart, and as the fleet has decided, where the database can be asked."""
        await self.controller.restore()
        if self.sharing is not None:
            await self.sharing.exchange()

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
        config = uvicorn.Config(create_app(self._api()), log_config=None, lifespan="off", **connection.OPTIONS)
        server = _Server(config)
        # Given an address instead of a socket, uvicorn would end the process where it cannot bind.
        self._admin = server, self.tasks.spawn(server.serve([listener]), "admin")

    async def stop(self) -> None:
        """Stop serving the admin port, then write what is queued. Takes some 18 s at most, mostly none."""
        if self._admin is not None:
            server, task = self._admin
            server.should_exit = True
            await asyncio.wait((task,), timeout=_ADMIN_CLOSE_S)
        self.tap.later = None
        self.tap.finish()
        if self.joiner is not None:
            await self.joiner.settle()
        await self.alerting.close()
        if self.transcripts is not None:
            await self.transcripts.close()
        await self.tasks.close()
        await self.controller.close()
        if self.sharing is not None:
            await self.sharing.close()
        await self._http.aclose()
        if self.feed is not None and self.joiner is not None:
            self.feed.stop()
            self.joiner.flush()
        if self.proposals is not None:
            self.proposals.close()
        self.similarity.close()
        await asyncio.to_thread(self.keeper.close, _KEEPER_CLOSE_S)
        await asyncio.to_thread(self.writer.close, _WRITER_CLOSE_S)
        self.reader.close()

    def _record(self, record: Record) -> None:
        now = time.time()
        self.writer.put(record)
        self.similarity.saw(record.reply_id, record.scenario)
        self.windows.add(record, now)
        self.latencies.add(record)
        self.recent.add(record, now)
        self.metrics.observe(record)
        self.controller.add(record)
        self.counters.add(record)

    def _new_proposals(self, feed: EngineFeed) -> Proposals:
        settings = self.settings
        made = Proposals(
            settings.target_tokenizer,
            settings.draft_tokenizer,
            recent=settings.recent_drafts,
            spawn=self.tasks.spawn,
            told=self._moved,
        )
        feed.finished += [made.add, self._finished]
        return made

    def _finished(self, request: EngineRequest) -> None:
        """An engine has told all of a request."""
        self.places.add(request, time.time())
        known = set(self.quality.totals)
        for flag, evidence in self.quality.add(request, time.time()):
            if flag not in known:
                _log.warning("quality: %s: %s: %s; more are counted", request.reply_id, flag, evidence)
        if self.proposals is not None:
            self.similarity.add(request, self.proposals.texts_of(request))

    def _new_sharing(self) -> Sharing | None:
        """None where it decides for itself alone, or decides nothing."""
        settings = self.settings
        if settings.fleet is None or settings.fallback_dry_run:
            return None
        store = SharedStates(settings.database_url, settings.fleet)
        made = self.controller.fleet = Sharing(store, settings.fleet, settings.instance, self.controller)
        return made

    def _new_transcripts(self) -> Transcripts:
        return Transcripts(
            self.settings.redact,
            instance=self.settings.instance,
            spawn=self.tasks.spawn,
            told=self.writer.put_text,
            lost=self.writer.lose_text,
        )

    def _new_similarity(self) -> Similarity:
        settings = self.settings
        embedder: Embedder | str = "similarity is none: nothing is compared"
        if settings.similarity != "none":
            if self.feed is None and not settings.replay_share:
                embedder = "engine_events is not set, so that no engine tells its drafts, and replay_share is 0"
            else:
                embedder = Embedder(settings.similarity, settings.similarity_model)
        return Similarity(
            embedder,
            Limits(settings.similarity_warning, settings.similarity_critical),
            settings.similarity_share,
            settings.similarity_per_minute,
            instance=settings.instance,
            spawn=self.tasks.spawn,
            told=self._compared,
        )

    def _compared(self, row: SimilarityRow) -> None:
        self.writer.put_similarity(row)
        self.metrics.compared(row.kind, row.level, row.score)

    def _replay_ways(self) -> Ways | None:
        """None while the engine is not to draft: a replay would."""
        if self.controller.fallback.in_force.state is not State.SPECULATIVE or self.steering.cap == 0:
            return None
        speculative = self._urls[SPECULATIVE]
        if AUTOREGRESSIVE in self._urls:
            return Ways(speculative, self._urls[AUTOREGRESSIVE], opt_out=False)
        return Ways(speculative, speculative, opt_out=True) if self._can_opt_out() else None

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

    # ---- control

    @property
    def plain_apart(self) -> bool:
        """Whether a server of its own serves what is not to speculate; else the same one, by opt-out."""
        if not self._wants_apart or AUTOREGRESSIVE not in self._down():
            return self._wants_apart
        return self.settings.fallback_actuator != "auto" or not self._can_opt_out()

    def _outage(self) -> tuple[bool, str] | None:
        """Whether all requests go without speculation, as what speculates cannot be reached, and that in words."""
        down = self._down()
        if SPECULATIVE not in down:
            return None
        if AUTOREGRESSIVE in self._urls and AUTOREGRESSIVE not in down:
            return True, "the upstream that speculates cannot be reached, and requests go to the other"
        return False, "no upstream can be reached, and requests fail"

    def _up(self) -> dict[str, bool | None]:
        """By upstream, whether it can be reached; None while it may still be loading."""
        down, starting = self._down(), self._starting()
        return {name: None if name in starting else name not in down for name in self._urls}

    def _can_opt_out(self) -> bool:
        """Whether the engine serves a request without speculation where its body asks for that."""
        told = self.steering.obeys
        return told if told is not None else self.feed is not None and self.feed.connected > 0

    def _can_fall_back(self) -> bool:
        if self._wants_apart and AUTOREGRESSIVE not in self._down():
            return True
        by_itself = self.settings.fallback_actuator != "upstream"
        return by_itself and self.settings.hold_bytes > 0 and self._can_opt_out()

    def _readings(self) -> Readings:
        """What no single request tells."""
        limit = self.settings.first_byte_limit_s
        waits = [] if limit is None else self.tap.waits(SPECULATIVE, time.monotonic())
        misaligned, why = (False, "") if self.proposals is None else self.proposals.misaligned
        # Sorting some thousand latencies takes a millisecond, which only this trigger is worth.
        found = self.latencies.ratio() if "latency_ratio" in self.settings.fallback_triggers else None
        return Readings(
            slow_streams=sum(wait > limit for wait in waits if limit is not None),
            similarity=self.similarity.mean,
            pairs=self.similarity.count,
            misaligned=why if misaligned else None,
            latency_ratio=None if found is None else found[1].ratio,
            concurrency=None if found is None else found[1].concurrency,
        )

    def _forget(self) -> None:
        """Judge speculation anew."""
        self.latencies.clear()
        self.similarity.forget()

    def _swapped(self, checkpoint: str) -> None:
        if self.proposals is not None:
            self.proposals.swapped(checkpoint)

    def _noticed(self, upstream: str) -> None:
        """An upstream has told what it is."""
        found = self.steering.what_runs(upstream)
        if upstream == SPECULATIVE:
            found["draft_model"] = self._draft_model(upstream)
            if found["num_speculative_tokens"] is None and self.feed is not None:
                told = {core.num_speculative_tokens for core in self.feed.cores}
                found["num_speculative_tokens"] = told.pop() if len(told) == 1 else None
            # A swap ends what was certified at once.
            self.controller.review(time.time())
        self.versions.seen(upstream, found, time.time())

    async def _keep_facts(self) -> None:
        while True:
            complete = await self.steering.look_round()
            await self.controller.restore()
            await asyncio.sleep(_FACTS_EVERY_S if complete else _FACTS_FIRST_S)

    # ---- what the admin port tells

    def _api(self) -> ApiDeps:
        token, read_token = self.settings.admin_token, self.settings.admin_read_token
        return ApiDeps(
            instance=self.settings.instance,
            version=version("specwatch"),
            reader=self.reader,
            fallback=self.controller,
            engines=self.steering,
            database_ok=lambda: self.writer.healthy,
            records_dropped=lambda: self.writer.dropped,
            failed_tasks=lambda: self.tasks.failed,
            render_metrics=lambda: (self.metrics.render(), CONTENT_TYPE),
            admin_token=token.get_secret_value() if token is not None else None,
            admin_read_token=read_token.get_secret_value() if read_token is not None else None,
            admin_per_second=self.settings.admin_per_second,
            audit=self.writer.put_audit,
            alignment=None if self.proposals is None else self.proposals.state,
            drafts=None if self.proposals is None or not self.settings.recent_drafts else self.proposals.drafts,
            windows=self.windows,
            places=None if self.feed is None else self.places,
            draft_cost=self.settings.draft_cost,
            similarity=self.similarity.state,
            quality=self.quality.state,
            alerts=self.alerting.state,
            counters=self.counters.state if self.settings.counters_every_s else tuple,
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
        traffic, state = self._traffic(), self.controller.fallback.in_force.state
        last = self.windows.whole.figures()
        alignment = None if self.proposals is None else self.proposals.alignment
        compared = self.latencies.ratio()
        spool_records, spool_bytes = self.writer.spooled
        return Live(
            outcomes=traffic.outcomes,
            refused=traffic.refused,
            in_flight=traffic.in_flight,
            tap_failures=self.tap.failures,
            dropped=self.writer.dropped_by | {"refused": self.writer.refused},
            queue_length=self.writer.queue_length,
            spool_records=spool_records,
            spool_bytes=spool_bytes,
            rollups_pending=self.keeper.pending,
            pruned=self.keeper.pruned,
            database_up=self.writer.healthy,
            acceptance_rate=last.p,
            mean_acceptance_length=last.mean_acceptance_length,
            window_requests=last.requests,
            states={each.value: each is state for each in State},
            upstreams={name: up for name, up in self._up().items() if up is not None},
            fell_back=self.controller.fallback.fell_back,
            open_slices=self.controller.fallback.plain_slices,
            certificate_valid=self.controller.certificate_valid,
            opt_out_ineffective=self.tap.ineffective,
            feed=self._feed_counts(),
            aligned=aligned(self.proposals),
            same_text_other_id=None if alignment is None else alignment.same_text_other_id,
            similarity_dropped=self.similarity.dropped,
            output_flags={flag: self.quality.totals[flag] for flag in Flag},
            coverage=self.counters.ratios,
            counter_resets=self.counters.resets,
            counter_disagreements=self.counters.disagreements,
            late_streams=self.recent.late_streams,
            failures=self.recent.failures,
            latency_ratio=None if compared is None else compared[1].ratio,
            loop_lag_s=self.lag.longest(time.monotonic()),
            alerts=self.alerting.counts(),
            fleet_up=None if self.sharing is None else self.sharing.up,
        )


def _spool(settings: Settings) -> Spool | None:
    """Where records wait on disk; None without. Raises SettingsError where a folder was asked for and cannot be had."""
    if not settings.spool_mb:
        return None
    try:
        return Spool(settings.spool, settings.spool_mb * 1_000_000, settings.database_url)
    except SpoolError as error:
        if "spool" in settings.model_fields_set:
            raise SettingsError(f"spool: {error}; name a folder that can be made, or set spool_mb to 0") from None
        _log.warning("spool: %s; while the database is away, records wait in memory alone; set spool", error)
        return None


def _rules(settings: Settings) -> AlertsConfig:
    """What is alarming, and who is told. Raises SettingsError."""
    try:
        return load_alerts(settings.alerts)
    except ConfigError as error:
        raise SettingsError(str(error)) from None


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
