"""The whole product, started as a user starts it, on real vLLM with the demo models."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.chain import Chain, free_ports

DEMO = Path(__file__).parents[2] / "engine" / "demo"
#: Two engines boot on two busy cores.
READY_S = 400
#: What clients need who call tools and ask for JSON. The parser leaves forced calls to guided decoding, which
#: a model obeys that was never taught to call; without whitespace to choose it comes to an end of them.
FOR_CLIENTS = {
    "enable_auto_tool_choice": True,
    "tool_call_parser": "pythonic",
    "extra_args": {"structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True}},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    # They are the longest, so they begin first.
    items.sort(key=lambda item: not item.path.is_relative_to(here))
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    folder = tmp_path_factory.mktemp("chain")
    subprocess.run([sys.executable, "-m", "specwatch_engine.demo.prepare", str(folder / "models")], check=True)
    proxy, admin, engine, plain, dashboard, inside = free_ports(6)
    for name, port in (("speculative_config.yaml", engine), ("autoregressive_config.yaml", plain)):
        values = yaml.safe_load((DEMO / name).read_text()) | FOR_CLIENTS
        values["port"] = port
        values["model"] = str(folder / "models" / "target")
        if "speculative_config" in values:
            values["speculative_config"]["model"] = str(folder / "models" / "draft_generalist")
            values["extra_args"] = FOR_CLIENTS["extra_args"] | {"middleware": ["sidecar.middleware.Specwatch"]}
        (folder / name).write_text(yaml.safe_dump(values))
    settings = yaml.safe_load((DEMO / "specwatch.yaml").read_text())
    settings |= {
        "demo": False,
        "baseline_share": 0.0,
        "fallback_triggers": [],
        "similarity": "none",
        "listen": f"127.0.0.1:{proxy}",
        "admin": f"127.0.0.1:{admin}",
        "dashboard": f"127.0.0.1:{dashboard}",
        "database_url": f"sqlite:///{folder}/specwatch.db",
        "run_dir": str(folder / "run"),
    }
    config = folder / "specwatch.yaml"
    config.write_text(yaml.safe_dump(settings))
    # For the recorder inside the engine, which leaves each reply as it is. The engine's events go to the proxy, so it
    # has its figures of the replies.
    settings = {
        "admin": f"127.0.0.1:{inside}",
        "database_url": f"sqlite:///{folder}/inside.db",
        "add_headers": False,
        "add_usage": True,
        # It would fall back by itself too.
        "fallback_triggers": [],
    }
    (folder / "inside.yaml").write_text(yaml.safe_dump(settings))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SPECWATCH_")}
    environment["SPECWATCH_CONFIG"] = str(folder / "inside.yaml")
    with (folder / "up.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "sidecar.cli", "up", "-c", str(config)],
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
    try:
        deadline = time.monotonic() + READY_S
        while "fallback engine: engine ready on" not in (said := (folder / "up.log").read_text()):
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.5)
        assert "Specwatch is ready" in said
        yield Chain(
            *(f"http://127.0.0.1:{port}" for port in (proxy, admin, engine, plain, dashboard, inside)),
            folder / "specwatch.db",
            config,
            process,
            said.splitlines(),
        )
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(90)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert process.returncode == 0, (folder / "up.log").read_text()
