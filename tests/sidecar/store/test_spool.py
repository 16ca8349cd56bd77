"""Rows on disk come back once each and in order, whatever happens to the files; what does not is counted (C29)."""

import errno
import json
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from itertools import count
from math import isnan, nan
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import record

from sidecar.store import quarantine, spool
from sidecar.store.quarantine import Quarantine
from sidecar.store.rows import TABLE_COLUMNS, AuditRow, Row, audit_row, request_row
from sidecar.store.spool import Frame, Spool, SpoolError

URL = "postgresql://me:secret@db/specwatch"


def orders(*numbers: int) -> list[Row]:
    return [audit_row(AuditRow(1.0, "i", "open", "c", "PUT", f"/{number}", 200, "")) for number in numbers]


def numbers(frames: list[Frame]) -> list[int]:
    path = TABLE_COLUMNS["audit"].index("path")
    return [int(str(row[path])[1:]) for frame in frames for row in frame.rows]


def emptied(waiting: Spool, most: int = 1) -> list[int]:
    """All that is in a spool, taken out."""
    found = []
    while waiting.bytes:
        found += numbers(list(waiting.read(most)))
        waiting.advance()
    return found


def segments(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.rows"), key=lambda path: path.name)


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_SEGMENT_BYTES", 400)


@pytest.mark.usefixtures("small_segments")
def test_rows_come_back_in_order_over_restarts(tmp_path: Path) -> None:
    first = Spool(tmp_path, 1 << 20, URL)
    for number in range(0, 100, 2):
        assert first.append("audit", orders(number, number + 1)) == 2
    assert len(segments(tmp_path)) > 5
    assert first.records == 100
    # Read and not known to be stored: they stay.
    assert numbers(list(first.read(7))) == [*range(8)]
    assert numbers(list(first.read(3))) == [*range(4)]
    first.advance()
    assert first.records == 96
    first.close()
    # Another password is no other database.
    second = Spool(tmp_path, 1 << 20, URL.replace("secret", "changed"))
    assert second.records == 0
    second.adopt()
    second.append("audit", orders(100))
    # A segment that is not used up is sent again as a whole: its rows are in the database once all the same.
    assert emptied(second, 9) in ([*range(101)], [*range(4, 101)])
    assert (second.records, second.bytes, second.dropped) == (0, 0, 0)
    second.close()
    assert [*tmp_path.iterdir()] == []


def test_only_what_the_dead_have_left_for_the_same_database_is_taken_over(tmp_path: Path) -> None:
    alive, dead, other = (Spool(tmp_path, 1 << 20, url) for url in (URL, URL, URL + "2"))
    for number, each in enumerate((alive, dead, other)):
        each.append("audit", orders(number))
    dead.close()
    other.close()
    heir = Spool(tmp_path, 1 << 20, URL)
    heir.adopt()
    assert emptied(heir) == [1]
    assert emptied(alive) == [0]
    heir.close()
    alive.close()
    assert len(segments(tmp_path)) == 1


def test_values_of_all_kinds_come_back(tmp_path: Path) -> None:
    waiting = Spool(tmp_path, 1 << 20, URL)
    row = request_row(record(scenario="写 🙂", temperature=0.1 + 0.2, prompt_tokens=2**40, bytes_out=-1))
    waiting.append("requests", [row])
    ((table, (found,)),) = waiting.read(1)
    assert table == "requests"
    assert all(a == b or (isnan(a) and isnan(b)) for a, b in zip(row, found, strict=True))  # type: ignore[arg-type]
    for odd in (2**64, "\ud800", object(), nan.as_integer_ratio):
        with pytest.raises((OverflowError, ValueError, TypeError)):
            waiting.append("audit", [*orders(1), (odd,)])
    assert waiting.records == 1
    waiting.close()


def test_requests_of_before_steps_were_told_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = TABLE_COLUMNS["requests"]
    row = request_row(record(reply_id="chatcmpl-a"))
    old = Spool(tmp_path, 1 << 20, URL)
    with monkeypatch.context() as before:
        before.setattr(spool, "TABLE_COLUMNS", TABLE_COLUMNS | {"requests": columns[:-2]})
        old.append("requests", [row[:-2]])
    old.close()
    new = Spool(tmp_path, 1 << 20, URL)
    new.adopt()
    (frame,) = new.read(100)
    known = dict(zip(columns, frame.rows[0], strict=True))
    assert [name for name, value in known.items() if value == value] == [
        name for name, value in zip(columns, row, strict=True) if value == value and name != "reply_id"
    ]
    assert columns[-2:] == ("reply_id", "steps")


def test_columns_go_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Spool(tmp_path, 1 << 20, URL)
    with monkeypatch.context() as before:
        before.setattr(
            spool, "TABLE_COLUMNS", {"audit": ("path", "colour", "at"), "gone": ("x",), "texts": TABLE_COLUMNS["texts"]}
        )
        old.append("audit", [("/7", "red", "2026-01-01 00:00:00.000000")])
        old.append("gone", [(1,)])
        old.append("audit", [("/8", "blue", "2026-01-01 00:00:00.000000")])
    old.close()
    new = Spool(tmp_path, 1 << 20, URL)
    new.adopt()
    frames = list(new.read(100))
    assert numbers(frames) == [7, 8]
    known = dict(zip(TABLE_COLUMNS["audit"], frames[0].rows[0], strict=True))
    assert known.pop("at") == "2026-01-01 00:00:00.000000"
    assert known.pop("path") == "/7"
    assert all(isnan(value) for value in known.values())  # type: ignore[arg-type]
    new.advance()
    assert (new.records, new.bytes, new.dropped) == (0, 0, 1)


@given(st.data())
def test_a_damaged_file_costs_what_lies_behind_the_damage(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first = Spool(Path(folder), 1 << 20, URL)
        for number in range(6):
            first.append("audit", orders(2 * number, 2 * number + 1))
        first.close()
        (path,) = segments(Path(folder))
        content = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(content) - 1), "at")
        match data.draw(st.sampled_from(("cut", "changed", "longer", "gone")), "damage"):
            case "cut":
                del content[at:]
            case "changed":
                content[at] ^= data.draw(st.integers(1, 255))
            case "longer":
                content += data.draw(st.binary(min_size=1, max_size=50))
            case "gone":
                content = bytearray(len(content))
        path.write_bytes(content)
        second = Spool(Path(folder), 1 << 20, URL)
        second.adopt()
        waited = second.records
        found = emptied(second, data.draw(st.integers(1, 20), "most"))
        assert found == [*range(len(found))]
        assert waited == len(found) + second.dropped
        assert second.records == second.bytes == 0
        second.close()
        assert [*Path(folder).iterdir()] == []


