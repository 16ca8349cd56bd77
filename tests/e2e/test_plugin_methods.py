"""The plugin under other proposers, the asynchronous scheduler and several engine cores."""

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.engine import SMALL, Engine, Listener, engine

MODELS = Path(__file__).parents[2] / "engine" / "demo" / "models"
K = 4
ENGINE = {
    **SMALL,
    "model": str(MODELS / "target"),
    "dtype": "float32",
}
#: Replies that repeat themselves, so that looking up n-grams finds something.
PROMPTS = [f"one two {i} one two {i} one two {i} one two" for i in range(6)]

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, str]]] = {
    "draft_model, asynchronous scheduler": (
        {"method": "draft_model", "model": str(MODELS / "target")},
        {},
        {"ASYNC_ON_CPU": "1"},
    ),
    "ngram, two engine cores, two API servers": (
        {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1},
        {"data_parallel_size": 2, "extra_args": {"api_server_count": 2}},
        {},
    ),
    "eagle": ({"method": "eagle", "model": "eagle"}, {}, {}),
    "custom_class": ({"method": "custom_class", "model": "last_token.LastToken"}, {}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_switch_opt_out_and_events(tmp_path: Path, case: str) -> None:
    speculative, more, env = CASES[case]
    if case == "eagle":
        eagle_head(tmp_path / "eagle")
    listener = Listener(tmp_path / "events.sock")
    config = ENGINE | more | {"speculative_config": speculative | {"num_speculative_tokens": K}}
    with engine(tmp_path, config, env) as running:
        states = running.order("GET", "engine").json()["engines"]
        cores = more.get("data_parallel_size", 1)
        assert [state["engine"] for state in states] == list(range(cores))
        assert len(listener.hellos) == cores

        on = batch(running)
        check_ids(listener)
        before = listener.figures()
        assert before == running.counters()
        assert before[1] > 0

        off = running.order("PUT", "speculation", {"cap": 0}).json()["engines"]
        assert [state["cap"] for state in off] == [0] * cores
        print(f"{case}: {off[0]['at_zero']}")
        plain = batch(running)
        assert listener.figures() == before == running.counters()

        running.order("PUT", "speculation", {"cap": 2})
        two = batch(running)
        capped = [told for told in listener.requests.values() if told.steps][-len(PROMPTS) :]
        assert max(len(drafts) for told in capped for drafts, _ in told.steps) == 2

        running.order("PUT", "speculation", {"cap": None})
        mixed = batch(running, every_other={"vllm_xargs": {"speculative": False}})
        assert listener.figures() == running.counters()
        assert on == plain == two == mixed
        assert listener.dropped == listener.gaps == 0
    listener.close()


def eagle_head(folder: Path) -> None:
    """The target's own last layer as an EAGLE head: not trained to be one, and now and then right."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(MODELS / "target", folder)
    config = json.loads((folder / "config.json").read_text())
    last = config["num_hidden_layers"] - 1
    size = config["hidden_size"]
    weights = {
        f"layers.0.{name.partition(f'layers.{last}.')[2]}": tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
        if f"layers.{last}." in name and "input_layernorm" not in name
    }
    # Of the token's embedding and the target's hidden state, their sum.
    weights["fc.weight"] = torch.cat((torch.eye(size), torch.eye(size)), dim=1).to(torch.bfloat16)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))


def batch(running: Engine, every_other: dict[str, Any] | None = None) -> list[str]:
    def ask(at: int) -> str:
        more = every_other if every_other and at % 2 else {}
        reply = running.complete(prompt=PROMPTS[at], max_tokens=60, ignore_eos=True, **more)
        return str(reply["choices"][0]["text"])

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        texts = list(pool.map(ask, range(len(PROMPTS))))
    time.sleep(0.3)
    return texts


def check_ids(listener: Listener) -> None:
    """What was accepted is what was drafted, and the first that was rejected differs from what was emitted."""
    steps = [step for told in listener.requests.values() for step in told.steps if step[0]]
    assert steps
    for drafts, emitted in steps:
        assert min(drafts) >= 0
        accepted = len(emitted) - 1
        assert drafts[:accepted] == emitted[:accepted]
        if accepted < len(drafts):
            assert drafts[accepted] != emitted[accepted]
