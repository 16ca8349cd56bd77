import argparse

import pytest
from specwatch_engine.lab.options import positive, positives


def test_numbers_are_sorted_and_each_once() -> None:
    assert positive(" 7 ") == 7
    assert positives("8,1, 4,8") == [1, 4, 8]


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "x", "1,0", "1,,2"])
def test_what_is_no_number_is_shown(text: str) -> None:
    for read in (positive, positives):
        with pytest.raises(argparse.ArgumentTypeError, match="of at least 1, "):
            read(text)
