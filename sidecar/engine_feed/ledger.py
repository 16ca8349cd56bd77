"""What the engine's cores have told of their requests, until the replies they belong to claim it."""

import logging
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from ..engine_request import EngineRequest, Hello
from ..faults import where
from .wire import Step, Steps, parent_of, reply_id_of

_log = logging.getLogger(__name__)

#: Requests of one core that are followed at a time.
MAX_OPEN = 4_096
#: Ids of tokens kept of one request.
MAX_IDS = 8_192
#: Finished requests that wait for their reply to end, and for how long, s: a slow client takes its reply later.
MAX_UNCLAIMED = 16_384
MAX_AGE_S = 60.0
#: Longest id followed, characters: clients choose them.
MAX_ID = 512

SHARED = "several requests had this id at the same time: their figures cannot be told apart"
_GAP = "events between the engine and the sidecar were lost"
_LOST = "the engine's connection for events was lost"
_UNSEEN = "the engine began this request before the sidecar saw its events"


class Finished(msgspec.Struct, gc=False):
    """What is kept of an engine request for its reply."""

    engine_id: str
    #: The same for all requests of one prompt.
    parent: str
    prompt_tokens: int
    output_tokens: int
    num_speculative_tokens: int | None
    #: Verify steps by (draft tokens, accepted ones).
    counts: dict[tuple[int, int], int]
    incomplete: str | None
    at: float
    #: `EngineRequest.step_digits`
    steps: str | None = None


class _Group(msgspec.Struct, gc=False):
    """The engine's requests of one reply id."""

    #: Engine ids.
    open: set[str] = msgspec.field(default_factory=set)
    #: By engine id.
    ended: dict[str, Finished] = msgspec.field(default_factory=dict)
    #: Replies that asked, but share their id with others.
    asked: int = 0


