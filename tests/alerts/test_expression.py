"""Expressions: what they say, three-valued logic, and errors that say what to write."""

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from alerts.expression import ExpressionError, parse

KNOWN = {"a": 0.5, "b": 2.0, "zero": 0.0, "nan": math.nan, "inf": math.inf, "none": None}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("a < 0.65", True),
        ("a<.5", False),
        ("a <= 0.5", True),
        ("a < 50.1%", True),
        ("a == 50%", True),
        ("b != 2", False),
        ("b > 1e-3", True),
        ("a + b * 2 == 4.5", True),
        ("(a + b) * 2 == 5", True),
        ("b - a - a == 1", True),
        ("b - (a - a) == 2", True),
        ("b / a / 2 == 2", True),
        ("-a < -b / 8", True),
        ("- -a == a", True),
        ("a < 1 or a < 1 and b < 1", True),
        ("(a < 1 or a < 1) and b < 1", False),
        ("not a < 1 or b == 2", True),
        ("not (a < 1 or b == 2)", False),
        ("not not a < 1", True),
        # Not known.
        ("none < 1", None),
        ("nan < 1", None),
        ("inf > 1", None),
        ("missing < 1", None),
        ("not none < 1", None),
        ("none < 1 and b < 1", False),
        ("b < 1 and none < 1", False),
        ("none < 1 and b > 1", None),
        ("none < 1 or b > 1", True),
        ("b > 1 or none < 1", True),
        ("none < 1 or b < 1", None),
        ("none * 0 == 0", None),
        ("none == none", None),
        ("b / zero > 1", None),
        ("zero / zero > 1", None),
        ("b / zero > 1 or a < 1", True),
        ("b * 1e308 > 1", None),
    ],
)
def test_what_it_says(text: str, holds: bool | None) -> None:
    assert parse(text).look(KNOWN).holds is holds


def test_value_is_the_first_reading_and_missing_ones_are_named() -> None:
    expression = parse("none + 1 < b and missing > 0 and b > 1 or none > 3")
    assert expression.readings == ("none", "b", "missing")
    assert expression.look(KNOWN) == (None, ("none", "missing"), None)
    assert parse("1 < b and a < 1").look(KNOWN) == (True, (), 2.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ends where a reading or a number is expected"),
        ("a <", "ends where a reading or a number is expected"),
        ("a", "is a number: compare it"),
        ("a + 1", "is a number: compare it"),
        ("1 < 2", "names no reading"),
        ("a < b < c", "compares twice in a row"),
        ("(a < b) < c", "'<' is for numbers, and 'a < b' is a comparison"),
        ("a and b < 1", "'and' is for comparisons: compare 'a' with a number"),
        ("not a", "'not' is for comparisons: compare 'a' with a number"),
        ("-(a < 1) < 2", "'-' is for numbers, and 'a < 1' is a comparison"),
        ("a = 1", "'=' at column 3 is not expected: write =="),
        ("a < 1 && b < 1", "'&' at column 7 is not expected: write and"),
        ("a < 1 AND b < 1", "'AND' at column 7 is not expected: write and"),
        ("!a < 1", "'!' at column 1, where a reading or a number is expected: write not"),
        ("(a < 1", "a ) is missing"),
        ("a < 1)", "')' at column 6 is not expected"),
        ("a < 1 b", "'b' at column 7 is not expected"),
        ("a < 1.2.3", "'.3' at column 8 is not expected"),
        ("a < 5 %", "'%' at column 7 is not expected"),
        ("a < 1e999", "holds a number that is too large"),
        ("a < and", "'and' at column 5, where"),
        ("a < __import__('os')", "'(' at column 15 is not expected"),
        ("a < 1" + " and a < 1" * 100, "is nested more than 40 deep"),
        ("(" * 500 + "a", "is nested more than 40 deep"),
        ("-" * 500 + "a < 1", "is nested more than 40 deep"),
        ("not " * 400 + "a < 1", "is nested more than 40 deep"),
        ("a < 1 " + " " * 2000, "is longer than 2000 characters"),
    ],
)
def test_errors_say_what_to_write(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert message in str(caught.value)


@given(st.text(max_size=60) | st.text("ab01.%<>=!+-*/() andornt", max_size=60))
@example("a<1e+")
@example("٣ < a")
def test_any_text_is_an_expression_or_an_expression_error(text: str) -> None:
    try:
        expression = parse(text)
    except ExpressionError:
        return
    assert parse(str(expression)) == expression


NUMBERS = st.recursive(
    st.sampled_from(["a", "b", "zero", "none"]) | st.floats(0, 1e9).map(str) | st.integers(0, 100).map("{}%".format),
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})")
        | inner.map("-{}".format)
    ),
    max_leaves=5,
)
TRUTHS = st.recursive(
    st.tuples(NUMBERS, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), NUMBERS).map(" ".join),
    lambda inner: (
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})")
        | inner.map("not ({})".format)
    ),
    max_leaves=5,
)


@given(TRUTHS)
def test_str_is_parsed_to_the_same(text: str) -> None:
    try:
        expression = parse(f"a < 1 or {text}")
    except ExpressionError as error:
        assert "nested" in str(error)
        return
    again = parse(str(expression))
    assert again == expression
    assert again.look(KNOWN) == expression.look(KNOWN)


SUMS = st.recursive(
    st.sampled_from(["a", "b", "3", "7"]),
    lambda inner: (
        st.lists(inner, min_size=2, max_size=4).flatmap(
            lambda parts: st.lists(st.sampled_from("+-*/"), min_size=len(parts), max_size=len(parts)).map(
                lambda signs: "".join(f" {sign} {part}" for sign, part in zip(signs, parts, strict=True))[2:]
            )
        )
        | inner.map("({})".format)
        | inner.map("-{}".format)
    ),
    max_leaves=8,
)


@given(SUMS, st.integers(-9, 9), st.integers(-9, 9))
def test_arithmetic_is_that_of_python(text: str, a: int, b: int) -> None:
    exact = text.replace("3", "Fraction(3)").replace("7", "Fraction(7)")
    try:
        value = eval(exact, {"Fraction": Fraction, "a": Fraction(a), "b": Fraction(b)})
    except ZeroDivisionError:
        assert parse(f"{text} > 0 and a == a").look({"a": a, "b": b}).holds is None
        return
    if abs(value) > 1e-6:  # nearer to 0 it is rounding that decides
        assert parse(f"{text} > 0 and a == a").look({"a": a, "b": b}).holds is (value > 0)


@pytest.mark.parametrize("left", [True, False, None])
@pytest.mark.parametrize("right", [True, False, None])
def test_kleene(left: bool | None, right: bool | None) -> None:
    # The order false < unknown < true: `and` is the lesser, `or` the greater of the two.
    rank = {False: 0, None: 1, True: 2}
    readings = {"l": None if left is None else float(left), "r": None if right is None else float(right)}
    both = parse("l > 0 and r > 0").look(readings).holds
    either = parse("l > 0 or r > 0").look(readings).holds
    assert rank[both] == min(rank[left], rank[right])
    assert rank[either] == max(rank[left], rank[right])
    assert rank[parse("not l > 0").look(readings).holds] == 2 - rank[left]
