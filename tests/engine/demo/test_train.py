"""The trainer on a few steps of a tiny shape: deterministic, and teaching what it says it teaches."""

import json
from dataclasses import replace

import pytest
import torch
from specwatch_engine.demo.dialogues import dialogue
from specwatch_engine.demo.tokenizer import build_tokenizer
from specwatch_engine.demo.train import RECIPES, Shape, encode, rate_factor, train

TINY = Shape(hidden=16, layers=1, heads=1, kv_heads=1, head_size=16, intermediate=16)


@pytest.fixture
def brief(monkeypatch):
    monkeypatch.setattr("specwatch_engine.demo.train.HELD_OUT_DIALOGUES", 1)
    return replace(RECIPES["draft_generalist"], shape=TINY, steps=2, batch=2)


@pytest.fixture(autouse=True)
def _restore_torch():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def test_two_runs_give_the_same_bytes(tmp_path, brief):
    for name in ("first", "second"):
        train(brief, tmp_path / name)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "second"))
    assert first == second
    train(replace(brief, seed=1), tmp_path / "second")
    assert (tmp_path / "second" / "model.safetensors").read_bytes() != first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


def test_report_is_saved(tmp_path, brief):
    report = train(brief, tmp_path / "model")
    assert json.loads((tmp_path / "model" / "train.json").read_text()) == json.loads(json.dumps(report))
    assert report["dialogues"] == 4


def test_only_replies_and_what_follows_are_learned():
    tokenizer = build_tokenizer()
    item = next(d for d in (dialogue(n, "address_confirmation") for n in range(99)) if len(d.messages) == 4)
    ids, learned = encode(tokenizer, item)
    taught = tokenizer.decode([number for number, wanted in zip(ids, learned, strict=True) if wanted])
    replies = [message["content"] for message in item.messages if message["role"] == "assistant"]
    assert taught == "".join(f"{reply}<|eot|>" for reply in replies) + "<|user|>" + "<|pad|>" * 3
    prompt = tokenizer.apply_chat_template(list(item.messages), tokenize=False)
    assert tokenizer.decode(ids) == prompt + "<|user|>" + "<|pad|>" * 3


def test_rate_rises_stays_and_falls():
    recipe = replace(RECIPES["target"], steps=1000)
    factors = [rate_factor(recipe, step) for step in range(1000)]
    assert factors[:40] == sorted(factors[:40])
    assert set(factors[40:401]) == {1.0}
    assert factors[401:] == sorted(factors[401:], reverse=True)
    assert factors[-1] == recipe.final_rate
