"""What happened to alerts: the newest rows, and what a sidecar that starts again must know of its own."""

from typing import Any

from sqlalchemy import Connection, func, or_, select

from .expressions import utc
from .rows import clean
from .schema import alerts

_a = alerts.c
_COLUMNS = [column for column in alerts.columns if column.name != "id"]


def newest(connection: Connection, limit: int) -> list[dict[str, Any]]:
    """`AlertEvent` rows of all instances, newest first."""
    query = select(*_COLUMNS).order_by(_a.at.desc(), _a.id.desc()).limit(limit)
    return [dict(row) for row in connection.execute(query).mappings()]


def unfinished(connection: Connection, instance: str, since: float) -> list[dict[str, Any]]:
    """Rows of the alerts of `instance` that fire, or were resolved at `since` (Unix s) or later.

    In the order in which they were written: of each alert the newest that says firing or resolved, and for each
    receiver the newest that says that it was told of the alert. Also the newest that each receiver was told at all.
    """
    own = _a.instance == clean(instance)
    states = select(func.max(_a.id)).where(own, _a.event.in_(("firing", "resolved"))).group_by(_a.fingerprint)
    open_ = _a.id.in_(states) & or_(_a.event == "firing", _a.at >= utc(since))
    of_open = _a.fingerprint.in_(select(_a.fingerprint).where(own, open_))
    told = select(func.max(_a.id)).where(own, _a.event == "notified")
    of_each = told.where(of_open).group_by(_a.fingerprint, _a.receiver)
    by_receiver = told.group_by(_a.receiver)
    query = select(*_COLUMNS).where(own, or_(open_, _a.id.in_(of_each), _a.id.in_(by_receiver))).order_by(_a.id)
    return [dict(row) for row in connection.execute(query).mappings()]
