"""What a generation request asks for, and the one change the sidecar may make to it."""

import json
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

_USAGE = b'"stream_options":{"include_usage":true}'


class Request(msgspec.Struct):
    """The fields of a request body that the sidecar reads. Values are as the client wrote them: unchecked."""

    model: Any = None
    stream: Any = None
    temperature: Any = None
    n: Any = None
    prompt: msgspec.Raw = msgspec.Raw(b"null")
    metadata: Any = None
    stream_options: Any | msgspec.UnsetType = msgspec.UNSET

    @property
    def streaming(self) -> bool:
        return self.stream is True

    @property
    def replies(self) -> int:
        """Replies asked for; more than one has no acceptance figures of its own."""
        several = self.n if type(self.n) is int and self.n > 1 else 1
        return several * _prompts(bytes(self.prompt))

    @property
    def usage_declined(self) -> bool:
        """The client itself said that it wants no usage."""
        return isinstance(self.stream_options, dict) and self.stream_options.get("include_usage") is False


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
    # Decoded as an object with `stream` in it, so the body ends in } and is not empty before it.
    end = body.rstrip(b" \t\r\n")
    return end[:-1] + b"," + _USAGE + b"}" + body[len(end) :]


def _prompts(prompt: bytes) -> int:
    """Prompts in a `prompt` value: a list of strings or of token lists is several."""
    if prompt[:1] != b"[":
        return 1
    items = _list.decode(prompt)
    return len(items) if items and bytes(items[0])[:1] in (b'"', b"[") else 1
