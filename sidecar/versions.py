"""What runs, as rows of the table `versions`: told when it is first known, and when it changes."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import json
from pydantic import SecretStr

from .settings import Settings
from .store.rows import VersionRow

#: What stands for a value that is not to be told.
HIDDEN = "(hidden)"
#: URLs that may have a password or a token in them: before an @, or behind the path.
_SECRET = re.compile(r"://.*[@?#]", re.DOTALL)
#: Regular expressions of what nobody is to see.
_PRIVATE = ("redact",)


class Versions:
    """One per process."""

    def __init__(self, instance: str, put: Callable[[VersionRow], None]) -> None:
        self._instance = instance
        self._put = put
        #: Values as last told, by upstream and name.
        self._known: dict[tuple[str, str], str] = {}

    def started(self, specwatch: str, settings: Settings, now: float) -> None:
        """The sidecar's own version, and its settings. `now` is Unix time in seconds.

        All have one time, which tells them from those of other starts, and the version comes last, so that whoever
        finds it finds the settings.
        """
        for name, value in changed_settings(settings).items():
            self._put(VersionRow(now, self._instance, "", f"settings.{name}", value))
        self._put(VersionRow(now, self._instance, "", "specwatch", specwatch))

    def seen(self, upstream: str, found: Mapping[str, object], now: float) -> None:
        """What an upstream is, by name. None is not known, and no change."""
        for name, value in found.items():
            if value is not None and self._known.get((upstream, name)) != str(value):
                self._known[upstream, name] = str(value)
                self._put(VersionRow(now, self._instance, upstream, name, str(value)))


def changed_settings(settings: Settings) -> dict[str, str]:
    """By name, the settings that are not at their defaults; secrets as HIDDEN."""
    found = {}
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        if value != field.get_default(call_default_factory=True):
            found[name] = HIDDEN if name in _PRIVATE or isinstance(value, SecretStr) else _plain(value)
    return found


def _plain(value: object) -> str:
    """Texts and paths as they are, all else as JSON."""
    text = str(value) if isinstance(value, str | Path) else json.encode(value).decode()
    return HIDDEN if _SECRET.search(text) else text
