"""Requests of which every part holds a mark of its own."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote

from .canaries import Canaries
from .proxy import post

CHAT, LEGACY, RESPONSES, MESSAGES = b"/v1/chat/completions", b"/v1/completions", b"/v1/responses", b"/v1/messages"
#: Bytes of a body that are read.
HOLD = 65_536

Reply = Callable[["Play"], bytes]


@dataclass
class Play:
    """One request and its reply."""

    name: str
    reply: "Reply | Fault"
    path: bytes = CHAT
    stream: bool = False
    #: Words that stand in the body beside the marks.
    word: str = ""
    scenario: str = ""
    body: Callable[["Play"], bytes] | None = None
    #: Bytes of the reply after which the client leaves.
    leaves_after: int | None = None
    canaries: Canaries = field(default_factory=Canaries)
    model: str = "m"
    number: int = 0
    #: Times that the upstream was asked.
    answered: int = 0

    def text(self, part: str) -> str:
        return self.canaries.text(self.name, part)

    @property
    def key(self) -> str:
        """What tells the upstream which request it has, also where it is sent again."""
        return f"play-{self.number}-"


@dataclass
class Fault:
    """What comes of a reply, and how it ends."""

    start: Reply
    hangs: bool = False


# ---- requests


def chat_body(play: Play) -> bytes:
    text = play.text
    return json.dumps(
        {
            "model": play.model,
            "stream": play.stream,
            "user": text("user"),
            "metadata": {"tenant": text("metadata"), text("metadata name"): "x"},
            "messages": [
                {"role": "system", "content": text("system prompt")},
                {"role": "user", "name": text("name"), "content": f"{play.key} {play.word} {text('content')}"},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": text("part")},
                        {"type": "image_url", "image_url": {"url": f"https://x/{quote(text('image URL'))}"}},
                        {"type": "image_url", "image_url": {"url": _data_url(text("image data"))}},
                        {"type": "input_audio", "input_audio": {"data": text("audio"), "format": "wav"}},
                    ],
                },
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "c", "type": "function", "function": {"name": "f", "arguments": text("arguments")}}
                    ],
                },
                {"role": "tool", "tool_call_id": "c", "content": text("tool result")},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "description": text("tool description")}}],
            "stop": [text("stop")],
            "prompt": text("a prompt beside"),
            text("a field's name"): 1,
        }
    ).encode()


def _data_url(text: str) -> str:
    return "data:image/png;base64," + base64.b64encode(text.encode()).decode()


def legacy_body(play: Play) -> bytes:
    prompts = [f"{play.key} {play.text('prompt')}", play.text("second prompt")]
    return json.dumps(
        {"model": play.model, "stream": play.stream, "prompt": prompts, "suffix": play.text("suffix")}
    ).encode()


def responses_body(play: Play) -> bytes:
    return json.dumps(
        {
            "model": play.model,
            "stream": play.stream,
            "instructions": play.text("instructions"),
            "input": [{"role": "user", "content": [{"type": "input_text", "text": play.key + play.text("input")}]}],
        }
    ).encode()


def messages_body(play: Play) -> bytes:
    return json.dumps(
        {
            "model": play.model,
            "stream": play.stream,
            "system": play.text("system"),
            "messages": [{"role": "user", "content": f"{play.key} {play.text('content')}"}],
        }
    ).encode()


BODIES = {CHAT: chat_body, LEGACY: legacy_body, RESPONSES: responses_body, MESSAGES: messages_body}


def broken(play: Play) -> bytes:
    return chat_body(play)[:-20] + play.text("broken").encode()


def odd(play: Play) -> bytes:
    text = play.text("odd").replace("\n", " ").replace('"', "")
    return b'\xef\xbb\xbf{"model":"m","temperature":NaN,"messages":"\\ud800 %b %b","n":"%b"}' % (
        play.key.encode(),
        text.encode(),
        play.text("n").replace("\n", " ").replace('"', "").encode(),
    )


def too_long(play: Play) -> bytes:
    return chat_body(play)[:-1] + b',"pad":"' + b" " * HOLD + play.text("end").split()[0].encode() + b'"}'


def request_of(play: Play) -> bytes:
    canaries = play.canaries
    fields = [
        f"x-play: {play.key}",
        f"authorization: Bearer {canaries(play.name, 'authorization')}",
        f"x-api-key: {canaries(play.name, 'x-api-key')}",
        f"cookie: a={canaries(play.name, 'cookie')}",
        f"x-own: {canaries(play.name, 'field')}",
        *([f"x-scenario: {play.scenario}"] if play.scenario else []),
    ]
    path = play.path + f"?key={canaries(play.name, 'query')}".encode()
    body = (play.body or BODIES[play.path])(play)
    return post(body, path, extra="".join(f"{line}\r\n" for line in fields).encode())
