"""When the demo's incident is due: by its clock, by a word at a terminal, and in no other way."""

import errno
import io
import os
import pty
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.traffic import accepting

from sidecar import incident
from sidecar.control.circuit import Readings, State
from sidecar.control.fallback import Fallback
from sidecar.controller import rules_of
from sidecar.incident import Incident
from sidecar.probes.slices import asked
from sidecar.record import Arm
from sidecar.settings import load

Typist = Callable[[bytes], None]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Typist]:
    """Types at the terminal that is the standard input."""
    ours, theirs = pty.openpty()
    with open(theirs, closefd=False) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        yield lambda keys: _type(ours, theirs, keys)
    for number in (ours, theirs):
        with suppress(OSError):
            os.close(number)


def _type(ours: int, theirs: int, keys: bytes) -> None:
    if keys:
        os.write(ours, keys)
    else:
        os.close(ours)
    time.sleep(0.05)


def test_a_word_at_the_terminal_stages_it_once(typed: Typist) -> None:
    said: list[str] = []
    staged = Incident(None, said.append)
    assert staged.offer() == "type incident and Enter to stage one"
    assert not staged.due()
    typed(b"\n  \n")
    assert [staged.due() for _ in range(3)] == [False] * 3
    assert said == []
    typed(b"help [red]\n\x1b[31m\xff\n")
    assert [staged.due() for _ in range(3)] == [False] * 3
    assert [line.partition(":")[2] for line in said] == [
        " type incident and Enter to stage one, Ctrl-C to stop everything"
    ] * 2
    assert "'help [red]'" in said[0]
    assert said[1].isprintable()
    typed(b" Incident \n")
    assert staged.due()
    assert said[2].startswith("incident staged: ")
    assert not staged.due()
    typed(b"incident\n")
    assert not staged.due()
    assert said[3] == said[2].replace("staged", "staged already")
    typed(b"what\n")
    assert not staged.due()
    assert said[4] == "'what' means nothing here: Ctrl-C stops everything"


def test_a_terminal_that_cannot_be_read_ends_nothing_else(typed: Typist, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    staged = Incident(None, print)
    typed(b"incident\n")
    with monkeypatch.context() as patched:
        patched.setattr(os, "read", fails)
        assert not staged.due()


def test_two_lines_at_once_stage_one(typed: Typist) -> None:
    said: list[str] = []
    staged = Incident(None, said.append)
    typed(b"incident\nincident\n")
    assert [staged.due(), staged.due()] == [True, False]
    assert len(said) == 2


@pytest.mark.parametrize("keys", [b"\x04", b""], ids=["end of input", "terminal gone"])
def test_the_end_of_the_terminal_ends_nothing_else(typed: Typist, keys: bytes) -> None:
    said: list[str] = []
    staged = Incident(None, said.append)
    typed(keys)
    assert [staged.due() for _ in range(3)] == [False] * 3
    assert said == []
    if keys:
        typed(b"incident\n")
        assert staged.due()


def test_in_the_background_nothing_is_read(typed: Typist, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = Incident(None, print)
    typed(b"incident\n")
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp() + 1)
    assert not staged.due()
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())
    assert staged.due()


def test_without_a_terminal_it_names_the_flag(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("incident\n")
    with (tmp_path / "words").open() as words, open(os.devnull) as nothing, open(os.devnull) as closed:
        closed.close()
        for stdin in (None, io.StringIO("incident\n"), words, nothing, closed):
            monkeypatch.setattr(sys, "stdin", stdin)
            said: list[str] = []
            staged = Incident(None, said.append)
            assert staged.offer() == "specwatch up --incident SECONDS stages one"
            assert not staged.due()
            assert said == []


def test_the_clock_starts_with_the_offer(typed: Typist, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 1000.0
    monkeypatch.setattr(incident.time, "monotonic", lambda: moment)
    said: list[str] = []
    staged = Incident(60, said.append)
    typed(b"incident\n")
    moment += 100
    assert not staged.due()
    assert staged.offer() == "is staged in 60 s"
    for later, due in ((59.9, False), (0.1, True), (60, False)):
        moment += later
        assert staged.due() is due
    assert [line.partition(":")[0] for line in said] == ["incident staged"]


@pytest.mark.parametrize("healthy_s", [20, 120, 900])
def test_with_the_demos_settings_that_slice_alone_falls_back(healthy_s: int) -> None:
    """p and draft tokens as vLLM gave them, one request a second; 0.51 is what the shipped models make of it."""
    settings = load(Path(__file__).parents[2] / "engine" / "demo" / "specwatch.yaml")
    for seed in range(10):
        chance = random.Random(seed)
        fallback = Fallback(
            rules_of(settings), 0.0, can_fall_back=lambda: True, seed=seed, slices=settings.fallback_slices,
            baseline_share=settings.baseline_share,
        )  # fmt: skip
        told = []
        for now in range(healthy_s + 180):
            scenario = chance.choices(("address_confirmation", "billing", "product_qa", "code"), (25, 25, 20, 20))[0]
            p, tokens = (chance.choice((1.0, 1.0, 0.88)), 52) if scenario == "billing" else (0.99, 40)
            if scenario == "billing" and now >= healthy_s:
                p, tokens = chance.choice((0.46, 0.54, 0.54)), 80
            arm = fallback.arm(asked(scenario, "demo", 0.0, 40, 1))
            if arm in (Arm.SPECULATIVE, Arm.PROBE):
                made = accepting(p, started_at=now, draft_tokens=tokens, scenario=scenario, model="demo", arm=arm)
                told += [*fallback.tick(now, Readings()), *fallback.add(made, now)]
        first, *rest = told
        assert (first.slice, first.after) == ("scenario=billing", State.AUTOREGRESSIVE)
        assert healthy_s < first.at < healthy_s + 150
        assert {change.slice for change in rest} <= {"scenario=billing"}
