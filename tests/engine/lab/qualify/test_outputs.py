import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.lab.qualify.outputs import Answer, Outputs, compared, found_of, is_greedy, output_gates


def call(name: str, arguments: str, id_: str = "a") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


TOOLS = {"tools": [{"type": "function", "function": {"name": "book"}}, {"name": "cancel"}]}
JSON = {"response_format": {"type": "json_schema", "json_schema": {}}}


@pytest.mark.parametrize(
    ("ours", "plain", "divergence"),
    [
        (Answer("one two"), Answer("one two"), None),
        (Answer("one two"), Answer("one ten"), 5),
        (Answer("one"), Answer("one two"), 3),
        (Answer(""), Answer("one"), 0),
        (Answer("", [call("book", "{}", "x")]), Answer("", [call("book", "{}", "y")]), None),
        (Answer("", [call("book", "{}")]), Answer("", [call("cancel", "{}")]), 0),
        (Answer("", [call("book", "{}")]), Answer(""), 0),
    ],
)
def test_replies_part_where_their_texts_or_calls_do(ours: Answer, plain: Answer, divergence: int | None) -> None:
    found = compared("p", "s", {}, ours, plain)
    assert (found.identical, found.divergence) == (divergence is None, divergence)


@pytest.mark.parametrize(
    ("name", "body", "ours", "plain", "expected"),
    [
        ("asked for", JSON, '{"a": 1', '{"a": 1}', (False, True)),
        ("asked for, neither", JSON, "no", "no", (False, False)),
        ("not asked for, but given", {}, "[1]", "[1]", (True, True)),
        ("not asked for, and broken", {}, "[1", "[1]", (False, True)),
        ("only the speculative one", {}, "[1]", "[1", None),
        ("a number is no JSON", {}, "12", "12", None),
        ("text asked for", {"response_format": {"type": "text"}}, "a", "a", None),
        ("nonsense asked for", {"response_format": "json_object"}, "a", "a", None),
        ("too deep", JSON, "[" * 100_000, "[]", (False, True)),
    ],
)
def test_json_is_valid_or_not(
    name: str, body: dict[str, Any], ours: str, plain: str, expected: tuple[bool, bool] | None
) -> None:
    assert compared("p", "s", body, Answer(ours), Answer(plain)).json == expected


GOOD = [call("book", '{"day": 1}')]


@pytest.mark.parametrize(
    ("name", "body", "ours", "plain", "expected"),
    [
        ("both good", TOOLS, GOOD, GOOD, (True, True)),
        ("named without a function", TOOLS, [call("cancel", "{}")], GOOD, (True, True)),
        ("cut arguments", TOOLS, [call("book", '{"day": ')], GOOD, (False, True)),
        ("arguments are a list", TOOLS, [call("book", "[1]")], GOOD, (False, True)),
        ("unknown name", TOOLS, [call("destroy", "{}")], GOOD, (False, True)),
        ("one of two", TOOLS, [*GOOD, call("book", "")], GOOD, (False, True)),
        ("none where the other calls", TOOLS, None, GOOD, (False, True)),
        ("neither calls", TOOLS, None, None, None),
        ("no tools", {}, GOOD, GOOD, None),
        ("tools that are none", {"tools": "book"}, GOOD, GOOD, None),
        ("a call without a function", TOOLS, [{"id": "a"}], GOOD, (False, True)),
    ],
)
def test_tool_calls_are_valid_or_not(
    name: str,
    body: dict[str, Any],
    ours: list[dict[str, Any]] | None,
    plain: list[dict[str, Any]] | None,
    expected: tuple[bool, bool] | None,
) -> None:
    assert compared("p", "s", body, Answer("", ours), Answer("", plain)).tools == expected


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=5), each, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(("tools", "response_format", "temperature", "type", "function", "name", "arguments"))
objects = st.dictionaries(names, values | st.dictionaries(names, values, max_size=3), max_size=4)
answers = st.builds(Answer, st.text(max_size=20) | values.map(json.dumps), st.none() | st.lists(objects, max_size=2))


