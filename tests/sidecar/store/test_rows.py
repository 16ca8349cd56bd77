from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from support.records import figures, record

from sidecar.record import Acceptance, Arm, Outcome, Record
from sidecar.store import rows
from sidecar.store.rows import COLUMNS, MAX_TEXT, NULL, request_row, utc_text

EPOCH = datetime.fromtimestamp(0, UTC)


@given(st.integers(0, 4_000_000_000_000_000))
def test_times_are_exact_to_the_microsecond(micros: int) -> None:
    text = utc_text(micros / 1e6)
    assert len(text) == 26
    assert datetime.fromisoformat(text + "+00:00") - EPOCH == timedelta(microseconds=micros)


@given(st.floats(0, 4e9), st.floats(0, 4e9))
def test_times_sort_as_their_texts_do(one: float, other: float) -> None:
    assert (utc_text(one) <= utc_text(other)) or one > other


def test_what_is_unknown_is_null_and_nothing_else_is() -> None:
    bare = request_row(Record("r", 0.0, "i", "u", Arm.BASELINE, "e", "s", Outcome.CLIENT_ABORT))
    known = {name for name, value in zip(COLUMNS, bare, strict=True) if value is not NULL}
    assert known == {
        *("request_id", "started_at", "instance", "upstream", "arm", "scenario", "stream", "endpoint", "outcome"),
        *("acceptance_source", "acceptance_quality", "concurrency", "bytes_in", "bytes_out"),
    }
    # A driver may bind these at once, and no other types.
    full = request_row(record(acceptance=figures((1, 2), reason="r", raw="{}"), stream=True))
    assert {type(value) for value in (*bare, *full)} == {str, int, float}


def test_names_that_clients_choose_are_not_kept_for_long() -> None:
    for number in range(3 * rows._MOST_NAMES):
        item = record(scenario=f"s{number}", model="m\0", acceptance=Acceptance(reason="y" * number))
        first, second = request_row(item), request_row(item)
        assert first == second
        row = dict(zip(COLUMNS, first, strict=True))
        assert (row["scenario"], row["model"]) == (item.scenario, "m\ufffd")
        assert row["acceptance_reason"] == "y" * min(number, MAX_TEXT)
        assert len(rows._known_names) <= rows._MOST_NAMES
    request_row(record(finish_reason="z" * 1_000_000))
    assert max(len("".join(filter(None, names))) for names in rows._known_names) <= rows._LONGEST_NAMES
