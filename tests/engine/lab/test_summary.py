import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.lab.summary import Gate, Kind, Plot, Series, Summary, Table, read

numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=10)
summaries = st.builds(
    Summary,
    texts,
    texts,
    st.lists(texts, max_size=3),
    st.lists(st.builds(Gate, texts, st.none() | st.booleans(), numbers, numbers, texts), max_size=2),
    st.lists(st.builds(Table, texts, st.just(["a"]), st.lists(st.tuples(texts | numbers).map(list))), max_size=2),
    st.lists(
        st.builds(
            Plot,
            texts,
            st.sampled_from(Kind),
            st.just([1, 2]),
            st.lists(st.builds(Series, texts, st.lists(numbers, min_size=2, max_size=2)), max_size=2),
            texts,
            texts,
            numbers,
        ),
        max_size=2,
    ),
    st.dictionaries(texts, texts, max_size=2),
)


@given(summaries)
def test_run_json_tells_it_whole(summary: Summary) -> None:
    assert read(json.loads(json.dumps(summary.json()))) == summary


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(ValueError, match=r"summary: .*`str`.*\$\.verdict"):
        read({"title": "t", "verdict": 1, "reasons": []})
    with pytest.raises(ValueError, match=r"\$\.plots\[0\]\.kind"):
        read({"title": "t", "verdict": "v", "reasons": [], "plots": [{"title": "p", "kind": "pie"}]})


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert read({"title": "t", "verdict": "v", "reasons": [], "colour": 3}) == Summary("t", "v", [])
