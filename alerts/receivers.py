"""Receivers and routes, as the file has them. Secrets are SecretStr, read from `…_file` where that is given."""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, StrictBool, ValidationInfo, model_validator

from .fields import Duration, Name, SomeTime, Strict, Text, at, secret_of_file
from .model import Severity


def _url(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    try:
        parts = urlsplit(text)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        sound = False
    if not sound or not text.isprintable() or " " in text:
        raise ValueError("must be http://host… or https://host…")
    return value


def _base(value: SecretStr) -> SecretStr:
    parts = urlsplit(value.get_secret_value())
    if parts.query or parts.fragment:
        raise ValueError("must end with the path, without ? or #")
    return SecretStr(value.get_secret_value().rstrip("/"))


def _apprise(value: SecretStr) -> SecretStr:
    import logging

    import apprise

    # Its log shows what it was given.
    logger = logging.getLogger("apprise")
    before, logger.disabled = logger.disabled, True
    try:
        known = apprise.Apprise.instantiate(value.get_secret_value(), suppress_exceptions=True)
    finally:
        logger.disabled = before
    if known is None:
        raise ValueError("is no address Apprise knows, or one that lacks something: see its list of services")
    return value


def _header(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not text or not text.isascii() or not text.isprintable() or text != text.strip():
        raise ValueError("must be printable ASCII without spaces around it, and not empty")
    return value


def _header_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", value):
        raise ValueError("is no name of a header field")
    return value


def _texts(value: object) -> object:
    return [value] if isinstance(value, str) else value


Header = Annotated[SecretStr, AfterValidator(_header)]
HeaderName = Annotated[str, AfterValidator(_header_name)]
Url = Annotated[SecretStr, AfterValidator(_url)]
BaseUrl = Annotated[SecretStr, AfterValidator(_url), AfterValidator(_base)]


class Receiver(Strict):
    """Who is told. Of each field in `SECRETS`, `…_file` names a file that holds it, relative to the alerts' file."""

    SECRETS: ClassVar[tuple[str, ...]] = ()

    name: Annotated[Text, Field(min_length=1, max_length=100)]
    #: Whether it is told, too, that an alert is over.
    send_resolved: StrictBool = True
    #: Of one try.
    timeout_s: SomeTime = Field(default=10.0, alias="timeout")

    @model_validator(mode="before")
    @classmethod
    def _secrets_of_files(cls, values: Any, info: ValidationInfo) -> Any:
        if not isinstance(values, dict):
            return values
        values = dict(values)
        for name in cls.SECRETS:
            if (key := f"{name}_file") in values:
                if name in values:
                    at(key, f"stands beside {name}; keep one of them")
                folder = (info.context or {}).get("folder", Path())
                values[name] = secret_of_file(key, values.pop(key), folder)
        return values


class Apprise(Receiver):
    """Chats, mail and phones, by the address Apprise has for them, as slack://…"""

    SECRETS: ClassVar[tuple[str, ...]] = ("url",)
    type: Literal["apprise"] = "apprise"
    url: Annotated[SecretStr, AfterValidator(_apprise)]


class _Http(Receiver):
    SECRETS: ClassVar[tuple[str, ...]] = ("url", "token")
    #: Sent as `Authorization: Bearer …`.
    token: Header | None = None
    headers: dict[HeaderName, Header] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_authorization(self) -> Self:
        url: SecretStr = getattr(self, "url")  # noqa: B009
        by_header = any(name.lower() == "authorization" for name in self.headers)
        if self.token is not None and by_header:
            at("token", "stands beside the header Authorization; keep one of them")
        if "@" in urlsplit(url.get_secret_value()).netloc and (self.token is not None or by_header):
            at("token" if self.token is not None else "headers", "stands beside the user in url; keep one of them")
        return self


class Webhook(_Http):
    """Takes Alertmanager's JSON (version 4) by POST."""

    type: Literal["webhook"] = "webhook"
    url: Url


class Alertmanager(_Http):
    """An Alertmanager's API v2; grouping and silences are its own. `url` is without `/api/v2`, and ends with no /."""

    type: Literal["alertmanager"] = "alertmanager"
    url: BaseUrl


class Grafana(_Http):
    """Annotations in a Grafana. `url` is without `/api`, and ends with no /."""

    type: Literal["grafana"] = "grafana"
    url: BaseUrl


class Command(Receiver):
    """Runs a program, without a shell. A path in its first word is relative to the alerts' file."""

    type: Literal["command"] = "command"
    command: Annotated[tuple[str, ...], Field(min_length=1)]
    send_resolved: StrictBool = False
    timeout_s: SomeTime = Field(default=3600.0, alias="timeout")
    #: From one start to the next.
    min_interval_s: Duration = Field(default=3600.0, alias="min_interval")

    @model_validator(mode="before")
    @classmethod
    def _program(cls, values: Any, info: ValidationInfo) -> Any:
        words = values.get("command") if isinstance(values, dict) else None
        if isinstance(words, str):
            at("command", "must be a list of words, as [./retrain.sh, --now]")
        if not isinstance(words, list | tuple) or not words or not isinstance(words[0], str):
            return values
        program = words[0]
        if "/" in program:
            program = str((info.context or {}).get("folder", Path()).absolute() / program)
        if "\0" in program or shutil.which(program) is None:
            at("command", "its first word is no program that can be run; name one that is executable")
        return {**values, "command": (program, *words[1:])}


AnyReceiver = Annotated[Apprise | Webhook | Alertmanager | Grafana | Command, Field(discriminator="type")]


class BranchEntry(Strict):
    """A route under the first one, as the file has it; what it leaves out is as there."""

    match: dict[Name, Annotated[tuple[Text, ...], BeforeValidator(_texts), Field(min_length=1)]] = Field(
        default_factory=dict
    )
    continue_: StrictBool = Field(default=False, alias="continue")
    receiver: Text | None = None
    group_by: tuple[Name, ...] | None = None
    group_wait_s: Duration | None = Field(default=None, alias="group_wait")
    group_interval_s: SomeTime | None = Field(default=None, alias="group_interval")
    repeat_interval_s: SomeTime | None = Field(default=None, alias="repeat_interval")

    def under(self, first: "Route") -> "Route":
        own = ("receiver", "group_by", "group_wait_s", "group_interval_s", "repeat_interval_s")
        given = {name: value for name in own if (value := getattr(self, name)) is not None}
        return replace(first, match=self.match, continue_=self.continue_, **given)


class RouteEntry(Strict):
    """The first route, which all alerts meet that no other one takes."""

    receiver: Text = ""
    group_by: tuple[Name, ...] = ("alertname",)
    group_wait_s: Duration = Field(default=10.0, alias="group_wait")
    group_interval_s: SomeTime = Field(default=60.0, alias="group_interval")
    repeat_interval_s: SomeTime = Field(default=4 * 3600.0, alias="repeat_interval")
    routes: tuple[BranchEntry, ...] = ()

    def resolved(self) -> "Route":
        """With everything a branch leaves out filled in."""
        first = Route(self.receiver, self.group_by, self.group_wait_s, self.group_interval_s, self.repeat_interval_s)
        return replace(first, routes=tuple(branch.under(first) for branch in self.routes))


@dataclass(frozen=True, slots=True)
class Route:
    """Where alerts go, and how often; nothing is left to be inherited. An empty receiver is nobody."""

    receiver: str = ""
    group_by: tuple[str, ...] = ("alertname",)
    group_wait_s: float = 10.0
    group_interval_s: float = 60.0
    repeat_interval_s: float = 4 * 3600.0
    #: Label: the values it may have; all must be met.
    match: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Routes that follow are looked at as well.
    continue_: bool = False
    #: Of the first route alone.
    routes: "tuple[Route, ...]" = ()

    def matching(self, labels: Mapping[str, str]) -> "tuple[Route, ...]":
        """The routes that an alert takes, as Alertmanager finds them. One of severity info takes none but those that
        name this severity, and may take none at all."""
        quiet = labels.get("severity") == Severity.INFO
        found: list[Route] = []
        for route in self.routes:
            if quiet and "severity" not in route.match:
                continue
            if all(labels.get(name, "") in values for name, values in route.match.items()):
                found.append(route)
                if not route.continue_:
                    break
        return tuple(found) if found or quiet else (self,)
