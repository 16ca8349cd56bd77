import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from specwatch_engine.lab.soak import memory
from specwatch_engine.lab.soak.drift import NoTest


@pytest.mark.parametrize(
    ("mb", "leak"),
    [
        (lambda i: 1500.0, False),
        (lambda i: 1500 + 40 * i / 60, False),
        (lambda i: 1500 + 120 * i / 60, True),
        (lambda i: 1500 + 300 * (1 - np.exp(-i / 8)), False),
        (lambda i: 1500 - 120 * i / 60, False),
        (lambda i: 60 + 15 * i / 60, False),
    ],
    ids=["level", "below the mark", "leak", "comes to rest", "shrinks", "small"],
)
def test_leaks(mb: Callable[[float], float], leak: bool) -> None:
    rng = np.random.default_rng(1)
    minutes = list(range(60))
    assert memory.leaks(minutes, [mb(i) + 2 * rng.normal() for i in minutes]) is leak


def test_too_few_minutes_tell_nothing() -> None:
    result = memory.growth(range(5), [1.0] * 5)
    assert isinstance(result, NoTest)
    assert "5 minutes of the 12" in result.reason
    assert memory.leaks(range(5), [1.0, 100.0, 200.0, 300.0, 400.0]) is False


def test_a_tree_has_what_is_below() -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        tree = memory.tree(child.pid)
        assert tree is not None
        assert child.pid in tree.pids
        assert len(tree.pids) == 2
        assert tree.mb > 5
        child.communicate(b"\n")
    assert memory.tree(child.pid) is None
    assert memory.tree(None) is None


def test_the_listener_at_a_url_is_found() -> None:
    import os

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert memory.listener(f"http://127.0.0.1:{port}") == os.getpid()
    assert memory.listener(f"http://127.0.0.1:{port}") is None
    assert memory.listener("http://elsewhere:8000") is None


def test_a_database_is_taken_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "soak.db").write_bytes(b"x" * 2_000_000)
    (tmp_path / "soak.db-wal").write_bytes(b"x" * 1_000_000)
    assert memory.database_mb(tmp_path / "soak.db") == 3.0
    assert memory.database_mb(tmp_path / "none.db") is None
