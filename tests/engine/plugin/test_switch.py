"""The switch: what an order may ask of which engine, and what follows from it. Every case has a name."""

from typing import Any

import pytest
from specwatch_engine.plugin.switch import FIXED_LENGTH, Mode, Refused, Switch, opted_out

MOST = 4
#: Kinds of engines: arguments of Switch.
KINDS: dict[str, dict[str, Any]] = {
    "a draft model": {"method": "draft_model", "can_be_cold": True},
    "a draft model, second runner": {"method": "draft_model"},
    "eagle": {"method": "eagle3", "can_be_cold": True},
    "look-up": {"method": "ngram"},
    **{f"fixed length: {name}": {"method": name} for name in sorted(FIXED_LENGTH)},
    "ranks that must draft alike": {"method": "mtp", "soft_only": "ranks must draft alike"},
}
SOFT_ONLY = [name for name, kind in KINDS.items() if kind.get("soft_only") or kind["method"] in FIXED_LENGTH]
COLD = ["a draft model", "eagle"]


def switch(kind: str) -> Switch:
    return Switch(MOST, **KINDS[kind])


def state(each: Switch) -> tuple[Any, ...]:
    return each.cap, each.mode, each.limit, each.told, each.skips_draft


@pytest.mark.parametrize("kind", KINDS)
def test_at_first_nothing_is_capped(kind: str) -> None:
    fresh = switch(kind)
    soft = kind in SOFT_ONLY
    assert state(fresh) == (None, Mode.SOFT if soft else Mode.HARD, MOST, not soft, False)