class Ledger:
    """Requests of all cores. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        #: Called for every request that was seen from its start to its finish.
        self.finished: list[Callable[[EngineRequest], None]] = []
        #: Called with the reply id of every request that ended, seen in full or not.
        self.ended: Callable[[str], None] | None = None
        #: Cores that have said hello.
        self.greeted = 0
        self.steps = 0
        self.steps_dropped = 0
        #: Engine requests by what became of them.
        self.joined = 0
        self.unjoined = 0
        self.incomplete = 0
        self._groups: dict[str, _Group] = {}
        #: What waits to be claimed, oldest first: engine id -> reply id.
        self._unclaimed: OrderedDict[str, str] = OrderedDict()
        self._failed = False

    def take(self, reply_id: str, replies: int) -> list[Finished] | str | None:
        """The engine's requests of a reply that asked for so many, all of them ended. They are given once.

        None while there are too few, or one of them goes on; a string says why there can be no figures.
        """
        group = self._groups.get(reply_id)
        if group is None:
            return None
        there = len(group.open) + len(group.ended)
        # Responses have ids of their own, and a request for each turn.
        if there > replies and not reply_id.startswith("resp_"):
            group.asked += replies
            if not group.open and group.asked >= there:
                self._drop(reply_id, [*group.ended])
                self.unjoined += there
            return SHARED
        if group.open or there < replies:
            return None
        requests = [*group.ended.values()]
        self._drop(reply_id, [*group.ended])
        reason = next((request.incomplete for request in requests if request.incomplete is not None), None)
        self.joined += sum(request.incomplete is None for request in requests)
        return requests if reason is None else reason

    def knows(self, reply_id: str) -> bool:
        """Whether any request of that reply was seen, and not taken."""
        return reply_id in self._groups

    def expire(self, now: float) -> None:
        """Let go of what nobody has claimed for long, or of the oldest where there is too much."""
        unclaimed = self._unclaimed
        while unclaimed:
            engine_id, reply_id = next(iter(unclaimed.items()))
            request = self._groups[reply_id].ended[engine_id]
            if len(unclaimed) <= MAX_UNCLAIMED and now - request.at < MAX_AGE_S:
                return
            self.unjoined += request.incomplete is None
            self._drop(reply_id, [engine_id])

    @property
    def unclaimed(self) -> int:
        return len(self._unclaimed)

    def _drop(self, reply_id: str, engine_ids: list[str]) -> None:
        group = self._groups[reply_id]
        for engine_id in engine_ids:
            del group.ended[engine_id]
            del self._unclaimed[engine_id]
        if not (group.open or group.ended):
            del self._groups[reply_id]

    # ---- for cores

    def opened(self, request: EngineRequest) -> None:
        self._groups.setdefault(request.reply_id, _Group()).open.add(request.engine_id)

    def closed(self, request: EngineRequest, now: float) -> None:
        """A request has ended, opened or not."""
        engine_id, reply_id = request.engine_id, request.reply_id
        group = self._groups.setdefault(reply_id, _Group())
        group.open.discard(engine_id)
        before = group.ended.get(engine_id)
        if before is not None:
            request.incomplete = before.incomplete or request.incomplete
        elif request.incomplete is not None:
            self.incomplete += 1
        group.ended[engine_id] = Finished(
            engine_id,
            parent_of(engine_id),
            request.prompt_tokens,
            request.output_tokens,
            request.hello.num_speculative_tokens,
            request.counts,
            request.incomplete,
            now,
            request.step_digits(),
        )
        self._unclaimed[engine_id] = reply_id
        self._unclaimed.move_to_end(engine_id)
        try:
            if request.incomplete is None:
                for tell in self.finished:
                    tell(request)
        except Exception as error:
            if not self._failed:
                self._failed = True
                _log.error("what looks at engine requests failed; further failures are not told\n%s", where(error))
        if self.ended is not None:
            self.ended(reply_id)
        self.expire(now)


class Core:
    """One connection of an engine core: the requests it has open."""

    def __init__(self, hello: Hello, ledger: Ledger) -> None:
        ledger.greeted += 1
        self.hello = hello
        self._ledger = ledger
        self._open: dict[str, EngineRequest] = {}
        #: Number of the next step, and steps dropped so far; None before the first.
        self._next: int | None = None
        self._dropped = 0

    def begin(self, steps: Steps, now: float) -> None:
        """Some steps have come, which `step` is to be given one by one."""
        if self._next is not None:
            self._ledger.steps_dropped += max(steps.dropped - self._dropped, 0)
            if steps.first != self._next:
                self._close_all(_GAP, now)
        self._dropped = steps.dropped
        self._next = steps.first + len(steps.steps)

    def step(self, step: Step, now: float) -> None:
        ledger, requests = self._ledger, self._open
        ledger.steps += 1
        for engine_id, prompt_tokens in step.started:
            if len(requests) < MAX_OPEN and len(engine_id) <= MAX_ID and engine_id not in requests:
                request = EngineRequest(engine_id, reply_id_of(engine_id), self.hello, prompt_tokens)
                requests[engine_id] = request
                ledger.opened(request)
        drafted, invalid = step.drafted, step.invalid or {}
        for engine_id, emitted in zip(step.ids, step.emitted, strict=True):
            if emitted:
                open_request = requests.get(engine_id)
                if open_request is not None:
                    open_request.add(drafted.get(engine_id, []), emitted, invalid.get(engine_id, 0), MAX_IDS)
        for engine_id, output_tokens, reason in step.finished:
            ended = requests.pop(engine_id, None)
            if ended is not None:
                ended.output_tokens, ended.finish_reason = output_tokens, reason
                ledger.closed(ended, now)
            elif len(engine_id) <= MAX_ID:
                ended = EngineRequest(engine_id, reply_id_of(engine_id), self.hello, 0)
                ended.incomplete = _UNSEEN
                ledger.closed(ended, now)

    def lost(self, now: float) -> None:
        """The connection is over."""
        self._close_all(_LOST, now)

    def _close_all(self, reason: str, now: float) -> None:
        requests, self._open = self._open, {}
        for request in requests.values():
            request.incomplete = reason
            self._ledger.closed(request, now)
