"""Live alignment: moved tokens are named soon, and no aligned draft is accused. C12, C13."""

import random
from array import array
from bisect import bisect
from itertools import accumulate

import pytest

from sidecar.probes.alignment import (
    ENOUGH_POSITIONS,
    MOST_NAMED,
    MOST_PAIRS,
    NEIGHBOUR_COUNT,
    RIGHT_AGAIN,
    Alignment,
    Kind,
    State,
)
from sidecar.probes.drafts import Step

EQUAL = array("i", range(2048))
EOT, PAD = 4, 5
#: As of the demo's misaligned draft: `<|eot|>` and `<|pad|>` are exchanged.
EXCHANGED = array("i", [0, 1, 2, 3, PAD, EOT, *range(6, 2048)])


def made(draft_ids: "array[int]" = EQUAL) -> Alignment:
    alignment = Alignment()
    alignment.reset(draft_ids, None)
    return alignment


def reply(words: int = 20, *, draft: int = PAD, end: int = EOT, first: int = 100) -> list[Step]:
    """A reply of `words` accepted tokens whose end the draft gets wrong."""
    text = [first + number for number in range(words)]
    steps: list[Step] = [([], text[:1])]
    steps += [(text[at : at + 4], text[at : at + 5]) for at in range(1, words - 4, 5)]
    done = sum(len(emitted) for _, emitted in steps)
    return [*steps, ([*text[done:], draft, 7], [*text[done:], end])]


@pytest.mark.parametrize(
    ("name", "table", "kind", "at_request"),
    [
        ("the tokenizers tell", EXCHANGED, Kind.SAME_TEXT, 3),
        ("the tokenizers are equal", EQUAL, Kind.NEIGHBOUR, NEIGHBOUR_COUNT),
        ("the tokenizers are not known", array("i"), Kind.NEIGHBOUR, NEIGHBOUR_COUNT),
    ],
)
def test_c12_the_demos_moved_end_of_turn_is_named(name: str, table: "array[int]", kind: Kind, at_request: int) -> None:
    alignment = made(table)
    named = [(number, each) for number in range(1, 101) for each in alignment.add(reply(), 20 + 1, float(number))]
    ((number, moved),) = named
    assert (number, moved.kind, moved.target_id, moved.draft_id) == (at_request, kind, EOT, PAD)
    (now,) = alignment.moved()
    assert (now.count, now.share, now.first_seen, now.last_seen) == (100, 1.0, 1.0, 100.0)
    assert alignment.same_text_other_id == 100
    assert alignment.state() == (State.MISALIGNED, "1 token has another id in the draft than in the target")
    assert (alignment.requests, alignment.rejections) == (100, 100)


def test_what_was_emitted_behind_the_end_is_not_looked_at() -> None:
    alignment = made(EXCHANGED)
    for _ in range(10):
        assert alignment.add([([1, 2, PAD], [1, 2, EOT])], 2, 0.0) == []
        assert alignment.add([([1], [1, 2]), ([PAD], [EOT])], 2, 0.0) == []
    assert (alignment.positions, alignment.rejections) == (30, 0)


def test_a_token_that_is_mostly_right_is_not_moved() -> None:
    alignment = made(EXCHANGED)
    for number in range(50):
        wrong = number % 3 == 0
        assert alignment.add([([PAD if wrong else EOT], [EOT] if wrong else [EOT, 9])], 2, 0.0) == [] or number < 3
    assert alignment.moved() == []


def test_neighbours_that_a_weak_draft_confuses_are_not_moved() -> None:
    """ "Becker" for every "Carter": wrong each time, but the draft knows well what it says."""
    alignment = made()
    for _ in range(300):
        assert alignment.add([([601, 8], [600]), ([601, 8], [601, 900])], 9, 0.0) == []
    assert alignment.same_text_other_id == 0


def test_a_neighbour_by_id_is_none_where_the_tokenizers_differ() -> None:
    table = array("i", EQUAL)
    table[600] = -1
    alignment = made(table)
    for _ in range(100):
        assert alignment.add([([601], [600])], 9, 0.0) == []


def test_a_draft_that_has_it_right_again_is_not_accused_any_more() -> None:
    alignment = made(EXCHANGED)
    for _ in range(5):
        alignment.add(reply(), 21, 0.0)
    for number in range(RIGHT_AGAIN):
        assert (alignment.moved() != []) is True, number
        alignment.add([([EOT], [EOT, 9])], 2, 1.0)
    assert alignment.moved() == []
    assert alignment.add(reply(), 21, 2.0) == [], "it was named already"
    assert len(alignment.moved()) == 1