@pytest.mark.parametrize("cap", [None, 0, 1, MOST])
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_engine_takes_the_modes_it_can(kind: str, mode: Mode, cap: int | None) -> None:
    asked = switch(kind)
    possible = mode is Mode.SOFT or (kind not in SOFT_ONLY and (mode is Mode.HARD or kind in COLD))
    if not possible:
        before = state(asked)
        with pytest.raises(Refused) as refused:
            asked.order({"cap": cap, "mode": mode.value})
        assert refused.value.param == "mode"
        assert str(refused.value).startswith("mode: ")
        remedy = "only soft is possible, because" if kind in SOFT_ONLY else "use hard"
        assert remedy in str(refused.value)
        assert state(asked) == before
        return
    assert asked.order({"cap": cap, "mode": mode.value}) is False
    limit = MOST if cap is None else cap
    assert state(asked) == (cap, mode, limit, mode is not Mode.SOFT, mode is Mode.COLD and cap == 0)


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "more than configured": ({"cap": 5}, "cap", "from 0 to 4"),
    "less than nothing": ({"cap": -1}, "cap", "from 0 to 4"),
    "a number with a point": ({"cap": 2.0}, "cap", "whole number"),
    "true is no number": ({"cap": True}, "cap", "whole number"),
    "text": ({"cap": "2"}, "cap", "the engine's default (null)"),
    "a list": ({"cap": [2]}, "cap", "whole number"),
    "another mode": ({"mode": "warm"}, "mode", "hard, soft or cold"),
    "another mode beside a good cap": ({"cap": 1, "mode": "Hard"}, "mode", "hard, soft or cold"),
    "a mode that is no text": ({"cap": 1, "mode": ["hard"]}, "mode", "hard, soft or cold"),
    "a bad cap beside a good mode": ({"cap": 9, "mode": "soft"}, "cap", "from 0 to 4"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_field_and_the_remedy_and_changes_nothing(name: str) -> None:
    command, param, words = REFUSED[name]
    asked = switch("a draft model")
    asked.order({"cap": 0, "mode": "cold"})
    before = state(asked)
    with pytest.raises(Refused, match=r"^(cap|mode): .+") as refused:
        asked.order(command)
    assert refused.value.param == param
    assert words in str(refused.value)
    assert state(asked) == before


KEPT: dict[str, tuple[dict[str, Any], int | None, Mode]] = {
    "nothing asked": ({}, 2, Mode.COLD),
    "only a cap": ({"cap": 1}, 1, Mode.COLD),
    "only a mode": ({"mode": "soft"}, 2, Mode.SOFT),
    "no mode meant": ({"cap": None, "mode": None}, None, Mode.COLD),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_an_order_does_not_name_stays(name: str) -> None:
    command, cap, mode = KEPT[name]
    asked = switch("a draft model")
    asked.order({"cap": 2, "mode": "cold"})
    assert asked.order(command) is False
    assert (asked.cap, asked.mode) == (cap, mode)


# from, to, whether the draft model's cache has holes that must be mended now
LEAVING: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "cold at 0, to the default": ({"cap": 0, "mode": "cold"}, {"cap": None}, True),
    "cold at 0, to one token": ({"cap": 0, "mode": "cold"}, {"cap": 1}, True),
    "cold at 0, to hard at 0": ({"cap": 0, "mode": "cold"}, {"mode": "hard"}, True),
    "cold at 0, to soft at 0": ({"cap": 0, "mode": "cold"}, {"mode": "soft"}, True),
    "cold at 0, and again": ({"cap": 0, "mode": "cold"}, {"cap": 0, "mode": "cold"}, False),
    "cold at 0, only asked": ({"cap": 0, "mode": "cold"}, {}, False),
    "cold at 1, to the default": ({"cap": 1, "mode": "cold"}, {"cap": None}, False),
    "cold without a cap, to hard": ({"cap": None, "mode": "cold"}, {"mode": "hard"}, False),
    "hard at 0, to the default": ({"cap": 0, "mode": "hard"}, {"cap": None}, False),
    "hard at 0, to cold": ({"cap": 0, "mode": "hard"}, {"mode": "cold"}, False),
    "soft at 0, to the default": ({"cap": 0, "mode": "soft"}, {"cap": None, "mode": "hard"}, False),
}


@pytest.mark.parametrize("name", LEAVING)
def test_holes_are_told_only_where_cold_at_0_is_left(name: str) -> None:
    before, after, holes = LEAVING[name]
    asked = switch("a draft model")
    asked.order(before)
    assert asked.order(after) is holes


AT_ZERO = {
    ("a draft model", "hard"): "the draft model runs once a step, to keep its cache",
    ("a draft model", "cold"): "the draft model does not run; its cache is computed anew when drafting begins again",
    ("a draft model", "soft"): "drafts are computed and dropped",
    ("look-up", "hard"): "nothing is drafted",
    ("look-up", "soft"): "drafts are computed and dropped",
    ("fixed length: suffix", "soft"): (
        "drafts are computed and dropped, because the proposer suffix always drafts 4 tokens"
    ),
    ("ranks that must draft alike", "soft"): "drafts are computed and dropped, because ranks must draft alike",
}


@pytest.mark.parametrize(("kind", "mode"), AT_ZERO)
def test_what_a_cap_of_0_spares_is_said_in_words(kind: str, mode: str) -> None:
    asked = switch(kind)
    asked.order({"mode": mode})
    assert asked.at_zero == AT_ZERO[kind, mode]


OPTED_OUT: dict[str, tuple[Any, bool]] = {
    "no extra arguments": (None, False),
    "empty": ({}, False),
    "another argument": ({"spec": False}, False),
    "false": ({"speculative": False}, True),
    "0": ({"speculative": 0}, True),
    "0.0": ({"speculative": 0.0}, True),
    "text false": ({"speculative": "false"}, True),
    "text False": ({"speculative": "False"}, True),
    "text 0": ({"speculative": "0"}, True),
    "text 0.0": ({"speculative": "0.0"}, True),
    "text no": ({"speculative": "no"}, True),
    "text off, with spaces": ({"speculative": " OFF "}, True),
    "null": ({"speculative": None}, False),
    "true": ({"speculative": True}, False),
    "1": ({"speculative": 1}, False),
    "1.0": ({"speculative": 1.0}, False),
    "text true": ({"speculative": "true"}, False),
    "empty text": ({"speculative": ""}, False),
    "a list": ({"speculative": [0]}, False),
    "an empty list": ({"speculative": []}, False),
}


@pytest.mark.parametrize("name", OPTED_OUT)
def test_whether_a_request_opted_out(name: str) -> None:
    extra, expected = OPTED_OUT[name]
    assert opted_out(extra) is expected
