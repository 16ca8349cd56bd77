import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specwatch_engine.lab.qualify.pairs import Ratio
from specwatch_engine.lab.qualify.scenarios import Overall, Standing, judge, more_needed, overall, worst_first

from sidecar.probes.acceptance import Counted, one


def sums(p: float, requests: int, *, spread: float = 0.1, drafted: int = 100) -> Counted:
    """Requests whose own p lies evenly up to `spread` around `p`."""
    total = Counted()
    for i in range(requests):
        own = p + spread * (2 * (i + 0.5) / requests - 1)
        total.put(one(25, drafted, round(own * drafted), 4, [1, 0, 0, 0], [25, 24, 24, 24]))
    return total


def latency(low: float | None, high: float | None) -> Ratio:
    ratio = None if low is None or high is None else (low + high) / 2
    return Ratio(4, "x", "spec_disabled", 50, 900.0, 800.0, ratio, low, high, None, None)


@pytest.mark.parametrize(
    ("name", "found", "ratio", "standing", "said"),
    [
        ("good", sums(0.8, 50), None, Standing.CERTIFIED, "p is 0.800 (95 % interval"),
        ("bad", sums(0.4, 50), None, Standing.REJECTED, "below 0.65"),
        ("near", sums(0.65, 50), None, Standing.UNCERTAIN, "on both sides of 0.65"),
        (
            "few",
            sums(0.9, 29),
            None,
            Standing.UNCERTAIN,
            "29 of 30 requests tell p: 1 more are needed. So far p",
        ),
        ("none", Counted(), None, Standing.UNCERTAIN, "0 of 30 requests tell p: 30 more are needed."),
        ("one value", sums(1.0, 40, spread=0.0), None, Standing.CERTIFIED, "p is 1.000"),
        ("slower", sums(0.8, 50), latency(1.05, 1.2), Standing.REJECTED, "But it is slower than plain decoding"),
        ("perhaps slower", sums(0.8, 50), latency(0.95, 1.2), Standing.CERTIFIED, "p is 0.800"),
        ("latency not known", sums(0.8, 50), latency(None, None), Standing.CERTIFIED, "p is 0.800"),
        ("bad and slower", sums(0.4, 50), latency(1.05, 1.2), Standing.REJECTED, "below 0.65."),
    ],
)
def test_a_scenario_is_judged_by_its_interval(
    name: str, found: Counted, ratio: Ratio | None, standing: Standing, said: str
) -> None:
    scenario = judge(name, 0.2, found, 0.65, ratio)
    assert (scenario.standing, scenario.certified) == (standing, standing is Standing.CERTIFIED)
    assert said in scenario.why
    assert (scenario.more is not None) == (standing is Standing.UNCERTAIN and "no number" not in scenario.why)


def test_at_the_limit_itself_no_number_of_prompts_helps() -> None:
    scenario = judge("x", 1.0, sums(0.65, 50), 0.65)
    assert "no number of prompts is likely to tell" in scenario.why
    assert scenario.more is None


@given(st.floats(0.05, 0.95), st.floats(0.001, 0.2), st.integers(30, 2000), st.floats(0.05, 0.95))
def test_with_so_many_more_the_interval_parts_from_the_limit(p: float, half: float, n: int, limit: float) -> None:
    more = more_needed(p, p - half, p + half, n, limit)
    if more is None:
        assert abs(p - limit) < half * (n / 100_000) ** 0.5 * 1.01 or n * (half / abs(p - limit)) ** 2 - n > 99_999
        return
    assert more >= 1
    # Rounding may leave it just at the limit.
    assert half * (n / (n + more)) ** 0.5 <= abs(p - limit) + 1e-9


def test_a_sample_by_scenario_tells_the_p_of_the_file() -> None:
    found = {"common": sums(0.8, 100), "rare": sums(0.3, 100)}
    shares = {"common": 0.9, "rare": 0.1}
    total = overall(found, shares)
    assert total.p == pytest.approx(0.75, abs=1e-3)
    assert total.requests == 200
    assert total.low is not None
    assert total.high is not None
    assert total.low < 0.75 < total.high
    # Long drafts weigh more, as they do in traffic.
    assert overall(found | {"rare": sums(0.3, 100, drafted=900)}, shares).p == pytest.approx(0.55, abs=1e-3)


def test_one_scenario_alone_has_its_own_interval() -> None:
    found = sums(0.7, 60)
    total, figures = overall({"x": found}, {"x": 1.0}), found.figures(None)
    assert (total.p, total.p_per_token) == (figures.p, pytest.approx(figures.p_per_token))
    assert total.mean_acceptance_length == pytest.approx(figures.mean_acceptance_length)
    assert total.low == pytest.approx(figures.low, abs=1e-4)
    assert total.high == pytest.approx(figures.high, abs=1e-4)


def test_scenarios_of_which_nothing_is_known_are_named() -> None:
    total = overall({"a": sums(0.7, 40), "b": Counted(), "c": sums(0.5, 1)}, {"a": 0.5, "b": 0.3, "c": 0.2, "d": 0.0})
    assert total.left_out == ("b",)
    assert total.p == pytest.approx((0.5 * 0.7 + 0.2 * 0.5) / 0.7, abs=1e-3)
    assert overall({"b": Counted()}, {"b": 1.0}) == Overall(None, None, None, 0, ("b",))
    assert overall({"c": sums(0.5, 1)}, {"c": 1.0}).low is None


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    chance = random.Random(7)
    truth, held = {"a": 0.8, "b": 0.5}, 0
    for _ in range(150):
        found = {}
        for name, p in truth.items():
            found[name] = Counted()
            for _ in range(60):
                own = min(max(chance.gauss(p, 0.1), 0.0), 1.0)
                accepted = sum(chance.random() < own for _ in range(40))
                found[name].put(one(10, 40, accepted, 4))
        total = overall(found, {"a": 0.7, "b": 0.3})
        assert total.low is not None
        assert total.high is not None
        held += total.low <= 0.71 <= total.high
    assert 134 <= held <= 149


counts = st.builds(lambda d, share: one(max(d // 4, 1), d, round(d * share), 4), st.integers(1, 500), st.floats(0, 1))


@given(st.dictionaries(st.sampled_from("abcd"), st.lists(counts, max_size=8)), st.lists(st.floats(0, 1), min_size=4))
def test_whatever_was_counted_p_lies_in_its_interval(found: dict[str, list[Counted]], weights: Sequence[float]) -> None:
    by_scenario = {}
    for name, rows in found.items():
        by_scenario[name] = Counted()
        for row in rows:
            by_scenario[name].put(row)
    total = overall(by_scenario, dict(zip("abcd", weights, strict=False)))
    if total.p is not None:
        assert 0 <= total.p <= 1 + 1e-9
        if total.low is not None and total.high is not None:
            assert total.low <= total.p + 1e-9
            assert total.p <= total.high + 1e-9


def test_the_worst_comes_first() -> None:
    found = [
        judge("good", 0.2, sums(0.8, 50), 0.65),
        judge("unknown", 0.2, Counted(), 0.65),
        judge("bad", 0.2, sums(0.5, 50), 0.65),
        judge("worst", 0.2, sums(0.3, 50), 0.65),
        judge("near", 0.2, sums(0.65, 50), 0.65),
    ]
    assert [each.name for each in worst_first(found)] == ["worst", "bad", "unknown", "near", "good"]
