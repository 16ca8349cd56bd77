"""What two token maps say of each other. C11, C12 and C13, with their values, as far as no file is concerned."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.probes.tokenizer_check.compare import MOST_MOVED, compare
from sidecar.probes.tokenizer_check.files import Model
from sidecar.probes.tokenizer_check.report import OtherId, Severity, Verdict
from sidecar.probes.tokenizer_check.table import Table
from sidecar.probes.tokenizer_check.words import lines
from sidecar.probes.vocabulary import NoVocabulary

ALIGNED, MISALIGNED, UNKNOWN = Verdict
NONE, WARNING, HIGH, CRITICAL = Severity
WORDS = {f"w{number}": number for number in range(100)}


def model(tokens: dict[str, int] | None, **known: object) -> Model:
    """Of these tokens; those in <| |> are special."""
    special = frozenset(text for text in tokens or {} if text.startswith("<|"))
    return Model(tokens=tokens, special=special, **known)  # type: ignore[arg-type]


def table(*offsets: int, kept: tuple[bool, ...] | None = None) -> Table:
    return Table(tuple(number + offset for number, offset in enumerate(offsets)), kept)


def test_c11_padding_is_no_mismatch() -> None:
    five = {text: number for number, text in enumerate("abcde")}
    found = compare(model(five, rows=8), model(dict(five), rows=12))
    assert (found.verdict, found.severity, found.coverage, found.padding_only) == (ALIGNED, NONE, 1.0, True)
    assert (found.target_rows, found.draft_rows, found.findings) == (8, 12, [])
    assert not compare(model(five, rows=8), model(five, rows=8)).padding_only
    assert compare(model(five, rows=8), model(None, rows=8, pruned_rows=5)).severity is NONE, "padding is cut off"
    assert compare(model(five, rows=8), model(None, rows=8, pruned_rows=4)).severity is CRITICAL
    assert not compare(model(five, rows=8), model(five)).padding_only


def test_c12_the_same_special_tokens_at_other_ids() -> None:
    found = compare(model(WORDS | {"<|e|>": 100, "<|s|>": 101}), model(WORDS | {"<|s|>": 102, "<|e|>": 103}))
    assert (found.verdict, found.severity) == (MISALIGNED, HIGH)
    assert (found.ordinary.same_id, found.ordinary.shared) == (100, 100)
    assert (found.special.same_id, found.special.shared) == (0, 2)
    assert sorted(found.offsets) == [(1, 1), (3, 1)]
    assert found.moved == [OtherId("<|e|>", 100, 103, True), OtherId("<|s|>", 101, 102, True)]
    assert (found.first_difference, found.coverage, found.draft_holes) == (100, 100 / 102, 2)
    (finding,) = found.findings
    assert finding.sentence == (
        "2 of 2 special tokens that both have are known to the draft by another id: '<|e|>' is 100, in the draft 103 "
        "(+3); '<|s|>' is 101, in the draft 102 (+1). The draft is rejected wherever one of them comes next, and "
        "misreads each in the prompt."
    )


def test_c12_a_vocabulary_that_begins_otherwise_is_compared_all_the_same() -> None:
    """152064 and 32002 ids, token 0 differs: no verdict by size, or by the first token."""
    target = {f"w{number}": number for number in range(320)} | {"<|pad|>": 320}
    draft = target | {"w0": 321, "zero": 0} | {f"x{number}": number for number in range(322, 1520)}
    found = compare(model(target), model(draft))
    assert (found.verdict, found.severity, found.first_difference, found.moved_tokens) == (MISALIGNED, HIGH, 0, 1)
    assert (found.ordinary.same_id, found.ordinary.shared, found.special.same_id) == (319, 320, 1)


def test_reserved_tokens_may_move() -> None:
    """Llama 3 and 3.1: some reserved tokens were given names, and the others moved up. The pair is in use."""
    older = ["<|begin|>", *(f"<|reserved_special_token_{number}|>" for number in range(20))]
    newer = [*older[:4], "<|python_tag|>", *older[4:-1]]
    ids = [WORDS | {text: 100 + number for number, text in enumerate(texts)} for texts in (older, newer)]
    for target, draft in (ids, ids[::-1]):
        found = compare(model(target), model(draft))
        assert (found.verdict, found.severity, found.moved_tokens) == (ALIGNED, WARNING, 16)
        assert "<|python_tag|>" in found.findings[0].sentence
        assert found.findings[1].sentence == "16 reserved tokens have another id in the draft, and are in no text."
    unused = [{f"[unused{number}]": number + moved for number in range(9)} | WORDS for moved in (200, 201)]
    found = compare(model(unused[0]), model(unused[1]))
    assert (found.verdict, found.severity, found.moved_tokens) == (ALIGNED, NONE, 9)
    said = [WORDS | {"<|reserved|>": 100, "reserved": 101, "<extra_id_0>": 102}, WORDS | {"reserved": 100}]
    assert compare(model(said[0]), model(said[1])).verdict is MISALIGNED


TEN = model({f"w{number}": number for number in range(10)}, rows=10)


def test_c13_a_pruned_draft_is_mapped_first() -> None:
    pruned = model(None, rows=10, pruned_rows=4, table=table(0, 2, 3, 5))
    assert pruned.table is not None
    assert pruned.table.targets == (0, 3, 5, 8)
    found = compare(TEN, pruned)
    assert (found.verdict, found.severity, found.coverage, found.padding_only) == (ALIGNED, NONE, 0.4, False)
    own = model({"w0": 0, "w3": 1, "w5": 2, "w8": 3}, pruned_rows=4, table=table(0, 2, 3, 5))
    found = compare(TEN, own)
    assert (found.verdict, found.coverage, found.ordinary.same_id) == (ALIGNED, 0.4, 4)


@pytest.mark.parametrize(
    ("name", "draft", "verdict", "severity", "said"),
    [
        ("no table", model(None, pruned_rows=4), MISALIGNED, CRITICAL, "pruned to 4 tokens, and its checkpoint has no"),
        ("all zero", model(None, pruned_rows=4, table=table(0, 0, 0, 0)), UNKNOWN, HIGH, "Suspicious"),
        ("out of range", model(None, table=table(0, 2, 3, 8)), MISALIGNED, CRITICAL, "names 1 ids"),
        ("negative", model(None, table=table(-1, 2, 3, 4)), MISALIGNED, CRITICAL, "names 1 ids"),
        ("twice", model(None, table=table(0, 2, 1, 4)), MISALIGNED, CRITICAL, "and 1 more than once"),
        ("too short", model(None, pruned_rows=5, table=table(0, 2, 3, 5)), MISALIGNED, CRITICAL, "has 4 entries"),
        (
            "of another training",
            model(None, table=table(0, 2, 3, 5, kept=tuple(number in (0, 3, 5, 9) for number in range(10)))),
            MISALIGNED,
            CRITICAL,
            "d2t names 4 of the target's ids and t2d 4, of which 3 are the same",
        ),
        (
            "both tables",
            model(None, table=table(0, 2, 3, 5, kept=tuple(number in (0, 3, 5, 8) for number in range(10)))),
            ALIGNED,
            NONE,
            None,
        ),
        ("not pruned", model(None, pruned_rows=10), ALIGNED, NONE, None),
        ("all of it", model(None, pruned_rows=10, table=table(*[0] * 10)), ALIGNED, NONE, None),
        (
            "a tokenizer with moved ids",
            model({"w0": 0, "w5": 1, "w3": 2, "w8": 3}, table=table(0, 2, 3, 5)),
            *[None] * 3,
        ),
    ],
)
def test_c13_tables(
    name: str, draft: Model, verdict: Verdict | None, severity: Severity | None, said: str | None
) -> None:
    found = compare(TEN, draft)
    if verdict is None:
        assert found.verdict is not ALIGNED, name
        return
    assert (found.verdict, found.severity) == (verdict, severity), name
    assert [said in finding.sentence for finding in found.findings[:1]] == ([] if said is None else [True]), name


def test_c13_two_families_are_told_by_what_they_have_in_common() -> None:
    names = random.Random(7)
    texts = [f"▁w{number}" for number in range(1000)]
    others = [text.replace("▁", "Ġ") for text in names.sample(texts, 600)] + [f"x{number}" for number in range(400)]
    target = model({text: number for number, text in enumerate(["<s>", *texts])})
    draft = model({text: number for number, text in enumerate(others)})
    found = compare(target, draft)
    assert (found.verdict, found.severity, found.coverage) == (UNKNOWN, WARNING, 0.0), "markers stay as they are"
    found = compare(target, draft, mapped=True)
    assert (found.verdict, found.coverage, found.moved_tokens) == (ALIGNED, 600 / 1001, 0)
    found = compare(target, draft, mapped=False)
    assert (found.verdict, found.severity) == (MISALIGNED, CRITICAL)
    assert "does not map one to the other" in found.findings[0].sentence
    little = compare(model({text: number for number, text in enumerate(texts[:50])}), draft, mapped=True)
    assert (little.verdict, little.severity) == (MISALIGNED, HIGH)


@pytest.mark.parametrize(
    ("name", "target", "draft", "verdict", "severity"),
    [
        ("one ordinary token", WORDS, WORDS | {"w7": 100}, MISALIGNED, HIGH),
        ("all by one", WORDS, {text: number + 1 for text, number in WORDS.items()}, MISALIGNED, CRITICAL),
        ("five of a hundred", WORDS, WORDS | {f"w{n}": 100 + n for n in range(5)}, MISALIGNED, CRITICAL),
        ("a renamed special token", WORDS | {"<|a|>": 100}, WORDS | {"<|b|>": 100}, ALIGNED, WARNING),
        (
            "two renamed of a hundred",
            WORDS,
            {t: n for t, n in WORDS.items() if n > 1} | {"x": 0, "y": 1},
            MISALIGNED,
            HIGH,
        ),
        ("a special token less", WORDS | {"<|a|>": 100}, WORDS, ALIGNED, WARNING),
        ("more behind the end", WORDS, WORDS | {"<|a|>": 100, "more": 101}, ALIGNED, NONE),
        ("half of it", WORDS, {text: number for text, number in WORDS.items() if number < 50}, ALIGNED, NONE),
        ("a hole", WORDS, {text: number for text, number in WORDS.items() if number != 50}, ALIGNED, NONE),
    ],
)
def test_maps(name: str, target: dict[str, int], draft: dict[str, int], verdict: Verdict, severity: Severity) -> None:
    found = compare(model(target), model(draft))
    assert (found.verdict, found.severity) == (verdict, severity), (name, found.findings)


def test_ids_beyond_the_models_weights() -> None:
    found = compare(model(WORDS, rows=98), model(WORDS, rows=200))
    assert (found.verdict, found.severity) == (ALIGNED, WARNING)
    assert found.findings[0].sentence.startswith("2 tokens of the target have ids from its vocab_size (98) on")


def test_ends_and_chat_templates() -> None:
    roles = [{"bos": frozenset({0}), "eos": frozenset({1, 2}), "pad": frozenset({3})} for _ in range(2)]
    target = model(WORDS, roles=roles[0], template="{{ a }}")
    assert compare(target, model(WORDS, roles=roles[1], template="{{ a }}")).findings == []
    roles[1] |= {"eos": frozenset({2}), "pad": frozenset({4}), "bos": frozenset({999})}
    found = compare(target, model(WORDS, roles=roles[1], template="{{ b }}"))
    assert (found.verdict, found.severity) == (ALIGNED, WARNING)
    assert [(each.severity, each.sentence.split(":")[0]) for each in found.findings] == [
        (WARNING, "The configurations name another bos token"),
        (NONE, "The configurations name another pad token"),
        (NONE, "The chat templates differ"),
    ]
    assert "w0 in the target, id 999 in the draft" in found.findings[0].sentence


def test_a_target_without_tokens_cannot_be_compared() -> None:
    for tokens in (None, {}):
        with pytest.raises(NoVocabulary):
            compare(model(tokens), model(WORDS))


def test_what_is_named_is_bounded() -> None:
    found = compare(
        model({f"<|{n}|>": n for n in range(500)} | {"a": 600}), model({f"<|{n}|>": n + 1 for n in range(500)})
    )
    assert (len(found.moved), found.moved_tokens) == (MOST_MOVED, 500)
    assert max(len(line) for line in lines(found)) < 400


maps = st.dictionaries(st.text("ab<|>▁Ġ", min_size=1, max_size=4), st.integers(0, 40), max_size=20).map(
    lambda found: {text: number for number, text in {n: t for t, n in found.items()}.items()}
)


@given(maps, maps, st.sampled_from([None, True, False]), st.lists(st.integers(-5, 5), max_size=6) | st.none())
def test_any_pair_has_a_report(
    target: dict[str, int], draft: dict[str, int], mapped: bool | None, offsets: list[int] | None
) -> None:
    if not target:
        return
    found = compare(model(target), model(draft, table=None if offsets is None else table(*offsets)), mapped)
    for group in (found.ordinary, found.special):
        assert 0 <= group.same_id <= group.shared <= min(group.target, group.draft)
    assert found.coverage is None or 0 <= found.coverage <= 1
    assert found.severity is max((each.severity for each in found.findings), key=lambda each: each.rank, default=NONE)
    assert (found.verdict is MISALIGNED) >= (found.severity is CRITICAL)
    assert list(lines(found))


@given(maps)
def test_equal_maps_are_aligned(tokens: dict[str, int]) -> None:
    if tokens:
        for mapped in (None, True, False):
            found = compare(model(tokens), model(dict(tokens)), mapped)
            assert (found.verdict, found.severity, found.coverage) == (ALIGNED, NONE, 1.0)


@given(maps, st.randoms())
def test_moved_tokens_are_those_with_another_id(tokens: dict[str, int], chance: random.Random) -> None:
    if not tokens:
        return
    numbers = list(tokens.values())
    chance.shuffle(numbers)
    draft = dict(zip(tokens, numbers, strict=True))
    found = compare(model(tokens), model(draft))
    assert {(each.text, each.target_id, each.draft_id) for each in found.moved} == {
        (text, number, draft[text]) for text, number in tokens.items() if draft[text] != number
    }
    assert (found.verdict is ALIGNED) is (draft == tokens)
