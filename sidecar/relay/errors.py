"""Replies of the relay's own, when there is none of the upstream's to pass on."""

import json
from http import HTTPStatus


def error_reply(status: int, message: str, code: str) -> bytes:
    """A whole HTTP/1.1 response with an OpenAI-shaped error body; it ends the connection."""
    kind = f"specwatch_{code}"
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
