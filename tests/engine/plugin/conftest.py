"""A listener for events, where one is wanted."""

import tempfile
from collections.abc import Iterator

import pytest
from support.event_reader import Clock, Reader


@pytest.fixture
def path() -> Iterator[str]:
    # The folders of pytest can be longer than a socket's address.
    with tempfile.TemporaryDirectory(prefix="sw") as folder:
        yield f"{folder}/events"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reader(path: str) -> Iterator[Reader]:
    made = Reader(path)
    yield made
    made.close()
