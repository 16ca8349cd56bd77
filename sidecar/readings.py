"""The readings that alert rules are about, as `alerts.readings` names them, gathered from all that is in memory.

What cannot be known is None: no request has told it yet, or no setting has it measured.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from alerts.model import Readings

from .control.circuit import State, came_late, engine_failed
from .control.fallback import Fallback, Mode
from .counters import Counters
from .engine_feed.feed import EngineFeed
from .metrics import Metrics
from .probes.acceptance import CountWindow
from .probes.alignment import State as AlignmentState
from .probes.goal import Goal
from .probes.growth import Growth, Lately
from .probes.latency import Latencies, Side, side_of
from .probes.quality import WINDOW, Flag, Quality
from .probes.windows import Windows
from .proposals import Proposals
from .record import Outcome, Record
from .settings import Settings
from .similarity import Similarity
from .store.writer import Writer
from .tap.tap import TapContext
from .tasks import Tasks

#: Spans, s: of requests and of what is lost; of late streams; of changes of state.
LOST_S, LATE_S, SWITCHES_S = 300.0, 60.0, 3600.0
#: How far back requests must reach before they tell of the latency goal, s: an engine that warms up is slow.
GOAL_S = 900.0
#: Kinds of slices that have readings.
KINDS = ("scenario", "model", "temperature", "prompt_length", "concurrency")

_Found = dict[str, float | None]


class Recent:
    """What the requests of the last minutes tell. `add` takes a microsecond or two."""

    def __init__(self, first_byte_limit_s: float | None) -> None:
        self.goal = Goal()
        self.requests = Lately(LOST_S)
        self.errors = Lately(LOST_S)
        self.late = Lately(LATE_S)
        #: Since the start.
        self.late_streams = 0
        self.failures = 0
        self._limit_s = first_byte_limit_s

    def add(self, record: Record, now: float) -> None:
        """Take in a request that ended at `now`, Unix seconds."""
        self.requests.add(now)
        if record.outcome is Outcome.OK:
            self.goal.add(record, now)
        elif engine_failed(record):
            self.errors.add(now)
            self.failures += 1
        if came_late(record, self._limit_s) and side_of(record) is Side.SPECULATIVE:
            self.late.add(now)
            self.late_streams += 1


class _Grown:
    """Growth of counts from one look to the next."""

    def __init__(self) -> None:
        self.records = Growth(LOST_S)
        self.taps = Growth(LOST_S)
        self.steps = Growth(LOST_S)
        self.pairs = Growth(LOST_S)
        self.unsent = Growth(LOST_S)
        self.switches = Growth(SWITCHES_S)


@dataclass(frozen=True, slots=True)
class Sources:
    """What readings come from; the names are those of the recorder's parts. One per process."""

    settings: Settings
    #: By upstream, whether it can be reached; None while that is not known.
    up: Callable[[], Mapping[str, bool | None]]
    #: The one of them that speculates.
    speculative: str
    windows: Windows
    recent: Recent
    latencies: Latencies
    similarity: Similarity
    quality: Quality
    counters: Counters
    fallback: Fallback
    metrics: Metrics
    writer: Writer
    tap: TapContext
    tasks: Tasks
    #: None where no engine tells of itself.
    feed: EngineFeed | None
    proposals: Proposals | None
    #: Notifications that did not arrive, since the start.
    unsent: Callable[[], int]
    #: Whether the certificate holds for what runs; None where there is none, or that is not known yet.
    certificate_valid: Callable[[], bool | None] = lambda: None
    grown: _Grown = field(default_factory=_Grown)


def collect(sources: Sources, now: float, monotonic: float) -> Readings:
    """All readings of this moment, which is looked at once; `now` is Unix time in s. Takes about a millisecond."""
    fallback = sources.fallback
    # By an operator's order nothing speculates, for days perhaps, and what was before says nothing of now.
    ordered = fallback.mode is Mode.AUTOREGRESSIVE and fallback.in_force.state is State.AUTOREGRESSIVE
    windows = ((kind, value, window) for kind, value, window in sources.windows if kind in ("", *KINDS))
    found = {(kind, value): _ORDERED if ordered else _acceptance(window) for kind, value, window in windows}
    found["", ""] = found["", ""] | {
        **_serving(sources, now),
        **_texts(sources),
        **_traffic(sources, now, monotonic),
        **_losses(sources, now),
        **_replies(sources, ordered),
    }
    return found | _upstreams(sources)


