"""The database and what waits for it."""

from collections.abc import Iterator

from ...store.upgrade import HEAD
from .. import figures
from ..facts import DatabaseFacts, Facts, Machine, SidecarFacts, Unseen
from ..findings import Check, NotLooked, Result, fault, fine, note, warning

#: Free bytes below which a disk is full soon, and full.
_LOW, _FULL = 2 << 30, 200 << 20
_LOW_SHARE = 0.03
#: Between clocks, s.
_SKEW_S = 2.0
_SLOW_S = 2.0
_CONNECTIONS = 0.9

#: Causes and remedies by what went wrong.
_PROBLEMS = {
    "url": ("the setting cannot work as it is", "correct database_url"),
    "folder": ("the folder was not made, or a volume is not mounted", "make it, or correct database_url"),
    "permission": ("the sidecar's user may not write there", "give it the folder and the file (chown, chmod)"),
    "locked": (
        "another process holds the write lock: a backup, a shell with a transaction open, or an upgrade",
        "end that transaction; rows wait in queue and spool until then",
    ),
    "disk": ("the disk is full", "make room: `specwatch db prune`, then VACUUM, or a larger volume"),
    "read_only": ("the file or its file system is read-only", "mount it writable, or name another file"),
    "broken": (
        "the file is damaged, or no SQLite database",
        "restore it from a backup, or move it away: a new one is made",
    ),
    "password": ("the server does not take this user and password", "correct them in database_url"),
    "missing": ("the database or the role is not there", "create it (createdb), or correct its name in database_url"),
    "full": ("others use all connections of the server", "raise max_connections, or put a pooler before it"),
    "slow": ("the server or the file system hangs", "see to it; rows wait in queue and spool until then"),
    "away": ("the server does not run, or cannot be reached from here", "start it, or correct host and port"),
}


def reachable(facts: Facts) -> Iterator[Result]:
    base = facts.database
    if isinstance(base, Unseen):
        yield from _gone(facts, Unseen(base.why, base.code), "the database", None)
        return
    if base.problem is not None:
        yield from _gone(facts, base.problem, f"the database {base.place}", base)
        return
    if base.read_only is not None:
        yield fault(
            "database-read-only",
            f"the database {base.place} takes no rows",
            base.read_only,
            cause="database_url names a replica, or the role lacks a right",
            remedy="name the primary, and the role that owns the tables",
        )
    if base.took_s is not None and base.took_s > _SLOW_S:
        yield warning(
            "database-slow",
            f"the database {base.place} took {base.took_s:.1f} s for its first answer",
            cause="it is far away or overloaded",
            remedy="look at its load; /api/v1 waits for it",
        )
    if base.connections is not None and base.connections[0] >= _CONNECTIONS * base.connections[1]:
        used, most = base.connections
        yield warning(
            "database-connections",
            f"{used} of {most} connections of the server are in use",
            cause="others leave few",
            remedy="raise max_connections, or put a pooler before it",
        )
    if base.read_only is None:
        took = "" if base.took_s is None else f", which answered in {base.took_s * 1000:.0f} ms"
        yield fine("database", f"the database {base.place} takes rows{took}")


def _gone(facts: Facts, problem: Unseen, name: str, base: DatabaseFacts | None) -> Iterator[Result]:
    running = isinstance(facts.sidecar, SidecarFacts)
    fine_there = isinstance(facts.sidecar, SidecarFacts) and facts.sidecar.ready.get("database") == "ok"
    cause, remedy = _PROBLEMS.get(problem.code, ("it cannot be used", "see to it"))
    if problem.code == "missing" and base is not None and base.kind == "sqlite":
        if not running:
            yield note(
                "database-new", f"{problem.why}: a sidecar that starts makes it", remedy="nothing, or check the path"
            )
            return
        cause, remedy = (
            "the path is relative to where the sidecar was started, or the file was deleted",
            ("run the doctor there, or name the file by its whole path"),
        )
    if fine_there:
        # The sidecar's own is the one that counts; figures came from there.
        yield NotLooked(
            "database", f"{name} cannot be seen from here ({problem.why}), but the sidecar says that it is well"
        )
        return
    yield fault(
        "database-gone",
        f"{name} cannot be used",
        problem.why,
        *(["the sidecar says so too: requests are served, and records wait"] if running else []),
        cause=cause,
        remedy=remedy,
        command="specwatch db upgrade",
    )


def migrations(facts: Facts) -> Iterator[Result]:
    base = facts.database
    if isinstance(base, Unseen) or base.problem is not None:
        yield NotLooked("migrations", "the revision of the tables: the database is out of reach")
        return
    found = base.revision
    if found == HEAD:
        yield fine("migrations", f"the tables are of this version (revision {HEAD})")
    elif found is None:
        yield note("migrations", "the database has no tables yet: a sidecar that starts makes them")
    elif found < HEAD:
        yield warning(
            "migrations-behind",
            f"the tables are of an older version: revision {found}, this Specwatch has {HEAD}",
            cause="they were made by an older Specwatch, and no sidecar of this version has started since",
            remedy="specwatch db upgrade, with all sidecars of the database stopped or of this version",
            command="specwatch db upgrade",
        )
    else:
        yield fault(
            "migrations-ahead",
            f"the tables are of a newer version: revision {found}, this Specwatch has {HEAD}",
            cause="a newer Specwatch has upgraded them",
            remedy="install that version here; older sidecars write rows that it misses",
            command="pip install --upgrade specwatch",
        )


