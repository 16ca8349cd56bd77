"""Nothing that was put in is lost, doubled or left uncounted, whatever the database does (C28, C29)."""

import dataclasses
import sqlite3
import threading
import time
from datetime import UTC, datetime
from itertools import count as count_from
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from support.postgres import Cluster, cluster
from support.records import NOW, figures, record
from support.stored import count, rows_of, wait_for, writing

from alerts.model import Alert, Event, Happening, Status
from sidecar.record import Acceptance, Arm, Outcome, Record
from sidecar.store import schema
from sidecar.store.engine import reading_engine
from sidecar.store.expressions import Filters
from sidecar.store.queries import Reader
from sidecar.store.rows import MAX_RAW, MAX_TEXT, CountersRow, MovedToken, SimilarityRow, Transition, clean
from sidecar.store.upgrade import upgrade
from sidecar.store.writer import Writer


def stored(database_url: str) -> list[dict[str, Any]]:
    """All rows of up to one page, oldest first."""
    reader = Reader(database_url)
    try:
        return reader.requests(Filters(), limit=500)["requests"][::-1]
    finally:
        reader.close()


def test_a_record_comes_back_as_it_was(database_url: str) -> None:
    full = record(
        request_id="r-1",
        started_at=NOW + 0.123456,
        arm=Arm.PROBE,
        scenario="写代码 🙂",
        stream=True,
        finish_reason="stop",
        temperature=0.1 + 0.2,
        prompt_tokens=2**40,
        completion_tokens=17,
        ttft_ms=1 / 3,
        latency_ms=1234.5,
        tpot_ms=7.0,
        max_chunk_gap_ms=55.5,
        queue_ms=0.0,
        concurrency=3,
        fingerprint="vllm 0.32.0 k=3",
        bytes_in=10,
        bytes_out=2**33,
        acceptance=figures((1, 2, 3, 4), reason="r", raw='{"a":1}'),
    )
    bare = Record("r-2", NOW + 1, "i", "u", Arm.BASELINE, "e", "s", Outcome.CLIENT_ABORT)
    with writing(database_url) as writer:
        writer.put(full)
        writer.put(bare)
    assert (writer.written, writer.dropped, writer.refused, writer.queue_length) == (2, 0, 0, 0)
    first, second = stored(database_url)
    assert first["started_at"].timestamp() == full.started_at
    assert first["started_at"].utcoffset().total_seconds() == 0
    for name in ("request_id", "scenario", "stream", "temperature", "prompt_tokens", "ttft_ms", "bytes_out"):
        assert first[name] == getattr(full, name)
    assert first["arm"] == "probe"
    assert first["acceptance_histogram"] == [1, 2, 3, 4]
    assert first["rejected_at"] == [1, 2, 3]
    assert first["reached"] == [10, 9, 7]
    assert first["acceptance_raw"] == '{"a":1}'
    assert [second[name] for name in ("model", "status", "verify_steps", "rejected_at", "latency_ms")] == [None] * 5
    assert second["outcome"] == "client_abort"
    assert second["acceptance_quality"] == "unknown"


def test_text_that_no_database_takes_is_mended(database_url: str) -> None:
    odd = record(
        request_id="x" * 10_000,
        scenario="a\0b\ud800c",
        model="tab\tand\nline",
        acceptance=Acceptance(reason="\udfff", raw="\0" + "y" * (2 * MAX_RAW)),
        latency_ms=nan,
        ttft_ms=inf,
        tpot_ms=-inf,
    )
    with writing(database_url) as writer:
        writer.put(odd)
    assert writer.refused == 0
    (row,) = stored(database_url)
    assert row["request_id"] == "x" * MAX_TEXT
    assert row["scenario"] == "a\ufffdb\ufffdc"
    assert row["model"] == "tab\tand\nline"
    assert row["acceptance_reason"] == "\ufffd"
    assert row["acceptance_raw"] == "\ufffd" + "y" * (MAX_RAW - 1)
    assert (row["latency_ms"], row["ttft_ms"], row["tpot_ms"]) == (None, None, None)
    assert clean("𝕏") == "𝕏"


