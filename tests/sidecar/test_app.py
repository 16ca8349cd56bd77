"""The sidecar as a process of its own: start, serve, survive, stop."""

import asyncio
import json
import os
import re
import signal
import sqlite3
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from support.chain import free_ports
from support.proxy import post
from support.upstream import (
    DONE,
    Upstream,
    chat_chunk,
    chat_stream,
    chunked,
    json_reply,
    replying,
    running,
    usage_chunk,
)

from sidecar.app import Sidecar
from sidecar.settings import SettingsError, load

STREAMING = b'{"model":"m","stream":true,"messages":[]}'


class Process:
    def __init__(self, process: asyncio.subprocess.Process, proxy: int, admin: int, folder: Path) -> None:
        self.process = process
        self.proxy = proxy
        self.admin = f"http://127.0.0.1:{admin}"
        self.folder = folder

    async def get(self, path: str, **headers: str) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False) as client:
            return await client.get(self.admin + path, headers=headers)

    async def put(self, body: object) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False) as client:
            return await client.put(f"{self.admin}/api/v1/fallback", json=body)

    async def exchange(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy)
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return answer

    async def stop(self) -> str:
        """SIGTERM; gives what it said. The exit status must be 0."""
        self.process.send_signal(signal.SIGTERM)
        said, _ = await asyncio.wait_for(self.process.communicate(), 30)
        assert self.process.returncode == 0, said.decode()
        return said.decode()

    def rows(self) -> list[dict[str, Any]]:
        with sqlite3.connect(self.folder / "specwatch.db") as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute("select * from requests order by id")]


@asynccontextmanager
async def sidecar(folder: Path, upstream: str, *flags: str, **environment: str) -> AsyncIterator[Process]:
    proxy, admin = free_ports(2)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "sidecar.cli", "sidecar", "--upstream", upstream),
        *("--listen", f"127.0.0.1:{proxy}", "--admin", f"127.0.0.1:{admin}"),
        *flags,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ
        | {"SPECWATCH_DATABASE_URL": f"sqlite:///{folder}/specwatch.db", "SPECWATCH_SPOOL": f"{folder}/spool"}
        | environment,
    )
    made = Process(process, proxy, admin, folder)
    try:
        for _ in range(400):
            assert process.returncode is None
            try:
                _reader, writer = await asyncio.open_connection("127.0.0.1", proxy)
                writer.close()
                break
            except OSError:
                await asyncio.sleep(0.05)
        yield made
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_request_is_in_sql_api_and_metrics_and_the_end_is_clean(tmp_path: Path) -> None:
    async with running(replying(chunked(*chat_stream(usage=True)))) as upstream:
        async with sidecar(tmp_path, upstream.url, "--draft-model", "d") as made:
            answer = await made.exchange(post(STREAMING, extra=b"X-Scenario: billing\r\n"))
            assert answer.endswith(b"[DONE]\n\n\r\n0\r\n\r\n")
            for _ in range(100):
                # While the tables are being made there is no answer yet.
                page = (await made.get("/api/v1/requests")).json().get("requests")
                if page:
                    break
                await asyncio.sleep(0.05)
            assert page[0]["accepted_tokens"] == 6
            assert page[0]["scenario"] == "billing"
            assert page[0]["draft_model"] == "d"
            metrics = (await made.get("/metrics")).text
            assert 'specwatch_accepted_length_tokens_sum{upstream="speculative"} 6.0' in metrics
            assert 'specwatch_truncations_total{position="1"} 1.0' in metrics
            assert 'specwatch_acceptance_ratio{window="100"} 0.5' in metrics
            assert (await made.get("/healthz")).json() == {"status": "ok"}
            ready = (await made.get("/readyz")).json()
            assert (ready["status"], ready["failed_tasks"]) == ("ready", [])
            await made.stop()
        (row,) = made.rows()
        assert row["draft_tokens"] == 12


async def test_rows_still_queued_are_written_at_the_end_and_streams_finish(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            body = await upstream.read_request(reader)
            if b'"stream"' in body:
                start = chunked(chat_chunk({"content": "a"}), usage_chunk())[: -len(b"0\r\n\r\n")]
                writer.write(start)
                await go.wait()
                writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(DONE), DONE))
            else:
                writer.write(json_reply({"models": []}))

    async with running(handler) as upstream, sidecar(tmp_path, upstream.url) as made:
        stream = asyncio.ensure_future(made.exchange(post(STREAMING)))
        for _ in range(20):
            await made.exchange(post(b'{"model":"m"}'))
        made.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        go.set()
        assert (await stream).endswith(b"[DONE]\n\n\r\n0\r\n\r\n")
        assert await asyncio.wait_for(made.process.wait(), 20) == 0
        rows = made.rows()
        assert len(rows) == 21
        assert {row["outcome"] for row in rows} == {"ok"}


