"""Tuning brings a shallow draft nearer to its target, changes nothing but what may learn, and says what it did."""

import argparse
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.demo.dialogues import SCENARIOS, mix
from specwatch_engine.demo.evaluate import replay
from specwatch_engine.demo.weights import CHECKPOINTS, read_weights
from specwatch_engine.lab.progress import Say
from specwatch_engine.lab.self_draft import checkpoint, command
from specwatch_engine.lab.self_draft.lessons import LEAST, Lesson, batches, parted
from specwatch_engine.lab.self_draft.tune import rate_at, replayed
from transformers import AutoModelForCausalLM

TARGET = CHECKPOINTS / "target"


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    asked = mix("tune", dict.fromkeys(SCENARIOS, 1.0), 60)
    file.write_text("".join(json.dumps({"messages": list(item.prompt), "max_tokens": 16}) + "\n" for item in asked))
    return file


def made(out: Path, *words: object, target: Path = TARGET) -> tuple[int, str, dict[str, Any]]:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    said = io.StringIO()
    args = parser.parse_args([str(word) for word in (target, "--out", out, *words)])
    code = command.run(args, None, Say(said))
    told = json.loads((out / command.STAMP).read_text()) if code == 0 else {}
    return code, said.getvalue(), told.get("tuned") or {}


def test_the_highest_layer_comes_nearer_and_nothing_else_changes(tmp_path: Path, prompts: Path) -> None:
    words = ("--layers", 2, "--tune", "--prompts", prompts, "--steps", 15, "--batch", 4)
    code, said, tuned = made(tmp_path / "tuned", *words)
    assert code == 0
    assert tuned["kept"]
    assert tuned["after"]["kl"] < tuned["before"]["kl"]
    assert f"KL(target || draft) was {tuned['before']['kl']:.4f} and is {tuned['after']['kl']:.4f}" in said
    assert f"top-1 agreement was {tuned['before']['top_1']:.1%} and is {tuned['after']['top_1']:.1%}" in said
    assert made(tmp_path / "plain", "--layers", 2)[0] == 0
    plain, changed = (read_weights(tmp_path / name / checkpoint.WHOLE) for name in ("plain", "tuned"))
    assert {name: each.dtype for name, each in plain.items()} == {name: each.dtype for name, each in changed.items()}
    moved = {name for name in plain if plain[name].data != changed[name].data}
    assert moved <= set(tuned["learned"])
    assert moved
    assert all(name.startswith("model.layers.1.") or name == "model.norm.weight" for name in tuned["learned"])
    AutoModelForCausalLM.from_pretrained(tmp_path / "tuned")


def test_the_same_options_give_the_same_bytes(tmp_path: Path, prompts: Path) -> None:
    words = ("--layers", 1, "--tune", "--prompts", prompts, "--steps", 3, "--batch", 2)
    for name, seed in (("one", 0), ("two", 0), ("other", 1)):
        assert made(tmp_path / name, *words, "--seed", seed)[0] == 0
    one, two, other = ((tmp_path / name / checkpoint.WHOLE).read_bytes() for name in ("one", "two", "other"))
    assert one == two
    assert one != other


def test_without_steps_it_measures(tmp_path: Path, prompts: Path) -> None:
    words = ("--layers", 3, "--tune", "--prompts", prompts, "--steps", 0)
    code, said, tuned = made(tmp_path / "draft", *words)
    assert code == 0
    assert tuned["after"] is None
    assert "Not tuned. On " in said
    assert made(tmp_path / "plain", "--layers", 3)[0] == 0
    one, two = ((tmp_path / name / checkpoint.WHOLE).read_bytes() for name in ("draft", "plain"))
    assert one == two


