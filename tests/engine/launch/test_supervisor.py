"""The supervisor against a real process: readiness, restarts, giving up, clean ends, no orphans."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from specwatch_engine.launch.child import Child, rotate, tail, trim
from specwatch_engine.launch.progress import Reporter
from specwatch_engine.launch.supervisor import FAILED, OK, Job, Supervisor, Timing
from specwatch_engine.launch.warmup import WarmUp, healthy, warm_up
from support.chain import free_ports

FAKE = Path(__file__).with_name("fake_engine.py")
QUICK = Timing(
    poll_s=0.02,
    ready_timeout_s=20,
    stop_limit_s=0.5,
    orphan_grace_s=0.3,
    backoff_first_s=0.05,
    backoff_cap_s=0.1,
    health_every_s=0.05,
    health_timeout_s=1,
    unhealthy_limit_s=0.2,
)
#: A busy machine is no sick engine.
PATIENT = replace(QUICK, unhealthy_limit_s=60)


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


class Bench:
    """One supervisor run; what it said is in `said()`, the engine's pids in `pids()`."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port, self.url = folder, port, f"http://127.0.0.1:{port}"
        self.output = io.StringIO()
        self.pid_file = folder / "pids"
        #: Where an engine finds the order to die, or to be sick.
        self.order = folder / "order"
        self.ended = threading.Event()

    def command(self, *options: str) -> list[str]:
        return [sys.executable, "-S", str(FAKE), str(self.port), f"pids={self.pid_file}", *options]

    def job(self, *options: str, expects_drafts: bool = True) -> Job:
        return Job(
            command=self.command(*options),
            env=dict(os.environ),
            url=self.url,
            log=self.folder / "engine.log",
            warm_up=lambda: warm_up(self.url, "m", 5),
            ready_text=" (fake)",
            expects_drafts=expects_drafts,
            bind=("127.0.0.1", self.port),
        )

    def run(self, job: Job, timing: Timing = QUICK, when: tuple[str, int, int] | None = None) -> int:
        """Run to its end; `when` = (text, count, signal): the signal is sent once it said text so often."""
        if when is not None:
            threading.Thread(target=self._interrupt, args=when, daemon=True).start()
        try:
            return Supervisor(job, Reporter(self.output), timing).run()
        finally:
            self.ended.set()

    def _interrupt(self, text: str, count: int, number: int) -> None:
        while self.said().count(text) < count and not self.ended.is_set():
            time.sleep(0.01)
        if not self.ended.is_set():
            os.kill(os.getpid(), number)

    def order_when_ready(self, times: int) -> None:
        """Gives the order to the first so many engines, each once it is ready."""
        threading.Thread(target=self._order, args=(times,), daemon=True).start()

    def _order(self, times: int) -> None:
        for number in range(times):
            while self.said().count("engine ready on") <= number and not self.ended.is_set():
                time.sleep(0.01)
            self.order.touch()

    def said(self) -> str:
        return self.output.getvalue()

    def pids(self) -> list[int]:
        return [int(pid) for pid in self.pid_file.read_text().split()] if self.pid_file.exists() else []


@pytest.fixture
def bench(tmp_path: Path, port: int) -> Iterator[Bench]:
    bench = Bench(tmp_path, port)
    yield bench
    # SIGKILL is not instant: a killed process may still be seen for some milliseconds.
    until(lambda: not any(map(alive, bench.pids())))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A killed grandchild whose new parent has not reaped it yet is no longer running.
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def until(true: Callable[[], object], limit_s: float = 10) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_start_warm_up_and_clean_stop(bench: Bench, number: int) -> None:
    job = bench.job("delay=0.2", "drafted=12", "say=Starting to load model x")
    assert bench.run(job, when=("engine ready on", 1, number)) == OK
    said = bench.said()
    assert "engine: loading target (" in said
    assert "engine: warm-up drafted 12 tokens, 3 accepted" in said
    assert re.search(rf"engine ready on {bench.url} after \d+ s \(fake\)", said)
    assert said.endswith("engine: stopping\nengine: stopped\n")
    assert len(bench.pids()) == 2


@pytest.mark.parametrize(
    ("options", "expected", "warned"), [([], True, True), (["drafted=0"], True, True), ([], False, False)]
)
def test_a_warm_up_without_drafts_is_told(bench: Bench, options: list[str], expected: bool, warned: bool) -> None:
    job = bench.job(*options, expects_drafts=expected)
    assert bench.run(job, when=("engine ready on", 1, signal.SIGINT)) == OK
    assert ("WARNING: no draft tokens" in bench.said()) is warned


def test_a_stop_does_not_wait_for_the_warm_up(bench: Bench) -> None:
    started = time.monotonic()
    assert bench.run(bench.job("hang=30"), when=("warming up", 1, signal.SIGINT)) == OK
    assert time.monotonic() - started < 15


def test_a_stop_during_start_up(bench: Bench) -> None:
    job = bench.job("delay=30", "say=Specwatch: importing vLLM")
    assert bench.run(job, when=("engine: importing", 1, signal.SIGTERM)) == OK


def test_an_engine_that_ignores_signals_is_killed(bench: Bench) -> None:
    assert bench.run(bench.job("stubborn=1", "drafted=1"), when=("engine ready on", 1, signal.SIGTERM)) == OK
    assert "did not stop in time" in bench.said()


