"""How things stand, in words."""

from datetime import UTC, datetime, timedelta

from dashboard import shapes
from dashboard.frames import state as frames

AT = datetime(2026, 11, 29, 18, 0, tzinfo=UTC)


def test_state_in_words():
    state = shapes.FallbackState(
        mode="autoregressive", state="autoregressive", since=AT, reason=" ", can_fall_back=True, slices=[]
    )
    line = frames.state_line(state, AT + timedelta(minutes=92))
    assert not line.speculating
    assert line.headline == "Speculative decoding is off: replies are autoregressive"
    assert line.mode == "mode autoregressive: held there by an operator"
    assert line.since == "since 2026-11-29 18:00:00 UTC, for 1 h 32 min"
    assert line.reason == "no reason given"
    slices = [shapes.SliceState(slice="scenario=code", state="probing")]
    state = shapes.FallbackState(
        mode="auto", state="speculative", since=AT, reason="p", can_fall_back=True, slices=slices
    )
    line = frames.state_line(state, AT)
    assert line.speculating
    assert line.headline == "Speculative decoding is on; by themselves: scenario=code (probing)"