def test_rows_wait_where_there_are_no_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is not to blame, and is not given up."""
    waiting = Spool(tmp_path, 1 << 20, URL)
    waiting.append("audit", orders(1, 2))

    def refuse(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        with pytest.raises(OSError, match="Too many"):
            list(waiting.read(10))
        assert waiting.records == 2
    assert emptied(waiting) == [1, 2]
    assert waiting.dropped == 0


@given(st.lists(st.integers(1, 30), max_size=60), st.integers(500, 8000))
def test_at_the_limit_the_oldest_go(sizes: list[int], limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        waiting, put = Spool(Path(folder), limit, URL), 0
        for size in sizes:
            left = orders(*range(put, put + size))
            put += size
            while left:
                del left[: waiting.append("audit", left)]
            assert waiting.records + waiting.dropped == put
            on_disk = sum(path.stat().st_size for path in segments(Path(folder)))
            assert waiting.bytes == on_disk <= limit
        found = emptied(waiting)
        assert found == [*range(put - len(found), put)]
        waiting.close()


def test_leftovers_beyond_the_limit_go(tmp_path: Path) -> None:
    for number in range(4):
        one = Spool(tmp_path, 1 << 20, URL)
        one.append("audit", orders(number))
        one.close()
    heir = Spool(tmp_path, 300, URL)
    heir.adopt()
    assert heir.records == 2
    assert heir.dropped == 2
    assert emptied(heir) == [2, 3]


def test_a_row_larger_than_the_limit_is_dropped(tmp_path: Path) -> None:
    waiting = Spool(tmp_path, 1000, URL)
    assert waiting.append("audit", [(*orders(1)[0][:-1], "x" * 2000)]) == 1
    assert (waiting.records, waiting.dropped) == (0, 1)


def _full(write: Callable[[int, Any], int]) -> Callable[[int, Any], int]:
    """A disk on which half a frame still has room, each time."""
    asked = count()

    def half(file: int, data: Any) -> int:
        if next(asked) % 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[:50])

    return half


def test_a_full_disk_keeps_nothing_by_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spool, "_AGAIN_S", 0.0)
    caplog.set_level(logging.INFO)
    waiting = Spool(tmp_path, 1 << 20, URL)
    assert waiting.append("audit", orders(1)) == 1
    with monkeypatch.context() as full:
        full.setattr(os, "write", _full(os.write))
        for _ in range(3):
            assert waiting.append("audit", orders(2)) == 0
    assert waiting.records == 1
    assert waiting.bytes == sum(path.stat().st_size for path in segments(tmp_path))
    assert waiting.append("audit", orders(3)) == 1
    said = [line for line in caplog.messages if "takes" in line]
    assert len(said) == 2
    assert "takes no rows, which wait in memory: No space left on device" in said[0]
    assert "takes rows again" in said[1]
    assert emptied(waiting) == [1, 3]
    assert waiting.dropped == 0


def test_half_a_frame_that_stays_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_AGAIN_S", 0.0)
    waiting = Spool(tmp_path, 1 << 20, URL)
    waiting.append("audit", orders(1))
    with monkeypatch.context() as full:
        full.setattr(os, "write", _full(os.write))
        full.setattr(os, "ftruncate", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
        assert waiting.append("audit", orders(2)) == 0
    waiting.append("audit", orders(3))
    assert emptied(waiting) == [1, 3]
    assert waiting.dropped == 0


def test_a_refusing_disk_is_not_asked_at_once_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Spool(tmp_path, 1 << 20, URL)
    with monkeypatch.context() as full:
        full.setattr(os, "write", _full(os.write))
        assert waiting.append("audit", orders(1)) == 0
    assert waiting.append("audit", orders(1)) == 0
    monkeypatch.setattr(waiting, "_again_at", 0.0)
    assert waiting.append("audit", orders(1)) == 1


def test_a_real_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_AGAIN_S", 0.0)
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "specwatch", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system of its own may be mounted here: {mounted.stderr.decode().strip()}")
    try:
        waiting = Spool(disk / "spool", 1 << 30, URL)
        kept, number = [], 0
        while len(kept) + 50 > number:
            if waiting.append("audit", orders(number)):
                kept.append(number)
            number += 1
        assert len(kept) > 1000
        for path in segments(disk / "spool")[:1]:
            # Somebody makes room; what was there is lost, and counted.
            path.unlink()
        assert waiting.append("audit", orders(number)) == 1
        found = emptied(waiting, 500)
        assert found == [*kept, number][-len(found) :]
        assert len(found) + waiting.dropped == len(kept) + 1
        waiting.close()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_that_vanishes_is_made_anew(tmp_path: Path) -> None:
    root = tmp_path / "a" / "spool"
    waiting = Spool(root, 1 << 20, URL)
    waiting.append("audit", orders(1))
    shutil.rmtree(tmp_path / "a")
    assert waiting.append("audit", orders(2)) == 1
    other = Spool(root, 1 << 20, URL)
    other.adopt()
    assert other.records == 0
    assert emptied(waiting) == [2]
    assert (waiting.records, waiting.dropped) == (0, 1)


def test_a_folder_that_cannot_be_had(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "spool"):
        with pytest.raises(SpoolError, match="file"):
            Spool(folder, 1 << 20, URL)


def test_frames_are_split_where_rows_are_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_SEGMENT_BYTES", 4000)
    waiting, rows = Spool(tmp_path, 1 << 20, URL), [(*row[:-1], "x" * 1500) for row in orders(*range(10))]
    while rows:
        taken = waiting.append("audit", rows)
        assert 1 <= taken <= 2
        del rows[:taken]
    assert emptied(waiting) == [*range(10)]


def test_nothing_is_appended_after_the_end(tmp_path: Path) -> None:
    waiting = Spool(tmp_path, 1 << 20, URL)
    waiting.close()
    assert waiting.append("audit", orders(1)) == 0


def test_another_format_is_no_fault(tmp_path: Path) -> None:
    first = Spool(tmp_path, 1 << 20, URL)
    first.append("audit", orders(1))
    first.close()
    (path,) = segments(tmp_path)
    body = msgspec.msgpack.encode((spool._VERSION + 1, "audit", TABLE_COLUMNS["audit"], orders(1)))
    path.write_bytes(spool._HEADER.pack(len(body), spool.zlib.crc32(body), 1) + body)
    second = Spool(tmp_path, 1 << 20, URL)
    second.adopt()
    assert emptied(second) == []
    assert second.dropped == 1


def test_the_quarantine_holds_rows_as_json_up_to_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Quarantine(tmp_path)
    kept.add("texts", "no text", {"text": "\ud800\0", "n": 2**70, "x": nan, "raw": b"\xff", "huge": 10**5000, "k": 1})
    (line,) = (tmp_path / quarantine.NAME).read_text().splitlines()
    found = json.loads(line)
    assert (found["table"], found["reason"]) == ("texts", "no text")
    assert found["columns"] == {
        "text": "\ud800\0",
        "n": str(2**70),
        "x": None,
        "raw": "b'\\xff'",
        "huge": "int that is too long to be written",
        "k": 1,
    }
    monkeypatch.setattr(quarantine, "_MAX_BYTES", 1000)
    for _ in range(20):
        kept.add("texts", "no text", {"text": "x" * 100})
    lines = (tmp_path / quarantine.NAME).read_text().splitlines()
    assert 3 < len(lines) < 10
    assert all(json.loads(each) for each in lines)
    shutil.rmtree(tmp_path)
    kept.add("texts", "no text", {})