def test_a_second_signal_cuts_the_wait_short(bench: Bench) -> None:
    threading.Thread(target=bench._interrupt, args=("engine: stopping", 1, signal.SIGINT), daemon=True).start()
    job, patient = bench.job("stubborn=1", "drafted=1"), replace(QUICK, stop_limit_s=60)
    assert bench.run(job, patient, when=("engine ready on", 1, signal.SIGINT)) == OK


def test_a_crash_while_serving_is_followed_by_a_restart(bench: Bench) -> None:
    job = bench.job(f"die={bench.order}", "drafted=4")
    bench.order_when_ready(2)
    assert bench.run(job, PATIENT, when=("engine ready on", 3, signal.SIGINT)) == OK
    said = bench.said()
    assert said.count("engine: ended while serving: exit status 3") == 2
    assert "starting again in 0.05 s" in said
    assert "starting again in 0.1 s" in said
    assert (bench.folder / "engine.log.1").exists()


def test_back_off_grows_to_its_cap_and_starts_over_after_good_health(bench: Bench) -> None:
    job = bench.job(f"die={bench.order}", "drafted=4")
    bench.order_when_ready(2)
    steady = replace(PATIENT, healthy_reset_s=0)
    assert bench.run(job, steady, when=("engine ready on", 3, signal.SIGINT)) == OK
    assert bench.said().count("starting again in 0.05 s") == 2


def test_repeated_failures_during_start_up_end_it(bench: Bench) -> None:
    assert bench.run(bench.job("exit=7", "say=what now")) == FAILED
    said = bench.said()
    assert said.count("engine: ended during start-up: exit status 7") == 3
    assert "  | what now" in said
    assert "cause: unknown (exit status 7)" in said
    assert said.endswith("giving up after 3 failed starts\n")
    assert len(bench.pids()) == 6


def test_a_failure_that_cannot_heal_ends_it_at_once(bench: Bench) -> None:
    text = "ValueError: Target and draft model should have the same vocabulary size. Target model"
    assert bench.run(bench.job("exit=1", f"say={text}")) == FAILED
    said = bench.said()
    assert said.count("ended during start-up") == 1
    assert "engine: cause: draft and target have vocabularies of different size" in said
    assert f"engine: seen: {text}" in said
    assert "engine: remedy: use a draft trained with the target's tokenizer" in said


def test_a_start_that_takes_too_long(bench: Bench) -> None:
    short = replace(QUICK, ready_timeout_s=0.3, start_attempts=1)
    assert bench.run(bench.job("delay=30"), short) == FAILED
    assert "ended during start-up: not ready after 0.3 s" in bench.said()


def test_an_engine_that_no_longer_answers_is_restarted(bench: Bench) -> None:
    job = bench.job(f"sick={bench.order}", "drafted=4")
    bench.order_when_ready(1)
    assert bench.run(job, when=("engine ready on", 2, signal.SIGINT)) == OK
    assert "ended while serving: no healthy answer for" in bench.said()


def test_a_taken_port_is_told_before_anything_starts(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", bench.port)):
        assert bench.run(bench.job()) == FAILED
    said = bench.said()
    assert "cause: another process listens on the engine's port" in said
    assert f"seen: 127.0.0.1:{bench.port}: Address already in use" in said
    assert not bench.pids()


def test_a_command_that_does_not_exist(bench: Bench) -> None:
    assert bench.run(replace(bench.job(), command=["/nowhere/at/all"])) == FAILED
    assert "cannot start" in bench.said()


@pytest.mark.parametrize("stubborn", [[], ["stubborn=1"]])
def test_no_orphans_when_the_supervisor_is_killed(bench: Bench, stubborn: list[str]) -> None:
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "from specwatch_engine.launch.child import Child\n"
        "Child(sys.argv[2:], os.environ, Path(sys.argv[1]), orphan_grace_s=0.2)\n"
        "time.sleep(60)\n"
    )
    log = str(bench.folder / "engine.log")
    supervisor = subprocess.Popen([sys.executable, "-c", code, log, *bench.command(*stubborn)])
    try:
        until(lambda: len(bench.pids()) == 2 and healthy(bench.url))
        assert all(map(alive, bench.pids()))
    finally:
        supervisor.kill()
        supervisor.wait()
    until(lambda: not any(map(alive, bench.pids())))


def test_children_that_outlive_the_engine_are_swept(bench: Bench) -> None:
    child = Child(bench.command("exit=0"), os.environ, bench.folder / "engine.log")
    until(lambda: child.poll() is not None)
    assert alive(bench.pids()[1])
    child.sweep()
    until(lambda: not alive(bench.pids()[1]))


def test_an_unreachable_engine_is_not_healthy(port: int) -> None:
    assert not healthy(f"http://127.0.0.1:{port}", 0.2)
    assert warm_up(f"http://127.0.0.1:{port}", "m", 0.2) == WarmUp(
        False, error="ConnectionRefusedError: [Errno 111] Connection refused"
    )


def test_logs_rotate_and_a_growing_log_is_trimmed(tmp_path: Path) -> None:
    log = tmp_path / "e.log"
    for number in range(6):
        log.write_text(f"{number}\n")
        rotate(log, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.log.1", "e.log.2"]
    assert (tmp_path / "e.log.1").read_text() == "5\n"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"a" * 100 + b"\n")
        trim(log, 200)
        assert len(log.read_bytes()) == 101
        trim(log, 50)
        writer.write(b"b\n\n\xff\n")
    assert tail(log, 5) == ["b", "\ufffd"]
    assert tail(tmp_path / "none", 5) == []
