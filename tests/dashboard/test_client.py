"""The client against a real local server, and against none."""

import socket
import threading
import types
from datetime import timedelta

import httpx
import msgspec
import pytest
from support import board

from dashboard import client as client_module
from dashboard import shapes
from dashboard.client import Client, Kind, Problem
from sidecar.api import lab, models, texts


def test_reads_every_endpoint(api):
    client = Client(api.url + "/", token="secret")
    assert client.summary(window="1h").last_100.requests == 100
    assert len(client.acceptance(window="1h", step="1m").points) == 56
    assert client.acceptance(window="1h", by="scenario", scenario=None).points[-1].p is None
    assert client.truncation(window="1h", step="1m").positions == 5
    assert client.latency(window="1h", step="1m").points[1].autoregressive.p95_ms is None
    assert len(client.latency_distribution(window="1h").shares) == 102
    assert client.traffic(window="1h", by="scenario").points[0].requests == 210
    assert client.similarity(window="1h").points[0].pairs == 168
    assert sum(client.similarity_histogram(window="1h").draft) == 168
    assert client.similarity_pairs(window="1h").pairs[0].score == 0.51
    assert client.quality().recent[0].flag == "repetition"
    assert client.alignment().target_model == "demo-target"
    assert client.alerts().rules[0].for_s == 30
    assert "SpecwatchAcceptanceLow" in client.runbook().alerts
    assert client.events(window="1h").next_cursor is None
    assert client.requests(scenario="chat").next_cursor == "second"
    assert client.request("a/b?").steps == "44424033"
    assert api.paths[-1] == "/api/v1/requests/a%2Fb%3F"
    assert client.texts("a").texts == []
    assert [run.id for run in client.lab_runs(kind="qualify", limit="1").runs] == ["qualify-2"]
    assert client.lab_run("qualify-2").summary["verdict"] == "qualified in part"
    with pytest.raises(Problem, match="no run 'a%2Fb%3F' of the lab is recorded") as caught:
        client.lab_run("a/b?")
    assert caught.value.kind is Kind.MISSING
    fallback = client.fallback()
    assert fallback.since.utcoffset() == timedelta(0)
    assert fallback.history[0].to_state == "speculative"
    assert api.seen[0] == ("GET", "summary", {"window": "1h"}, "Bearer secret")
    assert api.seen[1][2] == {"window": "1h", "step": "1m"}
    assert api.seen[2][2] == {"window": "1h", "by": "scenario"}


def test_questions_are_asked_at_a_time(api):
    """Four that wait for each other are all answered."""
    together = threading.Barrier(4)

    def answer(query):
        together.wait(timeout=30)
        return 200, board.traffic()

    api.answers["traffic"] = answer
    client = Client(api.url)
    later = [client.later(client.traffic, window=f"{hours}h") for hours in range(1, 5)]
    assert all(each.result().points for each in later)


def test_a_problem_comes_with_the_answer_that_was_asked_for(api):
    api.answers["traffic"] = (503, {"error": {"message": "database is locked"}})
    client = Client(api.url)
    later = client.later(client.traffic, window="1h")
    with pytest.raises(Problem, match="database is locked"):
        later.result()


def test_a_token_that_is_not_ascii(api):
    Client(api.url, token="schlüssel").fallback()
    assert api.seen[0][3].encode("latin-1").decode() == "Bearer schlüssel"


def test_no_token_no_header(api):
    Client(api.url).fallback()
    assert api.seen[0][3] is None


def test_switches(api):
    after = Client(api.url).set_fallback("autoregressive", "incident 4711")
    assert (after.mode, after.state, after.reason) == ("autoregressive", "autoregressive", "incident 4711")
    assert api.put_bodies == [{"mode": "autoregressive", "reason": "incident 4711"}]


def error(status, message):
    body = {"error": {"message": message, "type": "specwatch_error", "param": None, "code": None}}
    return status, body


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (error(401, "missing bearer token"), Kind.UNAUTHORISED, "401 Unauthorized: missing bearer token"),
        (error(503, "database is locked."), Kind.DATABASE, "database is locked)."),
        (error(403, "this needs the token of admin_token"), Kind.REFUSED, "403 Forbidden: this needs the token"),
        (error(429, "too many requests"), Kind.BUSY, "429 Too Many Requests"),
        (error(409, "no autoregressive upstream"), Kind.REFUSED, "no autoregressive upstream"),
        (error(404, "not found"), Kind.UNEXPECTED, "404 Not Found"),
        ((500, b"Internal Server Error"), Kind.UNEXPECTED, "500 Internal Server Error"),
        ((502, b"[1]"), Kind.UNEXPECTED, "502 Bad Gateway"),
        ((200, b"<html>"), Kind.UNEXPECTED, "does not know"),
        ((200, b'{"mode": "auto"}'), Kind.UNEXPECTED, "missing required field"),
        ((200, b"\xff"), Kind.UNEXPECTED, "does not know"),
    ],
)
def test_every_refusal_is_a_sentence(api, answer, kind, says):
    api.answers["fallback"] = answer
    with pytest.raises(Problem) as caught:
        Client(api.url).fallback()
    assert caught.value.kind is kind
    assert says in str(caught.value)


def test_a_connection_that_breaks_is_not_one_that_nobody_takes(api):
    def break_off(_):
        raise ConnectionAbortedError

    api.answers["fallback"] = break_off
    with pytest.raises(Problem, match="broke") as caught:
        Client(api.url).fallback()
    assert caught.value.kind is Kind.BROKEN


def test_nobody_listens():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(Problem, match="Nothing answers at http://127") as caught:
            Client(url).fallback()
    assert caught.value.kind is Kind.UNREACHABLE


@pytest.mark.parametrize("url", ["127.0.0.1:8001", "ftp://here", "http://[::1", ""])
def test_no_address(url):
    with pytest.raises(Problem) as caught:
        Client(url).fallback()
    assert caught.value.kind is Kind.UNREACHABLE


def test_silence_is_reported(monkeypatch):
    monkeypatch.setattr(client_module, "TIMEOUT", httpx.Timeout(0.2))
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, pytest.raises(Problem, match=r"did not answer within 0\.2 s") as caught:
        Client(f"http://127.0.0.1:{silent.getsockname()[1]}").fallback()
    assert caught.value.kind is Kind.TIMEOUT


def test_a_proxy_of_the_environment_is_not_used(api, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert Client(api.url).fallback().mode == "auto"


def names(annotation: object) -> str:
    """A type with class names without their modules, so that both sides' spell alike."""
    return (
        str(annotation)
        .replace("sidecar.api.models.", "")
        .replace("sidecar.api.texts.", "")
        .replace("sidecar.api.lab.", "")
        .replace("dashboard.shapes.", "")
        .replace("<class '", "")
        .replace("'>", "")
    )


SHAPES = [
    value
    for value in vars(shapes).values()
    if isinstance(value, type) and issubclass(value, shapes.Shape) and value is not shapes.Shape
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_shapes_are_those_of_the_api(shape: type[msgspec.Struct]):
    """A field the API renames or retypes breaks here, not before the person on call."""
    assert isinstance(models, types.ModuleType)
    model = next(found for room in (models, texts, lab) if (found := getattr(room, shape.__name__, None)))
    for field in msgspec.structs.fields(shape):
        assert field.name in model.model_fields, f"{shape.__name__}.{field.name} is not in the API"
        assert names(field.type) == names(model.model_fields[field.name].annotation), field.name
