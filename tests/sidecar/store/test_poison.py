"""What no database takes, by name: it takes no other row along, and is kept for people to look at.

Texts are mended, numbers that are none are null; what is left is refused. Both in the way to the database, and in the
way to the spool.
"""

import dataclasses
import json
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from sqlalchemy import select
from support.records import NOW, figures, record
from support.stored import count, rows_of, wait_for, writing

from alerts.model import Alert, Event, Happening, Status
from sidecar.record import Acceptance
from sidecar.store import schema
from sidecar.store.engine import reading_engine
from sidecar.store.quarantine import NAME
from sidecar.store.rows import (
    MAX_RAW,
    AuditRow,
    CountersRow,
    MovedToken,
    SimilarityRow,
    TextRow,
    Transition,
    VersionRow,
)
from sidecar.store.spool import Spool
from sidecar.store.writer import Writer

TRANSITION = Transition(NOW, "i", "auto", "speculative", "autoregressive", "why")
MOVED = MovedToken(NOW, "i", "u", "d", "same_text", 4, 5, "a", "b", 3, 0.75, NOW)
PAIR = SimilarityRow(NOW, "i", "r", "draft", 0.91, "ok", None, "m", False)
SPAN = CountersRow(NOW, "i", "u", 1, 60.0, 30, 120, 90, (26, 20), 150, False, "server")
TEXT = TextRow(NOW, "i", "r", "prompt", "s", "hello", False)
ORDER = AuditRow(NOW, "i", "open", "127.0.0.1", "PUT", "/x", 200, "")
VERSION = VersionRow(NOW, "i", "u", "vllm", "0.32.0")
ALERT = Alert({"alertname": "A", "severity": "info", "instance": "i"}, {}, Status.FIRING, 1.0)
EVENT = Event(2.0, Happening.NOTIFIED, ALERT, "hook")

BIG, HUGE = 2**63, 10**400
LONG = "é\0\ud800" * 200_000
ODD = "a\0b\ud800c\udfff"

#: By table: how its items are put, one that is good, and such as are mended and stored.
GOOD: dict[str, tuple[str, Any]] = {
    "requests": ("put", record()),
    "transitions": ("put_transition", TRANSITION),
    "alignments": ("put_moved", MOVED),
    "similarities": ("put_similarity", PAIR),
    "counters": ("put_counters", SPAN),
    "texts": ("put_text", TEXT),
    "audit": ("put_audit", ORDER),
    "versions": ("put_version", VERSION),
    "alerts": ("put_alert", EVENT),
}


def changed(item: Any, **fields: Any) -> Any:
    if isinstance(item, Transition):
        return item._replace(**fields)
    return dataclasses.replace(item, **fields) if dataclasses.is_dataclass(item) else structs.replace(item, **fields)


#: Stored all the same.
MENDED: dict[str, dict[str, Any]] = {
    "requests": {
        "odd text": {"scenario": ODD, "model": ODD, "request_id": ODD, "finish_reason": ODD, "reply_id": ODD},
        "odd facts": {"fingerprint": ODD, "draft_model": ODD, "endpoint": ODD},
        "long text": {"request_id": LONG, "acceptance": Acceptance(reason=LONG, raw=LONG)},
        "not numbers": {"latency_ms": nan, "ttft_ms": inf, "tpot_ms": -inf, "temperature": 1e400, "queue_ms": nan},
        "edges": {"bytes_out": BIG - 1, "bytes_in": -BIG, "prompt_tokens": BIG - 1},
        "before the epoch": {"started_at": -1.5},
        "year 1": {"started_at": -62_135_596_800 + 3600.0},
        "year 9999": {"started_at": 253_402_300_799.0},
        "the epoch": {"started_at": 0.0},
    },
    "transitions": {
        "odd text": {"reason": ODD, "slice": ODD, "evidence": {"p": nan, "why": ODD, "list": [1, None], "n": HUGE}},
        "long text": {"reason": LONG},
    },
    "alignments": {"odd text": {"target_text": ODD, "draft_text": LONG, "draft_model": ODD}},
    "similarities": {
        "odd text": {"request_id": ODD, "reason": LONG, "scenario": ODD},
        "not numbers": {"score": nan, "at": NOW + 1},
    },
    "counters": {"odd text": {"upstream": ODD, "reason": LONG, "request_id": ODD}, "nan": {"coverage": inf, "at": 1.0}},
    "texts": {
        "odd text": {"text": ODD, "scenario": ODD, "request_id": ODD},
        "long text": {"text": LONG, "at": NOW + 1},
    },
    "audit": {"odd text": {"path": ODD, "client": ODD, "detail": LONG}},
    "versions": {"odd text": {"upstream": ODD, "name": ODD, "value": LONG}},
    "alerts": {"odd text": {"receiver": ODD, "detail": LONG, "reason": ODD}},
}

