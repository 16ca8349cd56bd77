from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scripted_engine import HELLO, encode, step

from sidecar.engine_feed.wire import Greeting, MalformedPacket, Steps, decode, parent_of, reply_id_of

HEX = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("engine_id", "reply_id"),
    [
        (f"chatcmpl-{HEX}-a1b2c3d4", f"chatcmpl-{HEX}"),
        (f"0_chatcmpl-{HEX}-a1b2c3d4", f"chatcmpl-{HEX}"),
        (f"12_chatcmpl-{HEX}-a1b2c3d4", f"chatcmpl-{HEX}"),
        (f"cmpl-{HEX}-0-a1b2c3d4", f"cmpl-{HEX}"),
        (f"cmpl-{HEX}-17-a1b2c3d4", f"cmpl-{HEX}"),
        (f"3_cmpl-{HEX}-1-a1b2c3d4", f"cmpl-{HEX}"),
        (f"resp_{HEX}_0-a1b2c3d4", f"resp_{HEX}"),
        (f"resp_{HEX}_11-a1b2c3d4", f"resp_{HEX}"),
        # What clients call their requests.
        ("chatcmpl-my-id-a1b2c3d4", "chatcmpl-my-id"),
        ("chatcmpl-deadbeef-deadbeef-a1b2c3d4", "chatcmpl-deadbeef-deadbeef"),
        ("chatcmpl-4_2-a1b2c3d4", "chatcmpl-4_2"),
        ("cmpl-a-7-0-a1b2c3d4", "cmpl-a-7"),
        ("cmpl-1-2-3-0-a1b2c3d4", "cmpl-1-2-3"),
        ("1_cmpl-0-0-a1b2c3d4", "cmpl-0"),
        ("cmpl-cmpl-0-0-a1b2c3d4", "cmpl-cmpl-0"),
        ("chatcmpl-\n-a1b2c3d4", "chatcmpl-\n"),
        ("cmpl-a\nb-0-a1b2c3d4", "cmpl-a\nb"),
        ("chatcmpl--a1b2c3d4", "chatcmpl-"),
        ("chatcmpl-é你-a1b2c3d4", "chatcmpl-é你"),
        # Of another kind, as ids of other endpoints are: whatever it gives, no reply has it.
        ("", ""),
        ("a1b2c3d4", "a1b2c3d4"),
        ("-a1b2c3d4", ""),
        ("embd-1-0-a1b2c3d4", "embd-1-0"),
        ("chatcmpl-x-A1B2C3D4", "chatcmpl-x-A1B2C3D4"),
    ],
)
def test_the_reply_of_an_engine_id(engine_id: str, reply_id: str) -> None:
    assert reply_id_of(engine_id) == reply_id


def test_requests_of_one_prompt_have_one_parent() -> None:
    assert parent_of("0_cmpl-a-1-a1b2c3d4") == parent_of("11_cmpl-a-1-a1b2c3d4") == "cmpl-a-1-a1b2c3d4"
    assert parent_of("0_cmpl-a-0-a1b2c3d4") != parent_of("0_cmpl-a-1-b1b2c3d4")


def test_what_is_well_formed_is_read() -> None:
    greeting = decode(encode(["hello", HELLO | {"later": {"more": 1}}, "later"]))
    assert isinstance(greeting, Greeting)
    assert (greeting.hello.engine, greeting.hello.method, greeting.hello.num_speculative_tokens) == (
        0,
        "draft_model",
        4,
    )
    plain = decode(encode(["hello", {"version": 1, "engine": 3, "method": None}]))
    assert isinstance(plain, Greeting)
    assert (plain.hello.engine, plain.hello.draft_model) == (3, None)
    steps = decode(encode(["steps", 7, 2, [step({"a": ([1, -1], [1])}, started=[("a", 5)], invalid={"a": 1}), step()]]))
    assert isinstance(steps, Steps)
    assert (steps.first, steps.dropped, len(steps.steps)) == (7, 2, 2)
    assert steps.steps[0].drafted == {"a": [1, -1]}


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\xc1",
        b"\x93\xa5steps\x01",
        b"\x91" * 100_000,
        encode(["hello"]),
        encode(["hello", {"engine": 0}]),
        encode(["goodbye", {}]),
        encode({"steps": 1}),
        encode(["steps", 1, 0]),
        encode(["steps", -1, 0, []]),
        encode(["steps", 1, 0, [[[], ["a"], [], {}, None, []]]]),
        encode(["steps", 1, 0, [[[], ["a"], [[2**31]], {}, None, []]]]),
        encode(["steps", 1, 0, [[[], ["a"], [[1.5]], {}, None, []]]]),
        encode(["steps", 1, 0, [[[], ["a"], [[1]], {"a": [0] * 1025}, None, []]]]),
        encode(["steps", 1, 0, [[[["a", -1]], [], [], {}, None, []]]]),
        encode(["steps", 1, 0, [[[], [], [], {}, None, [["a", 1]]]]]),
        encode(["steps", 1, 0, [[[], [b"a"], [[1]], {}, None, []]]]),
    ],
)
def test_what_is_not_is_said_to_be_malformed(packet: bytes) -> None:
    with pytest.raises(MalformedPacket):
        decode(packet)


_scalars = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5) | st.binary(max_size=5)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


@given(
    st.binary(max_size=200)
    | _values.map(encode)
    | _values.map(lambda value: encode(["hello", value]))
    | st.lists(_values, max_size=3).map(lambda values: encode(["steps", 1, 0, values]))
    | st.lists(_values, min_size=6, max_size=6).map(lambda values: encode(["steps", 1, 0, [values]]))
)
def test_nothing_else_is_raised(packet: bytes) -> None:
    with suppress(MalformedPacket):
        decode(packet)
