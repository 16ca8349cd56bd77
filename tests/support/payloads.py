"""Any payload that the API can give, for the law that nothing shown raises or is NaN."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from pydantic import BaseModel

T = TypeVar("T")

FINITE = st.floats(allow_nan=False, allow_infinity=False)
TIMES = st.datetimes(timezones=st.just(UTC))
STEPS = st.none() | st.integers(1, 7 * 86_400)
COUNTS = st.integers(0, 10**12)

st.register_type_strategy(float, FINITE)
st.register_type_strategy(datetime, TIMES)
st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))

law = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def over_the_wire(model: BaseModel, shape: type[T]) -> T:
    return msgspec.json.decode(model.model_dump_json(), type=shape)


def texts(tiles: Iterable[Any]) -> list[str]:
    return [text for tile in tiles for text in (tile.value, tile.note, tile.verdict or "")]


def no_nan(*shown: str) -> None:
    for text in shown:
        assert "nan" not in text.lower().split()
        assert "None" not in text


def numbers(values: Iterable[float | None]) -> None:
    for value in values:
        assert value is None or not math.isnan(value)
