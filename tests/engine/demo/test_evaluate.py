"""The offline measure of p: the step arithmetic by hand, and the shipped models against the promise."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.demo import evaluate
from specwatch_engine.demo.dialogues import misdirected, mix
from specwatch_engine.demo.evaluate import Tally, replay
from specwatch_engine.demo.traffic import MIXES
from specwatch_engine.demo.weights import CHECKPOINTS
from transformers import PreTrainedTokenizerFast

H, M = True, False


@pytest.mark.parametrize(
    ("hits", "length", "tally"),
    [
        ([H] * 9, 6, Tally(drafted=4, accepted=4, steps=1)),
        ([H] * 10, 7, Tally(drafted=8, accepted=8, steps=2)),
        ([M] * 9, 5, Tally(drafted=16, accepted=0, steps=4)),
        ([H, H, M, H, H, H, H], 4, Tally(drafted=8, accepted=5, steps=2)),
        ([H], 1, Tally()),
    ],
)
def test_replay_by_hand(hits, length, tally):
    assert replay(hits, length, k=4) == tally


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 8))
def test_replay_covers_the_reply(hits, k):
    tally = replay(hits, len(hits), k)
    assert tally.accepted + tally.steps >= len(hits) - 1
    assert tally.accepted + tally.steps <= len(hits) - 1 + k
    assert tally.drafted == k * tally.steps
    assert 0 <= tally.accepted <= sum(hits)


def test_shipped_pair_keeps_its_promise(capsys):
    """A few dialogues per cell: enough to see a profile, quick enough for every run."""
    evaluate.main(["--dialogues", "5"])
    lines = capsys.readouterr().out.splitlines()
    table = {cells[0]: cells[1:] for cells in map(str.split, lines[1:])}
    generalist = {scenario: float(cells[2]) for scenario, cells in table.items()}
    specialist = {scenario: float(cells[3]) for scenario, cells in table.items()}
    assert all(cells[1] == "100%" for cells in table.values())
    assert min(generalist["product_qa"], generalist["code"]) >= 0.75
    assert min(generalist["address_confirmation"], generalist["billing"]) >= 0.70
    assert generalist["fault_report"] <= 0.50
    assert specialist["fault_report"] >= 0.85
    assert specialist["address_confirmation"] < 0.60


def rejected_and_reached(hits, length, k):
    """By position, as an engine verifies."""
    rejected, reached, at = [0] * k, [0] * k, 1
    while at < length:
        accepted = sum(1 for _ in itertools.takewhile(bool, hits[at : at + k]))
        for position in range(min(accepted + 1, k)):
            reached[position] += 1
        if accepted < k:
            rejected[accepted] += 1
        at += accepted + 1
    return rejected, reached


@torch.no_grad()
def hazards(draft, replies):
    """Share of the verify steps that reach a position and are truncated there."""
    rejected, reached = [0] * 4, [0] * 4
    for answer in replies:
        text = torch.tensor([answer.prompt + answer.reply])
        guesses = draft(text).logits[0, len(answer.prompt) - 1 : -1].argmax(-1)
        counts = rejected_and_reached((guesses == text[0, len(answer.prompt) :]).tolist(), answer.length, 4)
        rejected, reached = (
            [a + b for a, b in zip(*pair, strict=True)] for pair in zip((rejected, reached), counts, strict=True)
        )
    return [a / b for a, b in zip(rejected, reached, strict=True)]


def test_the_incident_has_one_scenario_and_one_position():
    tokenizer = PreTrainedTokenizerFast.from_pretrained(CHECKPOINTS / "target")
    target, draft = (evaluate.load(CHECKPOINTS / name) for name in ("target", "draft_generalist"))
    before = list(mix("staged", MIXES["familiar"], 60))
    changed = [(old, new) for old, new in zip(before, misdirected("staged", before), strict=True) if old != new]
    assert {item.scenario for pair in changed for item in pair} == {"billing"}
    replies = [evaluate.answers(target, tokenizer, asked, 4) for asked in zip(*changed, strict=True)]
    before, after = (evaluate.acceptance(draft, found, 4)["billing"].p for found in replies)
    assert after < 0.6 < 0.9 < before
    healthy, ill = (hazards(draft, found) for found in replies)
    assert max(healthy) < 0.1
    assert ill.index(max(ill)) == 1
    assert ill[1] > 1.5 * max(ill[0], ill[2], ill[3])