def test_another_draft_is_judged_from_new_on() -> None:
    alignment = made(EXCHANGED)
    for _ in range(5):
        alignment.add(reply(), 21, 0.0)
    alignment.reset(EQUAL, None)
    assert (alignment.requests, alignment.moved(), alignment.same_text_other_id) == (0, [], 5)
    assert len([moved for _ in range(100) for moved in alignment.add(reply(), 21, 0.0)]) == 1


def test_an_exchange_that_nobody_told_is_seen_all_the_same() -> None:
    """What the draft had right before does not dilute what it has wrong now."""
    alignment = made(EXCHANGED)
    for _ in range(10_000):
        alignment.add([([EOT], [EOT, 9])], 2, 0.0)
    assert [number for number in range(10) for _ in alignment.add(reply(), 21, 0.0)] == [2]


def test_silence_means_something_after_enough_positions() -> None:
    alignment = Alignment()
    assert alignment.state() == (State.UNKNOWN, "no engine has told its models yet")
    alignment.reset(EQUAL, None)
    assert alignment.state() == (State.UNKNOWN, f"0 draft positions were looked at, {ENOUGH_POSITIONS} are needed")
    while alignment.positions < ENOUGH_POSITIONS:
        assert alignment.state()[0] is State.UNKNOWN
        alignment.add([([1, 2, 3, 4], [1, 2, 3, 9])], 9, 0.0)
    assert alignment.state() == (
        State.ALIGNED,
        f"none of {ENOUGH_POSITIONS // 4} rejected draft tokens was the target's own by another id",
    )
    alignment.reset((), "no tokenizer.json")
    for _ in range(ENOUGH_POSITIONS):
        alignment.add([([1, 2, 3, 4], [1, 2, 3, 9])], 9, 0.0)
    assert alignment.state() == (State.UNKNOWN, "no tokenizer.json")


def test_ids_that_the_engine_could_not_see() -> None:
    alignment = made()
    for _ in range(100):
        alignment.add([([-1, -1], [EOT])], 1, 0.0)
    assert alignment.state() == (State.UNKNOWN, "the engine could not see the draft ids")


def test_memory_is_bounded() -> None:
    """Every token moved by one: the most frequent stay, and a hundred are named."""
    ids = array("i", [number + 1 for number in range(20_000)])
    alignment = made(ids)
    for number in range(19_000):
        for _ in range(4 if number < 200 else 1):
            alignment.add([([number + 1], [number])], 1, 0.0)
    assert len(alignment._pairs) <= MOST_PAIRS
    assert len(alignment.moved()) == MOST_NAMED
    assert (0, 1) not in alignment._pairs
    assert (1, 0) in alignment._pairs
    alignment.add([([1 << 30, 3], [1 << 30, 3, 1 << 30]), ([1 << 30], [2]), ([2], [1 << 30])], 9, 0.0)
    assert len(alignment._right) < 1 << 16


def zipf(vocabulary: int, exponent: float) -> list[float]:
    weights = [1 / (rank + 1) ** exponent for rank in range(vocabulary)]
    return list(accumulate(weights))


@pytest.mark.parametrize("p", [0.4, 0.65, 0.9])
@pytest.mark.parametrize(("vocabulary", "exponent"), [(2048, 1.1), (50_000, 1.0)])
def test_an_aligned_draft_is_never_accused(vocabulary: int, exponent: float, p: float) -> None:
    """Frequent tokens are neighbours in a BPE vocabulary, so wrong guesses hit the neighbour often."""
    chance, cumulated = random.Random(f"{vocabulary} {p}"), zipf(vocabulary, exponent)
    alignment = made(array("i", range(vocabulary)))

    def token() -> int:
        return bisect(cumulated, chance.random() * cumulated[-1])

    # A third of the tokens are hard for the draft, a few impossible.
    hard = [chance.choice((p, p, p, p, p / 2, 0.0)) for _ in range(vocabulary)]
    for _ in range(1500):
        steps: list[Step] = []
        for _ in range(10):
            drafted, emitted = [], []
            while len(drafted) < 4:
                emitted.append(token())
                drafted.append(emitted[-1] if chance.random() < hard[emitted[-1]] else token())
                if drafted[-1] != emitted[-1]:
                    break
            else:
                emitted.append(token())
            steps.append((drafted, emitted))
        assert alignment.add(steps, 50, 0.0) == []
    assert alignment.state()[0] is State.ALIGNED
    assert alignment.same_text_other_id == 0