async def test_an_order_outlives_a_restart_and_needs_a_second_upstream(tmp_path: Path) -> None:
    plain = json_reply({"choices": []})
    async with running(replying(plain)) as first, running(replying(plain)) as second:
        flags = ("--fallback-upstream", second.url)
        async with sidecar(tmp_path, first.url, *flags) as made:
            answer = await made.put({"mode": "autoregressive", "reason": "drill"})
            assert answer.status_code == 200
            await made.stop()
        async with sidecar(tmp_path, first.url, *flags) as made:
            state = (await made.get("/api/v1/fallback")).json()
            assert (state["mode"], state["state"], state["reason"]) == ("autoregressive", "autoregressive", "drill")
            assert b"x-specwatch-arm: autoregressive" in await made.exchange(post(b"{}"))
            assert second.bodies.count(b"{}") == 1
            await made.stop()
        async with sidecar(tmp_path, first.url) as made:
            state = (await made.get("/api/v1/fallback")).json()
            assert state["state"] == "speculative"
            assert "no autoregressive upstream" in state["reason"]
            answer = await made.put({"mode": "autoregressive"})
            assert answer.status_code == 409
            assert answer.json()["error"]["param"] == "mode"


async def test_c29_no_database_stops_no_request(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    away = f"postgresql://nobody:secret@127.0.0.1:{port}/none"
    async with running(replying(json_reply({"choices": []}))) as upstream:
        async with sidecar(tmp_path, upstream.url, SPECWATCH_DATABASE_URL=away) as made:
            for _ in range(5):
                assert b"HTTP/1.1 200 OK" in await made.exchange(post(b"{}"))
            assert (await made.get("/readyz")).status_code == 200
            assert (await made.get("/readyz")).json()["database"] == "unavailable"
            refused = await made.get("/api/v1/summary")
            assert refused.status_code == 503
            assert refused.json()["error"]["type"] == "specwatch_database_unavailable"
            code, told = await run("status", SPECWATCH_ADMIN=made.admin.removeprefix("http://"))
            assert (code, told.partition("\n")[0]) == (1, "speculative (mode auto): started")
            assert "the database gave no answer" in told
            said = await made.stop()
            assert "secret" not in said + refused.text
            # Of requests; and of the sidecar's version, addresses, upstream, database and spool.
            assert "11 rows wait" in said


async def test_the_token_guards_what_tells_and_what_switches(tmp_path: Path) -> None:
    async with running(replying(json_reply({}))) as upstream:
        async with sidecar(tmp_path, upstream.url, SPECWATCH_ADMIN_TOKEN="hush") as made:
            assert (await made.get("/healthz")).status_code == 200
            for path in ("/api/v1/summary", "/metrics", "/api/v1/fallback"):
                assert (await made.get(path)).status_code == 401
            assert (await made.get("/metrics", authorization="Bearer hush")).status_code == 200


async def test_commands_read_with_either_token_and_order_with_one(tmp_path: Path) -> None:
    tokens = {"SPECWATCH_ADMIN_TOKEN": "order-it-schlüssel", "SPECWATCH_ADMIN_READ_TOKEN": "read-it"}
    async with running(replying(json_reply({}))) as upstream:
        async with sidecar(tmp_path, upstream.url, **tokens) as made:
            there = {"SPECWATCH_ADMIN": made.admin.removeprefix("http://")}
            control, reading = ({name: value} | there for name, value in tokens.items())
            for given in (control, reading):
                code, said = await run("status", "--json", **given)
                assert (code, '"fallback"' in said) == (0, True), said
            for given, words in ((reading, "this needs the token of admin_token"), (there, "wants a token")):
                code, said = await run("fallback", "speculative", **given)
                assert (code, words in said, "SPECWATCH_ADMIN_READ_TOKEN" in said) == (1, True, False), said
            code, said = await run("fallback", "speculative", "--reason", "drill", **control)
            assert (code, "drill" in said) == (0, True), said
            code, said = await run("status", SPECWATCH_ADMIN_TOKEN="old", **there)
            assert (code, "wants another token" in said, "SPECWATCH_ADMIN_READ_TOKEN" in said) == (1, True, True), said
            right = {b"authorization": b"Bearer " + tokens["SPECWATCH_ADMIN_TOKEN"].encode()}
            told: list[dict[str, str]] = []
            async with asyncio.timeout(20), httpx.AsyncClient(trust_env=False) as client:
                while len(told) < 3:
                    await asyncio.sleep(0.1)
                    told = (await client.get(f"{made.admin}/api/v1/audit", headers=right)).json()["entries"]
            assert {(each["status"], each["scope"], each["detail"]) for each in told} == {
                (403, "read", "read_only_token"),
                (401, "none", "invalid_api_key"),
                (200, "control", "mode=speculative: drill"),
            }
            said = await made.stop()
            assert not [token for token in tokens.values() if token in said]


async def run(*arguments: str, **environment: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "sidecar.cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | environment,
    )
    said, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_what_cannot_be_had_is_exit_code_1(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    free = f"127.0.0.1:{port}"
    code, said = await run("status", SPECWATCH_ADMIN=free)
    assert (code, f"no sidecar answers on http://{free}" in said) == (1, True), said
    database = f"sqlite:///{tmp_path}/x.db"
    async with running(replying(json_reply({}))) as server:
        taken = f"127.0.0.1:{server.port}"
        for listen, admin, name in ((taken, free, "listen"), (free, taken, "admin")):
            code, said = await run("sidecar", "--listen", listen, "--admin", admin, "--database-url", database)
            assert (code, f"{name}: {taken}: " in said, "Traceback" in said) == (1, True, False), said
            assert "free the port or change it" in said
        code, said = await run("up", SPECWATCH_LISTEN=taken, SPECWATCH_RUN_DIR=str(tmp_path))
        assert (code, f"listen: {taken} cannot be used" in said) == (1, True), said
    code, said = await run("db", "upgrade", "--database-url", database)
    assert code == 0


async def test_clients_are_spoken_to_over_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    async with running(replying(json_reply({"choices": []}))) as upstream:
        async with sidecar(
            tmp_path, upstream.url, SPECWATCH_TLS_CERTIFICATE=str(certificate), SPECWATCH_TLS_KEY=str(key)
        ) as made:
            reader, writer = await asyncio.open_connection("localhost", made.proxy, ssl=client)
            writer.write(post(b"{}"))
            assert (await asyncio.wait_for(reader.read(), 20)).startswith(b"HTTP/1.1 200 OK")
            writer.close()
            await made.stop()


def test_faults_of_tls_name_setting_and_file(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    certificate, key, other, locked = (tmp_path / f"{name}.pem" for name in ("cert", "key", "other", "locked"))
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    authority.issue_cert("localhost").private_key_pem.write_to_path(other)
    secret = load_pem_private_key(key.read_bytes(), None)
    locked.write_bytes(secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password")))
    for first, second, words in (
        (tmp_path / "none.pem", key, f"tls_certificate: {tmp_path}/none.pem: No such file"),
        (tmp_path, key, f"tls_certificate: {tmp_path}: Is a directory"),
        (key, key, f"tls_certificate: {key}: holds no certificate in PEM form"),
        (certificate, certificate, f"tls_key: {certificate}: holds no private key in PEM form"),
        (certificate, other, f"tls_key: {other} is not the key of {certificate}"),
        (certificate, locked, f"tls_certificate, tls_key: {certificate}, {locked}: "),
    ):
        with pytest.raises(SettingsError, match=re.escape(words)):
            Sidecar(load(tls_certificate=first, tls_key=second))


async def test_status_reads_the_summary(tmp_path: Path) -> None:
    async with (
        running(replying(chunked(*chat_stream(usage=True)))) as upstream,
        sidecar(tmp_path, upstream.url) as made,
    ):
        admin = made.admin.removeprefix("http://")
        code, said = await run("status", SPECWATCH_ADMIN=admin)
        assert code == 0
        assert "no data" in said
        await made.exchange(post(STREAMING))
        for _ in range(50):
            code, said = await run("status", "--json", SPECWATCH_ADMIN=admin)
            if json.loads(said)["last_100"]["requests"]:
                break
        assert json.loads(said)["last_100"]["p"] == 0.5


async def test_what_is_set_reaches_the_relay(tmp_path: Path) -> None:
    given = load(database_url=f"sqlite:///{tmp_path}/x.db", abort_grace_s=2, client_timeout_s=3, idle_timeout_s=4)
    relay = Sidecar(given).relay
    assert (relay.abort_grace_s, relay.client_timeout_s, relay.idle_timeout_s) == (2, 3, 4)


async def test_an_upstream_may_take_a_while_to_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar = Sidecar(load(upstream="http://127.0.0.1:9", database_url=f"sqlite:///{tmp_path}/specwatch.db"))
    up = sidecar.recorder.sources.up
    assert up() == {"speculative": None}
    monkeypatch.setattr("sidecar.app._LOADING_S", -1.0)
    assert up() == {"speculative": True}, "it was not tried yet"
    upstream = sidecar._upstreams["speculative"]
    watch = asyncio.ensure_future(upstream.watch())
    while not upstream.down:
        await asyncio.sleep(0.01)
    watch.cancel()
    assert up() == {"speculative": False}