def test_a_worse_layer_is_not_kept(tmp_path: Path, prompts: Path) -> None:
    words = ("--layers", 3, "--tune", "--prompts", prompts, "--steps", 4, "--batch", 2, "--rate", 0.9)
    code, said, tuned = made(tmp_path / "draft", *words)
    assert code == 0
    assert not tuned["kept"]
    assert "no nearer to the target" in said
    assert made(tmp_path / "plain", "--layers", 3)[0] == 0
    one, two = ((tmp_path / name / checkpoint.WHOLE).read_bytes() for name in ("draft", "plain"))
    assert one == two


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


#: What a file says again and again.
WRONG: dict[str, tuple[str, list[object], str]] = {
    "no prompts": ("", [], "has no prompts"),
    "equal prompts": (lines({"prompt": "Hello"}), [], f"gives 1 replies of the target, and {LEAST} are the least"),
    "pictures": (
        lines({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
        [],
        "it has parts that are no text",
    ),
    "too long": (lines({"prompt": [7] * 2048}), [], "has 2048 tokens, and 1920 are the most"),
    "no such device": (lines({"prompt": "Hello"}), ["--device", "moon"], "--device: moon cannot be used here"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_learned_from_is_told_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    text, words, expected = WRONG[name]
    file = tmp_path / "prompts.jsonl"
    file.write_text(text * LEAST)
    code, said, _ = made(tmp_path / "out" / "draft", "--layers", 1, "--tune", "--prompts", file, "--steps", 1, *words)
    assert code == 2
    assert expected in said
    assert not list(tmp_path.glob("out/*"))


def test_quantised_weights_are_not_tuned(tmp_path: Path, prompts: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    for file in TARGET.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    code, said, _ = made(tmp_path / "out" / "draft", "--layers", 1, "--tune", "--prompts", prompts, target=target)
    assert code == 2
    assert "is quantised: tune a draft of the model that it was made of" in " ".join(said.split())


# ---- the pure parts


@given(st.lists(st.booleans(), min_size=2, max_size=40), st.integers(1, 6))
def test_steps_are_replayed_as_an_engine_takes_them(hits: list[bool], k: int) -> None:
    drafted, accepted = replayed(hits, k)
    whole = replay(hits, len(hits), k)
    assert accepted == whole.accepted
    # The demo's own account counts guesses beyond the end as well: at most k - 1 of the last step, k - 2 of the one
    # before, and so on where each accepts none.
    assert whole.drafted - k * (k - 1) // 2 <= drafted <= whole.drafted
    assert 0 <= accepted <= drafted


@pytest.mark.parametrize(
    ("hits", "expected"),
    [
        # Four are accepted, and the sixth token is the target's own.
        ([True] * 6, (4, 4)),
        # Two guesses have room, then one.
        ([False] * 3, (3, 0)),
        # One of four; the target says token 2 itself; then two of two.
        ([True, True, False, True, True], (6, 3)),
        ([True], (0, 0)),
    ],
)
def test_counts_of_named_replies(hits: list[bool], expected: tuple[int, int]) -> None:
    assert replayed(hits, 4) == expected


@given(st.integers(1, 500))
def test_the_rate_rises_and_falls(steps: int) -> None:
    rates = [rate_at(step, steps) for step in range(steps)]
    top = rates.index(max(rates))
    assert max(rates) <= 1
    assert min(rates) > 0
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)


@given(st.integers(LEAST, 900))
def test_nothing_is_learned_from_and_held_out(count: int) -> None:
    found = [Lesson((at,), (at,)) for at in range(count)]
    train, held_out = parted(found)
    assert not set(train) & set(held_out)
    assert set(train) | set(held_out) == set(found)
    assert 0 < len(held_out) < len(train)


@given(st.integers(1, 30), st.integers(1, 8), st.integers(0, 3))
def test_each_lesson_comes_once_a_round(count: int, size: int, seed: int) -> None:
    found = [Lesson((at,), (at,)) for at in range(count)]
    source = batches(found, size, seed)
    for _ in range(2):
        seen: list[Lesson] = []
        while len(seen) < count:
            seen += next(source)
        assert sorted(seen, key=lambda each: each.asked) == found
