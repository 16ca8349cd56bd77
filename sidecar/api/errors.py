"""Errors as OpenAI clients know them: {"error": {"message", "type", "param", "code"}}."""

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from sidecar.store.queries import DatabaseUnavailable

log = logging.getLogger(__name__)

_INVALID = "invalid_request_error"
_STATUS_CODES = {401: "invalid_api_key", 404: "not_found", 405: "method_not_allowed", 409: "conflict"}


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        kind: str = _INVALID,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.body = error_body(message, kind=kind, param=param, code=code)
        self.headers = headers

    def answer(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, headers=self.headers)


def error_body(message: str, *, kind: str, code: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def invalid(param: str, message: str) -> ApiError:
    """422 for a parameter; the message begins with its name."""
    return ApiError(422, f"{param}: {message}", code="invalid_parameter", param=param)


def install(app: FastAPI) -> None:
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(DatabaseUnavailable, _database_error)
    app.add_exception_handler(Exception, _unexpected)


def _api_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return error.answer()


def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    if error.status_code == 404:
        message = f"no such path: {request.url.path}"
    elif error.status_code == 405:
        message = f"{request.method} is not allowed on {request.url.path}"
    code = _STATUS_CODES.get(error.status_code, "http_error")
    return JSONResponse(error_body(message, kind=_INVALID, code=code), error.status_code, headers=error.headers)


def _validation_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    # The first is enough to go on, and pydantic's texts are plain.
    first = error.errors()[0]
    place = [str(part) for part in first["loc"] if part not in ("query", "path", "body")]
    param = ".".join(place) or None
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "there is no such parameter"
    text = f"{param}: {message}" if param else f"request body: {message}"
    return JSONResponse(error_body(text, kind=_INVALID, param=param, code="invalid_parameter"), 422)


def _database_error(_request: Request, error: Exception) -> JSONResponse:
    log.warning("%s", error)
    kind = "specwatch_database_unavailable"
    return JSONResponse(error_body(str(error), kind=kind, code="database_unavailable"), 503)


def _unexpected(request: Request, _error: Exception) -> JSONResponse:
    # Starlette logs the traceback after this.
    message = f"Specwatch failed to answer {request.method} {request.url.path}; its log says why"
    return JSONResponse(error_body(message, kind="specwatch_internal_error", code="internal_error"), 500)
