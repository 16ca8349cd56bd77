"""The control route on a real server, with scripted engine cores behind it."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from specwatch_engine.demo.weights import CHECKPOINTS
from specwatch_engine.plugin import control
from specwatch_engine.plugin.compat import hooks, orders
from specwatch_engine.plugin.control import TOKEN, Control
from specwatch_engine.plugin.identity import digest
from starlette.applications import Starlette
from support.scripted_cores import SECRET, Cores, Worker, served

ENGINE, SPECULATION, DRAFT = "/specwatch/v1/engine", "/specwatch/v1/speculation", "/specwatch/v1/draft"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[httpx.Client, Cores]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hooks, "version", lambda: "0.32.0")
        patch.setattr(hooks, "installed", True)
        patch.setenv(TOKEN, SECRET)
        cores = Cores()
        with served(cores) as client:
            yield client, cores


@pytest.fixture
def cores(server: tuple[httpx.Client, Cores]) -> Cores:
    server[1].start()
    return server[1]


@pytest.fixture
def client(server: tuple[httpx.Client, Cores], cores: Cores) -> httpx.Client:
    return server[0]


def caps(cores: Cores) -> list[Any]:
    return [core.scheduler._specwatch.switch.cap for core in cores.all]


def error(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
    body: dict[str, Any] = answer.json()
    assert body.keys() == {"error"}
    told: dict[str, Any] = body["error"]
    assert told.keys() == {"message", "type", "param", "code"}
    assert told["type"] == "specwatch_engine"
    assert len(told["message"]) > 15
    return told


# ---- who may ask


@pytest.mark.parametrize("token", [None, ""])
def test_without_a_configured_token_nothing_is_answered(
    token: str | None, cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    if token is not None:
        monkeypatch.setenv(TOKEN, token)
    with served(cores) as client:
        for method, path in (("GET", ENGINE), ("PUT", SPECULATION), ("PUT", DRAFT), ("GET", "/specwatch/")):
            for given in (f"Bearer {SECRET}", "Bearer", ""):
                answer = client.request(method, path, json={"cap": 0}, headers={"authorization": given})
                assert TOKEN in error(answer, 403)["message"]
        assert client.get("/health").status_code == 200
    assert caps(cores) == [None, None]


TOKENS: dict[str, tuple[str | bytes, int]] = {
    "right": (f"Bearer {SECRET}", 200),
    "right, in small letters and with spaces": (f"bearer   {SECRET}", 200),
    "none": ("", 401),
    "wrong": ("Bearer another", 401),
    "a part of it": (f"Bearer {SECRET[:-1]}", 401),
    "none in the scheme": ("Bearer", 401),
    "only the token": (SECRET, 401),
    "another scheme": (f"Basic {SECRET}", 401),
    "no ASCII": ("Bearer \xff\xfe".encode("latin-1"), 401),
}


def test_only_the_right_token_is_let_in(client: httpx.Client, cores: Cores) -> None:
    for name, (given, status) in TOKENS.items():
        answer = client.put(SPECULATION, json={"cap": 1}, headers={"authorization": given})
        assert answer.status_code == status, name
        if status == 401:
            assert TOKEN in error(answer, 401)["message"]
            assert SECRET not in answer.text
            assert answer.headers["www-authenticate"] == "Bearer"
            assert caps(cores) == [None, None]
        client.put(SPECULATION, json={"cap": None})
    assert client.get("/specwatch/v1/unknown", headers={"authorization": "Bearer x"}).status_code == 401


# ---- what passes through


def test_other_paths_are_untouched(client: httpx.Client) -> None:
    for path in ("/", "/v1/chat/completions", "/specwatch", "/v1/specwatch/v1/engine"):
        answer = client.post(path, content="body")
        assert (answer.status_code, answer.text) == (200, f"POST {path} body")


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
async def test_what_is_no_request_is_untouched(kind: str) -> None:
    seen = []

    async def app(*call: Any) -> None:
        seen.append(call)

    call = ({"type": kind, "path": ENGINE, "headers": []}, object(), object())
    await Control(app)(*call)  # type: ignore[arg-type]
    assert all(one is other for one, other in zip(seen[0], call, strict=True))


# ---- what is asked wrongly

WRONG: dict[str, tuple[str, str, Any, int, str | None, str]] = {
    "no such path": ("GET", "/specwatch/v1/engines", b"", 404, None, "there is no GET /specwatch/v1/engines"),
    "no such method": ("POST", ENGINE, b"", 404, None, "there is no POST"),
    "no body": ("PUT", SPECULATION, b"", 400, None, "must be a JSON object"),
    "no JSON": ("PUT", SPECULATION, b"{cap: 0}", 400, None, "must be a JSON object"),
    "no UTF-8": ("PUT", SPECULATION, b'{"cap": "\xff"}', 400, None, "must be a JSON object"),
    "no object": ("PUT", SPECULATION, b"[0]", 400, None, "must be a JSON object"),
    "no end": ("PUT", SPECULATION, b"[" * 60_000, 400, None, "must be a JSON object"),
    "nothing asked": ("PUT", SPECULATION, b"{}", 400, "cap", "must have cap (null or a number) or mode"),
    "no such field": ("PUT", SPECULATION, b'{"cap": 0, "k": 1}', 400, "k", "no such field; there are cap and mode"),
    "too long": ("PUT", SPECULATION, b'{"cap": 0}'.ljust(65_537), 413, None, "longer than 65536 bytes"),
    "too long, in chunks": ("PUT", SPECULATION, iter([b" " * 9_000] * 8), 413, None, "longer than 65536 bytes"),
    "a cap too large": ("PUT", SPECULATION, b'{"cap": 5}', 409, "cap", "whole number from 0 to 4"),
    "a cap beyond all numbers": (
        "PUT",
        SPECULATION,
        b'{"cap": 99999999999999999999}',
        400,
        "cap",
        "no number of tokens",
    ),
    "a mode that is none": ("PUT", SPECULATION, b'{"mode": "warm"}', 409, "mode", "hard, soft or cold"),
    "no checkpoint": ("PUT", DRAFT, b"{}", 400, "checkpoint", "absolute path"),
    "a checkpoint that is no text": ("PUT", DRAFT, b'{"checkpoint": 1}', 400, "checkpoint", "absolute path"),
    "a checkpoint without a root": ("PUT", DRAFT, b'{"checkpoint": "x/y"}', 400, "checkpoint", "absolute path"),
    "a checkpoint and more": ("PUT", DRAFT, b'{"checkpoint": "/x", "force": 1}', 400, "force", "there are checkpoint"),
}


def test_what_is_asked_wrongly_is_refused_and_changes_nothing(client: httpx.Client, cores: Cores) -> None:
    client.put(SPECULATION, json={"cap": 2})
    for name, (method, path, body, status, param, words) in WRONG.items():
        told = error(client.request(method, path, content=body), status)
        assert words in told["message"], name
        assert told["param"] == param, name
        assert caps(cores) == [2, 2], name
    assert all(worker.calls == [] for worker in cores.workers)
    assert client.put(SPECULATION, content=b'{"cap": 3}'.ljust(65_536)).status_code == 200


async def test_a_client_that_leaves_within_its_body_changes_nothing(
    cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, SECRET)
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    app = Starlette()
    app.state.engine_client = type("EngineClient", (), {"engine_core": cores})()
    messages = [{"type": "http.request", "body": b'{"cap": 0}', "more_body": True}, {"type": "http.disconnect"}]
    fields = [(b"authorization", f"Bearer {SECRET}".encode())]
    scope = {"type": "http", "method": "PUT", "path": SPECULATION, "headers": fields, "app": app}
    await Control(app)(scope, receive, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == 400
    assert caps(cores) == [None, None]


# ---- the cap


def test_a_cap_reaches_every_core_and_the_answer_is_the_state_then(client: httpx.Client, cores: Cores) -> None:
    state = {
        "vllm": "0.32.0",
        "method": "draft_model",
        "num_speculative_tokens": 4,
        "cap": None,
        "mode": "hard",
        "at_zero": "the draft model runs once a step, to keep its cache",
        "step": 0,
        "running": 0,
        "waiting": 0,
        "opted_out": 0,
        "target_model": "a/model",
        "draft_model": "a/model",
        "target_digest": None,
        "draft_digest": None,
        # Of the vLLM that is installed here, if one is.
        "device": client.get(ENGINE).json()["engines"][0]["device"],
        "events": {"sent": 0, "dropped": 0, "connected": False},
    }
    assert client.get(ENGINE).json() == {"engines": [{"engine": rank, **state} for rank in (0, 1)]}
    capped = client.put(SPECULATION, json={"cap": 0, "mode": "cold"}).json()["engines"]
    assert [(each["engine"], each["cap"], each["mode"]) for each in capped] == [(0, 0, "cold"), (1, 0, "cold")]
    assert client.get(ENGINE).json() == {"engines": capped}
    assert client.put(SPECULATION, json={"mode": "hard"}).json()["engines"][1]["cap"] == 0
    assert caps(cores) == [0, 0]
    assert client.put(SPECULATION, json={"cap": None}).json()["engines"][0]["cap"] is None


FAILS: dict[str, tuple[Exception, str]] = {
    "dead": (RuntimeError("EngineCore encountered an issue."), "EngineCore encountered an issue."),
    "without words": (TimeoutError(), "TimeoutError"),
}


@pytest.mark.parametrize("name", FAILS)
def test_an_engine_that_fails_is_said_in_a_sentence(name: str, client: httpx.Client, cores: Cores) -> None:
    cores.error, words = FAILS[name]
    for answer in (
        client.get(ENGINE),
        client.put(SPECULATION, json={"cap": 0}),
        client.put(DRAFT, json={"checkpoint": "/x"}),
    ):
        told = error(answer, 502)
        assert told["message"] == f"the engine could not do it: {words}" or words in told["message"]
        assert told["code"] == "engine_failed"
    assert client.get("/health").status_code == 200


def test_a_vllm_that_is_not_known_is_said(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "installed", False)
    assert "does not know this vLLM" in error(client.get(ENGINE), 409)["message"]


# ---- the swap


def test_a_swap_stages_everywhere_and_then_commits(client: httpx.Client, cores: Cores) -> None:
    for worker in cores.workers:
        worker.ready.clear()
    threading.Timer(0.2, lambda: [worker.ready.set() for worker in cores.workers]).start()
    answer = client.put(DRAFT, json={"checkpoint": "/new"})
    assert answer.status_code == 200
    engines = answer.json()["engines"]
    assert [each["engine"] for each in engines] == [0, 1]
    for each in engines:
        assert each["workers"] == [{"before": "aa", "after": "bb", "stage_s": 0.1, "commit_s": 0.05}] * 2
        assert each["still_s"] >= 0
    assert [worker.calls for worker in cores.workers] == [["stage /new", "load /new"]] * 4
    # What is cached was computed by the old draft model.
    assert [core.scheduler.calls for core in cores.all] == [["reset running=True, cap=None"]] * 2
    assert [each["draft_model"] for each in client.get(ENGINE).json()["engines"]] == ["/new"] * 2
    client.put(DRAFT, json={"checkpoint": str(CHECKPOINTS / "draft_specialist")})
    told = {each["draft_digest"] for each in client.get(ENGINE).json()["engines"]}
    assert told == {digest(CHECKPOINTS / "draft_specialist")} != {None}


REFUSES: dict[str, tuple[Callable[[Worker], None], str]] = {
    "it does not fit": (lambda worker: setattr(worker, "refusal", "its weights have another shape"), "another shape"),
    "it cannot be read": (lambda worker: setattr(worker, "fails", "SafetensorError: cut"), "SafetensorError: cut"),
}


@pytest.mark.parametrize("name", REFUSES)
def test_where_one_worker_refuses_none_commits(name: str, client: httpx.Client, cores: Cores) -> None:
    change, words = REFUSES[name]
    change(cores.workers[2])
    told = error(client.put(DRAFT, json={"checkpoint": "/new"}), 409)
    assert told["message"] == f"checkpoint: {words}" or words in told["message"]
    assert (told["param"], told["code"]) == ("checkpoint", "refused")
    assert all(worker.calls == ["stage /new", "forget"] for worker in cores.workers)
    assert [core.scheduler.calls for core in cores.all] == [[], []]
    assert client.get(ENGINE).json()["engines"][0]["draft_model"] == "a/model"


def test_what_is_staged_is_let_go_of_where_one_worker_breaks(
    client: httpx.Client, cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(checkpoint: str) -> str:
        raise RuntimeError("no such repository")

    monkeypatch.setattr(cores.workers[3], "specwatch_stage", breaks)
    told = error(client.put(DRAFT, json={"checkpoint": "/new"}), 502)
    assert (told["message"], told["code"]) == ("the engine could not do it: no such repository", "engine_failed")
    assert [worker.calls for worker in cores.workers] == [["stage /new", "forget"]] * 3 + [["forget"]]


def test_staging_that_takes_too_long_is_given_up(
    client: httpx.Client, cores: Cores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders.Client, "STAGE_S", 0.1)
    cores.workers[1].ready.clear()
    assert "not read after 0.1 s" in error(client.put(DRAFT, json={"checkpoint": "/new"}), 409)["message"]
    assert [worker.calls for worker in cores.workers] == [["stage /new", "forget"]] * 4


def test_one_swap_at_a_time(client: httpx.Client, cores: Cores) -> None:
    cores.workers[3].ready.clear()
    answers: list[httpx.Response] = []
    first = threading.Thread(target=lambda: answers.append(client.put(DRAFT, json={"checkpoint": "/one"})))
    first.start()
    while not cores.workers[3].calls:
        time.sleep(0.005)
    told = error(client.put(DRAFT, json={"checkpoint": "/two"}), 409)
    assert (told["message"], told["code"]) == ("another swap is under way", "busy")
    # The rest goes on meanwhile.
    assert client.put(SPECULATION, json={"cap": 1}).status_code == 200
    cores.workers[3].ready.set()
    first.join()
    assert answers[0].status_code == 200
    assert all(worker.calls == ["stage /one", "load /one"] for worker in cores.workers)
    assert client.put(DRAFT, json={"checkpoint": "/two"}).status_code == 200


def test_every_error_has_the_same_form() -> None:
    body = control._Answer(418, "a sentence", "a_code", "a_field").body
    assert json.loads(json.dumps(body)) == {
        "error": {"message": "a sentence", "type": "specwatch_engine", "param": "a_field", "code": "a_code"}
    }
