"""Runs of the lab: what is written of them beside a sidecar, and read back."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from sqlalchemy import text
from support.postgres import Cluster
from support.records import NOW, record
from support.stored import count, writing

from sidecar.store import lab
from sidecar.store.cursor import BadCursor
from sidecar.store.engine import reading_engine, writing_engine
from sidecar.store.export import export
from sidecar.store.lab import LabError, put
from sidecar.store.queries import Reader
from sidecar.store.retention import Pruner
from sidecar.store.upgrade import upgrade

DAY = 86_400
SUMMARY: dict[str, Any] = {
    "title": "Qualify draft_generalist",
    "verdict": "qualified in part",
    "reasons": ["The scenario billing is not certified.", "p is 0.71."],
    "gates": [{"name": "p", "passed": True, "value": 0.71, "limit": 0.65, "words": "p is 0.71."}],
    "plots": [{"title": "p", "x": [1], "series": []}],
}
RUN: dict[str, Any] = {
    "id": "qualify-20261129-120000-abc123",
    "kind": "qualify",
    "state": "done",
    "verdict": "qualified in part",
    "started_at": "2026-11-29T12:00:00.250+00:00",
    "ended_at": "2026-11-29T12:30:00Z",
    "instance": "sidecar-1",
    "fingerprint": {"target": "/m/target", "draft": "/m/draft", "k": 4, "device": None},
    "summary": SUMMARY,
    "options": {"prompts": "p.jsonl", "max_tokens": 64, "token": "s3cret", "engine": "http://u:s3cret@h:1/v1"},
    "folder": "/runs/a",
    "version": "0.1.0",
}


@pytest.fixture
def url(database_url: str) -> str:
    """Of a database that has its tables."""
    upgrade(database_url)
    return database_url


def stored(url: str, run_id: str = RUN["id"]) -> dict[str, Any] | None:
    reader = Reader(url)
    try:
        return reader.lab_run(run_id)
    finally:
        reader.close()


def walk(url: str, limit: int, kind: str | None = None) -> list[str]:
    reader, cursor, found = Reader(url), None, []
    while True:
        page = reader.lab_runs(kind, limit, cursor)
        assert len(page["runs"]) == limit or page["next_cursor"] is None
        found += [run["id"] for run in page["runs"]]
        if (cursor := page["next_cursor"]) is None:
            reader.close()
            return found


def test_a_run_is_read_as_it_was_written(url: str) -> None:
    put(url, RUN)
    found = stored(url)
    assert found is not None
    assert abs((found.pop("updated_at") - datetime.now(UTC)).total_seconds()) < 60
    assert found == RUN | {
        "started_at": datetime(2026, 11, 29, 12, 0, 0, 250_000, UTC),
        "ended_at": datetime(2026, 11, 29, 12, 30, tzinfo=UTC),
        "model": "/m/target",
        "draft_model": "/m/draft",
        "num_speculative_tokens": 4,
        "title": SUMMARY["title"],
        "reasons": SUMMARY["reasons"],
        # Who may read figures need not learn a token.
        "options": RUN["options"] | {"token": "***", "engine": "http://***@h:1/v1"},
    }
    assert stored(url, "another") is None


def test_a_run_that_goes_on_keeps_its_row(url: str) -> None:
    """From its start over an interruption to its end, with what is known by then."""
    begun = RUN | {"state": "running", "ended_at": None, "verdict": None, "summary": None, "fingerprint": None}
    put(url, begun)
    found = stored(url)
    assert found is not None
    assert (found["state"], found["title"], found["reasons"], found["model"]) == ("running", None, [], None)
    put(url, begun | {"fingerprint": {"target": None, "draft": "d"}, "options": {"target": "asked", "draft": "other"}})
    found = stored(url)
    assert found is not None
    assert (found["model"], found["draft_model"]) == ("asked", "d"), "what was asked for, until the engine tells"
    put(url, begun | {"state": "interrupted", "ended_at": "2026-11-29T12:10:00Z"})
    put(url, RUN)
    assert count(url, "lab_runs") == 1
    found = stored(url)
    assert found is not None
    assert (found["state"], found["verdict"], found["draft_model"]) == ("done", "qualified in part", "/m/draft")


def test_what_no_database_stores_is_written_all_the_same(url: str) -> None:
    odd = {"title": "a\0b\ud800", "reasons": ["x", 5, None], "n": [float("nan"), float("inf"), 1e10, True], "汉": "字"}
    put(url, RUN | {"summary": odd, "verdict": "a\0", "folder": "/\ud800"})
    found = stored(url)
    assert found is not None
    assert found["summary"] == {
        "title": "a\ufffdb\ufffd",
        "reasons": ["x", 5, None],
        "n": [None, None, 1e10, True],
        "汉": "字",
    }
    assert (found["verdict"], found["folder"], found["reasons"]) == ("a\ufffd", "/\ufffd", ["x"])


def test_pages_are_newest_first(url: str) -> None:
    """Runs that began at one time too, each once."""
    names = [f"r{i}" for i in range(7)]
    for i, name in enumerate(names):
        put(url, RUN | {"id": name, "started_at": NOW + i // 3, "kind": "soak" if i % 2 else "sweep"})
    for limit in (1, 2, 3, 7, 50):
        assert walk(url, limit) == names[::-1]
    assert walk(url, 2, "soak") == ["r5", "r3", "r1"]
    assert walk(url, 2, "qualify") == []
    # What is written anew stays where it is.
    put(url, RUN | {"id": "r0", "started_at": NOW, "kind": "sweep", "verdict": "no gain"})
    assert walk(url, 2) == names[::-1]
    reader = Reader(url)
    page = reader.lab_runs(limit=1)
    assert "summary" not in page["runs"][0]
    assert page["runs"][0]["reasons"] == SUMMARY["reasons"]
    with pytest.raises(BadCursor):
        reader.lab_runs(cursor="x")
    reader.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": ""}, "id: a run must have one"),
        ({"id": None}, "id: a run must have one"),
        ({"id": "x" * 201}, "id: has 201 characters; 200 are the most"),
        ({"kind": 5}, "kind: a run must have one, and it is a text"),
        ({"state": "asleep"}, "state: 'asleep' is none of running, done, failed, interrupted"),
        ({"started_at": None}, "started_at: 'None' is no time"),
        ({"started_at": "soon"}, "started_at: 'soon' is no time"),
        ({"ended_at": 1e300}, "ended_at: '1e+300' is no time"),
        ({"num_speculative_tokens": 2.5}, "num_speculative_tokens: 2.5 is no number of tokens"),
        ({"fingerprint": {"k": -1}}, "num_speculative_tokens: -1 is no number of tokens"),
        ({"summary": ["x"]}, "summary: is no object"),
        ({"summary": {"x": object()}}, "summary: is no JSON"),
        (
            {"summary": {"x": "y" * 2_000_000}},
            "summary: has 2,000,008 bytes of JSON, and 2,000,000 are kept at most; leave out plots",
        ),
        ({"options": {"x": "y" * 70_000}}, "options: has 70,008 bytes of JSON, and 65,536 are kept at most"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    url = f"sqlite:///{tmp_path}/specwatch.db"
    upgrade(url)
    with pytest.raises(LabError) as caught:
        put(url, RUN | changes)
    assert str(caught.value).startswith(words)
    assert count(url, "lab_runs") == 0


def test_the_largest_summary(url: str) -> None:
    put(url, RUN | {"summary": {"x": "y" * 1_999_992}})
    assert stored(url) is not None


def test_a_database_without_tables_stays_one(database_url: str) -> None:
    """The tables are the sidecar's: a wrong URL is noticed."""
    with pytest.raises(LabError, match=r"run `specwatch db upgrade`|by `specwatch db upgrade`"):
        put(database_url, RUN)
    if database_url.startswith("sqlite"):
        path = Path(database_url.removeprefix("sqlite:///"))
        assert not path.exists()
        path.touch()
    with pytest.raises(LabError, match="holds no tables of Specwatch yet: run `specwatch db upgrade`"):
        put(database_url, RUN)


