"""C17, C08: asking for usage, or for no speculation, without disturbing anything else."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.tap.request import endpoint_of, read_request, with_usage, without_speculation


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


def opted_out(body: bytes) -> bytes | None:
    request = read_request(body)
    return None if request is None else without_speculation(request, body)


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        (b"{}", b'{"vllm_xargs":{"speculative":false}}'),
        (b" { } \n", b' { "vllm_xargs":{"speculative":false}} \n'),
        (b'{"n":2}', b'{"n":2,"vllm_xargs":{"speculative":false}}'),
        (b'{"a":{} }', b'{"a":{} ,"vllm_xargs":{"speculative":false}}'),
        (b'\xef\xbb\xbf{"a":1}', b'\xef\xbb\xbf{"a":1,"vllm_xargs":{"speculative":false}}'),
        (
            b'{"a":NaN,"seed":12345678901234567890}',
            b'{"a":NaN,"seed":12345678901234567890,"vllm_xargs":{"speculative":false}}',
        ),
        (b'{"vllm_xargs":null}', b'{"vllm_xargs":null,"vllm_xargs":{"speculative":false}}'),
        (b'{"vllm_xargs": { }}', b'{"vllm_xargs": { },"vllm_xargs":{"speculative":false}}'),
        (
            b'{"vllm_xargs":{ "a" : 1.00, "a":"\\u00e9\xc3\xa9", "b":[NaN,-0] }, "x":{"vllm_xargs":{"c":1}}}',
            (
                b'{"vllm_xargs":{ "a" : 1.00, "a":"\\u00e9\xc3\xa9", "b":[NaN,-0] }, "x":{"vllm_xargs":{"c":1}},'
                b'"vllm_xargs":{ "a" : 1.00, "a":"\\u00e9\xc3\xa9", "b":[NaN,-0] ,"speculative":false}}'
            ),
        ),
        (
            b'{"vllm_xargs":{"a":1},"\\u0076llm_xargs":{"b":"}"}}',
            b'{"vllm_xargs":{"a":1},"\\u0076llm_xargs":{"b":"}"},"vllm_xargs":{"b":"}","speculative":false}}',
        ),
        (
            b'{"vllm_xargs":{"speculative":true}}',
            b'{"vllm_xargs":{"speculative":true},"vllm_xargs":{"speculative":true,"speculative":false}}',
        ),
        (
            b'{"vllm_xargs":{"a":"\xed\xa0\xbd"},"x":"\\ud83d"}',
            b'{"vllm_xargs":{"a":"\xed\xa0\xbd"},"x":"\\ud83d","vllm_xargs":{"a":"\xed\xa0\xbd","speculative":false}}',
        ),
    ],
)
def test_no_speculation_is_asked_for_by_one_more_member(body: bytes, changed: bytes) -> None:
    assert opted_out(body) == changed


@pytest.mark.parametrize(
    "body",
    [
        b'{"vllm_xargs":"speculative"}',
        b'{"vllm_xargs":[]}',
        b'{"vllm_xargs":false}',
        b'{"vllm_xargs":{"a":' + b"1" * 5_000 + b"}}",
        b'{"vllm_xargs":{"a":1},"x":"\xff"}',
        json.dumps({"model": "m"}).encode("utf-16"),
        json.dumps({"model": "m"}).encode("utf-32-le"),
        b"[]",
        b'{"a":1',
        b"\x1f\x8b\x08\x00",
        b"",
    ],
)
def test_what_cannot_be_changed_stays_as_it_is(body: bytes) -> None:
    assert opted_out(body) is None


space = st.text(" \t\r\n", max_size=2)
scalar = st.one_of(
    st.integers().map(str),
    st.sampled_from(["null", "true", "-0", "1.00", "1E+2", "1e999", "NaN", "-Infinity", "12345678901234567890123"]),
    st.tuples(st.text(max_size=4), st.booleans()).map(lambda drawn: json.dumps(drawn[0], ensure_ascii=drawn[1])),
)
name = st.sampled_from(["stream", "vllm_xargs", "speculative", "a", "a}", 'b"', "é"]) | st.text(max_size=3)


def written(value: st.SearchStrategy[str], least: int = 0) -> st.SearchStrategy[str]:
    """An object as people and libraries write it: any spaces, names twice, escaped or not."""
    key = st.tuples(name, st.booleans()).map(lambda drawn: json.dumps(drawn[0], ensure_ascii=drawn[1]))
    member = st.tuples(space, key, space, space, value, space).map(
        lambda part: f"{part[0]}{part[1]}{part[2]}:{part[3]}{part[4]}{part[5]}"
    )
    return st.tuples(st.lists(member, min_size=least, max_size=4), space).map(
        lambda drawn: "{" + (",".join(drawn[0]) or drawn[1]) + "}"
    )


bodies = st.tuples(
    st.sampled_from(["", "\ufeff"]),
    space,
    written(st.recursive(scalar, lambda inner: written(inner) | inner.map(lambda item: f"[{item}]"), max_leaves=4)),
    space,
).map(lambda drawn: "".join(drawn).encode("utf-8", "surrogatepass"))


def same(left: object, right: object) -> bool:
    """Equality in which NaN equals itself."""
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return type(left) is type(right) and left == right


@given(bodies)
def test_only_that_member_is_added_whatever_the_body(body: bytes) -> None:
    original = json.loads(body)
    own = original.get("vllm_xargs")
    changed = opted_out(body)
    if own is not None and not isinstance(own, dict):
        assert changed is None
        return
    assert changed is not None
    value = json.loads(changed)
    assert same(value.pop("vllm_xargs"), {**(own or {}), "speculative": False} if own else {"speculative": False})
    original.pop("vllm_xargs", None)
    assert same(value, original)
    # And back: what was added lies between the last member and the closing brace.
    end = body.rstrip(b" \t\r\n")
    start, rest = end[:-1], body[len(end) - 1 :]
    added = changed[len(start) : len(changed) - len(rest)]
    assert (changed[: len(start)], changed[len(changed) - len(rest) :]) == (start, rest)
    assert added.removeprefix(b",").startswith(b'"vllm_xargs":{')
    assert added.endswith(b'"speculative":false}')


@given(bodies)
def test_both_changes_go_together(body: bytes) -> None:
    body = body.replace(b"{", b'{"stream":true,' if json.loads(body) else b'{"stream":true', 1)
    request = read_request(body)
    assert request is not None
    asked = with_usage("chat_completions", request, body)
    if asked is not None:
        both = without_speculation(request, asked)
        alone = without_speculation(request, body)
        assert (both is None) == (alone is None)
        if both is not None and alone is not None:
            value = json.loads(both)
            assert value.pop("stream_options") == {"include_usage": True}
            assert same(value, json.loads(alone))


@pytest.mark.parametrize(
    ("own", "plain"),
    [
        (b'{"speculative":false}', True),
        (b'{"speculative":0}', True),
        (b'{"speculative":" No"}', True),
        (b'{"speculative":true}', False),
        (b'{"speculative":1}', False),
        (b'{"a":false}', False),
        (b"null", False),
        (b"[]", False),
    ],
)
def test_a_client_may_ask_for_no_speculation_itself(own: bytes, plain: bool) -> None:
    request = read_request(b'{"vllm_xargs":' + own + b"}")
    assert request is not None
    assert request.plain is plain


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
