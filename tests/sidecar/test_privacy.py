"""The law: unless `store_text` is on, no text of a prompt or a reply is stored, logged, exported or sent to anybody.

Requests whose every part holds a mark of its own go through a real sidecar at level DEBUG, down every path; then all
that the process has written is searched for the marks. What may appear, and does, which shows that the search finds
it: names of scenarios and models, and ids of requests. Texts of single tokens in `alignments` are a model's vocabulary.
"""

import asyncio
import base64
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from support.canaries import Canaries
from support.postgres import cluster
from support.receiver import receiver
from support.storm import Storm
from support.storms import settings_of, storm_over


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def storm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storm]:
    """What is left of a storm, with each database and each way to go without speculation."""
    folder = tmp_path_factory.mktemp("storm")
    with receiver() as hook:
        if request.param == "sqlite":
            file = folder / "specwatch.db"
            made = Storm(folder, settings_of(folder, database_url=f"sqlite:///{file}", apart=False), hook)
            asyncio.run(storm_over(made, Lock(file)))
            yield made
            return
        with cluster() as server:
            url = server.new_url()
            made = Storm(folder, settings_of(folder, database_url=url, apart=True), hook)
            asyncio.run(storm_over(made, lambda away: server.stop() if away else server.start()))
            made.keep("database", *copies(url))
            yield made


class Lock:
    """Takes an SQLite file away by locking it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self, away: bool) -> None:
        if away:
            self._connection = sqlite3.connect(self._file, isolation_level=None, check_same_thread=False)
            self._connection.execute("BEGIN IMMEDIATE")
        else:
            self._connection.close()


def copies(url: str) -> Iterator[bytes]:
    """Every table, as COPY writes it."""
    with psycopg.connect(url) as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        assert ("requests",) in names
        for (name,) in names:
            with connection.cursor().copy(f"COPY (SELECT * FROM {name}) TO STDOUT".encode()) as copy:
                yield b"".join(bytes(part) for part in copy)


# ---- the law

PLACES = (
    "database",
    "spool",
    "quarantine",
    "log",
    "admin port",
    "metrics",
    "notifications",
)


@pytest.mark.parametrize("place", PLACES)
def test_no_text_is_found(storm: Storm, place: str) -> None:
    assert storm.canaries.found(storm.places[place]) == []


@pytest.mark.parametrize("place", PLACES)
def test_what_may_be_shown_is_found_there(storm: Storm, place: str) -> None:
    """Else the search would find nothing anywhere."""
    allowed = b"fails-refused" if place == "quarantine" else storm.scenario.encode()
    assert allowed in storm.places[place]


def test_every_path_was_taken(storm: Storm) -> None:
    log = storm.places["log"].decode("utf-8", "replace")
    for words in (
        "a tap failed",
        "task side task died",
        "event loop: a callback failed",
        "event loop: Task exception was never retrieved",
        "__main__.Quoting",
        "what another library says",
        "a malformed packet",
        "was not replayed",
        "the process that compares texts",
        "cannot be stored",
        "the database takes no rows",
        "alert fires",
        "1 replies were cut",
        "DEBUG",
    ):
        assert words in log, words


@pytest.mark.parametrize(
    "writing",
    [
        lambda text: text,
        json.dumps,
        quote,
        lambda text: base64.b64encode(text.encode()).decode(),
        lambda text: base64.urlsafe_b64encode(b"x" + text.encode()).decode(),
        lambda text: base64.b64encode(b"xy" + text.encode()).decode(),
        lambda text: text.encode().hex(),
        lambda text: text.upper(),
        lambda text: repr(text.encode()),
        lambda text: text.encode("utf-16-le").decode("latin-1"),
        lambda text: text[3:40],
    ],
    ids=[
        "plain",
        "JSON",
        "URL",
        "base64",
        "base64+1",
        "base64+2",
        "hexadecimal",
        "upper case",
        "repr",
        "UTF-16",
        "cut",
    ],
)
def test_the_search_finds_what_was_planted(writing: Callable[[str], str]) -> None:
    canaries = Canaries()
    text = canaries.text("planted")
    assert canaries.found(b"some " + writing(text).encode("latin-1") + b" bytes") == ["planted"]
    assert canaries.found(b"some bytes") == []