@given(objects, answers, answers)
def test_whatever_a_prompt_and_its_replies_hold_they_are_compared(
    body: dict[str, Any], ours: Answer, plain: Answer
) -> None:
    found = compared("p", "s", body, ours, plain)
    assert found.identical == (ours.whole() == plain.whole())
    assert found_of([found]).pairs == 1
    same = compared("p", "s", body, ours, ours)
    assert same.identical
    assert same.json is None or same.json[0] == same.json[1]


@pytest.mark.parametrize(
    ("body", "greedy"),
    [({}, True), ({"temperature": 0}, True), ({"temperature": 0.0}, True), ({"temperature": 1}, False)],
)
def test_only_greedy_replies_can_be_held_against_each_other(body: dict[str, Any], greedy: bool) -> None:
    assert is_greedy(body) is greedy


def rows(same: int, *scores: float | None, reason: str | None = None) -> list[Outputs]:
    return [
        *(Outputs(f"s{i}", "x", True) for i in range(same)),
        *(Outputs(f"d{i}", "x", False, 10 * (i + 1), score, reason) for i, score in enumerate(scores)),
    ]


def test_identical_replies_count_as_alike() -> None:
    found = found_of(rows(18, 0.9, 0.5))
    assert (found.pairs, found.identical, found.scored) == (20, 18, 2)
    assert found.similarity == pytest.approx(0.97)
    assert (found.lowest, found.warning, found.critical, found.divergence) == (0.5, 0, 1, 15)


@pytest.mark.parametrize(
    ("name", "given_rows", "passed", "said"),
    [
        ("all the same", rows(30), True, "30 of 30 replies are the same to the letter"),
        ("a few differ", rows(28, 0.9, 0.7), True, "The similarity of these is 0.70 at least; 1 lie below 0.75"),
        ("a warning", rows(0, *[0.8] * 30), True, "That is below 0.82"),
        ("other replies", rows(0, *[0.4] * 30), False, "30 lie below 0.75"),
        ("few", rows(0, *[0.4] * 5), None, "20 pairs are needed"),
        ("no embedder", rows(28, 0.9, None, reason="nothing installed"), None, "by meaning: nothing installed."),
        ("none", [], None, "No prompt was answered both ways at temperature 0."),
    ],
)
def test_the_gate_of_the_replies(name: str, given_rows: list[Outputs], passed: bool | None, said: str) -> None:
    (gate,) = output_gates(found_of(given_rows))
    assert gate.passed is passed
    assert said in gate.words


@pytest.mark.parametrize(
    ("broken", "mended", "passed"),
    [(0, 0, True), (4, 0, True), (5, 0, False), (5, 3, True), (20, 8, False), (0, 9, True)],
)
def test_json_fails_where_speculation_breaks_it_more_often_than_by_chance(
    broken: int, mended: int, passed: bool
) -> None:
    told = [(False, True)] * broken + [(True, False)] * mended + [(True, True)] * 10
    found = found_of([Outputs(str(i), "x", True, json=each) for i, each in enumerate(told)])
    (_, gate) = output_gates(found)
    assert (gate.name, gate.passed) == ("JSON", passed)
    assert gate.value == (10 + mended) / len(told)
    assert ("only the plain reply is valid" in gate.words) is not passed
    assert len(output_gates(replace(found, tools=found.json))) == 3


def test_a_prompt_that_breaks_at_each_concurrency_is_one_piece_of_evidence() -> None:
    rows = [Outputs(f"p{i}", "x", False, 1, json=(False, True), concurrency=c) for i in range(4) for c in (1, 4, 8)]
    found = found_of(rows)
    assert (found.json.pairs, found.json.broken, found.json.mended) == (12, 4, 0)
    assert next(gate for gate in output_gates(found) if gate.name == "JSON").passed is True
