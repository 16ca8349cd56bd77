"""The scheduler's hooks over a scripted scheduler: how many drafts a request has, and what the proposer is told."""

from typing import Any

import pytest
from specwatch_engine.plugin.compat import hooks
from support.scripted_scheduler import K, Scheduler, config, order, request, run


@pytest.fixture(autouse=True)
def _version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "version", lambda: "0.32.0")


# ---- the cap


def test_without_an_order_nothing_is_changed() -> None:
    scheduler, table = Scheduler(config()), None
    scheduler.add_request(request("a"))
    shared = scheduler.running[0].spec_token_ids
    run(scheduler, a=[1])
    assert scheduler.found == [(table, {"a": shared})]
    assert scheduler.found[0][1]["a"] is shared


CAPPED: dict[str, tuple[Any, list[int] | None, dict[str, Any], list[int] | None, int]] = {
    # the engine, its table, the order, the table and the number of drafts that vLLM finds
    "hard at 2": (config(), None, {"cap": 2}, [2] * 9, 2),
    "hard at 0": (config(), None, {"cap": 0}, [0] * 9, 0),
    "hard at all": (config(), None, {"cap": K}, None, K),
    "soft at 2": (config(), None, {"cap": 2, "mode": "soft"}, None, 2),
    "soft at 0": (config(), None, {"cap": 0, "mode": "soft"}, None, 0),
    "cold at 0": (config(), None, {"cap": 0, "mode": "cold"}, [0] * 9, 0),
    "a method of fixed length": (config("suffix"), None, {"cap": 1}, None, 1),
    "a mixture of experts in ranks": (config(ranks=2, moe=True), None, {"cap": 1}, None, 1),
    "dense ranks": (config(ranks=2), None, {"cap": 1}, [1] * 9, 1),
    "second runner, look-up": (config("ngram", second_runner=True), None, {"cap": 1}, None, 1),
    "second runner, a draft model": (config(second_runner=True), None, {"cap": 1}, [1] * 9, 1),
    "a table of the user's": (config(), [4, 4, 3, 2, 0], {"cap": 2}, [2, 2, 2, 2, 0], 2),
    "a table of the user's, soft": (config(), [4, 4, 3, 2, 0], {"cap": 2, "mode": "soft"}, [4, 4, 3, 2, 0], 2),
}


@pytest.mark.parametrize("name", CAPPED)
def test_a_cap_cuts_the_drafts_and_tells_the_proposer_where_it_can(name: str) -> None:
    engine, table, command, told, drafts = CAPPED[name]
    scheduler = Scheduler(engine, table)
    scheduler.add_request(request("a"))
    whole = scheduler.running[0].spec_token_ids
    state = order(scheduler, **command)
    assert (state["cap"], state["num_speculative_tokens"], state["running"]) == (command["cap"], K, 1)
    output = run(scheduler, a=[1])
    assert scheduler.found == [(told, {"a": list(range(drafts))})]
    assert whole == list(range(K)), "the list may be shared by all requests"
    assert getattr(output, "specwatch_skip", False) is (name == "cold at 0")
    # No cap again: the engine's own table and all drafts.
    assert order(scheduler, cap=None)["cap"] is None
    scheduler.running[0].spec_token_ids = list(range(K))
    assert not hasattr(run(scheduler, a=[1]), "specwatch_skip")
    assert scheduler.found[1] == (table, {"a": list(range(K))})
    assert scheduler.dynamic_sd_lookup is table


def test_a_refused_order_changes_nothing() -> None:
    scheduler = Scheduler(config("suffix"))
    assert order(scheduler, cap=1, mode="cold") == {
        "refused": "mode: only soft is possible, because the proposer suffix always drafts 4 tokens",
        "param": "mode",
    }
    assert order(scheduler)["cap"] is None


@pytest.mark.parametrize(
    "engine", [config("ngram"), config(second_runner=True), config(second_runner=True, method="eagle")]
)
def test_cold_is_refused_where_the_draft_model_cannot_be_skipped(engine: Any) -> None:
    assert order(Scheduler(engine), cap=0, mode="cold")["param"] == "mode"


def test_the_holes_of_cold_are_mended_once_drafting_is_on_again() -> None:
    scheduler = Scheduler(config())
    order(scheduler, cap=0, mode="cold")
    assert scheduler.calls == []
    order(scheduler, cap=3)
    assert scheduler.calls == ["reset running=True, cap=3"]


def test_an_engine_that_does_not_speculate_takes_no_orders() -> None:
    plain = Scheduler(config(), num_spec_tokens=0)
    assert order(plain) == {"engine": 1, "vllm": "0.32.0", "method": None}
    refused = order(plain, cap=0)
    assert "does not speculate" in refused["refused"]
    plain.add_request(request("a", 0))
    run(plain, a=[1])
    plain.free("a", "abort")
    assert plain.calls == ["add", "schedule", "update"]


# ---- opting out

# name: requests that run (whether they opted out), requests that wait, cap; drafts left of each, table found
OUT: dict[str, tuple[list[bool], int, int | None, list[int], list[int] | None]] = {
    "nobody": ([False, False], 0, None, [K, K], None),
    "one of two": ([True, False], 0, None, [0, K], None),
    "one of two, capped": ([True, False], 0, 2, [0, 2], [2] * 9),
    "all": ([True, True], 0, None, [0, 0], [0] * 9),
    "all, and somebody waits": ([True, True], 1, None, [0, 0], None),
    "all, and somebody waits, capped": ([True], 1, 1, [0], [1] * 9),
}


@pytest.mark.parametrize("name", OUT)
def test_who_opted_out_has_nothing_drafted(name: str) -> None:
    running, waiting, cap, drafts, told = OUT[name]
    scheduler = Scheduler(config())
    for number, out in enumerate(running):
        scheduler.add_request(request(str(number), speculative=0 if out else None))
    scheduler.waiting += [request(f"w{number}") for number in range(waiting)]
    state = order(scheduler, **({} if cap is None else {"cap": cap}))
    assert (state["opted_out"], state["waiting"]) == (sum(running), waiting)
    scheduler.schedule()
    assert scheduler.found == [(told, {str(number): list(range(left)) for number, left in enumerate(drafts)})]


def test_a_method_of_fixed_length_is_told_nothing_where_all_opted_out() -> None:
    scheduler = Scheduler(config("suffix"))
    scheduler.add_request(request("a", speculative=False))
    scheduler.schedule()
    assert scheduler.found == [(None, {"a": []})]


def test_an_opt_out_ends_with_its_request() -> None:
    scheduler = Scheduler(config())
    scheduler.add_request(request("a", speculative=False))
    scheduler.add_request(request("b"))
    scheduler.free("a", "abort")
    assert order(scheduler)["opted_out"] == 0
    scheduler.schedule()
    assert scheduler.found == [(None, {"b": list(range(K))})]


def test_a_request_without_sampling_is_none_of_ours() -> None:
    scheduler = Scheduler(config())
    pooling = request("a")
    pooling.sampling_params = None
    scheduler.add_request(pooling)
    assert order(scheduler)["opted_out"] == 0
