"""Rows by filter and by id, where few of many match: nothing is missed, and every look is bounded."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import event
from support.records import NOW, figures, record

from sidecar.api.models import RequestPage
from sidecar.record import Acceptance, AcceptanceQuality, Record
from sidecar.store import pages, schema
from sidecar.store.expressions import Filters
from sidecar.store.pages import ALL, Only

from .test_queries import passes
from .test_rolled import DAY, HOUR, MINUTE, Rolled, store, utc

__all__ = ["store"]

#: Now is more than a day after the newest row.
LATER = NOW + 2 * DAY
LOOKS = 5


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "AT_A_TIME", 4)
    monkeypatch.setattr(pages, "MOST_LOOKED_AT", 4 * LOOKS)
    monkeypatch.setattr(pages, "MOST_FOR_AN_ID", 10)


def walk(
    store: Rolled, chosen: Filters, limit: int = 3, now: float = LATER, only: Only = ALL
) -> Iterator[list[dict[str, Any]]]:
    """The pages."""
    cursor = None
    for _ in range(500):
        page = store.reader.requests(chosen, limit, cursor, now, only)
        RequestPage.model_validate(page)
        yield page["requests"]
        cursor = page["next_cursor"]
        if cursor is None:
            return
    raise AssertionError("no end")


hours = st.integers(0, 60).map(lambda ago: NOW - ago * HOUR)
times = hours | st.integers(0, 10).map(lambda ago: NOW - ago / 1e6) | st.sampled_from((NOW - 40 * DAY, NOW - 90 * DAY))
#: Of all kinds: no figures at all, none that are trusted, nothing drafted, no lists.
told = st.sampled_from(
    (
        Acceptance(),
        figures((0, 0, 0)),
        figures((3, 1)),
        figures((1, 0, 4)),
        figures((0, 3, 0, 7)),
        figures((0, 3, 0, 7), rejected_at=None, reached=None),
        figures((3, 1), quality=AcceptanceQuality.INCONSISTENT, reason="too many"),
        figures((3_000_000_000, 1)),
    )
)
rows = st.builds(
    lambda at, name, instance, acceptance, latency_ms, reply_id: record(
        started_at=at,
        scenario=name,
        instance=instance,
        acceptance=acceptance,
        latency_ms=latency_ms,
        reply_id=reply_id,
    ),
    times,
    st.sampled_from(("chat", "code", "seldom")),
    st.sampled_from("ab"),
    told,
    st.sampled_from((None, 0.0, 100.0, 100.5)),
    st.sampled_from((None, "chatcmpl-a", "chatcmpl-b")),
)
onlys = st.just(ALL) | st.builds(
    Only,
    truncated_at=st.sampled_from((None, None, 1, 2, 64)),
    reply_id=st.sampled_from((None, None, "chatcmpl-a", "nobody")),
    latency_over_ms=st.sampled_from((None, None, 0, 100)),
    p_below=st.sampled_from((None, None, 0, 0.25, 0.65, 0.8, 1)),
    k=st.sampled_from((None, None, 2, 3, 7)),
)


def is_wanted(item: Record, only: Only) -> bool:
    known = item.acceptance if item.acceptance.quality is AcceptanceQuality.OK else Acceptance()
    p = known.accepted_tokens / known.draft_tokens if known.draft_tokens and known.accepted_tokens is not None else None
    at = (*(known.rejected_at or ()), *[0] * 64)
    return (
        (only.truncated_at is None or at[only.truncated_at - 1] > 0)
        and (only.reply_id is None or item.reply_id == only.reply_id)
        and (only.latency_over_ms is None or (item.latency_ms is not None and item.latency_ms > only.latency_over_ms))
        and (only.p_below is None or (p is not None and p < only.p_below))
        and (only.k is None or item.acceptance.num_speculative_tokens == only.k)
    )


filters = st.builds(
    Filters,
    scenario=st.sampled_from((None, "chat", "seldom", "nobody")),
    instance=st.sampled_from((None, "a")),
    since=st.none() | times.map(utc),
    until=st.none() | times.map(utc),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(rows, max_size=60),
    st.lists(rows, max_size=6),
    filters,
    onlys,
    st.integers(1, 5),
    st.sampled_from((0, LATER)),
)
def test_pages_walk_all_rows_once(
    store: Rolled, items: list[Record], late: list[Record], chosen: Filters, only: Only, limit: int, now: float
) -> None:
    store.hold(items, late=late)
    marks = {item.started_at // MINUTE * MINUTE for item in late[::2]}
    store.due(MINUTE, *marks)
    store.due(HOUR, *({item.started_at // HOUR * HOUR for item in late[1::2]}))
    walked = [row["request_id"] for page in walk(store, chosen, limit, now, only) for row in page]
    wanted = [item for item in [*items, *late] if passes(item, chosen) and is_wanted(item, only)]
    if chosen.since:
        wanted = [item for item in wanted if item.started_at >= chosen.since.timestamp()]
    if chosen.until:
        wanted = [item for item in wanted if round(item.started_at, 6) < chosen.until.timestamp()]
    wanted.reverse()
    assert walked == [item.request_id for item in sorted(wanted, key=lambda item: -round(item.started_at, 6))]


def test_a_page_may_end_before_it_is_full(store: Rolled) -> None:
    many = [record(started_at=NOW - i, scenario="chat") for i in range(50)]
    store.hold([record(started_at=NOW - 100, scenario="seldom"), *many])
    found = list(walk(store, Filters(scenario="seldom"), now=0))
    # 20 are looked at for each.
    assert [len(page) for page in found] == [0, 0, 1]


@pytest.mark.parametrize(
    "only", [Only(truncated_at=3), Only(reply_id="chatcmpl-x"), Only(latency_over_ms=9e5), Only(p_below=0.1)]
)
def test_a_look_for_what_few_rows_have_is_bounded(store: Rolled, only: Only) -> None:
    """Each page looks at LOOKS times AT_A_TIME rows at most, and goes on where it ended."""
    many = [record(started_at=NOW - i) for i in range(50)]
    rare = record(
        started_at=NOW - 100, acceptance=figures((9, 0, 1, 0)), latency_ms=1e6, reply_id="chatcmpl-x", request_id="rare"
    )
    store.hold([rare, *[replace(item, acceptance=figures((0, 0, 0, 9))) for item in many]])
    found = list(walk(store, Filters(), now=0, only=only))
    assert [[row["request_id"] for row in page] for page in found] == [[], [], ["rare"]]


NOT_TRUSTED = figures((3, 1), quality=AcceptanceQuality.INCONSISTENT, reason="too many")


@pytest.mark.parametrize(
    ("only", "fields", "is_found"),
    [
        (Only(p_below=0.3), {"acceptance": figures((3, 1))}, True),
        (Only(p_below=0.25), {"acceptance": figures((3, 1))}, False),
        (Only(p_below=1), {"acceptance": NOT_TRUSTED}, False),
        (Only(p_below=1), {"acceptance": Acceptance()}, False),
        (Only(p_below=1), {"acceptance": figures((0, 0))}, False),
        (Only(truncated_at=1), {"acceptance": figures((3, 1))}, True),
        (Only(truncated_at=2), {"acceptance": figures((3, 1))}, False),
        (Only(truncated_at=1), {"acceptance": figures((0, 4))}, False),
        (Only(truncated_at=1), {"acceptance": NOT_TRUSTED}, False),
        (Only(truncated_at=1), {"acceptance": Acceptance()}, False),
        (Only(k=4), {"acceptance": figures((3, 0, 1, 0, 4))}, True),
        (Only(k=3), {"acceptance": figures((3, 0, 1, 0, 4))}, False),
        (Only(k=0), {"acceptance": Acceptance()}, False),
        (Only(latency_over_ms=0), {"latency_ms": 0.1}, True),
        (Only(latency_over_ms=0), {"latency_ms": 0.0}, False),
        (Only(latency_over_ms=0), {"latency_ms": None}, False),
        (Only(reply_id="a\0"), {"reply_id": "a\0"}, True),
        (Only(reply_id="a"), {"reply_id": None}, False),
    ],
)
def test_what_is_unknown_is_no_number(store: Rolled, only: Only, fields: dict[str, Any], is_found: bool) -> None:
    store.hold([record(**fields)])
    assert sum(map(len, walk(store, Filters(), only=only))) == is_found


def test_hours_without_rows_of_a_scenario_are_passed_over(store: Rolled) -> None:
    busy = [record(started_at=NOW - i * 600, scenario="chat") for i in range(6 * 200)]
    store.hold([*busy, record(started_at=NOW - 190 * HOUR, scenario="seldom")])
    page = store.reader.requests(Filters(scenario="seldom"), 3, None, LATER)
    assert (len(page["requests"]), page["next_cursor"]) == (1, None)
    # What is pooled may be any scenario.
    with store._engine.begin() as connection:
        pooled = schema.rollups.c.scenario == "seldom"
        connection.execute(schema.rollups.update().where(pooled).values(scenario="other"))
    assert store.reader.requests(Filters(scenario="seldom"), 3, None, LATER) == page
    assert store.reader.requests(Filters(scenario="nobody"), 3, None, LATER)["requests"] == []


def test_the_last_two_hours_are_always_looked_through(store: Rolled) -> None:
    now = NOW // HOUR * HOUR + 10
    fresh = [record(started_at=now - 5, scenario="seldom"), record(started_at=now - HOUR, scenario="seldom")]
    store.hold([record(started_at=now - 3 * HOUR)], late=fresh)
    page = store.reader.requests(Filters(scenario="seldom"), 3, None, now)
    assert [row["request_id"] for row in page["requests"]] == [item.request_id for item in fresh]


def test_without_rollups_all_rows_are_looked_through(store: Rolled) -> None:
    store.hold([], late=[record(started_at=NOW - i * DAY, scenario="seldom" if i == 9 else "chat") for i in range(12)])
    assert sum(len(page) for page in walk(store, Filters(scenario="seldom"))) == 1


# ---- by id


def test_an_id_is_looked_for_among_the_newest_rows(store: Rolled) -> None:
    items = [record(request_id=f"r{i % 25}", started_at=NOW - i, status=200 + i) for i in range(50)]
    store.hold(items)
    row, rest = store.reader.request("r9")
    assert (row and row["status"], rest) == (209, None)
    row, rest = store.reader.request("r10")
    assert row is None
    assert rest == utc(NOW - 10) + timedelta(microseconds=1)
    row, rest = store.reader.request("r10", rest)
    assert (row and row["status"], rest) == (210, None)
    row, rest = store.reader.request("r10", utc(NOW - 30))
    assert (row and row["status"], rest) == (235, None)
    assert store.reader.request("nobody", utc(NOW - 45)) == (None, None)


def test_the_end_is_found_from_page_to_page(store: Rolled) -> None:
    store.hold([record(started_at=NOW - i) for i in range(35)])
    until, looks = None, 0
    while looks == 0 or until is not None:
        row, until = store.reader.request("nobody", until)
        assert row is None
        looks += 1
    assert looks == 4


# ---- how they are asked for


def statements(store: Rolled, ask: Sequence[Any]) -> list[tuple[str, Any]]:
    """What reading `ask` sends to the database."""
    found: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        found.append((statement, parameters))

    engine = store.reader._engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        for each in ask:
            each()
    finally:
        event.remove(engine, "before_cursor_execute", note)
    return [(statement, parameters) for statement, parameters in found if statement.startswith(("SELECT", "WITH"))]


def test_every_query_uses_an_index(store: Rolled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "AT_A_TIME", 20_000)
    items = [record(started_at=NOW - i * 600) for i in range(6 * 24 * 9)]
    store.hold(items)
    store.due(HOUR, NOW // HOUR * HOUR)
    reader, some = store.reader, Filters(scenario="default", arm="speculative")
    series = reader.acceptance, reader.truncation, reader.latency, reader.traffic
    chat = Filters(scenario="chat")
    asked = statements(
        store,
        [
            lambda: reader.summary(8 * DAY, NOW),
            *(lambda read=read, by=by: read(8 * DAY, DAY, by, Filters(), NOW) for read in series for by in (None, "k")),
            *(lambda read=read: read(8 * DAY, None, "scenario", some, NOW) for read in series),
            lambda: reader.acceptance(DAY, None, "concurrency", some, NOW),
            lambda: reader.summary(8 * DAY, NOW, some),
            lambda: reader.summary(8 * DAY, NOW, Filters(instance="test")),
            lambda: reader.distribution(8 * DAY, Filters(), NOW),
            lambda: reader.distribution(HOUR, Filters(instance="test"), NOW),
            lambda: reader.similarity(8 * DAY, DAY, NOW),
            lambda: reader.similarity(8 * DAY, DAY, NOW, "scenario", chat),
            lambda: reader.similarity_histogram(8 * DAY, Filters(), NOW),
            lambda: reader.similarity_histogram(8 * DAY, chat, NOW),
            lambda: reader.similarity_pairs(8 * DAY, "draft", 20, Filters(), NOW),
            lambda: reader.requests(Filters(), 10, None, NOW),
            lambda: reader.requests(some, 10, None, NOW),
            lambda: reader.requests(Filters(), 10, None, NOW, Only(1, "a", 2, 0.5)),
            lambda: reader.request(items[100].request_id),
            lambda: reader.request("nobody", utc(NOW)),
            lambda: reader.last_100(NOW),
            lambda: reader.transitions(),
            lambda: reader.alerts(),
            lambda: reader.events(utc(NOW), None, limit=10),
        ],
    )
    assert len(asked) > 50
    sqlite = store._engine.dialect.name == "sqlite"
    with store._engine.begin() as connection:
        if not sqlite:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        for statement, parameters in asked:
            plan = connection.exec_driver_sql(("EXPLAIN QUERY PLAN " if sqlite else "EXPLAIN ") + statement, parameters)
            for line in [str(row[-1]) for row in plan]:
                whole = line.strip().startswith("SCAN") and "INDEX" not in line if sqlite else "Seq Scan" in line
                tables = (
                    "requests",
                    "rollups",
                    "similarities",
                    "similarity_rollups",
                    "transitions",
                    "alerts",
                    "versions",
                )
                assert not (whole and any(table in line.split() for table in tables)), (statement, line)
