"""Alerts from readings to rows, API, log and receivers, and over a restart. C29, C30."""

import asyncio
import json
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.postgres import cluster
from support.proxy import post
from support.records import figures, record
from support.scripted_engine import until
from support.upstream import Upstream, json_reply, replying, running

from alerts.config import load as load_alerts
from alerts.model import Readings
from sidecar.alerting import Alerting
from sidecar.record import Record
from sidecar.recorder import Recorder
from sidecar.settings import SettingsError, load
from sidecar.store.queries import DatabaseUnavailable, Reader
from sidecar.store.writer import Writer
from sidecar.tasks import Tasks

from .test_app import Process, sidecar
from .test_steering import come

QUICK = "group_wait: 0s, group_interval: 1s, repeat_interval: 4h"
OK = json_reply({})
MILLISECOND = timedelta(milliseconds=1)


def write(folder: Path, text: str) -> Path:
    file = folder / "alerts.yaml"
    file.write_text(text)
    return file


def told(hook: Upstream, name: str) -> list[str]:
    """What a webhook was told of alerts of that name, in order."""
    return [
        alert["status"]
        for body in hook.bodies
        for alert in json.loads(body)["alerts"]
        if alert["labels"]["alertname"] == name
    ]


# ---- in this process, by a clock of the test


class Watched:
    """Rules over readings that the test sets, on a database of its own."""

    def __init__(self, folder: Path, rules: str, route: str = "route: {}") -> None:
        self.url = f"sqlite:///{folder}/specwatch.db"
        self.config = load_alerts(write(folder, f"defaults: false\nrules:\n{rules}\n{route}"))
        self.readings: Callable[[], Readings] = lambda: {("", ""): {"requests": 5.0}}
        self.tasks = Tasks()
        self.instance = "here"
        self.writer, self.reader = Writer(self.url, max_age_s=0.02), Reader(self.url)
        self.writer.start()
        self.alerting = self.anew()

    def anew(self) -> Alerting:
        """A process that starts."""
        made = (self.config, self.instance, self.writer, self.reader, self.tasks.spawn)
        return Alerting(*made, lambda now, monotonic: self.readings())

    def look(self, now: float, **readings: float | None) -> None:
        self.readings = lambda: {("", ""): readings}
        self.alerting.look(now, now)
        self.alerting.tick(now)

    def firing(self) -> list[str]:
        return [each["name"] for each in self.alerting.state()["alerts"] if each["status"] == "firing"]

    async def written(self) -> list[tuple[str, str, str]]:
        await until(lambda: self.writer.healthy and not self.writer.queue_length)
        rows = self.reader.alerts()[::-1]
        return [(row["alert"], row["event"], row["receiver"]) for row in rows]

    async def close(self) -> None:
        await self.alerting.close()
        await self.tasks.close()
        await asyncio.to_thread(self.writer.close, 5)
        self.reader.close()


@pytest.fixture
async def watched(tmp_path: Path) -> Any:
    made = Watched(
        tmp_path,
        "  - {alert: Busy, expr: requests > 9, severity: warning, for: 10s, annotations: {summary: It is busy}}\n"
        "  - {alert: Lost, expr: records_dropped > 0, severity: critical}\n"
        "  - {alert: Slow, expr: latency_ratio > 1, severity: info}",
    )
    yield made
    await made.close()