def clocks(facts: Facts) -> Iterator[Result]:
    """Whether sidecars, database and engine agree on the time; rows of tomorrow are in no window."""
    base, said = facts.database, False
    if isinstance(base, DatabaseFacts) and base.skew_s is not None and abs(base.skew_s) > _SKEW_S:
        said = True
        yield warning(
            "clock-skew-database",
            f"the database's clock is {base.skew_s:+.1f} s beside this machine's",
            cause="one of them has no NTP",
            remedy="synchronise both (timedatectl, chrony): windows, rollups and the fleet go by these times",
            command="timedatectl",
        )
    if not isinstance(facts.rows, Unseen):
        ahead: dict[str, float] = {}
        for row in facts.rows:
            ahead[row["instance"]] = max(ahead.get(row["instance"], 0.0), figures.at(row) - facts.now)
        for name, seconds in ahead.items():
            # The look itself takes a while, in which requests come.
            if seconds > 30:
                said = True
                yield warning(
                    "clock-skew-instance",
                    f"rows of instance {name} are of {seconds:.0f} s in the future",
                    cause="its machine's clock is ahead, or this one's behind",
                    remedy="synchronise both (timedatectl, chrony): windows end now, and leave its rows out",
                    command="timedatectl",
                )
    for engine in facts.engines.values():
        if (skew := engine.server.skew_s) is not None and abs(skew) > 5:
            said = True
            yield note(
                "clock-skew-engine",
                f"the clock of {engine.server.url} is {skew:+.0f} s beside this machine's",
                remedy="synchronise both, to find the same moment in both logs",
            )
    if not said:
        yield fine("clocks", "no clock is far from this machine's")


def disks(facts: Facts) -> Iterator[Result]:
    if isinstance(facts.machine, Unseen):
        yield NotLooked("disks", f"disks: {facts.machine.why}")
        return
    worst = False
    for disk in facts.machine.disks:
        words = f"{disk.free / 2**30:.1f} of {disk.total / 2**30:.0f} GiB are free at {disk.path} ({disk.what})"
        if disk.free < _FULL or disk.free < min(_LOW, _LOW_SHARE * disk.total):
            worst = True
            make = fault if disk.free < _FULL else warning
            yield make(
                "disk-full" if disk.free < _FULL else "disk-low",
                f"the disk of {disk.what} is {'full' if disk.free < _FULL else 'nearly full'}",
                words,
                cause="rows, spool and logs grow; SQLite does not give room back by itself",
                remedy="make room, shorten retention_days, then `VACUUM`; rows that find no place are lost",
                command=f"df -h {disk.path}",
            )
    if not worst and facts.machine.disks:
        least = min(facts.machine.disks, key=lambda each: each.free)
        yield fine("disks", f"no disk is full: {least.free / 2**30:.1f} GiB are free at {least.path} ({least.what})")


def spool(facts: Facts) -> Iterator[Result]:
    """What an earlier sidecar left behind, and what was refused."""
    machine = facts.machine
    if not isinstance(machine, Machine) or isinstance(machine.spool, Unseen):
        why = (
            machine.why
            if isinstance(machine, Unseen)
            else machine.spool.why
            if isinstance(machine.spool, Unseen)
            else ""
        )
        if isinstance(facts.sidecar, Unseen):
            yield fine("spool", why or "nothing waits")
        else:
            # A sidecar that runs makes it: the path is relative to where it was started.
            yield NotLooked("spool", f"{why}: the path is relative to where the sidecar was started")
        return
    found = machine.spool
    if not found.writable:
        yield fault(
            "spool-not-writable",
            f"the spool {found.path} cannot be written to",
            cause="the sidecar's user may not write there",
            remedy="give it the folder, or set spool to another: records of an outage have no other place",
            command=f"ls -ld {found.path}",
        )
    elif found.bytes and isinstance(facts.sidecar, Unseen):
        yield warning(
            "spool-left",
            f"{found.bytes / 1e6:.1f} MB of records wait in the spool {found.path}",
            f"{found.files} files",
            cause="a sidecar ended while the database was away",
            remedy="start a sidecar with this spool and database: it takes them over",
            command=f"ls -l {found.path}",
        )
    else:
        yield fine("spool", f"the spool {found.path} can be written to, and holds {found.bytes / 1e6:.1f} MB")
    if found.quarantined:
        yield warning(
            "rows-refused",
            f"the database has refused {found.quarantined} rows",
            f"they are in {found.path}/quarantine.jsonl",
            cause="they hold what its tables cannot, as a value out of range",
            remedy="the lines say why; report them, and delete the file",
            command=f"tail -n 3 {found.path}/quarantine.jsonl",
        )


CHECKS = (
    Check("database", reachable),
    Check("migrations", migrations),
    Check("disks", disks),
    Check("spool", spool),
    Check("clocks", clocks),
)
