"""Who ordered what of the admin port, and who was refused: rows of the table `audit`, and `/api/v1/audit`."""

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Message, Send

from sidecar.store.rows import AuditRow

from .deps import ApiDeps
from .limit import Buckets, network
from .models import Model, as_json

#: What an order may say; anything else in a body is not repeated.
_ORDERED = ("mode", "cap", "checkpoint")
#: Refusals that are told in a second, whoever is refused: nobody has to have a token, and addresses may be many.
_REFUSALS_PER_SECOND, _REFUSALS_AT_ONCE = 1, 60
#: Bytes of an answer that are kept to find its error in; errors are shorter.
_LONGEST_ERROR = 8192


class AuditParams(BaseModel):
    model_config = ConfigDict(extra="forbid")

    limit: int = Field(100, ge=1, le=1000)


class AuditEntry(Model):
    at: datetime
    instance: str
    #: control, read, none: what the token that came allows; open: none is set.
    scope: Literal["control", "read", "none", "open"]
    client: str
    method: str
    path: str
    status: int
    #: What was ordered and why; after the code of the error, where it was refused.
    detail: str


class Audit(Model):
    #: Newest first; of all instances.
    entries: list[AuditEntry]


@dataclass
class Asked:
    """A request."""

    scope: str
    client: str
    method: str
    path: str
    body: bytes = b""

    @property
    def is_order(self) -> bool:
        return self.method in ("PUT", "POST")


class Trail:
    """Makes the rows: of every order that was let in, and of each address's first refusal of a kind in a minute, as far
    as these are not too many.
    """

    def __init__(self, deps: ApiDeps) -> None:
        self._deps = deps
        self._first = Buckets(1 / 60, 1)
        self._refusals = Buckets(_REFUSALS_PER_SECOND, _REFUSALS_AT_ONCE)
        self._secrets = [token for token in (deps.admin_token, deps.admin_read_token) if token is not None]

    def refusal(self, asked: Asked, status: int, code: str) -> None:
        """The request was not let in."""
        now = time.monotonic()
        # A refused order is never told by what was only asked for just before.
        order = (asked.method, asked.path[:100]) if asked.is_order else None
        if not self._first.take((network(asked.client), status, order), now) and not self._refusals.take(None, now):
            self._put(asked, status, code)

    def order(self, asked: Asked, status: int, code: str) -> None:
        """The order was carried out, or refused with the error `code`."""
        self._put(asked, status, ": ".join(filter(None, (code, _ordered(asked.body)))))

    def watch(self, asked: Asked, send: Send) -> Send:
        """`send`, and the row that the answer brings about."""
        status, answer = 0, b""

        async def watched(message: Message) -> None:
            nonlocal status, answer
            await send(message)
            if message["type"] == "http.response.start":
                status = message["status"]
                return
            if status >= 400 and len(answer) < _LONGEST_ERROR:
                answer += message.get("body", b"")
            if not message.get("more_body", False):
                if asked.is_order and asked.path.startswith("/api/v1/"):
                    self.order(asked, status, _code(answer))
                elif status == 403:
                    self.refusal(asked, status, _code(answer))

        return watched

    def _put(self, asked: Asked, status: int, detail: str) -> None:
        deps = self._deps
        path = self._without_secrets(asked.path)
        detail = self._without_secrets(detail)
        deps.audit(AuditRow(deps.now(), deps.instance, asked.scope, asked.client, asked.method, path, status, detail))

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _ordered(body: bytes) -> str:
    """`mode=hard cap=2: crowded`"""
    try:
        order = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    if not isinstance(order, dict):
        return ""
    what = " ".join(f"{name}={str(order[name])[:200]}" for name in _ORDERED if name in order)
    reason = order.get("reason")
    return ": ".join(filter(None, (what, reason[:500] if isinstance(reason, str) else "")))


def _code(answer: bytes) -> str:
    try:
        found: Any = msgspec.json.decode(answer)["error"]["code"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
    return str(found)


def router(deps: ApiDeps) -> APIRouter:
    """For the control token alone: addresses and reasons are not for everybody who may look at figures."""
    made = APIRouter()

    @made.get("/audit", response_model=Audit)
    def audit(query: Annotated[AuditParams, Query()]) -> Response:
        """The newest orders and refusals."""
        entries = [AuditEntry(**row) for row in deps.reader.audit(query.limit)]
        return as_json(Audit(entries=entries))

    return made
