"""Attacks on the admin port by name, over real sockets against uvicorn."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.admin import Admin, serving

from sidecar.api import auth, connection

CONTROL, READ = "order-it-schlüssel", "read-it-0123456789"
GUARDED = {"admin_token": CONTROL, "admin_read_token": READ}
ORDER = {"mode": "autoregressive", "reason": "drill"}


def bearer(token: str, encoding: str = "utf-8") -> bytes:
    return b"authorization: Bearer " + token.encode(encoding)


def request(line: str, *fields: bytes, host: bytes | None = b"host: 127.0.0.1", body: bytes = b"") -> bytes:
    head = [line.encode(), *([host] if host is not None else []), b"connection: close", *fields]
    return b"\r\n".join([*head, b"", body])


def put(*fields: bytes, body: bytes = b'{"mode": "auto"}', kind: bytes = b"application/json", **more: Any) -> bytes:
    named = [b"content-type: " + kind] if kind else []
    length = b"content-length: %d" % len(body)
    return request("PUT /api/v1/fallback HTTP/1.1", *named, length, *fields, body=body, **more)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


GET = "GET /api/v1/fallback HTTP/1.1"
RIGHT = bearer(CONTROL)


@pytest.mark.parametrize(
    ("name", "sent", "answered"),
    [
        ("no token", request(GET), 401),
        ("an empty token", request(GET, b"authorization: Bearer "), 401),
        ("no value", request(GET, b"authorization:"), 401),
        ("the scheme alone", request(GET, b"authorization: Bearer"), 401),
        ("another token", request(GET, bearer("order-it")), 401),
        ("a beginning of the token", request(GET, bearer(CONTROL[:-1])), 401),
        ("the token and more", request(GET, bearer(CONTROL + "x")), 401),
        ("the token in capitals", request(GET, bearer(CONTROL.upper())), 401),
        ("the token in Latin-1", request(GET, bearer(CONTROL, "latin-1")), 401),
        ("both tokens in one", request(GET, bearer(f"{CONTROL} {READ}")), 401),
        ("both tokens, by commas", request(GET, bearer(f"{CONTROL}, Bearer {READ}")), 401),
        ("the field twice", request(GET, RIGHT, RIGHT), 401),
        ("a wrong field, then a right one", request(GET, b"authorization: Bearer x", RIGHT), 401),
        ("another scheme", request(GET, b"authorization: Basic " + READ.encode()), 401),
        ("no scheme", request(GET, b"authorization: " + READ.encode()), 401),
        ("the proxy's field", request(GET, b"proxy-authorization: Bearer " + READ.encode()), 401),
        ("a cookie", request(GET, b"cookie: authorization=Bearer " + READ.encode()), 401),
        ("a query", request(f"GET /api/v1/fallback?token={READ}&access_token={READ} HTTP/1.1"), 401),
        ("bytes that are no text", request(GET, b"authorization: Bearer \xff\xfe\xfd"), 401),
        ("a very long token", request(GET, bearer("x" * 15_000)), 401),
        ("one longer than a head may be", request(GET, bearer("x" * 20_000))[:-4], 400),
        ("a NUL in the token", request(GET, bearer(READ + "\0")), 400),
        ("a folded field", request(GET, b"authorization: Bearer\r\n " + READ.encode()), 200),
        ("an open path, doubled slash", request("GET //healthz HTTP/1.1"), 401),
        ("an open path, then up", request("GET /healthz/../metrics HTTP/1.1"), 401),
        ("the same, escaped", request("GET /healthz%2f..%2fmetrics HTTP/1.1"), 401),
        ("an open path in capitals", request("GET /HEALTHZ HTTP/1.1"), 401),
        ("an open path with a slash", request("GET /healthz/ HTTP/1.1"), 401),
        ("an open path as a parameter", request("GET /metrics;/healthz HTTP/1.1"), 401),
        ("an open path as a query", request("GET /metrics?/healthz HTTP/1.1"), 401),
        ("a path that others rewrite by", request("GET /metrics HTTP/1.1", b"x-original-url: /healthz"), 401),
        ("an absolute target", request("GET http://127.0.0.1/healthz HTTP/1.1"), 401),
        ("a path that is none", request("OPTIONS * HTTP/1.1"), 401),
        ("a tunnel", request("CONNECT 127.0.0.1:22 HTTP/1.1"), 401),
        ("a websocket", request(GET, b"upgrade: websocket", b"connection: upgrade"), 401),
        ("HTTP/2 by upgrade", request(GET, b"upgrade: h2c", b"connection: upgrade"), 401),
        ("an order without a token", put(), 401),
        ("an order with the read token", put(bearer(READ)), 403),
        ("the same as a POST", request("POST /api/v1/fallback HTTP/1.1", bearer(READ)), 403),
        ("the same, by a field", request("POST /metrics HTTP/1.1", bearer(READ), b"x-http-method-override: PUT"), 403),
        ("a method of one's own", request("ORDER /api/v1/fallback HTTP/1.1", bearer(READ)), 403),
        ("a method in small letters", request("get /api/v1/fallback HTTP/1.1", bearer(READ)), 403),
        ("an order under an open path", request("PUT /healthz HTTP/1.1"), 405),
        ("the audit with the read token", request("GET /api/v1/audit HTTP/1.1", bearer(READ)), 403),
        ("the audit, escaped", request("GET /api/v1/%61udit HTTP/1.1", bearer(READ)), 403),
        ("an order as a form", put(RIGHT, kind=b"application/x-www-form-urlencoded"), 415),
        ("two lengths", put(RIGHT, b"content-length: 3"), 400),
        ("an order behind another request's body", request(GET, b"content-length: 0", body=put(host=None)), 401),
    ],
)
async def test_tokens(name: str, sent: bytes, answered: int, tmp_path: Path) -> None:
    async with serving(tmp_path, **GUARDED) as admin:
        answer = await admin.raw(sent)
        assert status(answer) == answered, answer[:300]
        assert b"access-control-" not in answer.lower()
        assert not admin.switch.orders


async def test_what_each_token_may(tmp_path: Path) -> None:
    async with serving(tmp_path, **GUARDED) as admin:
        for sent, answered in (
            (request(GET, bearer(READ)), 200),
            (request(GET, RIGHT), 200),
            (request(GET, b"authorization: bEARER   " + READ.encode() + b" "), 200),
            (request("GET /metrics HTTP/1.1", bearer(READ)), 200),
            (request("HEAD /api/v1/fallback HTTP/1.1", bearer(READ)), 405),
            (request("GET /healthz HTTP/1.1"), 200),
            (request("GET /%68ealthz HTTP/1.1"), 200),
            (request("GET /readyz HTTP/1.0", host=None), 200),
            (request("GET /openapi.json HTTP/1.1"), 200),
            (put(RIGHT), 200),
        ):
            answer = await admin.raw(sent)
            assert status(answer) == answered, (sent, answer[:300])
        assert admin.switch.orders == [("auto", "")]
        refused = await admin.raw(put(bearer(READ)))
        assert b"read_only_token" in refused
        assert b"needs the token of admin_token" in refused


async def test_one_token_alone(tmp_path: Path) -> None:
    """Only the one that reads is a port that nobody orders anything of."""
    async with serving(tmp_path, admin_token=CONTROL) as admin:
        assert [status(await admin.raw(sent)) for sent in (request(GET), put(), put(RIGHT))] == [401, 401, 200]
    async with serving(tmp_path, admin_read_token=READ) as admin:
        answers = [request(GET), request(GET, bearer(READ)), put(bearer(READ)), put(RIGHT), put()]
        assert [status(await admin.raw(sent)) for sent in answers] == [401, 200, 403, 401, 401]


def test_every_configured_token_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def digest(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(auth.hmac, "compare_digest", digest)
    tokens = auth.Tokens("a", "b" * 50)
    for given, who in (("Bearer a", "control"), ("Bearer " + "b" * 50, "read"), ("Bearer c", "none"), ("", "none")):
        compared.clear()
        assert tokens.who([given.encode()]) == who
        assert len(compared) == 2
        # Of one length whatever came, so that no comparison ends early.
        assert {len(each) for pair in compared for each in pair} == {32}
    with pytest.raises(ValueError, match="empty"):
        auth.Tokens("a", "")


# ---- from a page in a browser on the same machine


HOSTS = [
    (b"127.0.0.1", 200),
    (b"127.0.0.1:8001", 200),
    (b"127.8.9.10:8001", 200),
    (b"localhost", 200),
    (b"LocalHost:8001", 200),
    (b"localhost.:8001", 200),
    (b"[::1]", 200),
    (b"[::1]:8001", 200),
    (b"", 421),
    (b"evil.example", 421),
    (b"evil.example:8001", 421),
    (b"localhost.evil.example", 421),
    (b"127.0.0.1.evil.example:8001", 421),
    (b"evil.example:127.0.0.1", 421),
    (b"127.0.0.1@evil.example", 421),
    (b"evil.example@127.0.0.1", 421),
    (b"127.0.0.1, evil.example", 421),
    (b"10.0.0.5:8001", 421),
    (b"0.0.0.0:8001", 421),
    (b"[::]:8001", 421),
    (b"[fe80::1]", 421),
    (b"[::1", 421),
    (b"::1", 421),
    (b"localhost:80:80", 421),
    ("localhoſt".encode(), 421),
    (b"\xff\xfe", 421),
]


@pytest.mark.parametrize(("host", "answered"), HOSTS)
async def test_a_name_that_was_pointed_here(host: bytes, answered: int, tmp_path: Path) -> None:
    """DNS rebinding: the browser sends the name of the page that the script is of."""
    async with serving(tmp_path) as admin:
        for sent in (request(GET, host=b"host: " + host), put(host=b"host: " + host)):
            answer = await admin.raw(sent)
            assert status(answer) == answered, answer
            assert answered == 200 or b"set admin_token" in answer
        assert bool(admin.switch.orders) == (answered == 200)
        # Neither tells anything, and orchestrators name hosts as they like.
        assert status(await admin.raw(request("GET /healthz HTTP/1.1", host=b"host: " + host))) == 200
    async with serving(tmp_path, **GUARDED) as admin:
        assert status(await admin.raw(request(GET, RIGHT, host=b"host: " + host))) == 200


@pytest.mark.parametrize(
    ("name", "sent", "answered"),
    [
        ("no host", request("GET /api/v1/fallback HTTP/1.0", host=None), 421),
        ("no host in HTTP/1.1", request(GET, host=None), 400),
        ("two hosts", request(GET, b"host: evil.example"), 400),
        ("an absolute target of another name", request("GET http://evil.example/api/v1/fallback HTTP/1.1"), 404),
        ("a forwarded host", request(GET, b"x-forwarded-host: 127.0.0.1", host=b"host: evil.example"), 421),
    ],
)
async def test_hosts_that_are_not_simply_there(name: str, sent: bytes, answered: int, tmp_path: Path) -> None:
    async with serving(tmp_path) as admin:
        assert status(await admin.raw(sent)) == answered


FORM = b"mode=autoregressive&reason=x"
TEXT_THAT_IS_JSON = b'{"mode": "autoregressive", "reason": "="}'


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (b"application/x-www-form-urlencoded", FORM),
        (b"multipart/form-data; boundary=x", b"--x--"),
        (b"text/plain", TEXT_THAT_IS_JSON),
        (b"text/plain; application/json", TEXT_THAT_IS_JSON),
        (b"application/jsonp", TEXT_THAT_IS_JSON),
        (b"application/json, text/plain", TEXT_THAT_IS_JSON),
        (b"application/x-json", TEXT_THAT_IS_JSON),
        (b"", TEXT_THAT_IS_JSON),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "POST"])
async def test_orders_of_a_form(method: str, kind: bytes, body: bytes, tmp_path: Path) -> None:
    """What a page of another origin may send without being allowed to first."""
    async with serving(tmp_path) as admin:
        sent = put(b"origin: http://evil.example", kind=kind, body=body)
        answer = await admin.raw(sent.replace(b"PUT ", method.encode() + b" "))
        assert status(answer) == 415
        assert b"content-type: must be application/json" in answer
        assert not admin.switch.orders


async def test_what_a_page_must_ask_first_is_not_allowed(tmp_path: Path) -> None:
    for settings in ({}, GUARDED):
        async with serving(tmp_path, **settings) as admin:
            asked = (
                b"origin: http://evil.example",
                b"access-control-request-method: PUT",
                b"access-control-request-headers: content-type, authorization",
                b"access-control-request-private-network: true",
            )
            answer = await admin.raw(request("OPTIONS /api/v1/fallback HTTP/1.1", *asked))
            assert status(answer) in (401, 405)
            read = await admin.raw(request(GET, b"origin: http://evil.example", RIGHT))
            assert status(read) == 200
            assert b"access-control-" not in (answer + read).lower()


async def test_json_with_a_charset_is_json(tmp_path: Path) -> None:
    async with serving(tmp_path) as admin:
        assert status(await admin.raw(put(kind=b"Application/JSON; charset=utf-8"))) == 200


# ---- much, long and slow


async def test_too_many_requests(tmp_path: Path) -> None:
    async with serving(tmp_path, **GUARDED, admin_per_second=5) as admin:
        async with httpx.AsyncClient(base_url=admin.url, trust_env=False) as client:
            right = {b"authorization": b"Bearer " + CONTROL.encode()}
            statuses = []
            for number in range(30):
                # An address is not what a client says.
                spoofed = right | {b"x-forwarded-for": b"10.0.0.%d" % number, b"x-real-ip": b"10.1.0.1"}
                answer = await client.get("/metrics", headers=spoofed)
                statuses.append(answer.status_code)
            assert statuses[:10] == [200] * 10
            assert set(statuses[20:]) <= {200, 429}
            assert statuses.count(429) >= 10
            again = [await client.get("/metrics", headers=right) for _ in range(9)]
            refused = next(each for each in again if each.status_code == 429)
            assert 1 <= int(refused.headers["retry-after"]) <= 2
            error = refused.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert (error["code"], "admin_per_second" in error["message"]) == ("rate_limit_exceeded", True)
            for path in ("/healthz", "/readyz"):
                found = [(await client.get(path)).status_code for _ in range(30)]
                assert found == [200] * 30


async def test_who_has_no_token_does_not_use_up_the_rate_of_who_has_one(tmp_path: Path) -> None:
    async with serving(tmp_path, **GUARDED, admin_per_second=5) as admin:
        assert 429 in [status(await admin.raw(request(GET))) for _ in range(20)]
        for token in (READ, CONTROL):
            assert status(await admin.raw(request(GET, bearer(token)))) == 200


async def test_guesses_are_few_and_keep_nobody_out(tmp_path: Path) -> None:
    async with serving(tmp_path, **GUARDED, admin_per_second=1000) as admin:
        guesses = [status(await admin.raw(request(GET, bearer(f"guess-{number}")))) for number in range(14)]
        assert guesses == [401] * 10 + [429] * 4
        answer = await admin.raw(request(GET, bearer("guess")))
        assert b"retry-after: " in answer
        assert b"too_many_wrong_tokens" in answer
        assert status(await admin.raw(request(GET, bearer(READ)))) == 200
        assert status(await admin.raw(put(RIGHT))) == 200
        # Whoever has none is told so.
        assert status(await admin.raw(request(GET))) == 401


CHUNK = b"%x\r\n%s\r\n" % (16_384, b" " * 16_384)
CHUNKED = request("PUT /api/v1/fallback HTTP/1.1", b"content-type: application/json", b"transfer-encoding: chunked")


@pytest.mark.parametrize(
    ("name", "sent", "answered"),
    [
        ("told to be too long", put(b"", body=b"").replace(b"content-length: 0", b"content-length: 65537"), 413),
        ("told to be endless", put(body=b"").replace(b"content-length: 0", b"content-length: " + b"9" * 19), 413),
        ("too long in chunks", CHUNKED + CHUNK * 5, 413),
        ("as long as may be", put(body=b'{"mode": "auto"}'.ljust(65_536)), 200),
        ("lists in lists", put(body=b"[" * 65_000), 400),
        ("objects in objects", put(body=b'{"mode":' * 8000), 400),
        ("a number without end", put(body=b'{"mode": ' + b"9" * 60_000 + b"}"), 400),
        ("no text", put(body=b"\x80"), 400),
        ("a lone surrogate", put(body=b'{"mode": "auto", "reason": "\\ud800"}'), 200),
        ("none at all", put(body=b""), 422),
    ],
)
async def test_bodies(name: str, sent: bytes, answered: int, tmp_path: Path) -> None:
    async with serving(tmp_path) as admin:
        answer = await admin.raw(sent.replace(b"\r\n\r\n\r\n", b"\r\n\r\n"))
        assert status(answer) == answered, answer[:400]
        assert b'{"error":{' in answer or answered == 200
        assert len(admin.rows) == 1


async def test_a_body_that_never_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "BODY_S", 0.3)
    async with serving(tmp_path) as admin:
        answer = await admin.raw(put(body=b"").replace(b"content-length: 0", b"content-length: 50"))
        assert (status(answer), b"body_too_slow" in answer) == (408, True)
        answer = await admin.raw(CHUNKED, *[b"1\r\n \r\n"] * 3, pause_s=0.05)
        assert status(answer) == 408
    assert [row.detail for row in admin.rows] == ["body_too_slow"] * 2


async def closes(admin: Admin, *parts: bytes, every_s: float) -> bool:
    """Whether the connection is closed while the parts are still being sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", admin.port)
    ended = asyncio.ensure_future(reader.read())
    try:
        for part in parts:
            writer.write(part)
            await asyncio.wait((ended,), timeout=every_s)
            if ended.done():
                return True
        return False
    finally:
        ended.cancel()
        writer.close()
        await asyncio.gather(ended, return_exceptions=True)


