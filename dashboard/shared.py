"""Answers that all who ask the same within some seconds have in common, so that many open pages ask hardly more than
one.

    shared = Shared(seconds=4.0, most=256)
    shared.get(("summary", "1h"), lambda: ask(...))
"""

import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")


class Shared:
    """Safe to share between threads. A question that fails, fails for those who wait for it, and is asked anew next."""

    def __init__(self, seconds: float, most: int, now: Callable[[], float] = time.monotonic) -> None:
        """An answer is given again for `seconds` after it came; `most` questions, 1 or more, are remembered."""
        self._seconds, self._most, self._now = seconds, most, now
        self._lock = Lock()
        #: Question -> its answer, and when it came; infinity while it is waited for. The newest last.
        self._kept: dict[Hashable, tuple[Future[Any], float]] = {}

    def get(self, question: Hashable, ask: Callable[[], T]) -> T:
        with self._lock:
            now = self._now()
            self._kept = {each: kept for each, kept in self._kept.items() if now - kept[1] < self._seconds}
            mine = question not in self._kept
            if mine:
                self._kept[question] = Future(), float("inf")
                if len(self._kept) > self._most:
                    del self._kept[next(iter(self._kept))]
            answer = self._kept[question][0]
        if mine:
            self._answer(question, answer, ask)
        found: T = answer.result()
        return found

    def forget(self) -> None:
        """What is asked from now on is asked anew, also where the same is being asked at the moment."""
        with self._lock:
            self._kept.clear()

    def _answer(self, question: Hashable, answer: Future[Any], ask: Callable[[], object]) -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)
        with self._lock:
            if self._kept.get(question, (None,))[0] is not answer:
                return
            if answer.exception() is None:
                self._kept[question] = answer, self._now()
            else:
                del self._kept[question]
