"""A draft of the target's own layers is, to the last bit, what the target computes with those layers alone."""

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from specwatch_engine.demo.prepare import deepen
from specwatch_engine.demo.weights import CHECKPOINTS
from specwatch_engine.lab.progress import Say
from specwatch_engine.lab.run import Run
from specwatch_engine.lab.run import read as read_run
from specwatch_engine.lab.self_draft import checkpoint, command
from specwatch_engine.lab.self_draft.layers import lowest
from transformers import AutoModelForCausalLM

from sidecar.probes.tokenizer_check.compare import compare
from sidecar.probes.tokenizer_check.files import read_model

SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 2}
GATED = SMALL | {"intermediate_size": 48, "num_key_value_heads": 1}
SLIDING = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2}
EXPERTS = GATED | {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "mlp_only_layers": [0],
    "head_dim": 16,
}
#: By name: the configuration's class, its values, and where the modules of the layers stand.
KINDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama, tied": ("LlamaConfig", GATED | {"tie_word_embeddings": True}, "model.layers"),
    "llama, not tied": ("LlamaConfig", GATED | {"tie_word_embeddings": False}, "model.layers"),
    "mistral": ("MistralConfig", GATED | {"sliding_window": 4}, "model.layers"),
    "qwen2": ("Qwen2Config", GATED | SLIDING, "model.layers"),
    "qwen3": ("Qwen3Config", GATED | {"head_dim": 16}, "model.layers"),
    "gemma2": ("Gemma2Config", GATED | {"head_dim": 16, "sliding_window": 4}, "model.layers"),
    "gemma3": ("Gemma3TextConfig", GATED | {"head_dim": 16, "sliding_window": 4}, "model.layers"),
    "phi3": ("Phi3Config", GATED | {"pad_token_id": 0}, "model.layers"),
    "gpt2": ("GPT2Config", {"vocab_size": 64, "n_embd": 32, "n_layer": 6, "n_head": 2}, "transformer.h"),
    "gpt_neox": ("GPTNeoXConfig", SMALL | {"intermediate_size": 48}, "gpt_neox.layers"),
    "opt": ("OPTConfig", SMALL | {"ffn_dim": 48, "word_embed_proj_dim": 32}, "model.decoder.layers"),
    "mixtral": ("MixtralConfig", GATED | {"num_local_experts": 4}, "model.layers"),
    "qwen3_moe": ("Qwen3MoeConfig", EXPERTS, "model.layers"),
}


def saved(folder: Path, kind: str, **more: Any) -> Path:
    name, values, _ = KINDS[kind]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(getattr(transformers, name)(**values))
    for each in model.parameters():
        # A configuration begins with small numbers, by which layers would hardly differ.
        torch.nn.init.normal_(each, std=0.2)
    model.save_pretrained(folder, **more)
    return folder


