"""What a generation request asks for, and the two changes the sidecar may make to it."""

import json
import re
from typing import Any

import msgspec

#: Endpoints whose requests become records: path suffix -> name of the endpoint in a row.
_ENDPOINTS = {
    b"/chat/completions": "chat_completions",
    b"/completions": "completions",
    b"/responses": "responses",
    b"/messages": "messages",
}
# Nearly every client asks for just these paths; one look-up finds them.
_USUAL = {b"/v1" + suffix: name for suffix, name in _ENDPOINTS.items()}
#: Endpoints that take `stream_options`.
_WITH_STREAM_OPTIONS = frozenset(("chat_completions", "completions"))

_NO_PROMPT = msgspec.Raw(b"null")
_USAGE = b'"stream_options":{"include_usage":true}'
_SPACE = b" \t\r\n"
_no_space = re.compile(r"[^ \t\r\n]")
_value_at = json.JSONDecoder().raw_decode


class Request(msgspec.Struct):
    """The fields of a request body that the sidecar reads. Values are as the client wrote them: unchecked."""

    model: Any = None
    stream: Any = None
    temperature: Any = None
    n: Any = None
    prompt: msgspec.Raw = _NO_PROMPT
    metadata: Any = None
    stream_options: Any | msgspec.UnsetType = msgspec.UNSET
    vllm_xargs: Any = None

    @property
    def streaming(self) -> bool:
        return self.stream is True

    @property
    def replies(self) -> int:
        """Replies asked for; more than one has no acceptance figures of its own."""
        several = self.n if type(self.n) is int and self.n > 1 else 1
        return several if self.prompt is _NO_PROMPT else several * _prompts(self.prompt)

    @property
    def usage_declined(self) -> bool:
        """The client itself said that it wants no usage."""
        return isinstance(self.stream_options, dict) and self.stream_options.get("include_usage") is False

    @property
    def plain(self) -> bool:
        """The client itself asked for no speculation, in a way that the engine plugin takes for that."""
        own = self.vllm_xargs
        if not isinstance(own, dict) or "speculative" not in own:
            return False
        return str(own["speculative"]).strip().lower() in ("false", "0", "0.0", "no", "off")


_decoder = msgspec.json.Decoder(Request)
_list = msgspec.json.Decoder(list[msgspec.Raw])


def read_request(body: bytes) -> Request | None:
    """None for a body that is no JSON object; the upstream will say so to the client."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return _read_loosely(body)


def _read_loosely(body: bytes) -> Request | None:
    """What is no strict JSON, and yet taken by servers in Python: NaN, half of a surrogate pair, a BOM."""
    try:
        value = json.loads(body)
        if not isinstance(value, dict):
            return None
        known = {name: value[name] for name in Request.__struct_fields__ if name in value}
        if "prompt" in known:
            known["prompt"] = msgspec.Raw(json.dumps(known["prompt"]).encode())
        return Request(**known)
    except (ValueError, RecursionError):
        return None


def endpoint_of(path: bytes) -> str | None:
    """Name of the generation endpoint that a path means, or None."""
    usual = _USUAL.get(path)
    if usual is not None:
        return usual
    path = path.rstrip(b"/")
    for suffix, name in _ENDPOINTS.items():
        if path.endswith(suffix):
            return name
    return None


def with_usage(endpoint: str, request: Request, body: bytes) -> bytes | None:
    """The body with usage asked for, every other byte kept; None where that must not or need not be done.

    Only for a streaming request whose client left `stream_options` unset: what it set is respected. Several
    replies have no figures of their own, with usage or without.
    """
    if endpoint not in _WITH_STREAM_OPTIONS or not request.streaming or request.replies > 1:
        return None
    if request.stream_options is not msgspec.UNSET:
        return None
    return _with_member(body, _USAGE)


def without_speculation(request: Request, body: bytes) -> bytes | None:
    """The body with no speculation asked of the engine plugin, every other byte kept; None where that cannot be.

    What the client has in `vllm_xargs` is repeated as it wrote it, as of two members of a name the last one counts.
    A `vllm_xargs` that is no object is for the upstream to refuse.
    """
    own = request.vllm_xargs
    if own is not None and not isinstance(own, dict):
        return None
    try:
        members = _last_object(body, "vllm_xargs") + b"," if own else b""
    except (ValueError, RecursionError):
        return None
    return _with_member(body, b'"vllm_xargs":{' + members + b'"speculative":false}')


def _with_member(body: bytes, member: bytes) -> bytes | None:
    """A JSON object with one more member at its end; None where it is in another encoding than UTF-8."""
    if not json.detect_encoding(body).startswith("utf-8"):
        return None
    end = body.rstrip(_SPACE)
    start = end[:-1]
    comma = b"" if start.rstrip(_SPACE).endswith(b"{") else b","
    return start + comma + member + b"}" + body[len(end) :]


def _last_object(body: bytes, name: str) -> bytes:
    """What stands between the braces of the last member `name`, an object, of a JSON object. Raises ValueError."""
    text = body.decode("utf-8", "surrogatepass")
    found = ""
    at = _skip(text, text.index("{") + 1)
    while text[at] == '"':
        key, at = _value_at(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, at = _value_at(text, start)
        if key == name:
            found = text[start:at]
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found[1:-1].encode("utf-8", "surrogatepass")


def _skip(text: str, at: int) -> int:
    """Where the next character is that is no space; text that is JSON has one."""
    found = _no_space.search(text, at)
    assert found is not None
    return found.start()


def _prompts(prompt: msgspec.Raw) -> int:
    """Prompts in a `prompt` value: a list of strings or of token lists is several."""
    # Mostly it is one text, or many thousand tokens: the first bytes tell.
    start = bytes(memoryview(prompt)[:64])
    if start[:1] != b"[" or start[1:].lstrip()[:1].isdigit():
        return 1
    items = _list.decode(prompt)
    return len(items) if items and bytes(items[0])[:1] in (b'"', b"[") else 1
