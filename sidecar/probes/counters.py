"""The counters that vLLM keeps of itself, from the text of its /metrics, and what they grew by. Pure: no clock, no I/O.

They know no requests, and that is their use: they count what no record saw as well. Names are those of vLLM 0.32
(v1/spec_decode/metrics.py, v1/metrics/loggers.py), with and without the `_total` that exporters add.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

_ACCEPTED_AT = "spec_decode_num_accepted_tokens_per_pos"
_FAMILIES = {
    "drafts": "spec_decode_num_drafts",
    "draft_tokens": "spec_decode_num_draft_tokens",
    "accepted_tokens": "spec_decode_num_accepted_tokens",
    "generation_tokens": "generation_tokens",
    "finished": "request_success",
}
_GAUGES = ("num_requests_running", "num_requests_waiting")
_STARTED = "process_start_time_seconds"

#: One sample of a family that is wanted: name, labels, value. OpenMetrics has no colons in names.
_SAMPLE = re.compile(
    rb"\n(?:vllm[:_])?((?:spec_decode_num_|generation_tok|request_succ|num_requests_|process_start_)\w++)[ \t]*+"
    rb'(?:\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*+")*+)\})?[ \t]*+'
    rb"([0-9.eE+-]++)(?=[ \t\r\n]|$)"
)
_LABEL = re.compile(rb'(\w+)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*+)"')
#: Labels that do not tell engines apart.
_INSIDE_AN_ENGINE = (b"position", b"finished_reason")

#: Series that are remembered; vLLM has some ten an engine.
MOST_SERIES = 20_000
MOST_POSITIONS = 1024
#: Relative difference at which sums that must be equal are not. A scrape may fall between the parts of one step.
TOLERANCE = 0.01

#: Labels that tell an engine (a data-parallel core) of a model from others.
Engine = tuple[tuple[bytes, bytes], ...]
#: Engine, family, position (0 where there is none).
Series = tuple[Engine, str, int]


class Scrape(msgspec.Struct, frozen=True):
    """What one text told."""

    counts: Mapping[Series, int]
    #: Requests in the engines' steps, and before them; None where that is not told.
    running: int | None
    waiting: int | None
    #: When the process began, Unix time by its own clock; None where several processes count together.
    started: float | None
    #: Why it tells of no speculation; None where it does.
    unknown: str | None

    @property
    def idle(self) -> bool:
        """Nothing is known to be in flight: there is nothing, and that was told."""
        return self.running == 0 and self.waiting == 0

    @property
    def never_speculates(self) -> bool:
        """vLLM counts tokens and no drafts: it has those counters only where it is configured to speculate."""
        families = {family for _, family, _ in self.counts}
        return _FAMILIES["generation_tokens"] in families and _FAMILIES["draft_tokens"] not in families


def read(text: bytes) -> Scrape:
    """Read a text of Prometheus or OpenMetrics. Never raises: what is none of the samples wanted is left out."""
    counts: defaultdict[Series, int] = defaultdict(int)
    gauges: dict[str, float] = {}
    models: set[bytes] = set()
    for name, inside, number in _SAMPLE.findall(b"\n" + text):
        family, value = name.decode().removesuffix("_total"), _number(number)
        if value is None:
            continue
        if family in _GAUGES:
            gauges[family] = gauges.get(family, 0) + value
        elif family == _STARTED:
            gauges[family] = value
        elif family == _ACCEPTED_AT or family in _FAMILIES.values():
            labels = dict(_LABEL.findall(inside))
            engine = tuple(sorted(item for item in labels.items() if item[0] not in _INSIDE_AN_ENGINE))
            place = labels.get(b"position", b"0")
            if place.isdigit() and len(place) < 6 and int(place) < MOST_POSITIONS:
                counts[engine, family, int(place)] += round(value)
                models.update(value for label, value in engine if label == b"model_name")
    running, waiting = (None if gauges.get(name) is None else round(gauges[name]) for name in _GAUGES)
    unknown = _why_unknown(text, {family for _, family, _ in counts}, len(models))
    return Scrape(dict(counts) if len(models) < 2 else {}, running, waiting, gauges.get(_STARTED), unknown)


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 2**63 else None


def _why_unknown(text: bytes, families: set[str], models: int) -> str | None:
    if models > 1:
        return f"it tells of {models} models, whose figures are not added up"
    if {_FAMILIES["draft_tokens"], _FAMILIES["accepted_tokens"]} <= families:
        return None
    if _FAMILIES["generation_tokens"] in families:
        return "it does not speculate: it has no vllm:spec_decode counters"
    if re.search(rb"^vllm[:_]", text, re.MULTILINE) is None:
        return "it has no vllm: counters: its statistics are off (--disable-log-stats), or it is no vLLM"
    return "its counters are none that are known"


class Growth(msgspec.Struct, frozen=True):
    """What the counters of all engines of an upstream grew by; None: not told.

    The target's own token is in none of them but `generation_tokens`.
    """

    engines: int = 0
    #: Verify steps of requests for which something was drafted.
    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    #: Index 0 is position 1.
    accepted_per_position: tuple[int, ...] | None = None
    generation_tokens: int | None = None
    #: Requests that ended.
    finished: int | None = None
    #: Counters began anew: what they had grown by just before is not in here.
    reset: bool = False

    @property
    def p(self) -> float | None:
        """Accepted / drafted tokens; None where nothing was drafted, or the two cannot both be true."""
        drafted, accepted = self.draft_tokens, self.accepted_tokens
        return accepted / drafted if drafted and accepted is not None and accepted <= drafted else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted tokens / verify steps."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts and self.accepted_tokens is not None else None

    @property
    def disagreement(self) -> str | None:
        """What cannot be true, in a sentence.

        The mean acceptance length is 1 + the sum of the positions' rates, all of them by the same number of steps. So
        the tokens accepted at all positions are the tokens accepted.
        """
        drafted, accepted, places = self.draft_tokens, self.accepted_tokens, self.accepted_per_position
        if drafted is None or accepted is None:
            return None
        if accepted > drafted:
            return f"{accepted} tokens accepted of {drafted} drafted"
        if places is not None and abs(sum(places) - accepted) > TOLERANCE * accepted:
            return f"{accepted} tokens accepted, but {sum(places)} by position"
        return None


def total(parts: Iterable[Growth]) -> Growth:
    """All of `parts` together: the sum of what is known."""
    parts = list(parts)
    sums = {
        name: None if not (known := [n for each in parts if (n := getattr(each, name)) is not None]) else sum(known)
        for name in _FAMILIES
    }
    places = [each.accepted_per_position for each in parts if each.accepted_per_position is not None]
    longest = max(map(len, places), default=0)
    summed = tuple(sum(each[i] for each in places if i < len(each)) for i in range(longest))
    return Growth(
        engines=max((each.engines for each in parts), default=0),
        accepted_per_position=summed if places else None,
        reset=any(each.reset for each in parts),
        **sums,
    )


class Meter:
    """One upstream's counters from scrape to scrape."""

    def __init__(self) -> None:
        self._before: Scrape | None = None
        #: The last value of every series, also of those that the last scrape left out.
        self._values: dict[Series, int] = {}
        #: Answers came from more than one server, so that no two of them can be compared.
        self.mixed = False

    def add(self, scrape: Scrape) -> Growth | None:
        """What was added since the scrape before; None where there is nothing to compare with.

        An engine one of whose counters went down began anew, as all do in a new process: what they have is what they
        grew by. So do series that were not there before, if their family was, or the process: they were at zero.
        """
        before, self._before = self._before, scrape
        then, now = (None, None) if before is None else (before.started, scrape.started)
        # A restart cannot make a process older.
        self.mixed = self.mixed or (then is not None and now is not None and now < then)
        renewed = then is not None and now is not None and now > then
        values = {} if renewed else self._values
        down = {series[0] for series, value in scrape.counts.items() if value < values.get(series, 0)}
        if down:
            values = {series: value for series, value in values.items() if series[0] not in down}
        known = {family for _, family, _ in self._values}
        self._values = {**values, **scrape.counts}
        if len(self._values) > MOST_SERIES:
            self._values = dict(scrape.counts)
            return None
        if before is None or self.mixed:
            return None
        if not (renewed or (now is not None and now == then) or all(family in known for _, family, _ in scrape.counts)):
            return None
        sums: defaultdict[str, int] = defaultdict(int)
        places: defaultdict[int, int] = defaultdict(int)
        for series, value in scrape.counts.items():
            _, family, place = series
            grown = value - values.get(series, 0)
            sums[family] += grown
            if family == _ACCEPTED_AT:
                places[place] += grown
        return Growth(
            engines=len({engine for engine, _, _ in scrape.counts}),
            accepted_per_position=tuple(places[i] for i in range(max(places) + 1)) if places else None,
            reset=renewed or bool(down),
            **{name: sums.get(family) for name, family in _FAMILIES.items()},
        )
