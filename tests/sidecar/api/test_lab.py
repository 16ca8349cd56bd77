"""Runs of the lab, from `put` to the admin port, and as events."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.admin import serving
from support.records import NOW

from sidecar.api import models
from sidecar.api.events import event
from sidecar.api.lab import LabPage, LabRun
from sidecar.store.events import Happened
from sidecar.store.lab import put
from sidecar.store.upgrade import upgrade

SUMMARY: dict[str, Any] = {
    "title": "Qualify draft_generalist",
    "verdict": "qualified in part",
    "reasons": ["The scenario billing is not certified: p is 0.29, below 0.65."],
    "gates": [{"name": "p", "passed": True, "value": 0.71, "limit": 0.65, "words": "p is 0.71."}],
}
RUN: dict[str, Any] = {
    "id": "qualify-20261129-120000-abc123",
    "kind": "qualify",
    "state": "done",
    "verdict": "qualified in part",
    "started_at": NOW - 600,
    "ended_at": NOW - 60,
    "fingerprint": {"target": "/m/target", "draft": "/m/draft_generalist/", "k": 4},
    "summary": SUMMARY,
    "options": {"prompts": "p.jsonl"},
    "folder": "/runs/a",
    "version": "0.1.0",
}


@asynccontextmanager
async def client(folder: Path, *runs: dict[str, Any]) -> AsyncIterator[httpx.AsyncClient]:
    url = f"sqlite:///{folder}/specwatch.db"
    upgrade(url)
    for run in runs:
        put(url, run)
    async with serving(folder) as admin, httpx.AsyncClient(base_url=f"{admin.url}/api/v1", trust_env=False) as http:
        yield http


async def test_runs_are_told_newest_first_in_pages(tmp_path: Path) -> None:
    runs = [RUN | {"id": f"r{i}", "started_at": NOW - i, "kind": "soak" if i % 2 else "sweep"} for i in range(5)]
    async with client(tmp_path, *runs) as http:
        walked, cursor = [], ""
        while True:
            page = LabPage.model_validate_json((await http.get(f"/lab/runs?limit=2{cursor}")).content)
            walked += page.runs
            if page.next_cursor is None:
                break
            cursor = f"&cursor={page.next_cursor}"
        assert [run.id for run in walked] == [f"r{i}" for i in range(5)]
        assert walked[0].reasons == SUMMARY["reasons"]
        assert walked[0].draft_model == "/m/draft_generalist/"
        answer = (await http.get("/lab/runs?kind=soak")).json()
        assert [run["id"] for run in answer["runs"]] == ["r1", "r3"]
        assert "gates" not in str(answer), "what was found in full is told run by run"


async def test_one_run_with_all_that_was_found(tmp_path: Path) -> None:
    async with client(tmp_path, RUN, RUN | {"id": "a/b?", "summary": None, "state": "running"}) as http:
        found = LabRun.model_validate_json((await http.get(f"/lab/runs/{RUN['id']}")).content)
        assert (found.summary, found.options, found.fingerprint) == (SUMMARY, RUN["options"], RUN["fingerprint"])
        assert found.title == SUMMARY["title"]
        other = LabRun.model_validate_json((await http.get("/lab/runs/a%2Fb%3F")).content)
        assert (other.summary, other.title, other.reasons) == (None, None, [])


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("cursor=x", "cursor"),
        ("kind=", "kind"),
        ("window=1h", "window"),
    ],
)
async def test_parameters_that_cannot_be_served(tmp_path: Path, query: str, param: str) -> None:
    async with client(tmp_path) as http:
        answer = await http.get(f"/lab/runs?{query}")
    assert answer.status_code == 422
    assert answer.json()["error"]["message"].startswith(f"{param}: ")


async def test_a_run_that_nobody_recorded(tmp_path: Path) -> None:
    async with client(tmp_path) as http:
        assert (await http.get("/lab/runs")).json() == {"runs": [], "next_cursor": None}
        answer = await http.get("/lab/runs/none")
    assert answer.status_code == 404
    assert answer.json()["error"] == {
        "message": "no run 'none' of the lab is recorded; /api/v1/lab/runs lists those that are",
        "type": "invalid_request_error",
        "param": "run_id",
        "code": "not_found",
    }


async def test_without_a_database(tmp_path: Path) -> None:
    async with serving(tmp_path) as admin, httpx.AsyncClient(base_url=f"{admin.url}/api/v1", trust_env=False) as http:
        for path in ("/lab/runs", "/lab/runs/x"):
            answer = await http.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable")


async def test_the_reading_token_reads_runs(tmp_path: Path) -> None:
    upgrade(f"sqlite:///{tmp_path}/specwatch.db")
    tokens = {"admin_token": "order-it-0123", "admin_read_token": "read-it-0123"}
    async with serving(tmp_path, **tokens) as admin, httpx.AsyncClient(base_url=admin.url, trust_env=False) as http:
        for headers, status in (({}, 401), ({"authorization": "Bearer read-it-0123"}, 200)):
            assert (await http.get("/api/v1/lab/runs", headers=headers)).status_code == status


async def test_the_schema_of_the_port_tells_of_runs(tmp_path: Path) -> None:
    async with client(tmp_path) as http:
        schema = (await http.get(str(http.base_url.copy_with(path="/openapi.json")))).json()
    told = schema["paths"]["/api/v1/lab/runs/{run_id}"]["get"]
    assert told["responses"]["200"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/LabRun"}
    assert "One run, with its summary." in told["description"]


async def test_runs_that_ended_are_events(tmp_path: Path) -> None:
    under_way = RUN | {"id": "b", "state": "running", "ended_at": None, "verdict": None, "summary": None}
    async with client(tmp_path, RUN, under_way) as http:
        (found,) = models.EventPage.model_validate_json((await http.get("/events?kind=lab")).content).events
        assert len((await http.get("/events")).json()["events"]) == 1
    assert found.at == datetime.fromtimestamp(NOW - 60, UTC)
    assert (found.subject, found.what) == (RUN["id"], "qualified in part")
    assert found.words == f"Qualify of draft_generalist: qualified in part. {SUMMARY['reasons'][0]}"
    assert found.evidence == {
        "run": RUN["id"],
        "kind": "qualify",
        "model": "/m/target",
        "draft_model": "/m/draft_generalist/",
        "folder": "/runs/a",
    }


ROW: dict[str, Any] = {
    "instance": "",
    "run": "r",
    "kind": "soak",
    "state": "done",
    "verdict": "stable",
    "model": "org/target",
    "draft_model": None,
    "folder": "",
    "reasons": [],
}


@pytest.mark.parametrize(
    ("changes", "what", "words"),
    [
        ({}, "stable", "Soak of target: stable"),
        ({"reasons": ["p held."]}, "stable", "Soak of target: stable. p held."),
        ({"reasons": {"x": 1}}, "stable", "Soak of target: stable"),
        ({"model": None}, "stable", "Soak: stable"),
        ({"model": "/"}, "stable", "Soak of /: stable"),
        ({"draft_model": "d"}, "stable", "Soak of d: stable"),
        ({"verdict": None, "state": "failed"}, "failed", "Soak of target failed"),
        (
            {"verdict": "cannot tell", "state": "failed", "reasons": ["no engine"]},
            "failed",
            "Soak of target failed: no engine",
        ),
        ({"verdict": "failed"}, "failed", "Soak of target: failed"),
        ({"verdict": None, "state": "interrupted"}, "interrupted", "Soak of target was interrupted"),
        ({"kind": "self-draft", "verdict": None}, "done", "Self-draft of target: done"),
    ],
)
def test_sentences(changes: dict[str, Any], what: str, words: str) -> None:
    found = event(Happened("lab", {"at": datetime.fromtimestamp(NOW, UTC), **ROW, **changes}))
    assert (found.kind, found.what, found.words) == ("lab", what, words)
