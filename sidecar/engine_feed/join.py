"""Records and what the engine told of their requests: each record goes on once, with its figures if they come in time.

All in the event loop, after the reply's last byte has gone out.
"""

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from itertools import accumulate

import msgspec

from ..faults import where
from ..record import Acceptance, AcceptanceQuality, AcceptanceSource, Arm, Outcome, Record
from ..tap.acceptance import NOT_SPECULATED, NOTHING_DRAFTED, missing
from .ledger import Finished, Ledger

_log = logging.getLogger(__name__)

#: How long a record waits for its events, s; nearly all have come before the reply ends.
WAIT_S = 0.5
#: Records that wait at a time.
MAX_WAITING = 4_096
#: Requests of an upstream that waited in vain, one after the other, until none waits any more.
MAX_MISSES = 20

_PAUSE_S = 0.005
_LATE = "the engine's events for this request did not come"

_replace = msgspec.structs.replace


class _Waiting:
    __slots__ = ("deadline", "record", "reply_id")

    def __init__(self, record: Record, reply_id: str, deadline: float) -> None:
        #: None once it has gone on.
        self.record: Record | None = record
        self.reply_id = reply_id
        self.deadline = deadline


class Joiner:
    """`put` takes every record, and `sink` is given each of them once."""

    def __init__(
        self,
        ledger: Ledger,
        connected: Callable[[], object],
        sink: Callable[[Record], None],
        opted_out: Callable[[bool], None] = lambda drafted: None,
        draft_model: Callable[[str], str | None] = lambda upstream: None,
    ) -> None:
        """`connected`: whether any engine core is. `opted_out` is told of each request that was to go without
        speculation whether it was drafted for, and `draft_model` names the draft model of an upstream.
        """
        self._ledger = ledger
        self._connected = connected
        self._sink = sink
        self._opted_out = opted_out
        self._draft_model = draft_model
        #: Replies whose own figures are others than the engine's.
        self.disagreements = 0
        self._queue: deque[_Waiting] = deque()
        self._by_reply: defaultdict[str, list[_Waiting]] = defaultdict(list)
        self._timer: asyncio.TimerHandle | None = None
        self._misses: Counter[str] = Counter()
        self._greeted = 0
        ledger.ended = self._ended

    def put(self, record: Record) -> None:
        reply_id = record.reply_id
        if reply_id is None:
            self._give(record)
            return
        found = self._ledger.take(reply_id, record.replies or 1)
        if found is not None:
            self._joined(record, found)
        elif self._is_worth_waiting(record, reply_id):
            self._wait(record, reply_id)
        else:
            self._give(record)

    async def settle(self) -> None:
        """No record waits any more, after `WAIT_S` at most."""
        end = asyncio.get_running_loop().time() + WAIT_S
        while self.waiting and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(_PAUSE_S)
        self.flush()

    def flush(self) -> None:
        """Let all records go on that wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiting in self._queue:
            if waiting.record is not None:
                self._give(_without(waiting.record, _LATE))
        self._queue.clear()
        self._by_reply.clear()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._by_reply.values()))

    def _give(self, record: Record) -> None:
        try:
            self._sink(record)
        except Exception as error:
            _log.error("a record is lost\n%s", where(error))

    # ---- waiting

    def _is_worth_waiting(self, record: Record, reply_id: str) -> bool:
        if len(self._queue) >= MAX_WAITING or not self._connected():
            return False
        if self._greeted != self._ledger.greeted:
            self._greeted = self._ledger.greeted
            self._misses.clear()
        return self._misses[record.upstream] < MAX_MISSES or self._ledger.knows(reply_id)

    def _wait(self, record: Record, reply_id: str) -> None:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(record, reply_id, loop.time() + WAIT_S)
        self._queue.append(waiting)
        self._by_reply[reply_id].append(waiting)
        if self._timer is None:
            self._timer = loop.call_at(waiting.deadline, self._expire)

    def _ended(self, reply_id: str) -> None:
        """An engine request has."""
        for waiting in self._by_reply.get(reply_id, [])[:]:
            if waiting.record is not None:
                found = self._ledger.take(reply_id, waiting.record.replies or 1)
                if found is not None:
                    self._joined(self._released(waiting), found)

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        queue = self._queue
        while queue and (queue[0].record is None or queue[0].deadline <= now):
            waiting = queue.popleft()
            if waiting.record is not None:
                self._missed(self._released(waiting), waiting.reply_id)
        if queue:
            self._timer = loop.call_at(queue[0].deadline, self._expire)

    def _released(self, waiting: _Waiting) -> Record:
        record, waiting.record = waiting.record, None
        assert record is not None
        others = self._by_reply[waiting.reply_id]
        others.remove(waiting)
        if not others:
            del self._by_reply[waiting.reply_id]
        return record

    def _missed(self, record: Record, reply_id: str) -> None:
        if not self._ledger.knows(reply_id):
            self._misses[record.upstream] += 1
        self._give(_without(record, _LATE))

    # ---- joining

    def _joined(self, record: Record, found: list[Finished] | str) -> None:
        self._misses.pop(record.upstream, None)
        self._give(_without(record, found) if isinstance(found, str) else self._with(record, found))

    def _with(self, record: Record, requests: list[Finished]) -> Record:
        own, acceptance = record.acceptance, pooled(requests)
        if acceptance is None:
            plain = own.reason == NOT_SPECULATED or all(each.num_speculative_tokens is None for each in requests)
            acceptance = missing(NOT_SPECULATED if plain else NOTHING_DRAFTED)
        if own.quality is AcceptanceQuality.OK and _totals(own) != _totals(acceptance):
            if not self.disagreements:
                _log.warning(
                    "request %s: the reply tells (steps, drafted, accepted) %s, the engine's events %s, which count",
                    record.request_id,
                    _totals(own),
                    _totals(acceptance),
                )
            self.disagreements += 1
        arm, draft_model = record.arm, record.draft_model
        if arm not in (Arm.SPECULATIVE, Arm.PROBE):
            drafted = bool(acceptance.draft_tokens)
            arm = Arm.SPECULATIVE if drafted else arm
            if not record.capped:
                self._opted_out(drafted)
        if acceptance.draft_tokens and draft_model is None:
            draft_model = self._draft_model(record.upstream)
        prompt_tokens, tokens, tpot_ms = record.prompt_tokens, record.completion_tokens, record.tpot_ms
        if prompt_tokens is None:
            prompt_tokens = sum({each.parent: each.prompt_tokens for each in requests}.values())
        if tokens is None:
            tokens = sum(each.output_tokens for each in requests)
            # Of a reply that was cut, fewer tokens came than the engine made.
            if record.outcome is Outcome.OK and record.content_ms is not None and tokens > 1:
                tpot_ms = record.content_ms / (tokens - 1)
        return _replace(
            record,
            arm=arm,
            draft_model=draft_model,
            acceptance=acceptance,
            prompt_tokens=prompt_tokens,
            completion_tokens=tokens,
            tpot_ms=tpot_ms,
        )


def pooled(requests: list[Finished]) -> Acceptance | None:
    """The figures of all requests of a reply; None where nothing was drafted.

    Steps are told of one request alone, as those of several are not one after the other.
    """
    counts: Counter[tuple[int, int]] = Counter()
    for request in requests:
        counts.update(request.counts)
    drafted = sum(made * steps for (made, _), steps in counts.items())
    if not drafted:
        return None
    k = max((each.num_speculative_tokens or 0 for each in requests), default=0) or None
    size = max(k or 0, *(made for made, _ in counts))
    histogram, complete = [0] * (size + 1), [0] * (size + 1)
    for (made, accepted), steps in counts.items():
        histogram[accepted] += steps
        if made == accepted:
            complete[accepted] += steps
    # Position i+1 was reached by the steps that accepted at least i tokens, but for those that drafted no more; and
    # it is where the first rejection was of those that accepted just i, but for the same.
    at_least = [*accumulate(reversed(histogram))][::-1]
    return Acceptance(
        AcceptanceSource.ENGINE,
        AcceptanceQuality.OK,
        None,
        k,
        sum(histogram),
        drafted,
        sum(accepted * steps for accepted, steps in enumerate(histogram)),
        tuple(histogram),
        tuple(histogram[i] - complete[i] for i in range(size)),
        tuple(at_least[i] - complete[i] for i in range(size)),
        steps=requests[0].steps if len(requests) == 1 else None,
    )


def _totals(figures: Acceptance) -> tuple[int | None, int | None, int | None]:
    return figures.verify_steps, figures.draft_tokens, figures.accepted_tokens


def _without(record: Record, reason: str) -> Record:
    """The record as the reply alone tells it; where that has no figures either, with the reason."""
    own = record.acceptance
    if own.source is not AcceptanceSource.NONE or own.raw is not None or record.outcome is not Outcome.OK:
        return record
    if own.reason in (NOT_SPECULATED, NOTHING_DRAFTED):
        return record
    return _replace(record, acceptance=missing(reason))
