"""Rules, dispatch and notifiers together: readings go in, real receivers on loopback are told."""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support import stack
from support.alerts import T0
from support.chain import free_ports
from support.receiver import Answer, Fault, Reply, Request, receiver

from alerts.config import Config, load
from alerts.dispatch import Told
from alerts.model import Alert, Event, Happening, Status
from alerts.service import SENT, Alerts

LOW, WELL = 0.4, 0.9


class Run:
    """Alerts, with a clock of their own."""

    def __init__(self, config: Config) -> None:
        self.now = T0
        self.events: list[Event] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self.alerts = Alerts(config, instance="box", spawn=self._spawn, told=self.events.append, clock=lambda: self.now)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def look(self, rate: float | None, **scenarios: float) -> None:
        groups = {("scenario", name): {"acceptance_rate": value} for name, value in scenarios.items()}
        self.alerts.look({("", ""): {"acceptance_rate": rate}, **groups}, self.now)

    async def go(self, seconds: int, rate: float | None = None, **scenarios: float) -> None:
        """A look each 15 s and a tick each second; what is sent arrives before the next."""
        for second in range(seconds):
            if second % 15 == 0 and (rate is not None or scenarios):
                self.look(rate, **scenarios)
            self.alerts.tick(self.now)
            await self.settle()
            self.now += 1

    async def settle(self) -> None:
        if self.tasks:
            await asyncio.wait(set(self.tasks), timeout=20)

    def told(self) -> list[tuple[str, str, str]]:
        return [(each.what.value, each.alert.name, each.receiver) for each in self.events]


RULE = {
    "alert": "Low",
    "expr": "acceptance_rate < 0.6",
    "for": "30s",
    "severity": "critical",
    "annotations": {"summary": "The acceptance rate is low", "description": "It is {{ value }}"},
}
QUICK = {"group_wait": "10s", "group_interval": "1m", "repeat_interval": "4h"}


@asynccontextmanager
async def running(
    folder: Path, receivers: list[dict[str, object]], rules: list[dict[str, object]] | None = None, **route: object
) -> AsyncIterator[Run]:
    file = folder / "alerts.yaml"
    whole = {
        "defaults": False,
        "rules": rules or [RULE],
        "receivers": receivers,
        "route": {"receiver": receivers[0]["name"] if receivers else "", **QUICK, **route},
    }
    file.write_text(json.dumps(whole))  # which is YAML too
    run = Run(load(file))
    try:
        yield run
    finally:
        await asyncio.wait_for(run.alerts.close(), 10)
        await run.settle()


def hook_at(url: str, name: str = "hook", **fields: object) -> dict[str, object]:
    return {"name": name, "type": "webhook", "url": url, "timeout": "10s", **fields}


async def test_a_fault_is_told_once_and_its_end_once(tmp_path: Path) -> None:
    with receiver() as hook:
        async with running(tmp_path, [hook_at(hook.url)]) as run:
            await run.go(60, WELL)
            await run.go(600, LOW)
            await run.go(600, WELL)
            assert run.alerts.alerts() == []
    assert [(body["status"], body["alerts"][0]["annotations"]["description"]) for body in hook.bodies()] == [
        ("firing", "It is 0.400"),
        ("resolved", "It is 0.400"),
    ]
    assert run.told() == [
        ("firing", "Low", ""),
        ("notified", "Low", "hook"),
        ("resolved", "Low", ""),
        ("notified", "Low", "hook"),
    ]
    assert run.alerts.sent == Counter({("hook", SENT): 2})


async def test_no_data_is_neither_alarm_nor_recovery(tmp_path: Path) -> None:
    with receiver() as hook:
        async with running(tmp_path, [hook_at(hook.url)]) as run:
            await run.go(120, LOW)
            for _ in range(600):
                run.look(None)
                await run.go(1)
            assert [each.stale for each in run.alerts.alerts()] == [True]
            assert run.alerts.health() == {"Low": False}
    assert len(hook.requests) == 1


async def test_a_storm_of_looks_and_of_groups_is_one_notification_and_one_recovery(tmp_path: Path) -> None:
    by_scenario = {**RULE, "by": "scenario", "for": "0s"}
    with receiver() as hook:
        async with running(tmp_path, [hook_at(hook.url)], [by_scenario]) as run:
            for _ in range(100):
                run.look(None, **{f"s{n}": LOW for n in range(100)})  # 10,000 alerts told
                await run.go(1)
            run.look(None, **{f"s{n}": WELL for n in range(100)})
            await run.go(600)
    assert [(body["status"], len(body["alerts"]), body["truncatedAlerts"]) for body in hook.bodies()] == [
        ("firing", 64, 36),
        ("resolved", 64, 36),
    ]


