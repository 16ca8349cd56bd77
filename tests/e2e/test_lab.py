"""The lab on real vLLM: a draft is qualified, a self-draft is served, and k is swept, each by its own command.

How long anything takes is no matter of these tests: limits of time are set so wide that a busy machine stays within.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from specwatch_engine.demo.dialogues import dialogue
from specwatch_engine.demo.prepare import prepare
from specwatch_engine.lab.run import read
from support.engine import SMALL, TOKEN, Engine, engine

K = 4
LAB_S = 400
VLLM_ON_CPU = Path(__file__).parents[1] / "support" / "vllm_on_cpu"
#: Prompts of each scenario: the weak one is a tenth, so that the global p hides it, and enough to be judged by itself.
WEAK = "fault_report"
SHARES = {"address_confirmation": 180, "code": 90, WEAK: 30}
QUALIFY = (
    "--concurrencies",
    "4",
    "--pairs",
    "10",
    "--step-prompts",
    "24",
    "--similarity",
    "none",
    "--draft-step",
    "0.95",
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return prepare(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def running(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with engine(tmp_path_factory.mktemp("engine"), configured(models, models["draft_generalist"])) as started:
        yield started


def configured(models: dict[str, Path], draft: Path) -> dict[str, Any]:
    speculative = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": K}
    return {**SMALL, "model": str(models["target"]), "speculative_config": speculative}


def asked(file: Path, shares: dict[str, int]) -> Path:
    rows = [
        {"scenario": scenario, "messages": list(dialogue(f"lab-{at}", scenario).prompt), "max_tokens": 160}
        for scenario, count in shares.items()
        for at in range(count)
    ]
    file.write_text("".join(json.dumps(row | {"temperature": 0}, ensure_ascii=False) + "\n" for row in rows))
    return file


def lab(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """A command of the lab, in a folder of its own."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SPECWATCH_")}
    # An engine that the lab starts is to start as fast as those of the other tests. What else the tests' support has
    # stays away: its `sidecar` is not the product's, which the lab imports.
    environment |= {"PYTHONPATH": str(VLLM_ON_CPU), "SPECWATCH_ENGINE_TOKEN": TOKEN}
    command = [sys.executable, "-m", "specwatch_engine.lab", *map(str, words)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LAB_S)


def test_the_weak_scenario_is_found_though_the_global_p_passes(running: Engine, tmp_path: Path) -> None:
    prompts = asked(tmp_path / "prompts.jsonl", SHARES)
    out = tmp_path / "run"
    words = ("--engine", running.url, "--prompts", prompts, "--number", 120, "--out", out, *QUALIFY)
    done = lab(tmp_path, "qualify", *words, "--sign-off", "the tests")
    assert done.returncode == 1, done.stderr
    told = read(out)
    assert told["verdict"] == "qualified in part", done.stderr
    gates = {gate["name"]: gate for gate in told["summary"]["gates"]}
    assert gates["p"]["passed"]
    assert gates["tokenizers"]["passed"]
    certificate = json.loads((out / "certificate.json").read_text())
    assert {name: each["certified"] for name, each in certificate["scenarios"].items()} == {
        name: name != WEAK for name in SHARES
    }
    assert certificate["scenarios"][WEAK]["high"] < certificate["limits"]["p"] < certificate["p"]
    assert certificate["signed_off_by"] == "the tests"
    assert certificate["fingerprint"]["k"] == K
    assert (out / "report.html").stat().st_size > 0
    # The engine was there before, and runs as it did.
    assert running.state()["cap"] is None


def test_k_is_swept_on_the_running_engine(running: Engine, tmp_path: Path) -> None:
    prompts = asked(tmp_path / "prompts.jsonl", {"address_confirmation": 100, "code": 100})
    out = tmp_path / "run"
    process = running.process.pid
    words = ("--engine", running.url, "--prompts", prompts, "--k", "1-4", "--rounds", 3, "--no-confirm")
    done = lab(tmp_path, "sweep", *words, "--concurrencies", 1, "--out", out)
    told = read(out)
    # Which k is fastest is the machine's business; that each was served as often as the others is the sweep's.
    assert told["state"] == "done", done.stderr
    assert done.returncode == {"recommended, not confirmed": 0, "no gain": 1, "cannot tell": 2}[told["verdict"]], (
        done.stderr
    )
    cells = [json.loads(line) for line in (out / "cells.jsonl").read_text().splitlines()]
    rounds = Counter((cell["k"], cell["round"]) for cell in cells)
    assert {k for k, _ in rounds} == {0, 1, 2, 3, 4}
    assert all(count == 1 for count in rounds.values())
    assert {at for _, at in rounds} <= {0, 1, 2, 3}
    assert running.process.pid == process
    assert running.process.poll() is None
    assert running.state()["cap"] is None


def test_a_self_draft_is_made_served_and_qualified(models: dict[str, Path], tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    made = lab(tmp_path, "self-draft", models["target"], "--layers", 4, "--out", draft)
    assert made.returncode == 0, made.stderr
    config = tmp_path / "engine.yaml"
    config.write_text(yaml.safe_dump(configured(models, draft)))
    prompts = asked(tmp_path / "prompts.jsonl", {"address_confirmation": 40})
    out = tmp_path / "run"
    done = lab(tmp_path, "qualify", "-c", config, "--prompts", prompts, "--out", out, *QUALIFY)
    assert done.returncode == 0, done.stderr
    told = read(out)
    assert told["verdict"] == "qualified"
    gates = {gate["name"]: gate for gate in told["summary"]["gates"]}
    assert gates["tokenizers"]["passed"]
    # The layers that it does without are silent in the demo's target.
    assert gates["p"]["value"] == pytest.approx(1, abs=0.01)
    assert told["fingerprint"]["draft"] == str(draft)
    # The engine was the lab's own.
    engine_log = (out / "launch.log").read_text()
    (url,) = {word for word in engine_log.split() if word.startswith("http://127.0.0.1:")}
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health", timeout=5)
