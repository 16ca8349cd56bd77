"""Compares texts of sampled requests: what the draft would have said with what was said, and replayed replies.

Texts are read and compared in processes of their own; here only waits what is to be compared. Nothing waits for it.
"""

import asyncio
import logging
import random
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, NamedTuple

from msgspec.structs import asdict

from .engine_request import EngineRequest
from .probes.child import ChildError
from .probes.embedder import Compared, Embedder, NoModel
from .probes.similarity import Budget, Kind, Limits, Scores, ScoreWindow, first_divergence
from .store.rows import SimilarityRow

_log = logging.getLogger(__name__)

#: Pairs that wait; more are dropped.
MOST_WAITING = 64
#: Pairs compared at a time.
_BATCH = 8
#: Replies whose scenarios are remembered. A pair that waits for longer than so many take tells none.
_MOST_SCENARIOS = 8192
#: How long a pair waits for its record, which tells the scenario, s; the record waits for its events half as long.
_LATE_S = 1.0
#: Until the next try, s, after the process died; doubled each time it dies again.
_PAUSE_S, _MOST_PAUSE_S = 1.0, 300.0


class Texts(NamedTuple):
    """A pair of texts, or why one is missing or not whole."""

    first: str | None
    second: str | None
    reason: str | None = None


Reader = Callable[[], tuple[str | None, str | None, str | None]]


class Pair(NamedTuple):
    kind: Kind
    #: The id in the reply.
    request_id: str
    #: As `Texts`; called on a worker thread.
    read: Reader
    scenario: str | None = None


Spawn = Callable[[Coroutine[Any, Any, None], str], object]


