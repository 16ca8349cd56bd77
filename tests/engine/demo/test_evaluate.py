"""The offline measure of p: the step arithmetic by hand, and the shipped models against the promise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.demo import evaluate
from specwatch_engine.demo.evaluate import Tally, replay

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