async def test_receivers_that_hang_or_fail_hold_nobody_else_up(tmp_path: Path) -> None:
    (nobody,) = free_ports(1)
    with receiver() as hung, receiver() as well:
        hung.answer = Fault.HANG
        receivers = [
            hook_at(f"http://127.0.0.1:{nobody}", "dead"),
            hook_at(hung.url, "hung", timeout="5m"),
            hook_at(well.url, "well"),
        ]
        routes = [{"receiver": each["name"], "continue": True} for each in receivers]
        async with running(tmp_path, receivers, receiver="", routes=routes) as run:
            for second in range(200):
                if second % 15 == 0:
                    run.look(LOW if second < 100 else WELL)
                run.alerts.tick(run.now)
                await asyncio.sleep(0.01)
                run.now += 1
            well.wait(2)
            hung.wait(1)
            assert [body["status"] for body in well.bodies()] == ["firing", "resolved"]
            assert len(hung.requests) == 1, "one of a group in flight"
            failed = [each for each in run.events if each.what is Happening.FAILED]
            assert [(each.receiver, each.reason) for each in failed] == [("dead", "unreachable")]
            assert run.alerts.sent["dead", "unreachable"] > 3
            began = time.monotonic()
            await run.alerts.close()
            assert time.monotonic() - began < 5
        assert run.tasks == set()


async def test_what_failed_arrives_once_its_receiver_is_back(tmp_path: Path) -> None:
    def answer(request: Request) -> Reply:
        return Answer(503) if run.now < T0 + 300 else Answer()

    with receiver() as hook:
        hook.answer = answer
        async with running(tmp_path, [hook_at(hook.url)]) as run:
            await run.go(600, LOW)
    assert 5 < len(hook.requests) < 12
    assert run.told() == [("firing", "Low", ""), ("failed", "Low", "hook"), ("notified", "Low", "hook")]
    assert run.alerts.sent["hook", SENT] == 1
    assert run.alerts.sent["hook", "server_error"] == len(hook.requests) - 1


async def test_after_a_restart_the_end_is_told_and_nothing_twice(tmp_path: Path) -> None:
    with receiver() as hook:
        async with running(tmp_path, [hook_at(hook.url)]) as run:
            await run.go(120, LOW)
        assert len(hook.requests) == 1
        (firing,) = run.alerts.alerts()
        notified = {
            (each.alert.fingerprint, each.receiver): Told(each.at, each.alert.starts_at, over=False)
            for each in run.events
            if each.what is Happening.NOTIFIED
        }
        async with running(tmp_path, [hook_at(hook.url)]) as again:
            again.now = run.now + 30
            again.alerts.restore([firing], notified, again.now)
            assert again.alerts.alerts()[0].fingerprint == firing.fingerprint
            await again.go(300, LOW)
            assert len(hook.requests) == 1
            await again.go(300, WELL)
        assert [body["status"] for body in hook.bodies()] == ["firing", "resolved"]
        assert again.told() == [("resolved", "Low", ""), ("notified", "Low", "hook")]


async def test_an_alert_whose_rule_is_gone_after_a_restart_is_ended(tmp_path: Path) -> None:
    with receiver() as hook:
        async with running(tmp_path, [hook_at(hook.url)]) as run:
            labels = {"alertname": "Gone", "severity": "critical", "instance": "box"}
            gone = Alert(labels, {}, Status.FIRING, T0 - 100)
            over = Alert({**labels, "alertname": "Over"}, {}, Status.RESOLVED, T0 - 100, T0 - 50)
            told = {(each.fingerprint, "hook"): Told(T0 - 90, T0 - 100, over=False) for each in (gone, over)}
            run.alerts.restore([gone, over], told, run.now)
            await run.go(120, WELL)
        assert sorted(body["alerts"][0]["labels"]["alertname"] for body in hook.bodies()) == ["Gone", "Over"]
        assert {body["status"] for body in hook.bodies()} == {"resolved"}
        assert ("resolved", "Gone", "") in run.told()


@pytest.mark.parametrize("wants_ends", [True, False])
async def test_what_fires_anew_before_the_past_is_known_stays_so(tmp_path: Path, wants_ends: bool) -> None:
    with receiver() as hook:
        async with running(tmp_path, [hook_at(hook.url, send_resolved=wants_ends)]) as run:
            await run.go(120, LOW)
            (fires,) = run.alerts.alerts()
            before = Alert(fires.labels, {}, Status.RESOLVED, T0 - 500, T0 - 400)
            run.alerts.restore([before], {(before.fingerprint, "hook"): Told(T0 - 450, T0 - 500, over=False)}, run.now)
            await run.go(120, LOW)
            await run.go(120, WELL)
    assert [body["status"] for body in hook.bodies()] == ["firing", "resolved"][: 1 + wants_ends]


async def test_info_goes_only_where_a_route_asks_for_it(tmp_path: Path) -> None:
    rules = [{**RULE, "severity": "info", "labels": {"action": "retrain"}}]
    with receiver() as main, receiver() as marks:
        receivers = [hook_at(main.url), hook_at(marks.url, "marks")]
        for routes, expected in (([], 0), ([{"match": {"severity": "info"}, "receiver": "marks"}], 1)):
            async with running(tmp_path, receivers, rules, routes=routes) as run:
                await run.go(120, LOW)
            assert (len(main.requests), len(marks.requests)) == (0, expected)


