"""Keeps one engine running: start, wait, warm up, watch, restart, stop. One thread, no leftovers."""

from __future__ import annotations

import errno
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from .child import Child, rotate, tail, trim
from .diagnosis import Diagnosis, describe_status, diagnose
from .progress import Reporter, stage_of
from .warmup import WarmUp, healthy

OK, FAILED = 0, 1


@dataclass(frozen=True)
class Timing:
    """Every delay and limit, in seconds unless the name says otherwise."""

    poll_s: float = 0.2
    ready_timeout_s: float = 600.0
    stop_limit_s: float = 20.0
    #: The same before it was ready: nothing is in flight, and vLLM heeds no signal while it loads.
    start_stop_limit_s: float = 2.0
    orphan_grace_s: float = 10.0
    backoff_first_s: float = 1.0
    backoff_cap_s: float = 60.0
    healthy_reset_s: float = 300.0
    health_every_s: float = 5.0
    health_timeout_s: float = 5.0
    unhealthy_limit_s: float = 60.0
    start_attempts: int = 3
    log_limit_bytes: int = 100_000_000


@dataclass(frozen=True)
class Job:
    """What to run. `warm_up` sends the first request; `ready_text` follows `after N s` in the ready line.

    `expects_drafts`: the warm-up's reply should show draft tokens, so their absence is worth a warning.
    """

    command: Sequence[str]
    env: Mapping[str, str]
    url: str
    log: Path
    warm_up: Callable[[], WarmUp]
    ready_text: str = ""
    expects_drafts: bool = False
    bind: tuple[str, int] | None = None


