"""Derived models: the same function at more cost, or one moved id, made once and whole."""

import json
import os
import time

import pytest
import torch
from specwatch_engine.demo import prepare as room
from specwatch_engine.demo.dialogues import LANGUAGES, SCENARIOS, dialogue
from specwatch_engine.demo.weights import CHECKPOINTS, EMBEDDING, WEIGHTS_FILE, read_weights
from transformers import AutoTokenizer, LlamaForCausalLM

TARGET = CHECKPOINTS / "target"
DRAFT = CHECKPOINTS / "draft_generalist"


def _logits(folder, text):
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(text).logits


@pytest.fixture(scope="module")
def text():
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    messages = [list(dialogue(3, scenario, language).messages) for scenario in SCENARIOS for language in LANGUAGES]
    texts = [tokenizer.apply_chat_template(item, tokenize=False) for item in messages]
    return tokenizer(texts, return_tensors="pt", padding=True, padding_side="right", add_special_tokens=False).input_ids


@pytest.mark.parametrize("layers", [4, 5, 12])
def test_deepening_changes_no_logit(tmp_path, text, layers):
    assert room.deepen(TARGET, tmp_path / "deep", layers)
    model = LlamaForCausalLM.from_pretrained(tmp_path / "deep", dtype=torch.float32)
    assert model.config.num_hidden_layers == len(model.model.layers) == layers
    torch.testing.assert_close(_logits(tmp_path / "deep", text), _logits(TARGET, text), rtol=0, atol=0)


def test_extra_layers_really_compute(tmp_path):
    """Only what must be zero is zero: attention and MLP run on real weights."""
    room.deepen(TARGET, tmp_path / "deep", 5)
    weights = read_weights(tmp_path / "deep" / WEIGHTS_FILE)
    silent = {key for key, tensor in weights.items() if not any(tensor.data)}
    assert silent == {"model.layers.4.self_attn.o_proj.weight", "model.layers.4.mlp.down_proj.weight"}


def test_fewer_layers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="has 4 layers already, cannot make it 3"):
        room.deepen(TARGET, tmp_path / "shallow", 3)
    assert not list(tmp_path.iterdir())


def test_misaligned_draft_is_the_same_model_under_moved_ids(tmp_path, text):
    assert room.misalign(DRAFT, tmp_path / "moved")
    swap = torch.arange(2048)
    swap[[4, 5]] = swap[[5, 4]]
    moved = _logits(tmp_path / "moved", swap[text])
    torch.testing.assert_close(moved[..., swap], _logits(DRAFT, text), rtol=1e-5, atol=1e-5)


def test_misaligned_draft_moves_exactly_two_ids(tmp_path):
    room.misalign(DRAFT, tmp_path / "moved")
    before, after = AutoTokenizer.from_pretrained(DRAFT), AutoTokenizer.from_pretrained(tmp_path / "moved")
    old, new = before.get_vocab(), after.get_vocab()
    assert {token: (old[token], new[token]) for token in old if old[token] != new[token]} == {
        "<|eot|>": (4, 5),
        "<|pad|>": (5, 4),
    }
    assert (before.eos_token_id, after.eos_token_id, after.pad_token_id) == (4, 5, 4)
    for name in ("config.json", "generation_config.json"):
        ids = json.loads((tmp_path / "moved" / name).read_text())
        assert (ids["bos_token_id"], ids["eos_token_id"], ids["pad_token_id"]) == (0, 5, 4)
    old_weights, new_weights = (
        read_weights(DRAFT / WEIGHTS_FILE),
        read_weights(tmp_path / "moved" / WEIGHTS_FILE),
    )
    assert {key for key in old_weights if old_weights[key] != new_weights[key]} == {EMBEDDING}


def test_untied_embeddings_are_refused(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"tie_word_embeddings": false}')
    with pytest.raises(ValueError, match="only tied embeddings"):
        room.misalign(tmp_path / "model", tmp_path / "moved")


def _stamps(directory):
    return {file: file.stat().st_mtime_ns for file in directory.rglob("*") if file.is_file()}


def test_second_time_does_nothing(tmp_path):
    started = time.perf_counter()
    folders = room.prepare(tmp_path / "models")
    assert time.perf_counter() - started < 30
    assert set(folders) == {"target", "draft_generalist", "draft_specialist", "draft_misaligned"}
    before = _stamps(tmp_path)
    assert room.prepare(tmp_path / "models") == folders
    assert _stamps(tmp_path) == before
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == sorted(folders)


def test_newer_source_or_other_wish_builds_again(tmp_path):
    source, derived = tmp_path / "source", tmp_path / "derived"
    room.copy(TARGET, source)
    assert room.deepen(source, derived, 5)
    assert not room.deepen(source, derived, 5)
    assert room.deepen(source, derived, 6)
    later = (derived / room.STAMP).stat().st_mtime + 10
    os.utime(source / WEIGHTS_FILE, (later, later))
    assert room.deepen(source, derived, 6)


def test_a_failure_leaves_the_old_model_in_place(tmp_path, monkeypatch):
    derived = tmp_path / "derived"
    room.deepen(TARGET, derived, 5)
    before = _stamps(derived)

    def disk_full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(room, "write_weights", disk_full)
    with pytest.raises(OSError, match="No space left"):
        room.deepen(TARGET, derived, 6)
    assert _stamps(derived) == before
    assert [path.name for path in tmp_path.iterdir()] == ["derived"]


def test_command_line(tmp_path, capsys):
    assert room.main([str(tmp_path / "models"), "--layers", "4"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "target",
        "draft_generalist",
        "draft_specialist",
        "draft_misaligned",
    ]
    assert room.main([str(tmp_path / "models"), "--layers", "2"]) == 1
    assert "cannot prepare the demo models: " in capsys.readouterr().err
