"""Events as the admin port tells them, each in a sentence, and the runbook."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.admin import serving
from support.records import NOW

from alerts.config import load
from alerts.model import Alert, Event, Happening, Status
from sidecar.api import models
from sidecar.api.events import event
from sidecar.store.events import Happened, Kind
from sidecar.store.rows import MovedToken, Transition, VersionRow
from sidecar.store.writer import Writer

LABELS = {"alertname": "Slow", "severity": "critical", "instance": "a", "scenario": "billing"}
ALERT = Alert(LABELS, {"summary": "p95 is 2 s in billing"}, Status.FIRING, NOW - 30, value=2.0)


@asynccontextmanager
async def client(folder: Path, *items: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Of a port before a database that holds these."""
    writer = Writer(f"sqlite:///{folder}/specwatch.db")
    for item in items:
        match item:
            case Transition():
                writer.put_transition(item)
            case Event():
                writer.put_alert(item)
            case VersionRow():
                writer.put_version(item)
            case MovedToken():
                writer.put_moved(item)
    writer.start()
    writer.close(20)
    async with serving(folder) as admin, httpx.AsyncClient(base_url=f"{admin.url}/api/v1", trust_env=False) as http:
        yield http


async def told(http: httpx.AsyncClient, query: str = "") -> models.EventPage:
    answer = await http.get(f"/events?{query}")
    assert answer.status_code == 200, answer.text
    return models.EventPage.model_validate_json(answer.content)


async def test_events_are_told_newest_first_in_pages(tmp_path: Path) -> None:
    items = [
        Transition(NOW - 90, "a", "auto", "speculative", "autoregressive", "p is low", trigger="acceptance"),
        Event(NOW - 80, Happening.FIRING, ALERT),
        Event(NOW - 79, Happening.NOTIFIED, ALERT, "hook"),
        VersionRow(NOW - 70, "a", "", "specwatch", "1"),
        VersionRow(NOW - 60, "a", "speculative", "vllm", "0.32.0"),
        Event(NOW - 50, Happening.RESOLVED, ALERT),
        Transition(NOW - 2 * 86_400, "a", "auto", "speculative", "autoregressive", "long ago", trigger="acceptance"),
    ]
    async with client(tmp_path, *items) as http:
        whole = await told(http)
        assert [each.kind for each in whole.events] == ["alert", "version", "version", "alert", "switch"]
        assert [each.at for each in whole.events] == [
            datetime.fromtimestamp(NOW - ago, UTC) for ago in (50, 60, 70, 80, 90)
        ]
        assert whole.next_cursor is None
        walked, page = [], await told(http, "limit=2")
        while page.next_cursor is not None:
            walked += page.events
            page = await told(http, f"limit=2&cursor={page.next_cursor}")
        assert [*walked, *page.events] == whole.events
        assert len((await told(http, "window=3d")).events) == 6
        for query, count in (
            ("kind=alert", 2),
            ("kind=alert&kind=switch", 3),
            ("window=65s", 2),
            (f"since={NOW - 60}", 2),
            (f"window=10s&since={NOW - 60}", 0),
            (f"since={NOW - 80}&until={NOW - 60}", 2),
        ):
            assert len((await told(http, query)).events) == count, query


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("kind=alarm", "kind"),
        ("window=1", "window"),
        ("since=soon", "since"),
        ("limit=501", "limit"),
        ("limit=0", "limit"),
        ("cursor=x", "cursor"),
        ("scenario=x", "scenario"),
    ],
)
async def test_parameters_that_cannot_be_served(tmp_path: Path, query: str, param: str) -> None:
    async with client(tmp_path) as http:
        error = (await http.get(f"/events?{query}")).json()["error"]
    assert error["code"] == "invalid_parameter"
    assert error["message"].startswith(param)


async def test_without_a_database(tmp_path: Path) -> None:
    async with serving(tmp_path) as admin, httpx.AsyncClient(base_url=f"{admin.url}/api/v1", trust_env=False) as http:
        answer = await http.get("/events")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable")
        assert (await http.get("/runbook")).status_code == 200


async def test_the_runbook_is_told_by_alert(tmp_path: Path) -> None:
    async with client(tmp_path) as http:
        found = models.Runbook.model_validate_json((await http.get("/runbook")).content).alerts
    assert {rule.alert for rule in load(None).rules} <= set(found)
    for words in found.values():
        assert words.startswith("**Means.** ")
        assert "**Do.** " in words
        assert "## " not in words


# ---- sentences


def switch(before: str, after: str, reason: str, **more: Any) -> tuple[Kind, dict[str, Any]]:
    plain = {"mode": "auto", "slice": "", "trigger": "acceptance", "evidence": None}
    return "switch", plain | {"from_state": before, "to_state": after, "reason": reason} | more


LONG = "x" * 500


def version(name: str, value: str | None, before: str | None, upstream: str = "") -> tuple[Kind, dict[str, Any]]:
    return "version", {"upstream": upstream, "name": name, "value": value, "before": before}