async def test_heads_that_never_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.5)
    async with serving(tmp_path) as admin:
        drops = [bytes([each]) for each in b"GET /healthz HTTP/1.1\r\n" + b"x: y\r\n" * 500]
        first = b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n"
        for parts in ([b""] * 200, drops, [first, *drops]):
            assert await closes(admin, *parts, every_s=0.05)
        # Answers may take as long as they do.
        assert status(await admin.raw(request("GET /healthz HTTP/1.1"))) == 200


async def test_one_address_does_not_take_all_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOST_OF_ONE", 5)
    async with serving(tmp_path) as admin:
        held = [await asyncio.open_connection("127.0.0.1", admin.port) for _ in range(20)]
        ended = [asyncio.ensure_future(reader.read(1)) for reader, _ in held]
        await asyncio.wait(ended, timeout=2, return_when=asyncio.ALL_COMPLETED)
        assert sum(each.done() for each in ended) == 15
        for task in ended:
            task.cancel()
        for _, writer in held:
            writer.close()
        await asyncio.gather(*ended, return_exceptions=True)

        async def again() -> bool:
            try:
                return status(await admin.raw(request("GET /healthz HTTP/1.1"))) == 200
            except OSError:
                return False

        async with asyncio.timeout(10):
            while not await again():
                await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("name", "addresses"),
    [("from many addresses", [f"127.0.0.{number}" for number in range(2, 8)]), ("from its own", ["127.0.0.1"])],
)
async def test_a_probe_is_answered_whoever_holds_connections(
    name: str, addresses: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MOST", 12)
    monkeypatch.setitem(connection.OPTIONS, "limit_concurrency", 12)
    monkeypatch.setattr(connection, "MOST_OF_ONE", 5)
    async with serving(tmp_path, **GUARDED) as admin:
        first = b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\nGET /metr"
        held = []
        for address in addresses * 6:
            _, writer = await asyncio.open_connection("127.0.0.1", admin.port, local_addr=(address, 0))
            writer.write(first)
            held.append(writer)
        for _ in range(5):
            assert status(await admin.raw(request("GET /healthz HTTP/1.1"))) == 200
        for writer in held:
            writer.close()


async def test_answers_that_nobody_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "TAKE_S", 0.5)
    monkeypatch.setattr(connection, "HEAD_S", 0.5)
    text = b"specwatch_x 1\n" * 1_000_000
    async with serving(tmp_path, **GUARDED, render_metrics=lambda: (text, "text/plain")) as admin:
        for times in (1, 3):
            reader, writer = await asyncio.open_connection("127.0.0.1", admin.port)
            writer.write(b"GET /metrics HTTP/1.1\r\nhost: h\r\n%s\r\n\r\n" % bearer(READ) * times)
            async with asyncio.timeout(20):
                while not isinstance(reader.exception(), ConnectionError):
                    writer.write(b"\r\n")
                    await asyncio.sleep(0.05)
        # Whoever takes them slowly gets them whole.
        reader, writer = await asyncio.open_connection("127.0.0.1", admin.port)
        writer.write(request("GET /metrics HTTP/1.1", bearer(READ)))
        got = 0
        while part := await reader.read(1_000_000):
            got += len(part)
            await asyncio.sleep(0.05)
        writer.close()
        assert got > len(text)


# ---- what is left behind


async def test_no_token_is_in_a_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = ("order-it-schl", READ, "guess-it-9876")
    async with serving(tmp_path, **GUARDED) as admin:
        for token in (CONTROL, READ, "guess-it-9876"):
            for sent in (
                request(GET, bearer(token)),
                request(f"GET /api/v1/nothing?token={token.partition('ü')[0]} HTTP/1.1", RIGHT),
                request(GET, bearer(token + "\0")),
                put(bearer(token), body=b'{"mode": "auto", "reason": "break"}'),
                put(bearer(token), body=b"{"),
                put(bearer(token), kind=b"text/plain"),
            ):
                await admin.raw(sent)
        said = caplog.text + repr([record.args for record in caplog.records]) + repr(admin.rows)
        assert "RuntimeError: broken" in said
        assert not [secret for secret in secrets if secret in said]