def test_rows_refused_as_data_do_not_take_the_batch_along(database_url: str) -> None:
    poison = [
        record(bytes_out=2**63),
        record(bytes_in=2**70),
        record(prompt_tokens=-(2**64)),
        record(scenario=None),
        record(started_at=nan),
        record(started_at=1e300),
        record(temperature=10**400),
        record(arm=None),
        record(acceptance=figures((1, 2**70))),
        record(model=b"bytes"),
    ]
    good = [record() for _ in range(40)]
    mixed: list[Any] = list(good)
    for i, bad in enumerate(poison):
        mixed.insert(4 * i + i % 3, bad)
    with writing(database_url) as writer:
        for item in [*mixed, "not a record"]:
            writer.put(item)
    assert (writer.written, writer.refused, writer.dropped) == (40, 11, 0)
    assert [row["request_id"] for row in stored(database_url)] == [item.request_id for item in good]


def test_a_database_that_goes_while_refused_rows_are_looked_for(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(database_url, max_age_s=0.02)
    items = [record() for _ in range(8)]
    insert, calls = writer._inserts.insert, count_from(1)

    def fail_at_times(table: str, connection: Any, rows: Any) -> None:
        insert(table, connection, rows)
        if (call := next(calls)) % 5 == 0:
            raise OperationalError("", (), Exception("gone"))
        if call == 1:
            raise ValueError

    monkeypatch.setattr(writer._inserts, "insert", fail_at_times)
    for item in [*items, record(scenario=None)]:
        writer.put(item)
    writer.start()
    writer.close(10)
    assert (writer.written, writer.refused, writer.dropped, writer.queue_length) == (8, 1, 0, 0)
    assert [row["request_id"] for row in stored(database_url)] == [item.request_id for item in items]


def test_a_batch_sent_twice_is_stored_once(database_url: str) -> None:
    again = [record() for _ in range(5)]
    for _ in range(2):
        with writing(database_url) as writer:
            for item in again:
                writer.put(item)
    same_id = replace(again[0], started_at=NOW)
    with writing(database_url) as writer:
        writer.put(same_id)
    assert count(database_url) == 6


def test_events_of_one_large_notification_all_wait() -> None:
    writer = Writer("sqlite:///never.db")
    labels = {"alertname": "A", "severity": "info", "instance": "here"}
    for number in range(3000):
        alert = Alert({**labels, "scenario": str(number)}, {}, Status.FIRING, 1.0)
        writer.put_alert(Event(2.0, Happening.NOTIFIED, alert, "hook"))
    assert (writer.queue_length, writer.dropped) == (3000, 0)


def test_transitions_keep_their_order(database_url: str) -> None:
    changes = [Transition(NOW, "a", "auto", "speculative", "autoregressive", f"p {i}\0") for i in range(3)]
    changes = [change._replace(at=NOW + i) for i, change in enumerate(changes)]
    with writing(database_url) as writer:
        for change in changes:
            writer.put_transition(change)
        writer.put_transition(changes[0]._replace(instance="b", at=NOW - 5))
    assert (writer.written, writer.dropped, writer.refused) == (0, 0, 0)
    reader = Reader(database_url)
    assert [row["reason"] for row in reader.transitions(3)] == ["p 2\ufffd", "p 1\ufffd", "p 0\ufffd"]
    (last,) = reader.transitions(1, "b")
    assert last["at"].timestamp() == NOW - 5
    assert reader.transitions(1, "nobody") == []
    reader.close()


def test_a_decision_keeps_its_evidence(database_url: str) -> None:
    evidence = {"p": 0.41, "interval": [0.38, 0.44], "k": None, "why": "\0"}
    whole = Transition(NOW, "a", "auto", "speculative", "autoregressive", "p fell", "", "acceptance", evidence)
    # At the same moment, of the same change: the slices differ.
    part = whole._replace(slice="scenario=fault_report", evidence=None)
    with writing(database_url) as writer:
        for decision in (whole, part, whole):
            writer.put_transition(decision)
    assert (writer.dropped, writer.refused) == (0, 0)
    reader = Reader(database_url)
    newest, oldest = reader.transitions()
    reader.close()
    assert (oldest["slice"], oldest["trigger"], oldest["evidence"]) == ("", "acceptance", evidence | {"why": "\ufffd"})
    assert (newest["slice"], newest["evidence"]) == ("scenario=fault_report", None)


def test_pairs_and_counters_have_one_row_each(database_url: str) -> None:
    pair = SimilarityRow(NOW, "a", "chatcmpl-1", "draft", 0.91, "ok", None, "MiniLM", False)
    unknown = dataclasses.replace(pair, at=NOW + 1, score=nan, level="unknown", reason="\0", first_divergence=7)
    span = CountersRow(NOW, "a", "speculative", 2, 60.0, 30, 120, 90, (26, 20), 150, False, "server", coverage=0.98)
    nothing = CountersRow(
        NOW + 1, "a", "speculative", 0, 60.0, None, None, None, None, None, True, "server", reason="x"
    )
    with writing(database_url) as writer:
        for each in (pair, pair, unknown):
            writer.put_similarity(each)
        for of_span in (span, nothing, span):
            writer.put_counters(of_span)
    assert (writer.written, writer.dropped, writer.refused, writer.queue_length) == (0, 0, 0, 0)
    pairs, spans = rows_of(database_url, schema.similarities), rows_of(database_url, schema.counters)
    assert pairs == [
        dataclasses.asdict(pair) | {"at": datetime.fromtimestamp(NOW, UTC)},
        dataclasses.asdict(unknown) | {"at": datetime.fromtimestamp(NOW + 1, UTC), "score": None, "reason": "\ufffd"},
    ]
    assert spans == [
        dataclasses.asdict(span) | {"at": datetime.fromtimestamp(NOW, UTC), "accepted_per_position": [26, 20]},
        dataclasses.asdict(nothing) | {"at": datetime.fromtimestamp(NOW + 1, UTC)},
    ]


def test_a_moved_token_has_one_row_over_restarts(database_url: str) -> None:
    first = MovedToken(NOW, "a", "speculative", "", "same_text", 4, 5, "<|eot|>\0", None, 3, 0.75, NOW - 60)
    again = dataclasses.replace(first, at=NOW + 900, count=7)
    others = [dataclasses.replace(first, instance="b"), dataclasses.replace(first, draft_model="d", draft_text="x")]
    for tokens in ([first, *others], [again, *others]):
        with writing(database_url) as writer:
            for token in tokens:
                writer.put_moved(token)
        assert (writer.written, writer.dropped, writer.refused) == (0, 0, 0)
    engine = reading_engine(database_url)
    with engine.begin() as connection:
        rows = connection.execute(select(schema.alignments).order_by(schema.alignments.c.id)).mappings().all()
    engine.dispose()
    assert [(row["instance"], row["draft_model"]) for row in rows] == [("a", ""), ("b", ""), ("a", "d")]
    assert dict(rows[0]) == {
        "id": rows[0]["id"],
        "at": datetime.fromtimestamp(NOW, UTC),
        "instance": "a",
        "upstream": "speculative",
        "draft_model": "",
        "kind": "same_text",
        "target_id": 4,
        "draft_id": 5,
        "target_text": "<|eot|>\ufffd",
        "draft_text": None,
        "count": 3,
        "share": 0.75,
        "first_seen": datetime.fromtimestamp(NOW - 60, UTC),
    }


def test_overflow_drops_the_oldest_and_counts_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    writer = Writer(url, capacity=100, max_age_s=0.02)
    items = [record() for _ in range(250)]
    for item in items:
        writer.put(item)
    assert (writer.queue_length, writer.dropped) == (100, 150)
    writer.start()
    writer.close(10)
    assert (writer.written, writer.dropped, writer.queue_length) == (100, 150, 0)
    assert [row["request_id"] for row in stored(url)] == [item.request_id for item in items[150:]]


def test_every_record_ends_in_one_count(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with writing(url, capacity=50, batch_size=7) as writer:
        for _ in range(5000):
            writer.put(record())
    assert writer.written + writer.dropped == 5000
    assert count(url) == writer.written


def test_a_locked_database_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with writing(f"sqlite:///{path}") as writer:
        writer.put(record())
        wait_for(lambda: writer.written == 1)
        lock = sqlite3.connect(path, isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        for _ in range(30):
            writer.put(record())
        wait_for(lambda: not writer.healthy)
        assert (writer.written, writer.queue_length) == (1, 30)
        lock.execute("ROLLBACK")
        lock.close()
        wait_for(lambda: writer.written == 31)
        assert writer.healthy
    assert count(f"sqlite:///{path}") == 31


def test_a_database_absent_at_first(tmp_path: Path) -> None:
    folder = tmp_path / "volume"
    with writing(f"sqlite:///{folder}/a.db") as writer:
        writer.put(record())
        time.sleep(0.2)
        assert (writer.healthy, writer.written) == (False, 0)
        folder.mkdir()
        wait_for(lambda: writer.written == 1)
        assert writer.healthy


def test_a_deleted_file_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.store.writer._CHECK_S", 0.05)
    url = f"sqlite:///{tmp_path}/a.db"
    with writing(url) as writer:
        wait_for(lambda: writer.healthy)
        for file in tmp_path.iterdir():
            file.unlink()
        wait_for((tmp_path / "a.db").exists)
        wait_for(lambda: writer.healthy)
        writer.put(record())
    assert count(url) == 1


def test_rows_go_to_the_file_that_took_anothers_place(tmp_path: Path) -> None:
    upgrade(f"sqlite:///{tmp_path}/backup.db")
    with writing(f"sqlite:///{tmp_path}/a.db") as writer:
        writer.put(record())
        wait_for(lambda: writer.written == 1)
        for name in ("a.db-wal", "a.db-shm"):
            (tmp_path / name).unlink()
        (tmp_path / "backup.db").rename(tmp_path / "a.db")
        writer.put(record())
        wait_for(lambda: writer.written == 2)
    assert count(f"sqlite:///{tmp_path}/a.db") == 1


def test_close_keeps_its_deadline_and_counts_what_is_left(tmp_path: Path) -> None:
    writer = Writer(f"sqlite:///{tmp_path}/absent/a.db")
    writer.start()
    for _ in range(7):
        writer.put(record())
    writer.close(0.1)
    assert (writer.written, writer.dropped) == (0, 7)


def test_a_writer_never_started_closes(tmp_path: Path) -> None:
    Writer(f"sqlite:///{tmp_path}/a.db").close(0)


def test_postgresql_down_at_first_and_in_between() -> None:
    with cluster() as server:
        url = server.new_url()
        server.stop()
        with writing(url) as writer:
            writer.put(record())
            wait_for(lambda: writer._pause_s > 0)
            assert not writer.healthy
            server.start()
            wait_for(lambda: writer.written == 1)
            stop = threading.Event()
            sent = [1]

            def load() -> None:
                while not stop.wait(0.002):
                    writer.put(record())
                    sent[0] += 1

            thread = threading.Thread(target=load)
            thread.start()
            wait_for(lambda: writer.written > 50)
            server.stop()
            wait_for(lambda: not writer.healthy)
            server.start()
            wait_for(lambda: writer.healthy)
            stop.set()
            thread.join()
        assert (writer.written, writer.dropped, writer.refused) == (sent[0], 0, 0)
        assert count(url) == sent[0]


def test_postgresql_stores_utc_whatever_the_zone_of_the_session(postgres: Cluster) -> None:
    url = postgres.new_url() + "?options=-c%20timezone%3DAsia/Shanghai"
    with writing(url) as writer:
        writer.put(record(started_at=NOW))
    (row,) = stored(url)
    assert row["started_at"].timestamp() == NOW