@pytest.mark.parametrize(
    ("at", "words"), [("0007", "of an older Specwatch: run `specwatch db upgrade`"), ("9999", "of a newer Specwatch")]
)
def test_another_revision(url: str, at: str, words: str) -> None:
    engine = writing_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :at"), {"at": at})
    engine.dispose()
    with pytest.raises(LabError, match=words):
        put(url, RUN)


def test_urls_that_cannot_work() -> None:
    with pytest.raises(LabError, match=r"^database_url: 'mysql' is not supported"):
        put("mysql://h/d", RUN)
    with pytest.raises(
        LabError, match=r"^database_url: the database did not take the run: .* see that it runs"
    ) as caught:
        put("postgresql://someone:s3cret@127.0.0.1:9/d", RUN)
    assert "s3cret" not in str(caught.value)


def test_beside_a_sidecar_that_writes(url: str) -> None:
    """Neither hinders the other, and several commands may be at it."""
    stop = threading.Event()
    with writing(url) as writer:

        def write() -> None:
            while not stop.wait(0.001):
                writer.put(record())

        busy = threading.Thread(target=write)
        busy.start()
        try:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda i: put(url, RUN | {"id": f"r{i % 5}"}), range(20)))
        finally:
            stop.set()
            busy.join()
    assert (writer.dropped, writer.refused) == (0, 0)
    assert count(url, "lab_runs") == 5
    assert count(url) > 0


