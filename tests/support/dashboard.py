"""`python -m dashboard` as a process of its own, and a browser."""

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from .chain import free_ports

CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def opened(api: str, token: str = "") -> Iterator[str]:
    """The address of a dashboard that asks `api`."""
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [sys.executable, "-m", "dashboard", "--api", api, "--port", str(port)],
        env=os.environ | {"SPECWATCH_ADMIN_TOKEN": token},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{address}/_stcore/health", timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < until, "the dashboard did not start"
                time.sleep(0.2)
        yield address
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=30)[0]
        assert process.returncode == 0
        assert "Traceback" not in output
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium; `new_page()` opens a page. Skips the test where there is none."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("no chromium on PATH (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=path, args=CHROMIUM_ARGUMENTS)
        yield found
        found.close()
