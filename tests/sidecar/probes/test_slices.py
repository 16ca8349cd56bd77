"""Slices: the names of a request's own, before and after it is served."""

import pytest
from hypothesis import given
from support.records import figures, record, records

from sidecar.probes.slices import DIMENSIONS, PromptTokens, asked, slices_of
from sidecar.record import Record


def test_slices_of_a_record() -> None:
    found = slices_of(
        record(scenario="billing", temperature=0.7, prompt_tokens=513, concurrency=9, acceptance=figures((1, 2, 3)))
    )
    assert dict(zip(DIMENSIONS, found, strict=True)) == {
        "scenario": "billing",
        "model": "target",
        "temperature": "0.3-0.7",
        "prompt_length": "513-2048",
        "concurrency": "9-16",
        "k": "2",
    }


def test_what_is_not_known_has_a_name() -> None:
    bare = record(model=None, acceptance=figures((1, 2), num_speculative_tokens=None))
    assert slices_of(bare) == ("default", "unknown", "unset", "unknown", "1", "unknown")


@given(records)
def test_a_request_is_asked_for_in_the_slices_that_its_record_has(item: Record) -> None:
    before = asked(item.scenario, item.model, item.temperature, item.prompt_tokens, item.concurrency)
    assert (*before,) == DIMENSIONS[:-1]
    assert (*before.values(),) == slices_of(item)[:-1]


def test_prompt_tokens_are_guessed_from_what_records_tell() -> None:
    guess = PromptTokens()
    assert guess.of(None) is None
    assert guess.of(4000) == 1000
    for _ in range(500):
        guess.add(record(bytes_in=3000, prompt_tokens=1500))
        guess.add(record(bytes_in=3000, prompt_tokens=None))
    assert guess.of(4000) == pytest.approx(2000, rel=0.01)


def test_bodies_that_are_no_text_or_not_all_of_the_prompt_tell_nothing() -> None:
    guess = PromptTokens()
    guess.add(record(bytes_in=5_000_000, prompt_tokens=1500))
    guess.add(record(bytes_in=200, prompt_tokens=20_000))
    assert guess.of(4000) == 1000
