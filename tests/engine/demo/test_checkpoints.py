"""The committed checkpoints: complete, small, alike where they must be, made by the recipes in the code."""

import json
from dataclasses import asdict

import pytest
from specwatch_engine.demo.dialogues import SCENARIOS
from specwatch_engine.demo.train import RECIPES
from specwatch_engine.demo.weights import CHECKPOINTS, WEIGHTS_FILE, read_weights

NAMES = ("target", "draft_generalist", "draft_specialist")
FILES = {
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    WEIGHTS_FILE,
    "tokenizer.json",
    "tokenizer_config.json",
    "train.json",
}


def _report(name):
    return json.loads((CHECKPOINTS / name / "train.json").read_text())


def test_these_and_no_others():
    assert {path.name for path in CHECKPOINTS.iterdir()} == set(NAMES) == set(RECIPES)


@pytest.mark.parametrize("name", NAMES)
def test_files(name):
    assert {path.name for path in (CHECKPOINTS / name).iterdir()} == FILES


def test_all_together_stay_small():
    assert sum(file.stat().st_size for file in CHECKPOINTS.rglob("*") if file.is_file()) < 7_000_000


@pytest.mark.parametrize("name", NAMES)
def test_made_by_the_recipe_in_the_code(name):
    assert _report(name)["recipe"] == json.loads(json.dumps(asdict(RECIPES[name])))


@pytest.mark.parametrize(("name", "millions"), [("target", 1.8), ("draft_generalist", 0.4), ("draft_specialist", 0.4)])
def test_size(name, millions):
    weights = read_weights(CHECKPOINTS / name / WEIGHTS_FILE)
    assert {tensor.dtype for tensor in weights.values()} == {"BF16"}
    parameters = sum(len(tensor.data) for tensor in weights.values()) // 2
    assert parameters == _report(name)["parameters"]
    assert parameters / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_target_and_drafts_share_one_tokenizer(file):
    assert len({(CHECKPOINTS / name / file).read_bytes() for name in NAMES}) == 1


@pytest.mark.parametrize("name", NAMES)
def test_ends_are_named_in_both_configurations(name):
    for file in ("config.json", "generation_config.json"):
        ids = json.loads((CHECKPOINTS / name / file).read_text())
        assert (ids["bos_token_id"], ids["eos_token_id"], ids["pad_token_id"]) == (0, 4, 5)


def test_profiles():
    """What the demo shows needs a strong target and two drafts with opposite gaps."""
    target, generalist, specialist = (_report(name)["held_out_accuracy"] for name in NAMES)
    assert set(target) == set(generalist) == set(specialist) == set(SCENARIOS)
    assert min(target.values()) > 0.93
    assert generalist["fault_report"] < 0.75 < 0.9 < generalist["address_confirmation"]
    assert specialist["address_confirmation"] < 0.8 < 0.9 < specialist["fault_report"]