async def test_rules_fire_and_end_in_rows_state_and_log(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    now = time.time()
    assert [(each["alert"], each["has_data"]) for each in watched.alerting.state()["rules"]] == [
        ("Busy", None),
        ("Lost", None),
        ("Slow", None),
    ]
    watched.look(now, requests=20, records_dropped=0)
    (pending,) = watched.alerting.state()["alerts"]
    assert (pending["name"], pending["status"], pending["value"]) == ("Busy", "pending", 20)
    assert watched.firing() == []
    with caplog.at_level(logging.INFO):
        watched.look(now + 15, requests=30, records_dropped=2)
        assert watched.firing() == ["Lost", "Busy"]
        watched.look(now + 30, requests=1, records_dropped=0)
    assert [line for line in caplog.messages if line.startswith("alert")] == [
        "alert fires: Busy (warning): It is busy",
        "alert fires: Lost (critical): ",
        "alert is over: Busy (warning): It is busy",
        "alert is over: Lost (critical): ",
    ]
    found = {each["alert"]: each for each in watched.alerting.state()["rules"]}
    assert found["Busy"] == {
        "alert": "Busy",
        "by": "",
        "expr": "requests > 9",
        "for_s": 10.0,
        "severity": "warning",
        "has_data": True,
        "firing": 0,
    }
    assert found["Slow"]["has_data"] is False
    assert Counter(await watched.written()) == Counter(
        (name, what, "") for name in ("Busy", "Lost") for what in ("firing", "resolved")
    )


async def test_readings_that_fail_are_no_data_and_are_complained_of_once(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    now = time.time()
    watched.look(now, requests=1, records_dropped=2)
    assert watched.firing() == ["Lost"]

    def broken() -> Readings:
        raise RuntimeError("broken")

    for outage in range(2):
        watched.readings = broken
        for second in range(3):
            watched.alerting.look(now + 20 * outage + second, now)
        (stale,) = watched.alerting.state()["alerts"]
        assert (stale["name"], stale["status"], stale["stale"]) == ("Lost", "firing", True)
        assert [each["has_data"] for each in watched.alerting.state()["rules"]] == [False] * 3
        assert len([line for line in caplog.records if line.levelno >= logging.ERROR]) == outage + 1
        watched.look(now + 20 * outage + 10, requests=1, records_dropped=2)
        assert watched.alerting.state()["alerts"][0]["stale"] is False


async def test_a_rule_that_fires_holds_over_a_restart_and_ends_once(watched: Watched) -> None:
    now = time.time()
    watched.look(now, records_dropped=2)
    assert await watched.written() == [("Lost", "firing", "")]
    watched.alerting = watched.anew()
    await watched.alerting.restore()
    assert watched.firing() == ["Lost"]
    (alert,) = watched.alerting.state()["alerts"]
    assert alert["starts_at"].timestamp() == pytest.approx(now, abs=1e-5)
    watched.look(now + 15, records_dropped=2)
    assert await watched.written() == [("Lost", "firing", "")]
    watched.look(now + 30, records_dropped=0)
    assert watched.firing() == []
    ended = [("Lost", "firing", ""), ("Lost", "resolved", "")]
    assert await watched.written() == ended
    watched.alerting = watched.anew()
    await watched.alerting.restore()
    assert watched.firing() == []
    watched.look(now + 45, records_dropped=0)
    assert await watched.written() == ended


async def test_what_fired_before_is_known_where_the_database_comes_later(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    watched.look(now, records_dropped=2)
    await watched.written()
    watched.alerting = watched.anew()
    with monkeypatch.context() as away:

        def unavailable(*_: object) -> None:
            raise DatabaseUnavailable("away")

        away.setattr(Reader, "last_alerts", unavailable)
        await watched.alerting.restore()
    watched.look(now + 15, records_dropped=0)
    assert watched.firing() == []
    await watched.alerting.restore()
    assert watched.firing() == ["Lost"]
    watched.look(now + 30, records_dropped=0)
    await watched.alerting.restore()
    assert await watched.written() == [("Lost", "firing", ""), ("Lost", "resolved", "")]


async def test_an_alert_whose_rule_is_gone_ends_with_the_restart(watched: Watched, tmp_path: Path) -> None:
    now = time.time()
    watched.look(now, records_dropped=2)
    await watched.written()
    watched.config = load_alerts(write(tmp_path, "defaults: false"))
    for _ in range(2):
        watched.alerting = watched.anew()
        await watched.alerting.restore()
        watched.look(now + 15, records_dropped=2)
        assert watched.firing() == []
        assert await watched.written() == [("Lost", "firing", ""), ("Lost", "resolved", "")]


async def test_names_that_no_database_takes_are_the_same_after_a_restart(watched: Watched, tmp_path: Path) -> None:
    rule = "{alert: Poor, by: scenario, expr: acceptance_rate < 0.5, severity: info}"
    watched.config = load_alerts(write(tmp_path, f"defaults: false\nrules: [{rule}]"))
    watched.readings = lambda: {("scenario", name): {"acceptance_rate": 0.4} for name in ("\0", "\ud800", "s" * 9999)}
    watched.instance = "box \udcff"  # as of an environment that is no UTF-8
    for start in range(2):
        watched.alerting = watched.anew()
        await watched.alerting.restore()
        assert watched.firing() == ["Poor"] * 2 * start
        watched.alerting.look(time.time(), 0.0)
        assert watched.firing() == ["Poor"] * 2
        assert await watched.written() == [("Poor", "firing", "")] * 2


async def test_what_happened_since_the_start_is_not_taken_for_older(watched: Watched) -> None:
    now = time.time()
    for second, dropped in enumerate((2, 0, 2)):
        watched.look(now + second, records_dropped=dropped)
    rows = [("Lost", what, "") for what in ("firing", "resolved", "firing")]
    assert await watched.written() == rows
    await watched.alerting.restore()
    watched.look(now + 9, records_dropped=2)
    assert watched.firing() == ["Lost"]
    assert await watched.written() == rows


async def test_an_end_that_could_not_be_told_is_told_after_a_restart(watched: Watched, tmp_path: Path) -> None:
    answers = [OK]

    async def handler(hook: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hook.read_request(reader)
        writer.write(answers[-1])

    async with running(handler) as hook:
        text = (
            "defaults: false\nrules:\n  - {alert: Lost, expr: records_dropped > 0, severity: critical}\n"
            f"receivers:\n  - {{name: hook, type: webhook, url: '{hook.url}'}}\nroute: {{receiver: hook, {QUICK}}}"
        )
        watched.config = load_alerts(write(tmp_path, text))

        async def rows(dropped: int, count: int) -> list[str]:
            """Events that are not of the rule alone, once there are so many."""
            found: list[str] = []
            for _ in range(400):
                watched.look(time.time(), records_dropped=dropped)
                found = [what for _, what, receiver in await watched.written() if receiver]
                if len(found) >= count:
                    break
                await asyncio.sleep(0.02)
            return found

        watched.alerting = watched.anew()
        assert await rows(2, 1) == ["notified"]
        answers.append(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")
        assert await rows(0, 2) == ["notified", "failed"]
        await watched.alerting.close()
        answers.append(OK)
        hook.bodies.clear()
        watched.alerting = watched.anew()
        await watched.alerting.restore()
        assert await rows(0, 3) == ["notified", "failed", "notified"]
        assert told(hook, "Lost") == ["resolved"]
        watched.alerting = watched.anew()
        await watched.alerting.restore()
        await rows(0, 3)
        assert told(hook, "Lost") == ["resolved"]


async def test_an_end_that_came_while_the_start_was_being_told_is_told_after_a_restart(
    watched: Watched, tmp_path: Path
) -> None:
    answers = asyncio.Event()

    async def handler(hook: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hook.read_request(reader)
        await answers.wait()
        writer.write(OK)

    async with running(handler) as hook:
        text = (
            "defaults: false\nrules:\n  - {alert: Lost, expr: records_dropped > 0, severity: critical}\n"
            f"receivers:\n  - {{name: hook, type: webhook, url: '{hook.url}'}}\nroute: {{receiver: hook, {QUICK}}}"
        )
        watched.config = load_alerts(write(tmp_path, text))
        watched.alerting = watched.anew()
        watched.look(time.time(), records_dropped=2)
        await until(lambda: len(hook.bodies) == 1)
        watched.look(time.time(), records_dropped=0)
        answers.set()
        rows = [("Lost", "firing", ""), ("Lost", "resolved", ""), ("Lost", "notified", "hook")]
        await until(lambda: watched.alerting.counts().notifications["hook", "sent"] == 1)
        assert await watched.written() == rows
        await watched.alerting.close()
        for _ in range(2):
            watched.alerting = watched.anew()
            await watched.alerting.restore()
            await until(lambda: watched.alerting.tick(time.time()) or len(told(hook, "Lost")) == 2)
            await until(lambda: not watched.tasks._tasks)
            assert await watched.written() == [*rows, ("Lost", "notified", "hook")]
        assert told(hook, "Lost") == ["firing", "resolved"]


async def test_a_name_that_a_client_chose_stays_on_its_line_of_the_log(
    watched: Watched, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = 'annotations: {summary: "{{ scenario }} is poor"}'
    rule = f"{{alert: Poor, by: scenario, expr: acceptance_rate < 0.5, {texts}}}"
    watched.config = load_alerts(write(tmp_path, f"defaults: false\nrules: [{rule}]"))
    watched.alerting = watched.anew()
    watched.readings = lambda: {("scenario", "a\nERROR all is \x1b[31mlost"): {"acceptance_rate": 0.4}}
    watched.alerting.look(time.time(), 0.0)
    (line,) = [line for line in caplog.messages if line.startswith("alert fires")]
    assert line.endswith("a ERROR all is  [31mlost is poor")
    assert line.isprintable()


# ---- the whole sidecar


def test_a_wrong_file_is_a_wrong_setting(tmp_path: Path) -> None:
    file = write(tmp_path, "rules:\n  - {alert: A, expr: nonsense > 1, severity: info}")
    settings = load(alerts=file, database_url=f"sqlite:///{tmp_path}/specwatch.db")
    with pytest.raises(SettingsError, match=r"alerts\.yaml: rules\[0\]\.expr: .*nonsense"):
        Recorder(settings, {"speculative": "http://127.0.0.1:9"}, lambda: SimpleNamespace())  # type: ignore[arg-type,return-value]


async def test_a_restart_repeats_no_notification_and_loses_no_end(tmp_path: Path) -> None:
    async with running(replying(json_reply({"choices": []}))) as server, running(replying(OK)) as hook:
        file = write(
            tmp_path,
            "interval: 1s\ndefaults: false\nrules:\n  - {alert: Plain, expr: autoregressive > 0, severity: warning}\n"
            f"receivers:\n  - {{name: hook, type: webhook, url: '{hook.url}'}}\n"
            f"route: {{receiver: hook, {QUICK}}}",
        )
        environment = {"SPECWATCH_ALERTS": str(file), "SPECWATCH_INSTANCE": "here"}
        flags = ("--fallback-upstream", server.url)

        async def notified(made: Process, count: int) -> Any:
            history = (await made.get("/api/v1/alerts")).json()["history"]
            found = [each["event"] for each in history if each["alert"] == "Plain"]
            return found if found.count("notified") == count else None

        async with sidecar(tmp_path, server.url, *flags, **environment) as made:
            await made.put({"mode": "autoregressive", "reason": "drill"})
            await come(lambda: notified(made, 1))
            assert told(hook, "Plain") == ["firing"]
            (alert,) = (await made.get("/api/v1/summary")).json()["alerts"]
            assert (alert["name"], alert["value"]) == ("Plain", 1.0)
            assert 'specwatch_alerts_firing{alert="Plain",severity="warning"} 1.0' in (await made.get("/metrics")).text
            await made.stop()
        async with sidecar(tmp_path, server.url, *flags, **environment) as made:
            await come(lambda: ended(made, "Plain", has_data=True))
            await asyncio.sleep(1)
            (again,) = (await made.get("/api/v1/summary")).json()["alerts"]
            assert abs(datetime.fromisoformat(again["since"]) - datetime.fromisoformat(alert["since"])) < MILLISECOND
            assert told(hook, "Plain") == ["firing"]
            await made.stop()
        # Without the other upstream there is nothing to fall back to, so that it is over.
        async with sidecar(tmp_path, server.url, **environment) as made:
            await come(lambda: notified(made, 2))
            assert told(hook, "Plain") == ["firing", "resolved"]
            await made.stop()
        with sqlite3.connect(tmp_path / "specwatch.db") as database:
            rows = database.execute("SELECT event, receiver FROM alerts WHERE alert = 'Plain' ORDER BY id").fetchall()
        assert rows == [("firing", ""), ("notified", "hook"), ("resolved", ""), ("notified", "hook")]


async def ended(made: Process, name: str, *, has_data: bool) -> bool:
    rules = (await made.get("/api/v1/alerts")).json()["rules"]
    return any(each["alert"] == name and each["has_data"] is has_data for each in rules)


@pytest.mark.parametrize("down_at_first", [False, True])
async def test_c29_a_database_that_is_away_is_one_alert_and_one_recovery(tmp_path: Path, down_at_first: bool) -> None:
    with cluster() as postgres:
        url, count = postgres.new_url(), 0
        if down_at_first:
            postgres.stop()
        async with running(replying(json_reply({"choices": []}))) as server, running(replying(OK)) as hook:
            file = write(
                tmp_path,
                "interval: 1s\nrules:\n  - {alert: SpecwatchDatabaseDown, for: 1s, keep_firing_for: 1s}\n"
                f"receivers:\n  - {{name: hook, type: webhook, url: '{hook.url}'}}\n"
                f"route: {{receiver: hook, {QUICK}}}",
            )
            environment = {"SPECWATCH_ALERTS": str(file), "SPECWATCH_DATABASE_URL": url}
            async with sidecar(tmp_path, server.url, **environment) as made:

                async def served(until_told: int) -> bool:
                    nonlocal count
                    answer = await made.exchange(post(b"{}"))
                    assert answer.startswith(b"HTTP/1.1 200 OK")
                    count += 1
                    return len(told(hook, "SpecwatchDatabaseDown")) >= until_told

                if not down_at_first:
                    await come(lambda: in_database(made))
                    for _ in range(10):
                        await served(0)
                    assert told(hook, "SpecwatchDatabaseDown") == []
                    postgres.stop()
                await come(lambda: served(1))
                for _ in range(30):
                    await served(0)
                    await asyncio.sleep(0.05)
                assert (await made.get("/api/v1/alerts")).json()["history"] == []
                postgres.start()
                await come(lambda: served(2))
                assert told(hook, "SpecwatchDatabaseDown") == ["firing", "resolved"]
                for _ in range(10):
                    await served(0)
                await asyncio.sleep(1)
                history = (await made.get("/api/v1/alerts")).json()["history"][::-1]
                await made.stop()
            assert told(hook, "SpecwatchDatabaseDown") == ["firing", "resolved"]
        events = [each["event"] for each in history if each["alert"] == "SpecwatchDatabaseDown"]
        assert events == ["firing", "notified", "resolved", "notified"]
        rows = await asyncio.to_thread(ids, url)
        assert (len(rows), len(set(rows))) == (count, count)


async def in_database(made: Process) -> bool:
    return bool((await made.get("/readyz")).json()["database"] == "ok")


def ids(url: str) -> list[str]:
    reader = Reader(url)
    from sidecar.store.expressions import Filters

    found = [row["request_id"] for row in reader.requests(Filters(), limit=500)["requests"]]
    reader.close()
    return found


async def test_c30_neither_requests_nor_alerts_make_series(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "rules:\n  - {alert: Poor, by: scenario, expr: acceptance_rate < 0.9, severity: info}\n"
        "receivers:\n  - {name: hook, type: webhook, url: 'http://127.0.0.1:9'}\nroute: {receiver: hook}",
    )
    settings = load(
        alerts=file,
        database_url=f"sqlite:///{tmp_path}/specwatch.db",
        scenarios=["billing"],
        similarity="none",
        fallback_triggers=[],
    )
    made = Recorder(settings, {"speculative": "http://127.0.0.1:9"}, lambda: NO_TRAFFIC)
    bad = figures((9, 1, 0, 0))
    await feed(made, (record(acceptance=bad, scenario=name, model="m") for name in ("billing", "default", "x")))
    now = time.time()
    made.alerting.look(now, now)
    before = series(made)
    assert ("specwatch_alerts_firing", ("alert", "Poor"), ("severity", "info")) in before
    assert ("specwatch_notifications_total", ("outcome", "timeout"), ("receiver", "hook")) in before
    for hundred in range(100):
        numbers = range(100 * hundred, 100 * hundred + 100)
        await feed(
            made,
            (
                record(acceptance=bad, scenario=f"s{n}", model=f"m{n}", request_id=f"u{n}", endpoint=f"/v1/{n}")
                for n in numbers
            ),
        )
        made.alerting.look(now + 15 + 15 * hundred, now)
    assert series(made) == before
    state = made.alerting.state()
    (firing,) = (each["firing"] for each in state["rules"] if each["alert"] == "Poor")
    assert 0 < firing == len([each for each in state["alerts"] if each["name"] == "Poor"]) <= 500
    await made.stop()


NO_TRAFFIC = SimpleNamespace(outcomes={}, refused=0, in_flight=0)


async def feed(made: Recorder, records: Iterable[Record]) -> None:
    for each in records:
        made.tap.sink(each)
    await asyncio.sleep(0)


def series(made: Recorder) -> set[tuple[Any, ...]]:
    return {
        (sample.name, *sorted(sample.labels.items()))
        for family in text_string_to_metric_families(made.metrics.render().decode())
        for sample in family.samples
    }
