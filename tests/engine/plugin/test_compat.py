"""What the plugin relies on in the installed vLLM, asked in a process of its own, and what it does where that is gone.

vLLM takes 15 s to import, so that one process answers for all tests.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from specwatch_engine.plugin.compat.hooks import KNOWN

with_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")


@pytest.fixture(scope="session")
def answers() -> dict[str, Any]:
    script = str(Path(__file__).with_name("real_vllm.py"))
    made = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr
    (line,) = (line for line in made.stdout.splitlines() if line.startswith("ANSWER"))
    found: dict[str, Any] = json.loads(line.removeprefix("ANSWER"))
    return found


@with_vllm
def test_the_installed_vllm_is_one_that_was_tried(answers: dict[str, Any]) -> None:
    assert answers["version"] in KNOWN, (
        f"vLLM {answers['version']} is installed, the plugin knows {sorted(KNOWN)} and stands down in it. Mend "
        "engine/plugin/compat until the tests of this room and tests/e2e/test_plugin.py pass, then add it to KNOWN."
    )


@with_vllm
def test_every_internal_of_vllm_is_where_the_plugin_expects_it(answers: dict[str, Any]) -> None:
    assert answers["moved"] == [], (
        "vLLM has changed what the plugin hooks into. For each line below, find the new place in vLLM's source, mend "
        "the hook and its line of _FUNCTIONS or _ATTRIBUTES in engine/plugin/compat/hooks.py:\n"
        + "\n".join(answers["moved"])
    )


UPDATE = "vllm.v1.core.sched.scheduler.Scheduler.update_from_output"
RENAMED = f"{UPDATE} takes (self, output, model_runner_output), expected (self, scheduler_output, model_runner_output)"
RPC = "vllm.v1.engine.core.EngineCore.collective_rpc takes (self, rank, method), expected (self, method, timeout, args)"
CHANGED = {
    "a method gone": ["vllm.v1.core.sched.scheduler.Scheduler._free_request is gone"],
    "a function gone": ["vllm.model_executor.model_loader.weight_checksum.compute_tensor_digests is gone"],
    "a class gone": ["vllm.v1.worker.worker_base.WorkerWrapperBase.init_device is gone"],
    "a parameter renamed": [RENAMED],
    "attributes not used any more": [
        f"{UPDATE} no longer uses {name}"
        for name in ("scheduled_spec_decode_tokens", "num_invalid_spec_tokens", "make_spec_decoding_stats")
    ],
    "a parameter before": [RPC],
    "a parameter behind": [],
    "no parameters": [
        "vllm.v1.core.sched.scheduler.Scheduler.reset_prefix_cache takes (), expected (self, reset_running_requests)"
    ],
}


@with_vllm
@pytest.mark.parametrize("name", CHANGED)
def test_what_has_moved_is_said_in_a_sentence(name: str, answers: dict[str, Any]) -> None:
    told = answers["changed"][name]
    for expected in CHANGED[name]:
        assert any(line.startswith(expected) for line in told), told
    assert bool(told) is bool(CHANGED[name])
    assert all("\n" not in line and len(line) < 250 for line in told)


STANDS_DOWN = {
    "unknown version": "vLLM 0.99.0 is not known, only 0.32.0",
    "moved hook": "vLLM 0.32.0 is not as expected: vllm.v1.core.sched.scheduler.Scheduler.schedule takes ",
    "not there": "No module named 'vllm'",
}


@with_vllm
@pytest.mark.parametrize("name", STANDS_DOWN)
def test_a_vllm_that_is_not_understood_is_left_alone_with_one_warning(name: str, answers: dict[str, Any]) -> None:
    found = answers[name]
    ((level, message),) = found["log"]
    assert level == "WARNING"
    assert message.startswith(f"Specwatch stands down, the engine serves without it: {STANDS_DOWN[name]}")
    assert found["same"]
    assert not found["installed"]


@with_vllm
def test_the_hooks_go_over_whatever_scheduler_vllm_chooses(answers: dict[str, Any]) -> None:
    found = answers["installed"]
    assert found["changed"] == ["scheduler", "worker", "order", "stage"]
    assert found["wrapped"]
    assert found["classes"] == {
        "default": ["Scheduler", "SchedulerMixin", "Scheduler"],
        "of the user": ["AsyncScheduler", "SchedulerMixin", "AsyncScheduler"],
    }
    assert found["names"]["default"] == ["Scheduler", "vllm.v1.core.sched.scheduler"]


@with_vllm
def test_installing_twice_is_harmless(answers: dict[str, Any]) -> None:
    assert answers["installed"]["twice"]
    assert answers["installed"]["again"], "a scheduler with the hooks is not given them once more"


HEAVY = ("torch", "vllm", "fastapi", "starlette", "sqlalchemy", "numpy", "sidecar")


@pytest.mark.parametrize("module", ["", ".events", ".switch", ".checkpoint", ".control", ".compat"])
def test_importing_the_plugin_loads_nothing_heavy(module: str) -> None:
    """vLLM imports it in every process, most of which have no use for it."""
    script = f"import sys, specwatch_engine.plugin{module}; print([n for n in {HEAVY} if n in sys.modules])"
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=os.environ)
    assert (made.stdout.strip(), made.stderr) == ("[]", "")