def aligned(proposals: Proposals | None) -> bool | None:
    """Whether no token has another id in the draft than in the target; None while that is not known."""
    if proposals is None:
        return None
    if proposals.misaligned[0]:
        return False
    alignment = proposals.alignment
    return True if alignment is not None and alignment.state()[0] is AlignmentState.ALIGNED else None


def _acceptance(window: CountWindow) -> _Found:
    found = window.figures()
    return {
        "acceptance_rate": found.p,
        "acceptance_rate_per_token": found.p_per_token,
        "acceptance_rate_high": found.high,
        "window_requests": found.requests,
        "window_draft_tokens": found.draft_tokens,
        "mean_acceptance_length": found.mean_acceptance_length,
        "truncation_rate": window.truncation_rate,
        "first_position_share": window.first_position_share,
    }


#: Of an order to go without speculation.
_ORDERED: _Found = dict.fromkeys(_acceptance(CountWindow(1)))


def _serving(sources: Sources, now: float) -> _Found:
    fallback = sources.fallback
    state = fallback.in_force.state
    return {
        "break_even_rate": sources.settings.draft_cost,
        "autoregressive": int(state is State.AUTOREGRESSIVE),
        "probing": int(state is State.PROBING),
        "ineffective": int(state is State.INEFFECTIVE),
        "fell_back": int(fallback.fell_back),
        "open_slices": fallback.plain_slices,
        "certificate_valid": None if (valid := sources.certificate_valid()) is None else int(valid),
        "switches": sources.grown.switches.over(sources.metrics.switches, now),
    }


def _texts(sources: Sources) -> _Found:
    told = sources.similarity.state()
    known = aligned(sources.proposals)
    return {
        "similarity": told["draft"]["mean"],
        "similarity_pairs": told["draft"]["pairs"],
        "replay_similarity": told["replay"]["mean"],
        "replay_pairs": told["replay"]["pairs"],
        "tokenizers_misaligned": None if known is None else int(not known),
    }


def _traffic(sources: Sources, now: float, monotonic: float) -> _Found:
    recent, limit_s = sources.recent, sources.settings.first_byte_limit_s
    requests, reached = recent.requests.total(now), recent.goal.reached(now)
    told = reached.since is not None and now - reached.since >= GOAL_S
    compared = sources.latencies.ratio()
    streams = None
    if limit_s is not None:
        waiting = sum(wait > limit_s for wait in sources.tap.waits(sources.speculative, monotonic))
        streams = recent.late.total(now) + waiting
    return {
        "latency_under_800ms_ratio": reached.under if told else None,
        "p95_latency_under_800ms_ratio": reached.minutes if told else None,
        "latency_requests": reached.requests,
        "latency_ratio": None if compared is None else compared[1].ratio,
        "late_streams": streams,
        "error_rate": recent.errors.total(now) / requests if requests else None,
        "requests": requests,
    }


def _losses(sources: Sources, now: float) -> _Found:
    writer, feed, grown = sources.writer, sources.feed, sources.grown
    return {
        "records_dropped": grown.records.over(writer.dropped + writer.refused, now),
        "tap_failures": grown.taps.over(sources.tap.failures, now),
        "feed_steps_dropped": None if feed is None else grown.steps.over(feed.ledger.steps_dropped, now),
        "similarity_dropped": grown.pairs.over(sources.similarity.dropped.total(), now),
        "notifications_failed": grown.unsent.over(sources.unsent(), now),
        "database_up": int(writer.healthy),
        "feed_connected": None if feed is None else feed.connected,
        "failed_tasks": len(sources.tasks.failed),
    }


def _replies(sources: Sources, ordered: bool) -> _Found:
    quality, silent = sources.quality, sources.windows.not_drafted()
    return {
        "not_drafted_share": silent.without / silent.requests if silent.requests and not ordered else None,
        "not_drafted_requests": silent.requests,
        **{f"{flag}_share": quality.share(flag) for flag in Flag},
        "quality_replies": min(quality.requests, WINDOW),
    }


def _upstreams(sources: Sources) -> dict[tuple[str, str], _Found]:
    told = {each["upstream"]: each for each in sources.counters.state()}
    return {
        ("upstream", name): {
            "upstream_up": None if up is None else int(up),
            "coverage": told[name]["coverage"],
            "engine_acceptance_rate": told[name]["p"],
        }
        for name, up in sources.up().items()
    }
