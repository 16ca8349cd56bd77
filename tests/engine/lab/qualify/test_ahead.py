import pytest
from specwatch_engine.lab.qualify.ahead import rest_s, untold
from specwatch_engine.lab.qualify.measure import Asked
from specwatch_engine.lab.run import RunError

NO = "the draft can be rejected, but not qualified"
SLOWER = "--pairs: whether it is slower than plain decoding will be told"


@pytest.mark.parametrize(
    ("name", "prompts", "step_prompts", "pairs", "said"),
    [
        ("enough", {"a": 30, "b": 500}, 12, 45, []),
        ("the defaults", {"a": 500, "b": 500}, 48, 50, []),
        ("too few for p", {"a": 29}, 48, 50, [f"--prompts: 29 are too few for p, which takes 30: {NO}"]),
        (
            "a small scenario",
            {"a": 29, "b": 100},
            48,
            50,
            ["--prompts: fewer than 30 are of a, which will be uncertain: give more of them"],
        ),
        (
            "small ones only",
            {"a": 29, "b": 20},
            48,
            50,
            [f"--prompts: fewer than 30 are of a, b, which will be uncertain: give more of them: {NO}"],
        ),
        (
            "step times",
            {"a": 100},
            11,
            50,
            [f"--step-prompts: 11 are too few for the step times, which take 12: {NO}"],
        ),
        (
            "pairs of each",
            {"a": 100, "b": 100},
            12,
            44,
            [f"{SLOWER} of all scenarios together, but not of each: give at least 45"],
        ),
        (
            "pairs of all",
            {"a": 100, "b": 100},
            12,
            20,
            [f"{SLOWER} of none: give at least 45"],
        ),
        ("no more prompts than pairs", {"a": 40, "b": 45}, 12, 44, []),
    ],
)
def test_what_will_not_be_told(
    name: str, prompts: dict[str, int], step_prompts: int, pairs: int, said: list[str]
) -> None:
    assert untold(prompts, step_prompts, pairs) == said, name


def test_without_any_verdict_there_is_no_run() -> None:
    with pytest.raises(RunError, match="--prompts: 11 are too few for any verdict: step times take 12, p takes 30"):
        untold({"a": 5, "b": 6}, 48, 50)


def row(outcome: str = "ok", latency_ms: float | None = 1000.0, accepted: int = 15) -> Asked:
    counts = None if outcome != "ok" else (10, 40, accepted, 4, None, None)
    return Asked("p", "a", outcome, counts, None, latency_ms, None, None)


def test_the_rest_takes_as_long_as_the_replies_so_far_let_one_think() -> None:
    # A reply of 1 s at 4 in flight, of steps that give 2.5 tokens.
    rows = [row(), row(), row("timeout", 9000.0)]
    assert rest_s(rows, 4, arms=3, trials=10, pairs={}) == pytest.approx(10 * (1 + 2 * 2.5))
    assert rest_s(rows, 4, arms=3, trials=0, pairs={1: 10, 4: 20, 8: 40}) == pytest.approx(10 * 3.5 + 60 * 3.5 / 4)
    assert rest_s(rows, 4, arms=3, trials=0, pairs={1: 0}) == 0
    assert rest_s([row("timeout")], 4, arms=3, trials=1, pairs={}) is None