def made(capsys: pytest.CaptureFixture[str], *words: object, run: Run | None = None) -> tuple[int, str]:
    """The exit status of a command line, and what was said."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    said = io.StringIO()
    code = command.run(parser.parse_args([str(word) for word in words]), run, Say(said))
    return code, said.getvalue()


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(torch.arange(1, 13)[None], use_cache=False).logits


def cut(folder: Path, kind: str, kept: Sequence[int]) -> Any:
    """The target with its modules left out in memory: what the files are to give."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    parent, _, name = KINDS[kind][2].rpartition(".")
    stack = getattr(model.get_submodule(parent), name)
    setattr(model.get_submodule(parent), name, torch.nn.ModuleList(stack[layer] for layer in kept))
    config = model.config
    for key in ("num_hidden_layers", "n_layer"):
        if key in config.to_dict():
            setattr(config, key, len(kept))
    if types := getattr(config, "layer_types", None):
        config.layer_types = [types[layer] for layer in kept]
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_computes_what_the_target_does_with_those_layers(tmp_path: Path, capsys: Any, kind: str) -> None:
    target = saved(tmp_path / "target", kind)
    assert made(capsys, target, "--layers", 3, "--out", tmp_path / "draft")[0] == 0
    draft, how = AutoModelForCausalLM.from_pretrained(tmp_path / "draft", output_loading_info=True)
    assert not any(how[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys")), how
    torch.testing.assert_close(logits(draft), logits(cut(target, kind, range(3))), rtol=0, atol=0)
    assert not torch.equal(logits(draft), logits(AutoModelForCausalLM.from_pretrained(target)))


@pytest.mark.parametrize("kind", ["llama, tied", "gemma3", "gpt2"])
def test_picked_layers_are_numbered_anew(tmp_path: Path, capsys: Any, kind: str) -> None:
    target = saved(tmp_path / "target", kind)
    assert made(capsys, target, "--pick", "0,2,5", "--out", tmp_path / "draft")[0] == 0
    draft = AutoModelForCausalLM.from_pretrained(tmp_path / "draft")
    torch.testing.assert_close(logits(draft), logits(cut(target, kind, (0, 2, 5))), rtol=0, atol=0)


def test_shards_give_the_same_draft(tmp_path: Path, capsys: Any) -> None:
    for name, more in (("one", {}), ("many", {"max_shard_size": "20KB"})):
        target = saved(tmp_path / name, "llama, not tied", **more)
        assert made(capsys, target, "--layers", 2, "--out", tmp_path / f"draft of {name}")[0] == 0
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    both = [logits(AutoModelForCausalLM.from_pretrained(tmp_path / f"draft of {name}")) for name in ("one", "many")]
    assert torch.equal(*both)
    names = {file.name for file in (tmp_path / "draft of many").iterdir()}
    assert checkpoint.INDEX not in names
    assert checkpoint.WHOLE in names


@pytest.fixture(scope="session")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deep") / "target"
    deepen(CHECKPOINTS / "target", folder, 24)
    return folder


def test_the_tokenizer_is_the_targets(tmp_path: Path, deep: Path, capsys: Any) -> None:
    assert made(capsys, deep, "--layers", 1, "--out", tmp_path / "draft")[0] == 0
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (tmp_path / "draft" / name).read_bytes() == (deep / name).read_bytes()
    assert compare(read_model(str(deep)), read_model(str(tmp_path / "draft"))).verdict == "aligned"


@pytest.mark.parametrize(("count", "kept"), [(24, 7), (32, 10), (4, 1), (3, 1), (2, 1), (6, 1), (7, 2)])
def test_keeps_by_default_what_is_below_a_third(count: int, kept: int) -> None:
    assert lowest(None, count) == list(range(kept))
    assert kept == 1 or kept / count < 1 / 3 <= (kept + 1) / count


def test_tells_what_was_made_and_what_comes_next(tmp_path: Path, deep: Path, capsys: Any) -> None:
    out = tmp_path / "draft"
    run = Run.create("self-draft", {}, tmp_path / "run")
    code, said = made(capsys, deep, "--out", out, "--json", run=run)
    run.close()
    assert code == 0
    assert "the lowest 7 of 24 layers" in said
    assert "about 0.29 of a target step by its share of the layers" in said
    assert "estimates" in said
    assert f"specwatch qualify --target {deep} --draft {out} --prompts FILE" in said
    told = json.loads(capsys.readouterr().out)
    assert told == read_run(tmp_path / "run")["summary"]
    assert told["verdict"] == "made"
    draft = sum(each.numel() for each in AutoModelForCausalLM.from_pretrained(out).parameters())
    assert next(row[2] for row in told["tables"][0]["rows"] if row[0] == "parameters") == draft
    assert json.loads((out / command.STAMP).read_text())["kept_layers"] == list(range(7))


def test_more_layers_than_the_gate_has_room_for_are_told(tmp_path: Path, deep: Path, capsys: Any) -> None:
    said = made(capsys, deep, "--layers", 8, "--out", tmp_path / "draft")[1]
    assert "about 0.33 of a target step" in said
    assert "the gate is below 0.33, so it may need fewer layers" in said


# ---- what cannot be followed

WRONG: dict[str, tuple[list[str], str]] = {
    "no such folder": (["/no/such"], "no such folder"),
    "not in the cache": (["nobody/nothing-7b"], "fetch it first (hf download nobody/nothing-7b)"),
    "none": (["TARGET", "--layers", "0"], "--layers must be from 1 to 23, as the target has 24, not 0"),
    "all": (["TARGET", "--layers", "24"], "--layers must be from 1 to 23"),
    "pick beyond": (["TARGET", "--pick", "0,24"], "--pick must name layers from 0 to 23"),
    "pick in disorder": (["TARGET", "--pick", "2,1"], "--pick must name each layer once, in ascending order"),
    "pick words": (["TARGET", "--pick", "low"], "--pick must be a list of layers by number"),
    "prompts alone": (["TARGET", "--prompts", "f"], "--prompts is of use with --tune only"),
    "no prompts": (["TARGET", "--tune"], "--tune needs --prompts FILE"),
    "steps": (["TARGET", "--tune", "--prompts", "f", "--steps", "-1"], "--steps must be at least 0, not -1"),
    "tune layers": (["TARGET", "--layers", "2", "--tune", "--prompts", "f", "--tune-layers", "3"], "--tune-layers is"),
    "rate": (["TARGET", "--tune", "--prompts", "f", "--rate", "2"], "--rate must be between 0 and 1, not 2.0"),
    "no prompt file": (["TARGET", "--tune", "--prompts", "none.jsonl"], "--prompts: there is no file none.jsonl"),
    "few prompts": (["TARGET", "--tune", "--prompts", "few.jsonl"], "--prompts: few.jsonl has 9, and 10 are the least"),
    "inside the target": (["TARGET", "--out", "TARGET/draft"], "hold one another"),
    "the target": (["TARGET", "--out", "TARGET", "--force"], "hold one another"),
    "taken for another": (["TARGET", "--out", "my-EAGLE3"], "vLLM takes a draft with 'eagle3' in its path"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_are_named(tmp_path: Path, deep: Path, capsys: Any, monkeypatch: Any, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.jsonl").write_text('{"prompt": "a"}\n' * 9)
    words, expected = WRONG[name]
    code, said = made(capsys, *[word.replace("TARGET", str(deep)) for word in words])
    assert code == 2
    assert said.startswith("error: ")
    assert expected in " ".join(said.split())
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_failure_is_told_in_the_run(tmp_path: Path, capsys: Any) -> None:
    run = Run.create("self-draft", {}, tmp_path / "run")
    assert made(capsys, "/no/such", run=run)[0] == 2
    run.close()
    told = read_run(tmp_path / "run")
    assert told["state"] == "failed"
    assert "no such folder" in told["summary"]["reasons"][0]


def test_a_folder_that_is_there_is_left(tmp_path: Path, deep: Path, capsys: Any) -> None:
    out = tmp_path / "draft"
    assert made(capsys, deep, "--layers", 2, "--out", out)[0] == 0
    code, said = made(capsys, deep, "--layers", 3, "--out", out)
    assert code == 2
    assert "replace it by --force" in said
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == 2
    assert made(capsys, deep, "--layers", 3, "--out", out, "--force")[0] == 0
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == 3
    assert [file.name for file in tmp_path.iterdir()] == ["draft"]


def test_force_replaces_no_folder_of_others(tmp_path: Path, deep: Path, capsys: Any) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    code, said = made(capsys, deep, "--out", tmp_path / "mine", "--force")
    assert code == 2
    assert "was not made by self-draft" in said
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


# ---- whole or not at all


def test_nothing_is_left_of_a_draft_that_fails(tmp_path: Path, deep: Path, capsys: Any, monkeypatch: Any) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "model.safetensors")

    monkeypatch.setattr(checkpoint, "write", full)
    code, said = made(capsys, deep, "--out", tmp_path / "draft")
    assert code == 2
    assert "the draft could not be written: No space left on device" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_of_a_draft_that_is_interrupted(tmp_path: Path, number: int) -> None:
    target = saved(tmp_path / "target", "llama, tied")
    script = (
        "import sys, time\n"
        "from specwatch_engine.lab import __main__ as lab; from specwatch_engine.lab.self_draft import checkpoint\n"
        "def slow(*_):\n"
        "    print('writing', flush=True)\n"
        "    time.sleep(60)\n"
        "checkpoint.write = slow\n"
        "sys.exit(lab.main(sys.argv[1:]))\n"
    )
    words = [sys.executable, "-c", script, "self-draft", str(target), "--out", str(tmp_path / "out" / "draft")]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        assert len(list((tmp_path / "out").iterdir())) == 1
        process.send_signal(number)
        assert process.wait(30) == 130
    assert not list((tmp_path / "out").iterdir())


def test_what_a_killed_process_left_goes_with_the_next(tmp_path: Path, deep: Path, capsys: Any) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    left = tmp_path / f".draft.unfinished-{gone.pid}"
    left.mkdir()
    others = tmp_path / f".draft.unfinished-{os.getppid()}"
    others.mkdir()
    assert made(capsys, deep, "--out", tmp_path / "draft")[0] == 0
    assert {file.name for file in tmp_path.iterdir()} == {"draft", others.name}


def test_memory_does_not_grow_with_the_model(tmp_path: Path, capsys: Any) -> None:
    target = saved(tmp_path / "target", "llama, tied")
    config = json.loads((target / "config.json").read_text())
    size = 200_000_000
    # Of zeros that take no room on the disk.
    names = [f"model.layers.{layer}.w" for layer in range(config["num_hidden_layers"])]
    header = {
        name: {"dtype": "U8", "shape": [size], "data_offsets": [at * size, (at + 1) * size]}
        for at, name in enumerate(names)
    }
    encoded = json.dumps(header).encode()
    with (target / checkpoint.WHOLE).open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.truncate(8 + len(encoded) + size * len(names))
    tracemalloc.start()
    try:
        assert made(capsys, target, "--layers", 1, "--out", tmp_path / "draft")[0] == 0
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()
    assert (tmp_path / "draft" / checkpoint.WHOLE).stat().st_size > size


def test_it_needs_no_torch(tmp_path: Path, deep: Path) -> None:
    script = (
        "import sys\n"
        "from specwatch_engine.lab import __main__ as lab\n"
        "code = lab.main(sys.argv[1:])\n"
        "heavy = {'torch', 'transformers', 'vllm', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "sys.exit(code)\n"
    )
    words = [sys.executable, "-c", script, "self-draft", str(deep), "--out", str(tmp_path / "draft")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
