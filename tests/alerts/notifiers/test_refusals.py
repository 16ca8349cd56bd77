"""Every receiver that is asked over HTTP meets the same faults, and shows no secret over any of them."""

import asyncio
import logging
import socket
import ssl
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trustme
from pydantic import TypeAdapter
from support.alerts import T0, alert, notification
from support.chain import free_ports
from support.receiver import Answer, Fault, Receiver, Reply, receiver

from alerts.config import AnyReceiver
from alerts.notifiers import Notifier, build
from alerts.notifiers.error import NotifyError, Reason
from alerts.redact import Redactor

TYPES = ("webhook", "alertmanager", "grafana", "apprise")
USER, PASSWORD, PATH, QUERY = "us3rname", "pa55/word", "T0PathSecret", "QueryS3cret"
TOKEN, HEADER = "T0kenSecret", "Head3rSecret"
#: As they are and as they are sent.
SECRETS = (USER, PASSWORD, "pa55%2Fword", PATH, QUERY, TOKEN, HEADER, "dXMzcm5hbWU6cGE1NS93b3Jk")


def config(kind: str, base: str, timeout: str = "5s") -> AnyReceiver:
    """A receiver at `base`, with a secret wherever one can stand."""
    scheme, _, host = base.partition("://")
    if kind == "apprise":
        scheme = {"http": "json", "https": "jsons"}[scheme]
    url = f"{scheme}://{USER}:pa55%2Fword@{host}/{PATH}"
    fields: dict[str, Any] = {"name": "one", "type": kind, "timeout": timeout}
    if kind == "apprise":
        # +X: a header, -k: a query that is sent.
        fields["url"] = f"{url}/?+X-Key={HEADER}&-key={QUERY}"
    else:
        fields |= {"url": url + (f"?key={QUERY}" if kind == "webhook" else ""), "headers": {"X-Key": HEADER}}
    return TypeAdapter[AnyReceiver](AnyReceiver).validate_python(fields)


def assert_leaks_nothing(*shown: object) -> None:
    for thing in shown:
        text = str(thing)
        for secret in SECRETS:
            assert secret.lower() not in text.lower(), f"{secret} in {text}"


@contextmanager
def serving(answer: Reply) -> Iterator[str]:
    with receiver() as hook:
        hook.answer = answer
        yield hook.url


@contextmanager
def refused() -> Iterator[str]:
    yield f"http://127.0.0.1:{free_ports(1)[0]}"


@contextmanager
def no_name() -> Iterator[str]:
    yield "http://specwatch-no-such-host.invalid"


@contextmanager
def not_trusted() -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with receiver(tls=context) as hook:
        yield hook.url


@contextmanager
def no_tls() -> Iterator[str]:
    with receiver() as hook:
        yield hook.url.replace("http:", "https:")


