"""Reads the upstreams' own counters, and holds them beside the records: what nobody recorded shows as well.

Answers are plain dicts with the field names of `sidecar.api.models`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from .control.engine import unanswered
from .probes.counters import Growth, Meter, Scrape, read, total
from .probes.coverage import Coverage
from .record import AcceptanceQuality, Record
from .store.rows import CountersRow

_log = logging.getLogger(__name__)

#: Rows are of so many seconds, or of one look where these are rarer.
_ROW_S = 60.0
#: Longest text that is read, bytes; vLLM's has some 100 kB an engine.
_MOST_BYTES = 8 * 1024 * 1024
_LONGEST_S = 10.0

_NOT_YET = "its counters were not read twice yet"
_MIXED = "several servers answer behind its address, whose counters cannot be told apart"
_SHARED = "several API servers count together, and the records here are of one of them"
_NOTHING = "nothing was drafted"


class Counters:
    """One per process. For use in the event loop."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        urls: Mapping[str, str],
        instance: str,
        put: Callable[[CountersRow], None],
        *,
        inside: bool = False,
    ) -> None:
        """`urls` are the upstreams' by name; `inside`: in the server itself, which may be one of several processes."""
        self._client = client
        self._instance = instance
        self._put = put
        self._upstreams = {name: _Upstream(url, inside) for name, url in urls.items()}

    def add(self, record: Record) -> None:
        """Take in a record."""
        if (upstream := self._upstreams.get(record.upstream)) is not None:
            upstream.coverage.add(record)

    async def keep(self, every_s: float) -> None:
        """Look at every upstream, again and again."""
        while True:
            await asyncio.gather(*map(self.look, self._upstreams))
            await asyncio.sleep(every_s)

    async def look(self, name: str) -> None:
        """Read the counters of one upstream; not while that is under way."""
        upstream = self._upstreams[name]
        scrape = await self._scrape(upstream.url)
        now = time.time()
        if isinstance(scrape, str):
            upstream.reason = scrape
        else:
            upstream.add(name, scrape, now)
            for record, growth in upstream.coverage.alone(now):
                if growth.draft_tokens and record.acceptance.quality is not AcceptanceQuality.OK:
                    self._put(self._row_of_request(name, record, growth))
        if now - upstream.row_began >= _ROW_S:
            self._put(self._row(name, upstream, now))

    async def _scrape(self, url: str) -> Scrape | str:
        """What its /metrics tells, or why it tells nothing."""
        content = bytearray()
        try:
            # Compressing costs the engine more than it spares.
            headers = {"accept-encoding": "identity"}
            async with (
                asyncio.timeout(_LONGEST_S),
                self._client.stream("GET", f"{url}/metrics", headers=headers) as answer,
            ):
                if answer.status_code != 200:
                    return f"its /metrics answers {answer.status_code}"
                async for part in answer.aiter_bytes():
                    content += part
                    if len(content) > _MOST_BYTES:
                        return f"its /metrics is longer than {_MOST_BYTES} bytes"
        except (httpx.HTTPError, TimeoutError) as error:
            return f"its /metrics cannot be read: {unanswered(error)}"
        return read(bytes(content))

    def _row(self, name: str, upstream: "_Upstream", now: float) -> CountersRow:
        """Of what was added up since the row before, which begins anew."""
        span_s, grown = now - upstream.row_began, total(upstream.row)
        upstream.row_began, upstream.row = now, []
        told = upstream.figures(now)
        shown = {key: told[key] for key in ("scope", "coverage", "reason")}
        return self._row_with(grown, at=now, upstream=name, span_s=span_s, **shown)

    def _row_of_request(self, name: str, record: Record, growth: Growth) -> CountersRow:
        took_s = (record.latency_ms or 0.0) / 1e3
        return self._row_with(
            growth,
            at=record.started_at + took_s,
            upstream=name,
            span_s=took_s,
            scope="request",
            request_id=record.request_id,
            reason=growth.disagreement,
        )

    def _row_with(self, growth: Growth, **fields: Any) -> CountersRow:
        return CountersRow(
            instance=self._instance,
            engines=growth.engines,
            drafts=growth.drafts,
            draft_tokens=growth.draft_tokens,
            accepted_tokens=growth.accepted_tokens,
            accepted_per_position=growth.accepted_per_position,
            generation_tokens=growth.generation_tokens,
            reset=growth.reset,
            **fields,
        )

    # ---- what it tells

    def drafted_since(self, upstream: str, monotonic: float) -> int | None:
        """See `Coverage.drafted_since`. A request that began before that moment may have been drafted for."""
        return self._upstreams[upstream].coverage.drafted_since(monotonic)

    def state(self) -> list[dict[str, Any]]:
        """`EngineCounters` of every upstream."""
        now = time.time()
        return [{"upstream": name} | each.figures(now) for name, each in self._upstreams.items()]

    @property
    def ratios(self) -> dict[str, float]:
        """Coverage by upstream, where it is known."""
        return {each["upstream"]: each["coverage"] for each in self.state() if each["coverage"] is not None}

    @property
    def resets(self) -> dict[str, int]:
        """How often counters began anew, by upstream."""
        return {name: each.resets for name, each in self._upstreams.items()}

    @property
    def disagreements(self) -> dict[str, int]:
        """How often what counters grew by could not be true, by upstream."""
        return {name: each.disagreements for name, each in self._upstreams.items()}


class _Upstream:
    """What is known of one of them."""

    def __init__(self, url: str, inside: bool) -> None:
        self.url = url
        self.meter = Meter()
        self.coverage = Coverage()
        self.resets = 0
        self.disagreements = 0
        #: Why there are no figures; None where there are.
        self.reason: str | None = _NOT_YET
        #: What was added up since the last row.
        self.row: list[Growth] = []
        self.row_began = time.time()
        self._inside = inside
        self._shared = False

    def add(self, name: str, scrape: Scrape, now: float) -> None:
        growth = self.meter.add(scrape)
        self.coverage.scraped(scrape, growth, now, time.monotonic())
        # Of several processes, which count together, none tells when it began.
        self._shared = self._inside and scrape.started is None
        self.reason = _MIXED if self.meter.mixed else scrape.unknown or (_NOT_YET if growth is None else None)
        if growth is None:
            return
        self.row.append(growth)
        self.resets += growth.reset
        if (trouble := growth.disagreement) is not None:
            self.disagreements += 1
            if self.disagreements == 1:
                _log.warning("upstream %s: its counters disagree: %s; more are counted", name, trouble)

    def figures(self, now: float) -> dict[str, Any]:
        """`EngineCounters` but for the name."""
        covered = None if self.reason else self.coverage.covered(now)
        counted = Growth() if covered is None else covered.counted
        reason = self.reason or (_NOT_YET if covered is None else counted.disagreement)
        ratio = None if covered is None or self._shared else covered.ratio
        if reason is None and ratio is None:
            reason = _SHARED if self._shared else _NOTHING
        return {
            "scope": "server",
            "span_s": None if covered is None else covered.span_s,
            "engines": counted.engines,
            "draft_tokens": counted.draft_tokens,
            "accepted_tokens": counted.accepted_tokens,
            "p": counted.p,
            "mean_acceptance_length": counted.mean_acceptance_length,
            "rows_draft_tokens": None if covered is None else covered.draft_tokens,
            "rows_accepted_tokens": None if covered is None else covered.accepted_tokens,
            "coverage": ratio,
            "resets": self.resets,
            "reason": reason,
        }
