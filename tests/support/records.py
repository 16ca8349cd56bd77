"""Records for tests, plain and from Hypothesis."""

from itertools import count
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from sidecar.record import Acceptance, AcceptanceQuality, AcceptanceSource, Arm, Outcome, Record

#: A Unix time in the middle of an hour, and of a minute.
NOW = 1_800_001_830.0
_numbers = count(1)


def record(**fields: Any) -> Record:
    """A good speculative request with an id of its own, ended just before NOW."""
    plain = Record(
        request_id=f"req-{next(_numbers)}",
        started_at=NOW - 60,
        instance="test",
        upstream="speculative",
        arm=Arm.SPECULATIVE,
        endpoint="chat_completions",
        scenario="default",
        outcome=Outcome.OK,
        acceptance=figures((10, 5, 5, 20)),
        model="target",
        draft_model="draft",
        status=200,
        latency_ms=400.0,
    )
    return replace(plain, **fields)


def figures(histogram: tuple[int, ...], /, **fields: Any) -> Acceptance:
    """Consistent figures: `histogram[j]` verify steps accepted exactly j draft tokens, of k = len - 1."""
    k, steps = len(histogram) - 1, sum(histogram)
    plain = Acceptance(
        source=AcceptanceSource.RESPONSE,
        quality=AcceptanceQuality.OK,
        num_speculative_tokens=k,
        verify_steps=steps,
        draft_tokens=steps * k,
        accepted_tokens=sum(j * n for j, n in enumerate(histogram)),
        histogram=histogram,
        rejected_at=histogram[:-1],
        reached=tuple(sum(histogram[i:]) for i in range(k)),
    )
    return replace(plain, **fields)


_names = st.sampled_from(("chat", "code", "小说", "it's", "other", ""))
_ms = st.one_of(st.none(), st.sampled_from((0.0, 799.5, 800.0, 800.5)), st.floats(0, 1600), st.floats(0, 5000))

acceptances = st.one_of(
    st.lists(st.integers(0, 9), min_size=2, max_size=6).map(lambda found: figures(tuple(found))),
    st.lists(st.integers(0, 9), min_size=2, max_size=4).map(
        lambda found: figures(tuple(found), quality=AcceptanceQuality.INCONSISTENT, reason="too many")
    ),
    st.lists(st.integers(0, 9), min_size=2, max_size=4).map(
        lambda found: figures(tuple(found), histogram=None, rejected_at=None, reached=None, num_speculative_tokens=None)
    ),
    st.sampled_from((Acceptance(), Acceptance(reason="the reply was cut"))),
)

#: Records that started within the two hours before NOW, many of them at the edges of steps.
records = st.builds(
    record,
    started_at=st.one_of(
        st.integers(0, 7200).map(lambda ago: NOW - ago),
        st.integers(0, 15).map(lambda ago: NOW - 60 * ago),
        st.integers(-2, 10).map(lambda ago: NOW - 3600 - 30 * ago),
        st.floats(0, 7200).map(lambda ago: round(NOW - ago, 6)),
    ),
    scenario=_names,
    model=st.none() | _names,
    upstream=st.sampled_from(("speculative", "autoregressive")),
    arm=st.sampled_from((Arm.SPECULATIVE, Arm.SPECULATIVE, *Arm)),
    outcome=st.sampled_from((Outcome.OK, Outcome.OK, Outcome.OK, *Outcome)),
    acceptance=acceptances,
    stream=st.booleans(),
    temperature=st.none() | st.sampled_from((0.0, 0.3, 0.7, 1.0)) | st.floats(0, 2),
    prompt_tokens=st.none() | st.sampled_from((512, 513, 131_072, 131_073)) | st.integers(1, 200_000),
    completion_tokens=st.none() | st.integers(0, 5000),
    ttft_ms=_ms,
    latency_ms=_ms,
    tpot_ms=_ms,
    concurrency=st.integers(1, 80),
)