async def test_a_command_is_run_for_retraining_and_not_again_too_soon(tmp_path: Path) -> None:
    rules: list[dict[str, object]] = [{**RULE, "labels": {"action": "retrain"}}]
    log = tmp_path / "runs"
    script = tmp_path / "retrain.sh"
    script.write_text(f"#!/bin/sh\ncat >> {log}\n")
    script.chmod(0o755)
    retrain: dict[str, object] = {
        "name": "retrain",
        "type": "command",
        "command": ["./retrain.sh", "--now"],
        "min_interval": "30m",
    }
    routes = [{"match": {"action": "retrain"}, "receiver": "retrain", "continue": True}]
    async with running(tmp_path, [retrain], rules, receiver="", routes=routes) as run:
        for _ in range(4):
            await run.go(120, LOW)
            await run.go(180, WELL)
        assert len(log.read_text().splitlines()) == 1
        await run.go(700, WELL)
        await run.go(120, LOW)
    bodies = [json.loads(line) for line in log.read_text().splitlines()]
    assert [body["commonLabels"]["action"] for body in bodies] == ["retrain", "retrain"]


async def test_a_fault_of_ours_is_a_failure_and_shows_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    async with running(tmp_path, [hook_at("http://127.0.0.1:9/S3cret")]) as run:

        async def breaks(notification: object) -> None:
            raise RuntimeError("http://127.0.0.1:9/S3cret")

        monkeypatch.setattr(run.alerts._notifiers["hook"], "send", breaks)
        await run.go(180, LOW)
    failed = [each for each in run.events if each.what is Happening.FAILED]
    assert [(each.reason, each.detail) for each in failed] == [("invalid", "a fault of Specwatch: RuntimeError")]
    assert "S3cret" not in caplog.text


async def test_nobody_is_told_where_nobody_is_named(tmp_path: Path) -> None:
    async with running(tmp_path, []) as run:
        await run.go(120, LOW)
        assert run.told() == [("firing", "Low", "")]
        assert [each.status for each in run.alerts.alerts()] == [Status.FIRING]


async def test_a_closed_one_sends_nothing(tmp_path: Path) -> None:
    with receiver() as hook:
        async with running(tmp_path, [hook_at(hook.url)]) as run:
            await run.go(30, LOW)
            run.look(LOW)
            await run.alerts.close()
            run.now += 100
            run.alerts.tick(run.now)
            await run.settle()
        assert hook.requests == []


async def test_every_type_of_receiver_is_told_of_start_and_end(tmp_path: Path) -> None:
    """Grafana's stand-in knows no annotations; a real Alertmanager passes on what it is told."""
    with receiver() as hook, receiver() as chat, receiver() as marks, receiver() as page:
        marks.answer = Answer(body=b"[]")
        with stack.alertmanager(tmp_path / "am", {"page": page.url}) as am:
            receivers: list[dict[str, object]] = [
                hook_at(hook.url),
                {"name": "chat", "type": "apprise", "url": chat.url.replace("http:", "json:")},
                {"name": "marks", "type": "grafana", "url": marks.url, "token": "x"},
                {"name": "am", "type": "alertmanager", "url": am.url},
            ]
            routes = [{"receiver": each["name"], "continue": True} for each in receivers]
            async with running(tmp_path, receivers, receiver="", routes=routes) as run:
                run.now = time.time() - 130  # Alertmanager has the real time
                await run.go(70, LOW)
                page.wait(1)
                await run.go(130, WELL)
                page.wait(2)
    assert [body["status"] for body in hook.bodies()] == ["firing", "resolved"]
    assert [body["status"] for body in page.bodies()] == ["firing", "resolved"]
    assert [body["title"] for body in chat.bodies()] == ["[FIRING:1] Low (critical)", "[RESOLVED] Low (critical)"]
    assert [request.method for request in marks.requests] == ["GET", "POST", "GET", "POST"]
    assert "timeEnd" in marks.requests[3].json()
    assert run.alerts.sent[("am", SENT)] >= 2
    assert {outcome for _, outcome in run.alerts.sent} == {SENT}


async def test_a_command_that_shows_its_environment_shows_no_secret_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPECWATCH_ADMIN_TOKEN", "topsecret-1")
    monkeypatch.setenv("SPECWATCH_DATABASE_URL", "postgresql://u:topsecret-2@h/d")
    command: dict[str, object] = {"name": "retrain", "type": "command", "command": ["/usr/bin/env"]}
    caplog.set_level(logging.INFO)
    async with running(tmp_path, [command]) as run:
        await run.go(60, LOW)
        assert run.alerts.sent == Counter({("retrain", SENT): 1})
    assert "SPECWATCH_ADMIN_TOKEN=***" in caplog.text
    assert "topsecret" not in caplog.text
