"""What an operator orders for the database: tables and rollups of this version, and deleting what is old."""

import re
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import Progress
from sqlalchemy.exc import SQLAlchemyError

from .app import upgrade_database
from .recorder import StartError
from .settings import RETENTION_DAYS, Settings, SettingsError
from .store import keeper
from .store.engine import DatabaseUrlError, check_url
from .store.keeper import Pruned, catch_up
from .store.upgrade import HEAD
from .store.writer import one_line

_TIME = re.compile(r"(\d+(?:\.\d+)?)([smh]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def bring_up_to_date(settings: Settings, say: Callable[[str], object]) -> None:
    """Tables, then rollups, with progress where the terminal shows it. Raises SettingsError or StartError."""
    before = upgrade_database(settings)
    say(f"tables: revision {HEAD}" + ("" if before == HEAD else ", new" if before is None else f", was {before}"))
    console = Console(stderr=True)
    try:
        with Progress(console=console, disable=not console.is_terminal) as shown:
            task = shown.add_task("rollups", total=None)
            made, left = catch_up(
                settings.database_url,
                lambda done, left: shown.update(task, completed=done, total=done + left),
            )
    except SQLAlchemyError as error:
        raise StartError(f"rollups: {one_line(error)}; the sidecar makes what is missing") from None
    if left:
        raise StartError(f"rollups: {made} spans made, {left} are left, which could not be; see the sidecar's log")
    say(f"rollups: {made} minutes, hours and days made" if made else "rollups: none were missing")


def prune(settings: Settings, older: Sequence[str], budget: str) -> Pruned:
    """Delete what is old. `older`: TABLE=DAYS each, in place of the settings'; `budget` as `60s`; 0s: only look.

    Raises SettingsError for what was given wrongly, StartError for a database that cannot be used.
    """
    retention = settings.retention | dict(map(_limit, older))
    if (time := _TIME.fullmatch(budget)) is None:
        raise SettingsError(f"--budget: {budget!r} is no time; write it as 60s, 10m or 2h")
    try:
        check_url(settings.database_url)
        return keeper.prune(settings.database_url, retention, float(time[1]) * _SECONDS[time[2]])
    except DatabaseUrlError as error:
        raise SettingsError(str(error)) from None
    except LookupError as error:
        raise StartError(f"database_url: {error}") from None
    except SQLAlchemyError as error:
        raise StartError(f"database_url: {one_line(error)}") from None


def pruned_lines(found: Pruned, dry_run: bool) -> list[str]:
    """What was deleted, for people."""
    if dry_run:
        return [f"{name}: {left} rows would go" for name, left in found.left.items()]
    return [
        f"{name}: {found.deleted.get(name, 0)} rows deleted" + (f", {left} are left" if left else "")
        for name, left in found.left.items()
    ]


def _limit(given: str) -> tuple[str, float | None]:
    name, _, days = given.partition("=")
    if name not in RETENTION_DAYS:
        raise SettingsError(f"--older: {name!r} is no table; use one of {', '.join(RETENTION_DAYS)}")
    try:
        number = float(days)
    except ValueError:
        number = 0.0
    if not 0 < number <= 36_500:
        raise SettingsError(f"--older: {given!r} names no days; write it as {name}=30")
    return name, number