@contextmanager
def silent() -> Iterator[str]:
    """Takes connections and no more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@dataclass(frozen=True)
class Case:
    where: Callable[[], Any]
    reason: Reason
    recoverable: bool
    #: What the message says.
    says: str
    types: tuple[str, ...] = TYPES
    retry_after_s: float | None = None
    timeout: str = "5s"


def answers(status: int, **headers: str) -> Callable[[], Any]:
    # A server that says again what it was sent.
    echo = {"X-Echo": " ".join(SECRETS), **{name.replace("_", "-"): value for name, value in headers.items()}}
    return lambda: serving(Answer(status, echo, " ".join(SECRETS).encode()))


HTTP = ("webhook", "alertmanager", "grafana")
CASES = {
    "300": Case(answers(302, Location=f"http://127.0.0.1:9/{PATH}"), Reason.REJECTED, False, "302"),
    "400": Case(answers(400), Reason.REJECTED, False, "answered 400"),
    "401": Case(answers(401), Reason.REJECTED, False, "answered 401"),
    "404": Case(answers(404), Reason.REJECTED, False, "answered 404"),
    "429": Case(answers(429), Reason.THROTTLED, True, "answered 429"),
    "429, wait": Case(answers(429, Retry_After="7"), Reason.THROTTLED, True, "answered 429", HTTP, 7.0),
    "500": Case(answers(500), Reason.SERVER_ERROR, True, "answered 500"),
    "503, wait": Case(answers(503, Retry_After="9"), Reason.SERVER_ERROR, True, "answered 503", HTTP, 9.0),
    "hang": Case(lambda: serving(Fault.HANG), Reason.TIMEOUT, True, "within 0.3 s", timeout="300ms"),
    "silent": Case(silent, Reason.TIMEOUT, True, "within 0.3 s", timeout="300ms"),
    "drip": Case(lambda: serving(Fault.DRIP), Reason.TIMEOUT, True, "within 0.3 s", ("grafana",), timeout="300ms"),
    "refused": Case(refused, Reason.UNREACHABLE, True, ""),
    "no such host": Case(no_name, Reason.UNREACHABLE, True, ""),
    "reset": Case(lambda: serving(Fault.RESET), Reason.UNREACHABLE, True, ""),
    "no HTTP": Case(lambda: serving(Fault.NO_HTTP), Reason.UNREACHABLE, True, ""),
    "a 500 without end": Case(lambda: serving(Fault.HUGE_ERROR), Reason.SERVER_ERROR, True, "500", HTTP),
    "a reply without end": Case(lambda: serving(Fault.HUGE), Reason.INVALID, False, "more than", ("grafana",)),
    "no JSON": Case(answers(200), Reason.INVALID, False, "no JSON", ("grafana",)),
    "certificate": Case(not_trusted, Reason.UNREACHABLE, True, "certificate", HTTP),
    "certificate, Apprise": Case(not_trusted, Reason.UNREACHABLE, True, "", ("apprise",)),
    "no TLS": Case(no_tls, Reason.UNREACHABLE, True, ""),
}
TABLE = [(name, kind) for name, case in CASES.items() for kind in case.types]


@pytest.mark.parametrize(("name", "kind"), TABLE, ids=[f"{name}-{kind}" for name, kind in TABLE])
async def test_each_fault_has_its_reason_and_shows_no_secret(
    name: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for logger in ("httpx", "httpcore", "apprise", "urllib3"):
        caplog.set_level(logging.DEBUG, logger)
    case = CASES[name]
    with case.where() as base:
        receiver_config = config(kind, base, case.timeout)
        notifier = build(receiver_config, Redactor([]))
        with pytest.raises(NotifyError) as raised:
            await asyncio.wait_for(notifier.send(notification(alert())), 30)
        await notifier.close()
    error = raised.value
    assert (error.reason, error.recoverable) == (case.reason, case.recoverable), error.message
    assert case.says in error.message
    assert kind == "apprise" or error.message.startswith(f"{base} ")
    assert error.retry_after_s == case.retry_after_s
    assert "\n" not in error.message
    trace = "".join(traceback.format_exception(error))
    assert_leaks_nothing(error, repr(error), error.message, trace, caplog.text, repr(notifier), receiver_config)
    assert_leaks_nothing(repr(receiver_config), vars(notifier))


@pytest.mark.parametrize("kind", TYPES)
async def test_what_arrives_brings_the_secrets_to_the_receiver_and_nowhere_else(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with receiver() as hook:
        hook.answer = Answer(body=b"[]")
        notifier = build(config(kind, hook.url), Redactor([]))
        await send(notifier)
        for request in hook.requests:
            assert request.path.startswith(f"/{PATH}")
            assert request.headers["x-key"] == HEADER
            assert request.headers["authorization"] == "Basic dXMzcm5hbWU6cGE1NS93b3Jk"
        if kind in ("webhook", "apprise"):
            assert f"key={QUERY}" in hook.requests[0].path
    assert_leaks_nothing(caplog.text, notifier, vars(notifier))


async def send(notifier: Notifier) -> None:
    await notifier.send(notification(alert(), alert("B", starts_at=T0 + 1)))
    await notifier.close()


@pytest.mark.parametrize("kind", HTTP)
async def test_a_token_is_a_bearer(kind: str) -> None:
    with receiver() as hook:
        hook.answer = Answer(body=b"[]")
        fields = {"name": "one", "type": kind, "url": hook.url, "token": TOKEN}
        await send(build(TypeAdapter[AnyReceiver](AnyReceiver).validate_python(fields), Redactor([])))
        assert {request.headers["authorization"] for request in hook.requests} == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize("kind", ["webhook", "alertmanager"])
async def test_a_reply_without_end_has_arrived(kind: str) -> None:
    with receiver() as hook:
        hook.answer = Fault.HUGE
        await send(build(config(kind, hook.url), Redactor([])))
        assert len(hook.requests) == 1


@pytest.mark.parametrize("kind", HTTP)
async def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with receiver() as hook:
        hook.answer = Answer(body=b"[]")
        await send(build(config(kind, hook.url), Redactor([])))
        assert hook.requests


@pytest.mark.parametrize("kind", HTTP)
async def test_a_receiver_that_comes_back_is_asked_by_the_same_notifier(kind: str) -> None:
    def first_fails(hook: Receiver) -> Callable[[object], Reply]:
        return lambda request: Fault.RESET if not hook.requests else Answer(body=b"[]")

    with receiver() as hook:
        hook.answer = first_fails(hook)
        notifier = build(config(kind, hook.url), Redactor([]))
        with pytest.raises(NotifyError):
            await notifier.send(notification(alert()))
        await send(notifier)
