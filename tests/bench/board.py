"""The dashboard over a database: first paint and refresh of every page, and memory over many refreshes.

    python tests/bench/board.py paint --database-url sqlite:////tmp/years.db --beside sqlite:////tmp/small.db
    python tests/bench/board.py refresh --database-url sqlite:////tmp/years.db --beside sqlite:////tmp/small.db
    python tests/bench/board.py memory --database-url sqlite:////tmp/small.db --refreshes 500

Databases are made by `years.py fill`. `paint` opens each page in Chromium, cold and by turns over both databases, up to
its last chart, table or figure; `refresh` runs each page's script again, as its timer does, without a browser; each
tells the ratio of the medians. `memory` lets the page Now refresh every half second in Chromium.
"""

import argparse
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.years import resident, sidecar
from support.apptest import page_of
from support.chain import free_ports
from support.dashboard import browser, opened

PAGES = ("now", "truncation", "scenarios", "latency", "quality", "tokenizers", "events", "requests", "drafts", "lab")
WINDOWS = ("1h", "24h", "7d")
#: As `dashboard.pages.run`, but that it refreshes all the time.
_RESTLESS = (
    "import dashboard.parts as p; p.DATA_SECONDS = p.STATE_SECONDS = 0.5\nfrom dashboard.app import main\nmain()\n"
)
#: What is left of a page's elements while its script runs.
_STALE = '[data-stale="true"], [data-testid="stSkeleton"]'


def paint(urls: list[str], repeats: int) -> None:
    with ExitStack() as stack:
        boards = [stack.enter_context(opened(address)) for address, _ in _sidecars(stack, urls)]
        chromium = stack.enter_context(browser())
        took: defaultdict[tuple[str, str], list[list[float]]] = defaultdict(lambda: [[] for _ in boards])
        for turn in range(repeats + 1):
            for page in PAGES:
                for window in WINDOWS:
                    for side, board in enumerate(boards):
                        seconds = _paint(chromium, f"{board}/{'' if page == 'now' else page}?window={window}")
                        # The first one starts Streamlit's own code.
                        if turn:
                            took[page, window][side].append(seconds)
        _tell(took)


def _paint(chromium: Any, url: str) -> float:
    tab = chromium.new_page(viewport={"width": 1280, "height": 900})
    begun = time.monotonic()
    tab.goto(url)
    tab.get_by_test_id("stMain").get_by_test_id("stElementContainer").first.wait_for(timeout=60_000)
    # Until the script has run to its end and nothing waits any more.
    tab.locator('[data-testid="stApp"][data-test-script-state="notRunning"]').wait_for(timeout=60_000)
    tab.wait_for_function(f"document.querySelectorAll('{_STALE}').length === 0", timeout=60_000)
    seconds = time.monotonic() - begun
    tab.close()
    return seconds


def refresh(urls: list[str], repeats: int) -> None:
    with ExitStack() as stack:
        addresses = [address for address, _ in _sidecars(stack, urls)]
        took: defaultdict[tuple[str, str], list[list[float]]] = defaultdict(lambda: [[] for _ in addresses])
        for page in PAGES:
            for window in WINDOWS:
                for side, address in enumerate(addresses):
                    os.environ["SPECWATCH_API"] = address
                    tested = page_of(page)
                    tested.query_params["window"] = window
                    tested.run()
                    for _ in range(repeats):
                        begun = time.monotonic()
                        tested.run()
                        took[page, window][side].append(time.monotonic() - begun)
                    assert not tested.exception, tested.exception
        _tell(took)


def _tell(took: dict[tuple[str, str], list[list[float]]]) -> None:
    for (page, window), sides in took.items():
        shown = ", ".join(f"p50 {statistics.median(side):.2f} s, longest {max(side):.2f} s" for side in sides)
        ratio = statistics.median(sides[0]) / statistics.median(sides[-1])
        print(f"{page:11} {window:4} {shown}{f', ratio {ratio:.2f}' if len(sides) > 1 else ''}")


def memory(url: str, refreshes: int) -> None:
    with ExitStack() as stack:
        ((address, _),) = _sidecars(stack, [url])
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "run.py").write_text(_RESTLESS)
        board, pid = stack.enter_context(_restless(folder / "run.py", address))
        tab = stack.enter_context(browser()).new_page(viewport={"width": 1280, "height": 900})
        tab.goto(f"{board}/?window=24h")
        tab.get_by_text("Requests by outcome").wait_for(timeout=60_000)
        seen, last = 0, ""
        while seen <= refreshes:
            text = tab.get_by_text("as of 20").inner_text(timeout=60_000)
            if text != last:
                seen, last = seen + 1, text
                if seen % (refreshes // 10) == 1:
                    heap = tab.evaluate("performance.memory.usedJSHeapSize") // 2**20
                    nodes = tab.evaluate("document.querySelectorAll('*').length")
                    print(f"refresh {seen:4}: dashboard {resident(pid)} MiB, page {heap} MiB and {nodes} elements")
            time.sleep(0.1)


@contextmanager
def _restless(script: Path, address: str) -> Iterator[tuple[str, int]]:
    (port,) = free_ports(1)
    options = ["--server.headless", "true", "--server.address", "127.0.0.1", "--server.port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "streamlit", "run", str(script), *options, "--browser.gatherUsageStats", "false"],
        env=os.environ | {"SPECWATCH_API": address, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.DEVNULL,
    )
    try:
        time.sleep(5)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait(30)


def _sidecars(stack: ExitStack, urls: list[str]) -> list[tuple[str, int]]:
    folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in urls]
    return [stack.enter_context(sidecar(url, folder)) for url, folder in zip(urls, folders, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("paint", "refresh", "memory"))
    parser.add_argument("--database-url", required=True)
    parser.add_argument("--beside", help="another database, to compare with")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--refreshes", type=int, default=500)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    urls = [given.database_url, *([given.beside] if given.beside else [])]
    match given.what:
        case "paint":
            paint(urls, given.repeats)
        case "refresh":
            refresh(urls, given.repeats)
        case "memory":
            memory(given.database_url, given.refreshes)


if __name__ == "__main__":
    main()