def test_a_lock_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than the writer of a sidecar would, but not for ever."""
    url = f"sqlite:///{tmp_path}/specwatch.db"
    upgrade(url)
    with closing(sqlite3.connect(tmp_path / "specwatch.db", isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        free = threading.Timer(1.5, other.execute, ("COMMIT",))
        free.start()
        put(url, RUN)
        free.join()
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(lab, "LOCK_TIMEOUT_S", 0.2)
        with pytest.raises(LabError, match="the database did not take the run: database is locked"):
            put(url, RUN | {"verdict": "rejected"})
    found = stored(url)
    assert found is not None
    assert found["verdict"] == "qualified in part"


def test_a_server_that_answers_nothing_holds_nobody_for_ever(
    postgres: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.new_url()
    upgrade(url)
    monkeypatch.setattr(lab, "LIMIT_S", 1)
    postgres.freeze()
    try:
        with pytest.raises(LabError, match="the database did not take the run"):
            put(url, RUN)
    finally:
        postgres.thaw()


def test_runs_are_exported(url: str, tmp_path: Path) -> None:
    for i in range(3):
        put(url, RUN | {"id": f"r{i}", "started_at": NOW - i * DAY})
    report = export(url, "lab_runs", tmp_path / "runs.parquet", since=datetime.fromtimestamp(NOW - DAY, UTC))
    assert report.rows == 2
    rows = parquet.read_table(tmp_path / "runs.parquet").to_pylist()
    assert [row["id"] for row in rows] == ["r1", "r0"]
    assert '"qualified in part"' in rows[0]["summary"]


def test_runs_are_kept_for_as_long_as_is_asked_for(url: str) -> None:
    for i, ago in enumerate((0, 29, 31)):
        put(url, RUN | {"id": f"r{i}", "started_at": NOW - ago * DAY})
    engine, reading = writing_engine(url), reading_engine(url)
    pruner = Pruner(engine, reading, {"lab_runs": 30.0})
    assert pruner.old(NOW) == {"lab_runs": 1}
    assert pruner.prune(NOW, float("inf"), lambda _: None)
    assert walk(url, 9) == ["r0", "r1"]
    engine.dispose()
    reading.dispose()
