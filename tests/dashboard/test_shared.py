"""Answers in common, by a clock of the test's own, and of clients before a real server."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dashboard import client as client_module
from dashboard import connection
from dashboard.client import Client, Problem
from dashboard.shared import Shared


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_answer_is_given_again_for_its_seconds():
    clock, asked = Clock(), []
    shared = Shared(4.0, 10, clock)

    def ask() -> int:
        asked.append(clock.now)
        clock.now += 1
        return len(asked)

    for at, answer in ((0.0, 1), (1.0, 1), (4.9, 1), (5.0, 2), (9.9, 2), (10.0, 3)):
        clock.now = max(clock.now, at)
        assert shared.get("question", ask) == answer, at
    assert asked == [0.0, 5.0, 10.0], "its age counts from when it came"
    assert shared.get("another", lambda: "else") == "else"


def test_nothing_is_kept_for_no_time():
    shared = Shared(0.0, 10, Clock())
    assert [shared.get("question", lambda answer=answer: answer) for answer in range(3)] == [0, 1, 2]


def test_a_failure_is_not_kept():
    shared = Shared(4.0, 10, Clock())
    answers = iter((ValueError("once"), "well"))

    def ask() -> str:
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    with pytest.raises(ValueError, match="once"):
        shared.get("question", ask)
    assert shared.get("question", ask) == "well"


def test_those_who_ask_meanwhile_wait_for_the_one_answer():
    shared, all_here, asked = Shared(60.0, 10), threading.Barrier(5), []

    def ask() -> str:
        asked.append(1)
        return "answer"

    def slowly() -> str:
        all_here.wait(timeout=30)
        return ask()

    def other() -> str:
        all_here.wait(timeout=30)
        return shared.get("question", ask)

    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(shared.get, "question", slowly)
        others = [pool.submit(other) for _ in range(4)]
        assert {each.result() for each in (first, *others)} == {"answer"}
    assert len(asked) == 1


def test_as_many_are_kept_as_it_was_told():
    shared, asked = Shared(60.0, 3), []
    for question in (1, 2, 3, 4, 2, 1):
        shared.get(question, lambda question=question: asked.append(question))
    assert asked == [1, 2, 3, 4, 1], "the oldest goes first"


def test_what_is_forgotten_is_asked_anew_also_while_it_is_asked():
    shared = Shared(60.0, 10)

    def forgotten() -> str:
        shared.forget()
        return "old"

    assert shared.get("question", forgotten) == "old"
    assert shared.get("question", lambda: "new") == "new"
    shared.forget()
    assert shared.get("question", lambda: "newer") == "newer"


# Clients


@pytest.fixture
def seconds(api, monkeypatch):
    monkeypatch.setattr(client_module, "SHARED_SECONDS", 600.0)


def test_many_pages_ask_as_one(api, seconds):
    client = Client(api.url, "secret")
    later = [client.later(client.summary, window="1h", scenario=None) for _ in range(20)]
    assert {each.result().instance for each in later} == {"sidecar-1"}
    client.summary(scenario="chat", window="1h")
    client.summary(window="1h", scenario="chat")
    assert [query for *_, query, _ in api.seen] == [{"window": "1h"}, {"window": "1h", "scenario": "chat"}]


def test_no_token_is_given_what_another_was(api, seconds, monkeypatch):
    """Of the pages' own clients too."""
    clients = [Client(api.url, token) for token in ("one", "two", None)]
    for _ in range(2):
        for each in clients:
            each.fallback()
    assert [token for *_, token in api.seen] == ["Bearer one", "Bearer two", None]
    api.seen.clear()
    for token in ("three", "four", "three"):
        monkeypatch.setenv("SPECWATCH_ADMIN_TOKEN", token)
        connection.client().fallback()
    assert [token for *_, token in api.seen] == ["Bearer three", "Bearer four"]


def test_a_problem_is_not_kept(api, seconds):
    client = Client(api.url)
    well = api.answers["fallback"]
    api.answers["fallback"] = (503, {"error": {"message": "database is locked"}})
    with pytest.raises(Problem, match="database is locked"):
        client.fallback()
    api.answers["fallback"] = well
    assert client.fallback().mode == "auto"


def test_a_switch_shows_at_once(api, seconds):
    client = Client(api.url)
    assert client.fallback().mode == "auto"
    client.set_fallback("autoregressive", "incident 4711")
    assert client.fallback().mode == "autoregressive"


def test_texts_are_asked_for_each_time(api, seconds):
    client = Client(api.url)
    for _ in range(2):
        client.texts("a")
    assert api.paths == ["/api/v1/requests/a/texts"] * 2
