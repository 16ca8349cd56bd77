"""The table of readings, and how values are shown."""

import pytest

from alerts.readings import KINDS, READINGS, SLICES, Unit, shown


def test_each_reading_says_what_it_is_and_by_what_it_is_known() -> None:
    for name, reading in READINGS.items():
        assert name == reading.name
        assert name.isidentifier()
        assert name.islower()
        assert reading.help
        assert reading.kinds
        assert reading.kinds <= set(KINDS)


def test_what_is_known_of_slices_is_known_of_all_traffic() -> None:
    for reading in READINGS.values():
        if reading.kinds & set(SLICES):
            assert reading.kinds == {"", *SLICES}


def test_no_reading_has_the_name_of_a_word_of_expressions_or_of_a_group() -> None:
    assert not set(READINGS) & {"and", "or", "not", *KINDS}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("acceptance_rate", 0.51234, "0.512"),
        ("acceptance_rate", 1, "1.000"),
        ("mean_acceptance_length", 2.5, "2.5"),
        ("mean_acceptance_length", 2.0, "2"),
        ("mean_acceptance_length", 100.0, "100"),
        ("window_requests", 100.0, "100"),
        ("late_streams", 3, "3"),
        ("database_up", 0, "0"),
        ("acceptance_rate", None, "unknown"),
        ("acceptance_rate", float("nan"), "unknown"),
        ("late_streams", float("inf"), "unknown"),
    ],
)
def test_values_are_shown_by_their_unit(name: str, value: float | None, text: str) -> None:
    assert shown(name, value) == text


def test_units_are_all_in_use() -> None:
    assert {reading.unit for reading in READINGS.values()} == set(Unit)
