"""Sketches of distributions: a few kB for any number of values, that merge, and tell quantiles.

Apache DataSketches' relative-error quantiles (REQ), of float32, with k of 12. Up to 71 values are kept as they are, and
quantiles are by nearest rank. Of more, ranks are off by less the nearer they are to the end that is asked for: at two
of the library's standard errors, with `high` p50 by 1.1 %, p95 by 0.11 %, p99 by 0.02 %.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from datasketches import req_floats_sketch as Sketch  # type: ignore[import-untyped]
from numpy.typing import NDArray

_K = 12
#: The library holds Python's lock for 0.1 us a value, and the proxy waits for it: 2 ms at a time.
_AT_A_TIME = 20_000


def make(values: NDArray[np.floating], *, high: bool = True) -> bytes | None:
    """A sketch of the finite ones of `values`; None without any. Not `high`: exact at low ranks."""
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    values = values[np.isfinite(values)]
    if not values.size:
        return None
    sketch = Sketch(_K, high)
    if values.size == 1:
        # The library would take it for a number, which NumPy warns of.
        sketch.update(float(values[0]))
    elif values.size <= _AT_A_TIME:
        sketch.update(values)
    else:
        # Of nearly one size, so that none is of one value.
        for part in np.array_split(values, -(-values.size // _AT_A_TIME)):
            sketch.update(part)
    return bytes(sketch.serialize())


def merged(blobs: Iterable[bytes]) -> Sketch | None:
    """One sketch of what several of one kind were made of; None without any. ValueError for what is no sketch."""
    whole: Sketch | None = None
    for blob in blobs:
        try:
            part = Sketch.deserialize(blob)
        except (IndexError, RuntimeError) as error:
            raise ValueError(f"no sketch: {error}") from None
        if whole is None:
            whole = part
        else:
            whole.merge(part)
    return whole


def shares_below(sketch: Sketch | None, values: Sequence[float]) -> list[float]:
    """Of all it was made of, exactly or nearly; `values` rise. Zeros of an empty sketch."""
    if sketch is None or sketch.is_empty():
        return [0.0] * len(values)
    return [float(share) for share in sketch.get_cdf(values, False)[:-1]]


def quantile(sketch: Sketch | None, q: float) -> float | None:
    """The value at rank ceil(q n) of the n sorted ones, exactly or nearly; None of an empty sketch."""
    if sketch is None or sketch.is_empty():
        return None
    # Less by what rounding adds: 0.28 of 25 would be more than 7.
    return float(sketch.get_quantile(q * (1 - 1e-12), True))