@dataclass
class Supervisor:
    """Runs a `Job` until it is told to stop or has to give up."""

    job: Job
    reporter: Reporter
    timing: Timing = field(default_factory=Timing)
    _signal: int | None = None
    _again: bool = False
    _child: Child | None = None

    def run(self) -> int:
        """0 after a stop that was asked for, 1 when the engine cannot be kept running.

        Must be called in the main thread: SIGINT and SIGTERM are its way to be stopped.
        """
        old = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return self._run()
        finally:
            if self._child is not None:
                self._child.stop(signal.SIGTERM, 0)
            self.reporter.done()
            for number, handler in old.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A second signal means "now": the wait for a clean end is cut short in _stop.
        self._again = self._signal is not None
        self._signal = number

    def _run(self) -> int:
        failures, backoff = 0, self.timing.backoff_first_s
        while self._signal is None:
            started = time.monotonic()
            try:
                was_ready, diagnosis = self._once(started)
            except OSError as error:
                self.reporter.done()
                self.reporter.say(f"engine: cannot start: {error}")
                return FAILED
            if self._signal is not None:
                break
            assert diagnosis is not None
            if was_ready:
                failures = 0
                if time.monotonic() - started >= self.timing.healthy_reset_s:
                    backoff = self.timing.backoff_first_s
            else:
                failures += 1
            if diagnosis.permanent and not was_ready:
                self.reporter.say("engine: giving up: another try cannot help")
                return FAILED
            if failures >= self.timing.start_attempts:
                self.reporter.say(f"engine: giving up after {failures} failed starts")
                return FAILED
            self.reporter.say(f"engine: starting again in {backoff:g} s")
            self._sleep(backoff)
            backoff = min(backoff * 2, self.timing.backoff_cap_s)
        return OK

    def _once(self, started: float) -> tuple[bool, Diagnosis | None]:
        """One life of the engine: whether it became ready, and why it ended (None: asked to stop)."""
        taken = port_taken(self.job.bind)
        if taken:
            return False, self._explain(taken, None)
        rotate(self.job.log)
        self._child = Child(self.job.command, self.job.env, self.job.log, orphan_grace_s=self.timing.orphan_grace_s)
        ready = self._wait_ready(started)
        if ready:
            self._greet(started)
            why = self._watch()
        else:
            why = f"not ready after {self.timing.ready_timeout_s:g} s"
        status = self._child.poll()
        if self._signal is not None:
            self._stop(self.timing.stop_limit_s if ready else self.timing.start_stop_limit_s)
            return ready, None
        if status is None:
            status_after = self._child.stop(signal.SIGTERM, self.timing.stop_limit_s)
        else:
            self._child.sweep()
            status_after, why = status, describe_status(status)
        self._child = None
        self.reporter.done()
        self.reporter.say(f"engine: ended {'while serving' if ready else 'during start-up'}: {why}")
        text = "\n".join(tail(self.job.log, 4000))
        return ready, self._explain(text, status if status is not None else status_after)

    def _wait_ready(self, started: float) -> bool:
        """False when the engine ended, the time is over, or a stop was asked for."""
        assert self._child is not None
        stage = ""
        while self._signal is None and self._child.poll() is None:
            elapsed = time.monotonic() - started
            if elapsed > self.timing.ready_timeout_s:
                return False
            stage = stage_of("\n".join(tail(self.job.log, 200, 65_536)), stage)
            self.reporter.stage(stage, elapsed)
            if healthy(self.job.url, self.timing.health_timeout_s) and self._child.poll() is None:
                return True
            self._sleep(self.timing.poll_s)
        return False

    def _greet(self, started: float) -> None:
        self.reporter.stage("warming up", time.monotonic() - started)
        seen = self._warm_up()
        self.reporter.done()
        if seen is None:
            return
        if not seen.ok:
            self.reporter.say(f"engine: WARNING: the warm-up request failed: {seen.error}")
        elif seen.drafted:
            self.reporter.say(f"engine: warm-up drafted {seen.drafted} tokens, {seen.accepted} accepted")
        elif self.job.expects_drafts:
            self.reporter.say(
                "engine: WARNING: no draft tokens in the warm-up reply: speculation is not at work, or this "
                "vLLM does not report it; the acceptance rate will stay unknown"
            )
        elapsed = time.monotonic() - started
        self.reporter.say(f"engine ready on {self.job.url} after {elapsed:.0f} s{self.job.ready_text}")

    def _warm_up(self) -> WarmUp | None:
        """The warm-up's outcome; None when the engine ended or a stop was asked for meanwhile."""
        assert self._child is not None
        outcome: list[WarmUp] = []
        # In a thread, because a read that waits for the engine would hold up a signal.
        thread = threading.Thread(target=lambda: outcome.append(self.job.warm_up()), daemon=True)
        thread.start()
        while thread.is_alive() and self._signal is None and self._child.poll() is None:
            thread.join(min(self.timing.poll_s, 0.05))
        return outcome[0] if outcome else None

    def _watch(self) -> str:
        """Returns when the engine ended, stopped answering, or a stop was asked for; says why."""
        assert self._child is not None
        last_good = next_check = time.monotonic()
        while self._signal is None and self._child.poll() is None:
            now = time.monotonic()
            if now >= next_check:
                next_check = now + self.timing.health_every_s
                trim(self.job.log, self.timing.log_limit_bytes)
                if healthy(self.job.url, self.timing.health_timeout_s):
                    last_good = now
                elif now - last_good > self.timing.unhealthy_limit_s:
                    return f"no healthy answer for {now - last_good:.0f} s"
            self._sleep(self.timing.poll_s)
        return ""

    def _stop(self, limit_s: float) -> None:
        assert self._child is not None
        assert self._signal is not None
        self.reporter.done()
        self.reporter.say("engine: stopping")
        self._child.signal(self._signal)
        deadline = time.monotonic() + limit_s
        while self._child.poll() is None and not self._again and time.monotonic() < deadline:
            time.sleep(min(self.timing.poll_s, 0.05))
        if self._child.poll() is None:
            self.reporter.say("engine: did not stop in time, ending it with SIGKILL")
        self._child.sweep()
        self._child.poll()
        self._child = None
        self.reporter.say("engine: stopped")

    def _explain(self, log: str, status: int | None) -> Diagnosis:
        diagnosis = diagnose(log, status)
        for line in log.splitlines()[-20:]:
            self.reporter.say(f"  | {line}")
        self.reporter.say(f"engine: cause: {diagnosis.cause}")
        if diagnosis.evidence:
            self.reporter.say(f"engine: seen: {diagnosis.evidence}")
        self.reporter.say(f"engine: remedy: {diagnosis.remedy}")
        self.reporter.say(f"engine: whole log: {self.job.log}")
        return diagnosis

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._signal is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, self.timing.poll_s))


def port_taken(address: tuple[str, int] | None) -> str:
    """The system's words when nothing can listen on `address`, else "".

    Asked before each start: a stranger's server on the port would answer /health in the engine's place.
    """
    if address is None:
        return ""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            words = "Address already in use" if error.errno == errno.EADDRINUSE else str(error.strerror or error)
            return f"{address[0]}:{address[1]}: {words}"
    return ""