MOVED: dict[str, Any] = {
    "upstream": "u",
    "draft_model": "d",
    "kind": "same_text",
    "target_id": 4,
    "draft_id": 5,
    "target_text": " x",
    "draft_text": "y",
    "count": 3,
    "share": 0.5,
    "first_seen": datetime.fromtimestamp(NOW, UTC),
}
SENTENCES: list[tuple[tuple[Kind, dict[str, Any]], str, str, str]] = [
    (
        switch("speculative", "autoregressive", "p 0.54 over 23 requests is below 0.65", slice="scenario=billing"),
        "scenario=billing",
        "autoregressive",
        "Fell back to autoregressive (scenario=billing): p 0.54 over 23 requests is below 0.65",
    ),
    (switch("probing", "autoregressive", "no"), "", "autoregressive", "Fell back to autoregressive again: no"),
    (switch("autoregressive", "probing", "dwell"), "", "probing", "Began to probe speculation: dwell"),
    (switch("probing", "speculative", "good"), "", "speculative", "Returned to speculative: good"),
    (
        switch("autoregressive", "ineffective", "drafted", trigger="effect"),
        "",
        "ineffective",
        "Autoregressive is without effect: drafted",
    ),
    (
        switch("ineffective", "autoregressive", "well", trigger="effect"),
        "",
        "autoregressive",
        "Autoregressive is in effect again: well",
    ),
    (
        switch("speculative", "autoregressive", "drill", trigger="operator", mode="autoregressive"),
        "",
        "autoregressive",
        "Mode autoregressive was ordered, serving autoregressive: drill",
    ),
    (
        switch("autoregressive", "speculative", "ended by an order: x", trigger="operator", slice="model=m"),
        "model=m",
        "speculative",
        "Returned to speculative (model=m): ended by an order: x",
    ),
    (
        switch("speculative", "autoregressive", "dry run: p is low", evidence={"dry_run": True}),
        "",
        "autoregressive",
        "Dry run, nothing was switched: fell back to autoregressive: p is low",
    ),
    (switch("speculative", "asleep", "later"), "", "asleep", "asleep after speculative: later"),
    (
        ("engine", {"reason": "draft tokens capped at 2 (hard): crowded", "slice": "", "evidence": None}),
        "",
        "changed",
        "Draft tokens capped at 2 (hard): crowded",
    ),
    (("alignment", MOVED), " x", "same_text", "The token ' x' has id 4 in the target model and 5 in the draft model d"),
    (
        ("alignment", MOVED | {"target_text": None, "draft_model": ""}),
        "4",
        "same_text",
        "A token has id 4 in the target model and 5 in the draft model",
    ),
    (version("specwatch", "1.2", None), "specwatch", "1.2", "Specwatch 1.2 started"),
    (version("specwatch", "1.2", "1.2"), "specwatch", "1.2", "Specwatch 1.2 started"),
    (version("specwatch", "1.2", "1.1"), "specwatch", "1.2", "Specwatch 1.2 started, and was 1.1"),
    (version("settings.x", "2", "1"), "x", "2", "Setting x is 2, and was 1"),
    (version("settings.x", "2", None), "x", "2", "Setting x is 2, and was at its default"),
    (version("settings.x", None, "2"), "x", "default", "Setting x is at its default again, and was 2"),
    (version("vllm", "0.32", None, "u"), "u", "0.32", "u: vLLM is 0.32"),
    (version("draft_model", "b", "a", "u"), "u", "b", "u: the draft model is b, and was a"),
    (
        version("draft_digest", "b", "a", "u"),
        "u",
        "b",
        "u: the digest of the draft model's checkpoint is b, and was a",
    ),
    (version("later", "b", "a", "u"), "u", "b", "u: later is b, and was a"),
    (version("settings.x", LONG + "b", LONG), "x", LONG + "…", f"Setting x is {LONG}…, and was {LONG}"),
]


@pytest.mark.parametrize(("happened", "subject", "what", "words"), SENTENCES, ids=[each[-1] for each in SENTENCES])
def test_sentences(happened: tuple[Kind, dict[str, Any]], subject: str, what: str, words: str) -> None:
    kind, row = happened
    found = event(Happened(kind, {"at": datetime.fromtimestamp(NOW, UTC), "instance": "a", **row}))
    assert (found.subject, found.what, found.words, found.severity) == (subject, what, words, None)
    assert (found.kind, found.instance) == (kind, "a")


@pytest.mark.parametrize(
    ("what", "detail", "annotations", "words"),
    [
        (Happening.FIRING, "", ALERT.annotations, "Slow fires: p95 is 2 s in billing"),
        (Happening.FIRING, "", {}, "Slow fires"),
        (Happening.RESOLVED, "", ALERT.annotations, "Slow is over"),
        (Happening.RESOLVED, "the rule is gone", {}, "Slow is over: the rule is gone"),
    ],
)
async def test_alerts(tmp_path: Path, what: Happening, detail: str, annotations: dict[str, str], words: str) -> None:
    alert = Alert(LABELS, annotations, Status.FIRING, NOW - 30, value=2.0)
    async with client(tmp_path, Event(NOW - 1, what, alert, detail=detail)) as http:
        (found,) = (await told(http)).events
    assert (found.subject, found.what, found.severity, found.words) == ("Slow", what.value, "critical", words)
    assert found.evidence == {
        "value": 2.0,
        "labels": LABELS,
        "starts_at": datetime.fromtimestamp(NOW - 30, UTC).isoformat(),
    }
