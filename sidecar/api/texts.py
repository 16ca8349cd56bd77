"""Prompts and replies that are kept, where `store_text` is on."""

from typing import Literal

from fastapi import APIRouter, Response

from . import errors
from .deps import ApiDeps
from .models import Model, as_json
from .params import RowQuery


class StoredText(Model):
    kind: Literal["prompt", "reply"]
    #: Redacted.
    text: str
    #: Whether it was longer.
    cut: bool


class StoredTexts(Model):
    #: Empty where none were kept, or none are any more.
    texts: list[StoredText]


def router(deps: ApiDeps) -> APIRouter:
    """For the control token alone: figures are for more people than what was said."""
    made = APIRouter()

    @made.get("/requests/{request_id:path}/texts", response_model=StoredTexts)
    def texts(request_id: str, query: RowQuery) -> Response:
        """What was said in one request: the newest of this id, before `until`."""
        row, _ = deps.reader.request(request_id, query.until)
        if row is None:
            message = f"no request {request_id[:200]!r} is recorded; /api/v1/requests/ID tells how to look further back"
            raise errors.ApiError(404, message, code="not_found", param="request_id")
        found = [StoredText(**text) for text in deps.reader.texts(row)]
        return as_json(StoredTexts(texts=found))

    return made