#: Refused by both databases.
REFUSED: dict[str, dict[str, Any]] = {
    "requests": {
        "2^63": {"bytes_out": BIG},
        "-2^63 - 1": {"prompt_tokens": -BIG - 1},
        "2^64": {"bytes_in": 2 * BIG},
        "1e400, whole": {"temperature": HUGE},
        "digits that Python writes out no more": {"bytes_in": 10**5000},
        "in a list": {"acceptance": figures((1, 2 * BIG))},
        "no scenario": {"scenario": None},
        "no arm": {"arm": None},
        "bytes": {"model": b"bytes"},
        "a number for text": {"scenario": 7},
        "no time": {"started_at": None},
        "not a time": {"started_at": nan},
        "the end of times": {"started_at": inf},
        "year 10000": {"started_at": 253_402_300_800.0},
        "before year 1": {"started_at": -62_135_596_801.0},
        "far out": {"started_at": 1e300},
    },
    "transitions": {
        "time": {"at": 1e20},
        "no text": {"evidence": {"x": object()}},
    },
    "alignments": {
        "2^63": {"target_id": BIG},
        "time": {"first_seen": nan},
        "type": {"kind": None},
        "nan": {"share": nan},
    },
    "similarities": {"2^63": {"first_divergence": BIG}, "time": {"at": -inf}, "type": {"level": 3}},
    "counters": {"2^63": {"drafts": BIG}, "in a list": {"accepted_per_position": (HUGE,)}, "time": {"at": 1e18}},
    "texts": {"type": {"text": None}, "bytes": {"text": b"x"}, "time": {"at": nan}},
    "audit": {"2^63": {"status": BIG}, "type": {"path": None}, "time": {"at": inf}},
    "versions": {"type": {"value": None}, "time": {"at": nan}},
    "alerts": {"time": {"at": nan}, "type": {"receiver": None}, "what": {"what": None}},
}


def put(writer: Writer, table: str, items: list[Any]) -> None:
    method: Callable[[Any], None] = getattr(writer, GOOD[table][0])
    for item in items:
        method(item)


