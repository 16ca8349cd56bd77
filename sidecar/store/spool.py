"""Where rows wait on disk while the database takes none, also over a restart.

A queue of frames in segment files, oldest first, of a folder that belongs to one writer: it holds a lock there, so that
processes, also of one name, may share the folder above. What a process leaves behind is taken over by the next one.

A frame is length, CRC 32 and number of rows, 4 bytes each, and then MessagePack: `[version, table, columns, rows]`.
Nothing is flushed to the disk by itself. A process that is killed loses nothing of what it has appended; a power cut
costs what the system had not written back yet, on Linux the last 30 s or so, and is found by the sums.
"""

import errno
import fcntl
import logging
import os
import shutil
import struct
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from .engine import parse_url
from .rows import NULL, TABLE_COLUMNS, Row

log = logging.getLogger(__name__)

_HEADER = struct.Struct(">III")
_VERSION = 1
#: At the limit a whole segment goes, and a segment is deleted as a whole: some seconds of rows.
_SEGMENT_BYTES = 4 << 20
#: A smaller limit has segments of a part of it.
_PARTS = 8
#: How long nothing is tried after a disk has refused.
_AGAIN_S = 1.0
_LOCK = "lock"
#: What a file that cannot be opened is not to blame for: a process with many connections runs out of descriptors.
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

_decode = msgspec.msgpack.Decoder(tuple[int, str, tuple[str, ...], list[tuple[Any, ...]]]).decode


class SpoolError(Exception):
    """The folder cannot be had; the message says why."""


class Frame(NamedTuple):
    """Rows of one table, as its row function makes them."""

    table: str
    rows: list[Row]


@dataclass(slots=True)
class _Segment:
    path: Path
    #: Bytes and rows of its frames.
    size: int = 0
    rows: int = 0
    #: The same, of those that need no second reading, and of those that `read` has got to.
    done: tuple[int, int] = (0, 0)
    read: tuple[int, int] = (0, 0)
    #: Nothing can be read behind `read`.
    torn: bool = False

    @property
    def exhausted(self) -> bool:
        return self.torn or self.done[0] >= self.size