class Similarity:
    """One per process. For use in the event loop."""

    def __init__(
        self,
        embedder: Embedder | str,
        limits: Limits,
        share: float,
        per_minute: float,
        *,
        instance: str,
        spawn: Spawn,
        told: Callable[[SimilarityRow], None],
    ) -> None:
        """Of the requests that speculated a `share` is compared; `told` hears of each pair.

        A word in place of an embedder: why nothing is.
        """
        self._embedder = None if isinstance(embedder, str) else embedder
        self._limits = limits
        self._share = share
        self._budget = Budget(per_minute)
        self._instance = instance
        self._spawn = spawn
        self._told = told
        self._waiting: deque[Pair] = deque()
        self._working = False
        self._scenarios: OrderedDict[str, str] = OrderedDict()
        self._late: deque[SimilarityRow] = deque()
        self._pause_s = 0.0
        #: Why nothing can be compared.
        self.reason = embedder if isinstance(embedder, str) else None
        self._windows = {kind: ScoreWindow(limits) for kind in Kind}
        #: Replayed requests whose two replies were equal to the letter.
        self._equal: deque[bool] = deque(maxlen=100)
        #: Pairs that were sampled, and not compared.
        self.dropped = Counter({"budget": 0, "queue": 0})

    def add(self, request: EngineRequest, read: Reader) -> None:
        """Take in a finished request, whose texts `read` gives."""
        if self._embedder is None or random.random() >= self._share:  # noqa: S311
            return
        # What nothing was drafted for is equal to itself.
        if any(drafted for drafted, _ in request.counts):
            if self._budget.take(time.monotonic()):
                self.compare(Pair(Kind.DRAFT, request.reply_id, read))
            else:
                self.dropped["budget"] += 1

    def saw(self, reply_id: str | None, scenario: str) -> None:
        """Take in what the record of a reply tells, which the engine does not."""
        if self._embedder is None or reply_id is None:
            return
        self._scenarios[reply_id] = scenario
        if len(self._scenarios) > _MOST_SCENARIOS:
            # Of a plain dict the first one takes 7 us: it passes over those that were deleted before.
            self._scenarios.popitem(last=False)

    def compare(self, pair: Pair) -> None:
        """Have a pair compared, as far as the queue allows; replays have cost enough to need no budget here."""
        if self._embedder is None:
            return
        if len(self._waiting) >= MOST_WAITING:
            self.dropped["queue"] += 1
        else:
            self._waiting.append(pair)
            if not self._working:
                self._working = True
                self._spawn(self._work(self._embedder), "similarity")

    def close(self) -> None:
        while self._late:
            self._tell_late()
        if self._embedder is not None:
            self._embedder.close()

    async def _work(self, embedder: Embedder) -> None:
        """Until nothing waits."""
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
                await self._compare(embedder, batch)
        finally:
            self._working = False

    async def _compare(self, embedder: Embedder, batch: list[Pair]) -> None:
        if self.reason is not None:
            for pair in batch:
                # Drafts are not decoded for nothing; where replies part is told without a model.
                told = Texts(*pair.read()) if pair.kind is Kind.REPLAY else Texts(None, None)
                self._tell(pair, told._replace(reason=self.reason), Compared(None, False))
            return
        texts = await asyncio.to_thread(lambda: [Texts(*pair.read()) for pair in batch])
        whole = [i for i, (first, second, _) in enumerate(texts) if first is not None and second is not None]
        scores = dict.fromkeys(range(len(batch)), Compared(None, False))
        failed: str | None = None
        try:
            pairs = [(str(texts[i].first), str(texts[i].second)) for i in whole]
            found = await asyncio.to_thread(embedder.compare, pairs) if pairs else []
            scores.update(zip(whole, found, strict=True))
            self._pause_s = 0.0
        except NoModel as error:
            failed = self.reason = str(error)
            embedder.close()
            _log.warning("%s; no texts are compared", error)
        except ChildError as error:
            failed = f"the process that compares texts {error}"
            self._pause_s = min(max(_PAUSE_S, 2 * self._pause_s), _MOST_PAUSE_S)
            _log.warning("%s; it is started again in %g s", failed, self._pause_s)
        for i, pair in enumerate(batch):
            self._tell(pair, texts[i]._replace(reason=failed) if failed and i in whole else texts[i], scores[i])
        if failed:
            await asyncio.sleep(self._pause_s)

    def _tell(self, pair: Pair, texts: Texts, compared: Compared) -> None:
        score, (first, second, reason) = compared.score, texts
        divergence = None
        if pair.kind is Kind.REPLAY and first is not None and second is not None:
            divergence = first_divergence(first, second)
            self._equal.append(divergence is None)
            if divergence is not None:
                parted = f"the replies part after {divergence.characters} characters ({divergence.words} words)"
                reason = f"{reason}; {parted}" if reason else parted
        if score is not None:
            self._windows[pair.kind].add(score)
        elif reason is None:
            reason = "a text is empty"
        row = SimilarityRow(
            at=time.time(),
            instance=self._instance,
            request_id=pair.request_id,
            kind=pair.kind,
            score=score,
            level=self._limits.level(score),
            reason=reason,
            model="" if self._embedder is None else self._embedder.model,
            chunked=compared.chunked,
            first_divergence=None if divergence is None else divergence.characters,
            scenario=pair.scenario or self._scenarios.get(pair.request_id),
        )
        if row.scenario is None:
            self._late.append(row)
            asyncio.get_running_loop().call_later(_LATE_S, self._tell_late)
        else:
            self._told(row)

    def _tell_late(self) -> None:
        if self._late:
            row = self._late.popleft()
            self._told(replace(row, scenario=self._scenarios.get(row.request_id)))

    def forget(self) -> None:
        """Count the scores of drafts anew."""
        self._windows[Kind.DRAFT].clear()

    # ---- what is told of it

    @property
    def last(self) -> Scores:
        """Of the last 100 requests that were compared: drafts with replies."""
        return self._windows[Kind.DRAFT].figures()

    @property
    def mean(self) -> float | None:
        return self.last.mean

    @property
    def count(self) -> int:
        return self.last.pairs

    def state(self) -> dict[str, Any]:
        """`SimilarityState`."""
        equal = sum(self._equal) / len(self._equal) if self._equal else None
        return {
            "model": None if self._embedder is None else self._embedder.model,
            "reason": self.reason,
            "draft": asdict(self.last),
            "replay": asdict(self._windows[Kind.REPLAY].figures()),
            "replay_equal": equal,
            "dropped": self.dropped.total(),
        }
