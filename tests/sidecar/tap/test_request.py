"""C17: asking for usage without disturbing anything else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.tap.request import endpoint_of, read_request, with_usage


def changed(body: bytes, endpoint: str = "chat_completions") -> bytes | None:
    request = read_request(body)
    return None if request is None else with_usage(endpoint, request, body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"stream":true,"stream_options":{"include_usage":false}}',
        b'{"stream":true,"stream_options":{"include_usage":true}}',
        b'{"stream":true,"stream_options":{}}',
        b'{"stream":true,"stream_options":null}',
        b'{"stream":true,"n":2}',
        b'{"stream":true,"prompt":["a","b"]}',
        b'{"stream":false}',
        b'{"stream":1}',
        b'{"stream":"true"}',
        b"{}",
        b"[]",
        b'{"stream":true',
        b"\xff",
        b"",
        b"[" * 100_000,
    ],
)
def test_bodies_that_stay_as_they_are(body: bytes) -> None:
    assert changed(body) is None


def test_other_endpoints_stay_as_they_are() -> None:
    assert changed(b'{"stream":true}', "responses") is None
    assert changed(b'{"stream":true}', "messages") is None


def test_every_other_byte_is_kept() -> None:
    body = b'{ "seed":12345678901234567890, "a":1,"a":2,\r\n"x":"\\u00e9 caf\xc3\xa9","stream" : true }\n'
    out = changed(body)
    assert out is not None
    added = b',"stream_options":{"include_usage":true}'
    assert out.replace(added, b"") == body
    assert json.loads(out)["stream_options"] == {"include_usage": True}


@given(
    st.dictionaries(
        # Several replies have no figures, with usage or without.
        st.text(max_size=8).filter(lambda key: key not in ("stream", "stream_options", "n", "prompt")),
        st.none() | st.integers() | st.text(max_size=8) | st.lists(st.booleans(), max_size=3),
        max_size=5,
    ),
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_any_streaming_body_gains_usage_alone(fields: dict[str, object], indent: int | None, ascii_only: bool) -> None:
    value = fields | {"stream": True}
    body = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "replace")
    out = changed(body)
    assert out is not None
    assert json.loads(out) == json.loads(body) | {"stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("body", "replies"),
    [
        (b"{}", 1),
        (b'{"n":1}', 1),
        (b'{"n":2}', 2),
        (b'{"n":"2"}', 1),
        (b'{"n":null}', 1),
        (b'{"prompt":"a"}', 1),
        (b'{"prompt":["a"]}', 1),
        (b'{"prompt":["a","b"],"n":2}', 4),
        (b'{"prompt":[1,2,3]}', 1),
        (b'{"prompt":[[1],[2]]}', 2),
        (b'{"prompt":[]}', 1),
    ],
)
def test_replies_asked_for(body: bytes, replies: int) -> None:
    request = read_request(body)
    assert request is not None
    assert request.replies == replies


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        (b"/v1/chat/completions", "chat_completions"),
        (b"/prefix/v1/completions/", "completions"),
        (b"/v1/messages", "messages"),
        (b"/v1/responses", "responses"),
        (b"/v1/models", None),
        (b"/v1/chat/completions/x", None),
        (b"/v1/chat%2Fcompletions", None),
    ],
)
def test_endpoints(path: bytes, endpoint: str | None) -> None:
    assert endpoint_of(path) == endpoint


@pytest.mark.parametrize(
    "body",
    [
        b'{"stream":true,"metadata":{"scenario":"s"},"prompt":["a","b"],"messages":[{"content":"\\ud83d"}]}',
        b'{"stream":true,"metadata":{"scenario":"s"},"prompt":["a","b"],"top_p":NaN}',
        b'\xef\xbb\xbf{"stream":true,"metadata":{"scenario":"s"},"prompt":["a","b"]}',
    ],
    ids=["half of a surrogate pair", "NaN", "a byte order mark"],
)
def test_what_servers_in_python_take_for_json_is_read(body: bytes) -> None:
    request = read_request(body)
    assert request is not None
    assert (request.streaming, request.metadata, request.replies) == (True, {"scenario": "s"}, 2)