class Spool:
    """A bounded queue of rows on disk, for one thread. Whatever the disk does, only the constructor and `read` raise.

    `records` wait, in `bytes`, which are 0 where nothing does; `dropped` rows are lost, as the limit was reached or a
    file cannot be read.
    """

    def __init__(self, root: Path, limit_bytes: int, database_url: str) -> None:
        """Makes the folder `root`. Raises SpoolError if nothing can be made there.

        What others have left there for another database is let alone.
        """
        self.root = root.absolute()
        self._prefix = f"writer-{zlib.crc32(_place(database_url).encode()):08x}-"
        self._limit = limit_bytes
        self._segment_bytes = min(_SEGMENT_BYTES, limit_bytes // _PARTS)
        self._segments: list[_Segment] = []
        #: Of the newest segment, while it is written to.
        self._file: int | None = None
        self._last_name = 0
        self._works = True
        self._again_at = 0.0
        self._closed = False
        self.bytes = 0
        self.records = 0
        self.dropped = 0
        #: Made once there is something to be kept, and the lock of it.
        self._folder: Path | None = None
        self._lock: int | None = None
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SpoolError(f"{error.filename or self.root}: {error.strerror}") from None
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise SpoolError(f"{self.root}: cannot be written to")

    def adopt(self) -> None:
        """Take over what processes have left behind that are gone."""
        before = self.records
        try:
            others = sorted(self.root.glob(self._prefix + "*"))
        except OSError:
            others = []
        for other in others:
            try:
                self._adopt(other)
            except BlockingIOError:
                continue  # its process lives
            except OSError as error:
                log.warning("spool: what was left in %s cannot be taken over: %s", other, error.strerror)
        self._segments.sort(key=lambda segment: segment.path.name)
        if self.records > before:
            log.info("spool: %d rows of an earlier run wait for the database", self.records - before)
        self._make_room(0)

    def append(self, table: str, rows: Sequence[Row]) -> int:
        """Add the first rows of `rows` as one frame. How many: 0 while the disk takes none.

        Raises what `msgspec` does for rows that hold what is no text, number or null.
        """
        if self._closed or time.monotonic() < self._again_at:
            return 0
        frame = _frame(table, rows)
        while len(frame) > self._segment_bytes and len(rows) > 1:
            rows = rows[: len(rows) // 2]
            frame = _frame(table, rows)
        self._make_room(len(frame))
        if len(frame) > self._limit:
            self.dropped += len(rows)
            return len(rows)
        try:
            self._write(frame, len(rows))
        except OSError as error:
            self._seal()
            if self._works:
                log.warning("spool: %s takes no rows, which wait in memory: %s", self.root, error.strerror)
            self._works, self._again_at = False, time.monotonic() + _AGAIN_S
            return 0
        if not self._works:
            log.info("spool: %s takes rows again", self.root)
            self._works = True
        return len(rows)

    def read(self, most: int) -> Iterator[Frame]:
        """The oldest frames, until these are `most` rows or more. They stay until `advance`.

        Raises OSError where a file cannot be read for the moment.
        """
        self._seal()
        for segment in self._segments:
            segment.read, segment.torn = segment.done, False
        for segment in self._segments:
            for frame in _frames(segment):
                most -= len(frame.rows)
                yield frame
                if most <= 0:
                    return

    def advance(self) -> None:
        """What was read last is stored: it needs no second reading."""
        for segment in self._segments:
            self.records -= segment.read[1] - segment.done[1]
            segment.done = segment.read
        while self._segments and self._segments[0].exhausted:
            self._drop("cannot be read")

    def close(self) -> None:
        """Leave what waits for the next process. Nothing can be appended then."""
        self._seal()
        self._closed = True
        if self.records:
            log.info("spool: %d rows wait in %s for the next start", self.records, self._folder)
        if self._folder is not None and not self._segments:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _adopt(self, folder: Path) -> None:
        lock = _locked(folder)
        try:
            for path in folder.glob("*.rows"):
                segment = _scanned(path)
                if not segment.size:
                    continue
                segment.path = path.rename(self._own_folder() / path.name)
                self._segments.append(segment)
                self.bytes += segment.size
                self.records += segment.rows
            shutil.rmtree(folder)
        finally:
            os.close(lock)

    def _make_room(self, size: int) -> None:
        while self._segments and self.bytes + size > self._limit:
            if len(self._segments) == 1:
                self._seal()
            if self._segments:
                self._drop("had to go, as spool_mb is reached")

    def _drop(self, why: str) -> None:
        """Delete the oldest segment; what was not stored of it is lost."""
        segment = self._segments.pop(0)
        lost = segment.rows - segment.done[1]
        self.bytes -= segment.size
        self.records -= lost
        self.dropped += lost
        if lost:
            log.warning("spool: %d rows of %s %s, and are lost", lost, segment.path.name, why)
        try:
            segment.path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("spool: %s cannot be deleted: %s", segment.path, error.strerror)

    def _write(self, frame: bytes, rows: int) -> None:
        if self._file is not None and (
            os.fstat(self._file).st_nlink == 0  # deleted by somebody, and lost with its last descriptor
            or self._segments[-1].size + len(frame) > self._segment_bytes
        ):
            self._seal()
        if self._file is None:
            self._file = self._new_segment()
        segment, written = self._segments[-1], 0
        try:
            while written < len(frame):
                written += os.write(self._file, memoryview(frame)[written:])
        except OSError:
            # Half a frame is of no use. Where it stays, reading ends before it, as `size` says.
            with suppress(OSError):
                os.ftruncate(self._file, segment.size)
            raise
        segment.size += len(frame)
        segment.rows += rows
        self.bytes += len(frame)
        self.records += rows

    def _new_segment(self) -> int:
        folder = self._own_folder()
        # In the order they were made, also over a clock that is set back.
        self._last_name = max(self._last_name + 1, time.time_ns())
        path = folder / f"{self._last_name:020}-{folder.name.removeprefix(self._prefix)}.rows"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._segments.append(_Segment(path))
        return file

    def _own_folder(self) -> Path:
        """Made anew where somebody has deleted it."""
        if self._folder is None or not self._folder.is_dir():
            folder, lock = _new_folder(self.root, self._prefix)
            if self._lock is not None:
                os.close(self._lock)
            self._folder, self._lock = folder, lock
        return self._folder

    def _seal(self) -> None:
        """Write no more to the newest segment."""
        if self._file is None:
            return
        with suppress(OSError):
            os.close(self._file)
        self._file = None
        if not self._segments[-1].size:
            with suppress(OSError):
                self._segments.pop().path.unlink()


def _place(database_url: str) -> str:
    """What tells a database from others, whoever asks for it."""
    url = parse_url(database_url)
    if url.drivername == "sqlite":
        return str(Path(url.database or "").absolute())
    return f"{url.host or url.query.get('host')}:{url.port}/{url.database}"


def _new_folder(root: Path, prefix: str) -> tuple[Path, int]:
    """A folder in `root` and its lock, held."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        try:
            lock = _locked(folder)
        except (BlockingIOError, FileNotFoundError):
            continue  # another process took it for a leftover
        if folder.is_dir():
            return folder, lock
        os.close(lock)


def _locked(folder: Path) -> int:
    """The lock of a folder. Raises BlockingIOError while another process has it."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _frame(table: str, rows: Sequence[Row]) -> bytes:
    body = msgspec.msgpack.encode((_VERSION, table, TABLE_COLUMNS[table], rows))
    return _HEADER.pack(len(body), zlib.crc32(body), len(rows)) + body


def _scanned(path: Path) -> _Segment:
    """A segment that another process has written, with as many rows as its frames say they have."""
    segment = _Segment(path, size=path.stat().st_size)
    offset = 0
    with path.open("rb") as file:
        while (header := _header(file)) is not None:
            length, _, rows = header
            offset += _HEADER.size + length
            if rows > length:
                break
            segment.rows += rows
            file.seek(offset)
    return segment


def _header(file: BinaryIO) -> tuple[int, int, int] | None:
    found = file.read(_HEADER.size)
    return _HEADER.unpack(found) if len(found) == _HEADER.size else None


def _frames(segment: _Segment) -> Iterator[Frame]:
    """The frames behind `segment.read`, which goes along. Where one cannot be read, the segment is torn."""
    offset, number = segment.read
    try:
        with segment.path.open("rb") as file:
            file.seek(offset)
            while offset < segment.size:
                header = _header(file)
                if header is None or header[0] > segment.size - offset:
                    raise ValueError("it ends inside a frame")
                length, crc, rows = header
                body = file.read(length)
                if len(body) < length or zlib.crc32(body) != crc:
                    raise ValueError("a frame is not what was written")
                offset += _HEADER.size + length
                frame = _current(body)
                if frame is None:
                    continue
                if len(frame.rows) != rows:
                    raise ValueError("a frame has more or less rows than it says")
                number += rows
                segment.read = offset, number
                yield frame
            segment.read = offset, number
    except (OSError, ValueError) as error:
        # `msgspec.DecodeError` is a ValueError.
        if isinstance(error, OSError) and error.errno in _PASSING:
            raise
        segment.torn = True
        log.warning("spool: %s cannot be read on: %s", segment.path.name, error)


def _current(body: bytes) -> Frame | None:
    """A frame as this version has its columns; None for a table that this version does not have."""
    version, table, columns, rows = _decode(body)
    if version != _VERSION:
        raise ValueError(f"it is of a newer version, {version}")
    wanted = TABLE_COLUMNS.get(table)
    if wanted is None:
        log.warning("spool: no such table: %r", table)
        return None
    if columns == wanted:
        return Frame(table, rows)
    places = [columns.index(name) if name in columns else None for name in wanted]
    return Frame(table, [tuple([NULL if place is None else row[place] for place in places]) for row in rows])
