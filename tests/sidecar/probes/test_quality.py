"""What looks broken in a reply's tokens.

C26 both ends of p mean trouble.
"""

import random
from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.demo import dialogues
from specwatch_engine.demo.weights import CHECKPOINTS
from support.scripted_engine import GREETING
from tokenizers import Tokenizer

from sidecar.engine_request import EngineRequest
from sidecar.probes.quality import GARBLE_TOKENS, KEPT, LONGEST_PERIOD, LOOP_TOKENS, Flag, Quality, look, loop

TOKENIZER = Tokenizer.from_file(str(CHECKPOINTS / "target" / "tokenizer.json"))


def ids(values: Sequence[int]) -> "array[int]":
    return array("i", values)


def flags(values: Sequence[int], p: float = 0.5, finish: str = "stop") -> set[Flag]:
    return {each.flag for each in look(ids(values), len(values), round(p * len(values)), finish)}


def random_ids(number: int, vocabulary: int = 2048, seed: int = 1) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(vocabulary) for _ in range(number)]


def request(values: Sequence[int], *, accepted: float = 0.5, name: str = "r", finish: str = "stop") -> EngineRequest:
    """Steps of 4 draft tokens, of which all are accepted in a share of them, else none."""
    made, at, step = EngineRequest(f"{name}-01234567", name, GREETING, 9), 0, 0
    while at < len(values):
        taken = 4 if (step + 1) * accepted // 1 > step * accepted // 1 else 0
        made.add([0] * 4, list(values[at : at + taken + 1]), 0, 100_000)
        at, step = at + taken + 1, step + 1
    made.output_tokens, made.finish_reason = len(values), finish
    return made


def test_c26_a_loop_to_the_end_is_told_and_a_quotation_is_not() -> None:
    ok = TOKENIZER.encode(" ok").ids
    quality = Quality()
    found = quality.add(request((ok * 2000)[:2000], accepted=0.99, name="chatcmpl-a", finish="length"), 50.0)
    assert [flag for flag, _ in found] == [Flag.REPETITION, Flag.P_NEAR_ONE]
    assert found[0].evidence.startswith("it ends in a loop of ")
    quotation = TOKENIZER.encode("The basic plan is 38.50 euros a month, and the bill names it.").ids[:30]
    assert quality.add(request(quotation, accepted=1.0), 51.0) == []
    assert (quality.requests, quality.totals[Flag.REPETITION], quality.totals[Flag.GARBLE]) == (2, 1, 0)
    assert (quality.share(Flag.REPETITION), quality.share(Flag.GARBLE)) == (0.5, 0.0)
    (repetition,) = [each for each in quality.state()["recent"] if each["flag"] is Flag.REPETITION]
    assert repetition["request_id"] == "chatcmpl-a"


def test_c26_flags_are_independent_of_p() -> None:
    for p in (0.0, 0.5, 0.97):
        assert flags([7] * 2000, p) == {Flag.REPETITION}
        assert flags(random_ids(2000, 32_000), p) == {Flag.GARBLE}


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("nothing", [], set()),
        ("a loop of a passage", random_ids(300) + random_ids(90, seed=2) * 4, {Flag.REPETITION}),
        ("the longest", random_ids(LONGEST_PERIOD) * 3, {Flag.REPETITION, Flag.GARBLE}),
        ("twice is no loop", list(range(200)) * 2, set()),
        ("a short one", [*random_ids(100), *[9] * (LOOP_TOKENS - 1)], set()),
        ("which grew", [*random_ids(100), *[9] * LOOP_TOKENS], {Flag.REPETITION}),
        ("a loop that was left", [*[1, 2] * 300, 3, 4, 5], {Flag.REPETITION}),
        ("two tokens as chance has it", random_ids(600, 2), {Flag.REPETITION}),
        ("random tokens", random_ids(GARBLE_TOKENS), {Flag.GARBLE}),
        ("a few of them", random_ids(GARBLE_TOKENS - 1), set()),
        ("behind a text", [*[1, 2, 3] * 60, *random_ids(GARBLE_TOKENS)], {Flag.GARBLE}),
    ],
)
def test_cases(name: str, values: list[int], expected: set[Flag]) -> None:
    assert flags(values) == expected, name


@pytest.mark.parametrize(
    ("drafted", "accepted", "expected"), [(512, 502, True), (512, 501, False), (511, 511, False), (0, 0, False)]
)
def test_p_near_one(drafted: int, accepted: int, expected: bool) -> None:
    found = look(ids([1, 2, 3]), drafted, accepted, "stop")
    assert bool(found) is expected
    assert all(each.flag is Flag.P_NEAR_ONE for each in found)


def test_what_the_engine_ended_for_repetition() -> None:
    assert flags([1, 2, 3], finish="repetition") == {Flag.REPETITION}


def test_replies_that_are_in_order_raise_nothing() -> None:
    """The demo's dialogues, in English, Chinese and code, and this project's own source, by 512 tokens."""
    spoken = dialogues.mix(3, dict.fromkeys(dialogues.SCENARIOS, 1.0), 400)
    texts = ["\n".join(each.reply for each in spoken)]
    texts += [file.read_text() for file in sorted(Path(dialogues.__file__).parents[1].rglob("*.py"))]
    stretches = 0
    for text in texts:
        found = TOKENIZER.encode(text).ids
        for at in range(0, len(found) - 511, 512):
            stretches += 1
            assert flags(found[at : at + 512]) == set(), TOKENIZER.decode(found[at : at + 512])
    assert stretches > 100


@given(st.lists(st.integers(0, 3), min_size=1, max_size=LONGEST_PERIOD), st.integers(0, 600))
def test_every_loop_is_found_by_its_shortest_passage(passage: list[int], before: int) -> None:
    times = max(3, -(-LOOP_TOKENS // len(passage)))
    period = loop(ids([*range(10, 10 + before), *passage * times]))
    assert period is not None
    assert len(passage) % period == 0
    assert passage == (passage[:period] * len(passage))[: len(passage)]


def test_memory_is_bounded() -> None:
    quality = Quality()
    for number in range(3 * KEPT):
        quality.add(request([7] * 200, name=str(number)), float(number))
    state = quality.state()
    assert len(state["recent"]) == KEPT
    assert [each["request_id"] for each in state["recent"][:2]] == [str(3 * KEPT - 1), str(3 * KEPT - 2)]
    assert state["flags"][0] == {"flag": Flag.REPETITION, "total": 3 * KEPT, "share": 1.0}


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), max_size=30), st.integers(0, 100))
def test_output_ids_are_those_of_the_steps(shape: list[tuple[int, int]], output: int) -> None:
    made = EngineRequest("r-01234567", "r", GREETING, 9)
    for number, (drafted, emitted) in enumerate(shape):
        made.add([number] * drafted, [100 + number] * emitted, 0, 100_000)
    made.output_tokens = output
    assert made.output_ids().tolist() == [i for _, emitted in made.steps for i in emitted][:output]
