"""Runs a program: no shell, the webhook's JSON on its stdin, its last output in the log."""

import asyncio
import logging
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from ..config import Command
from ..message import Notification, webhook_bytes
from ..redact import Redactor
from .error import NotifyError, Reason
from .thread import in_thread

_log = logging.getLogger(__name__)

#: Bytes of the output that are kept, and characters that are logged: what is cut off a secret is not logged.
_KEPT, _LOGGED = 16_384, 2_000
#: From SIGTERM to SIGKILL, s; how often it is looked whether to stop, s; how long `close` takes at most, s.
_GRACE_S, _LOOK_S, _CLOSE_S = 1.0, 0.25, 2.0


class CommandNotifier:
    """What fails is not tried again by itself: it may have done half of its work."""

    def __init__(self, config: Command, redact: Redactor) -> None:
        self._config = config
        self._redact = redact
        self._runs: list[_Run] = []

    async def send(self, notification: Notification) -> None:
        """Returns once the program has ended, and ends it when cancelled."""
        name, timeout_s = self._config.name, self._config.timeout_s
        run = _Run(self._config.command, webhook_bytes(notification), timeout_s)
        self._runs = [each for each in self._runs if not each.ended.is_set()] + [run]
        _log.info("command of receiver %s: starts", name)
        try:
            code = await in_thread(run, "alerts-command")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "its words cannot be passed on"
            raise NotifyError(Reason.FAILED, f"the command cannot be started: {why}", False) from None
        finally:
            run.stop.set()
        level = logging.INFO if code == 0 else logging.WARNING
        ended = f"ended with {code}" if code is not None else f"was ended after {timeout_s:g} s"
        _log.log(level, "command of receiver %s: %s; its last output: %s", name, ended, self._shown(run.output))
        if code is None:
            raise NotifyError(Reason.TIMEOUT, f"the command {ended}", False)
        if code:
            raise NotifyError(Reason.FAILED, f"the command {ended}; the log has its last output", False)

    async def close(self) -> None:
        for run in self._runs:
            run.stop.set()
        deadline = time.monotonic() + _CLOSE_S
        while not all(run.ended.is_set() for run in self._runs) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    def _shown(self, output: bytes) -> str:
        text = self._redact(output.decode("utf-8", "replace"))
        lines = "".join(each if each.isprintable() else " " for each in text.replace("\n", " | "))
        return lines.strip(" |")[-_LOGGED:] or "none"


class _Run:
    """One run, for a thread: called, it gives the exit code, None where it took too long or was stopped."""

    def __init__(self, words: Sequence[str], body: bytes, timeout_s: float) -> None:
        self._words = words
        self._body = body
        self._timeout_s = timeout_s
        self.stop = threading.Event()
        self.ended = threading.Event()
        self.output = b""

    def __call__(self) -> int | None:
        try:
            # A file, as a program that does not read its stdin would block who writes to it.
            with tempfile.TemporaryFile() as stdin:
                stdin.write(self._body)
                stdin.seek(0)
                process = subprocess.Popen(
                    self._words,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    bufsize=0,
                    start_new_session=True,
                )
            with process:
                return process.returncode if self._follow(process) else None
        finally:
            self.ended.set()

    def _follow(self, process: "subprocess.Popen[bytes]") -> bool:
        """Keeps the end of the output until the program ends: False where it had to be ended."""
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        deadline = time.monotonic() + self._timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            # Something that the program leaves running may hold its stdout, so its end is looked for as well.
            while process.poll() is None:
                if self.stop.is_set() or time.monotonic() >= deadline:
                    _end(process)
                    self._read(process.stdout.fileno())
                    return False
                if not selector.get_map():
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_LOOK_S)
                elif selector.select(_LOOK_S) and not self._read(process.stdout.fileno()):
                    selector.unregister(process.stdout)
        self._read(process.stdout.fileno())
        return True

    def _read(self, stdout: int) -> bool:
        """Takes what is there now, at most a pipe's fill; False at the end."""
        with suppress(BlockingIOError):
            for _ in range(16):
                piece = os.read(stdout, 65_536)
                if not piece:
                    return False
                self.output = (self.output + piece)[-_KEPT:]
        return True


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ends the program, and all of its process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