@pytest.mark.parametrize("way", ["direct", "spooled"])
def test_poison_by_name(database_url: str, tmp_path: Path, way: str) -> None:
    spool = Spool(tmp_path / "spool", 100_000_000, database_url)
    expected = {}
    writer = Writer(database_url, max_age_s=0.02, spool=spool)
    for table, (_, good) in GOOD.items():
        time = "started_at" if table == "requests" else "at"
        mended = [changed(good, **{time: NOW + n} | fields) for n, fields in enumerate(MENDED[table].values(), 9)]
        refused = [changed(good, **{time: NOW + n} | fields) for n, fields in enumerate(REFUSED[table].values(), 99)]
        late = [changed(good, **{time: NOW - 7})]
        mixed = [good]
        for each in zip(mended + [None] * len(refused), refused + [None] * len(mended), strict=True):
            mixed += [item for item in each if item is not None]
        put(writer, table, [*mixed, *late, "not an item"])
        # A token has one row whenever it is named.
        expected[table] = 2 + len(mended) - (table == "alignments")
    if way == "spooled":
        writer._to_spool()
        assert writer._in_memory() == 0
    writer.start()
    wait_for(lambda: writer.queue_length == 0)
    writer.close(10)
    found = {table: count(database_url, table) for table in GOOD}
    assert found == expected
    bad = {table: len(cases) + 1 for table, cases in REFUSED.items()}
    assert writer.refused == sum(bad.values())
    assert writer.dropped == 0
    kept = [json.loads(line) for line in (tmp_path / "spool" / NAME).read_text().splitlines()]
    assert {table: sum(line["table"] == table for line in kept) for table in bad} == bad
    for line in kept:
        assert line["reason"]
        assert line["columns"].keys() <= {column.name for column in schema.metadata.tables[line["table"]].columns}


def test_texts_are_cut_and_said_to_be(database_url: str) -> None:
    with writing(database_url) as writer:
        writer.put_text(changed(TEXT, text="x" * (MAX_RAW + 1)))
        writer.put_text(changed(TEXT, kind="reply", text="y" * MAX_RAW))
    first, second = rows_of(database_url, schema.texts)
    assert (first["text"], first["cut"]) == ("x" * MAX_RAW, True)
    assert (second["text"], second["cut"]) == ("y" * MAX_RAW, False)
    assert writer.dropped == 0


def test_texts_that_wait_are_bounded_by_their_characters() -> None:
    writer = Writer("sqlite:///never.db")
    for number in range(500):
        writer.put_text(changed(TEXT, text="x" * MAX_RAW, request_id=str(number)))
    assert writer.queue_length == 16_000_000 // MAX_RAW
    assert writer.queue_length + writer.dropped == 500
    for _ in range(2000):
        writer.put_text(changed(TEXT, text=""))
    assert writer.queue_length == 1000
    assert writer.queue_length + writer.dropped == 2500


def test_orders_have_a_row_each(database_url: str) -> None:
    with writing(database_url) as writer:
        writer.put_audit(ORDER)
        writer.put_audit(changed(ORDER, path="/y\0", status=403))
    first, second = rows_of(database_url, schema.audit)
    assert first == dataclasses.asdict(ORDER) | {"at": first["at"]}
    assert first["at"].timestamp() == NOW
    assert (second["path"], second["status"]) == ("/y\ufffd", 403)


def test_minutes_whose_rows_change_are_due(database_url: str) -> None:
    items = [record(started_at=NOW + seconds) for seconds in (0, 29.9999999, 30, 1000)]
    with writing(database_url) as writer:
        wait_for(lambda: writer.healthy)
        for item in items:
            writer.put(item)
        writer.put_similarity(PAIR)
        writer.put_counters(SPAN)
    marks = marks_of(database_url)
    minute = NOW // 60 * 60
    assert sorted((family, at) for family, at, *_ in marks) == [
        ("requests", minute),
        ("requests", minute + 60),
        ("requests", (NOW + 1000) // 60 * 60),
        ("similarities", minute),
    ]
    with writing(database_url) as writer:
        writer.put(record(started_at=NOW + 1, instance="other"))
        writer.put(record(started_at=NOW + 2))
    after = marks_of(database_url)
    assert len(after) == 5
    # That minute has new marks; the others have not.
    assert len(after & marks) == 3


def marks_of(database_url: str) -> set[tuple[str, float, str, int]]:
    engine = reading_engine(database_url)
    with engine.begin() as connection:
        rows = connection.execute(select(schema.rollups_due)).mappings().all()
    engine.dispose()
    assert {row["span_s"] for row in rows} == {60}
    return {(row["family"], row["at"].timestamp(), row["instance"], row["stamp"]) for row in rows}
