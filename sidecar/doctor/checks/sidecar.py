"""The sidecar: whether it runs, is whole, keeps up, and is alone under its name."""

from collections.abc import Iterator

from .. import figures
from ..facts import DatabaseFacts, Facts, SidecarFacts, Unseen
from ..findings import Check, NotLooked, Result, fault, fine, note, warning

#: Share of a queue that is no passing wait.
_HALF_FULL = 0.5
#: Writers of one batch are some hundred records behind; more waits for the database.
_QUEUED = 1000
#: Of the event loop in the last minute, s: replies have waited as long.
_LAG_S = 1.0
#: What a row's start may be beside that of the process, and rows of several processes beside its count.
_SLACK_S, _SLACK_ROWS = 5.0, 20


def runs(facts: Facts) -> Iterator[Result]:
    side = facts.sidecar
    if isinstance(side, Unseen):
        if side.code != "foreign":  # told as a taken port
            yield warning(
                "sidecar-away",
                f"no sidecar answers on admin {facts.settings.admin}",
                side.why,
                cause="it does not run, or with another admin address than these settings have",
                remedy="start it (specwatch sidecar, or specwatch up), or run the doctor with its settings (-c FILE); "
                "engine, database and logs were looked at all the same",
                command=f"curl -si http://{facts.settings.admin}/readyz",
            )
        return
    if side.ready.get("status") != "ready":
        yield fault(
            "sidecar-not-ready",
            "the sidecar takes no requests",
            f"/readyz says {side.ready.get('status')}",
            cause="it is stopping, or its data port has failed",
            remedy="look at its log; start it again",
            command=f"curl -s {side.url}/readyz",
        )
    elif not side.ready["failed_tasks"]:
        yield fine("sidecar", f"a sidecar is ready on {side.url}, and all of its tasks run")
    if side.ready["failed_tasks"]:
        yield fault(
            "tasks-died",
            f"side tasks of the sidecar have died: {', '.join(side.ready['failed_tasks'])}",
            cause="a fault in Specwatch; requests are served on, without what these tasks did",
            remedy="restart the sidecar, and report the fault with a bundle (specwatch doctor --bundle FILE.tar.gz)",
            command=f"curl -s {side.url}/readyz",
        )
    if side.open_without_token:
        yield fault(
            "admin-open",
            "the admin port answers without the token that is set here",
            f"GET {side.url}/api/v1/fallback without a token gives 200",
            cause="the sidecar was started without admin_token: whoever reaches the port may switch",
            remedy="start it with SPECWATCH_ADMIN_TOKEN, as these settings have it",
        )
    for part in (side.summary, side.fallback):
        if isinstance(part, Unseen) and part.code == "locked":
            yield warning(
                "admin-token",
                "the sidecar wants another token than these settings have",
                part.why,
                cause="SPECWATCH_ADMIN_TOKEN differs between here and the sidecar, or is not set here",
                remedy="set SPECWATCH_ADMIN_TOKEN (or SPECWATCH_ADMIN_READ_TOKEN) to the sidecar's",
                command="specwatch status",
            )
            return


def losses(facts: Facts) -> Iterator[Result]:
    """Records that are lost, wait, or were not read."""
    side = facts.sidecar
    if isinstance(side, Unseen):
        yield NotLooked("records", f"records dropped and waiting: {side.why}")
        return
    samples = side.samples
    if isinstance(samples, Unseen):
        yield NotLooked("records", f"records dropped and waiting: {samples.why}")
        return
    lost = {labels["stage"]: value for labels, value in samples.of("specwatch_records_dropped") if value}
    queue = samples.total("specwatch_writer_queue_length") or 0
    spooled = samples.total("specwatch_spool_records") or 0
    size = samples.total("specwatch_spool_bytes") or 0
    command = f"curl -s {side.url}/metrics | grep -E 'records_dropped|writer_queue|spool'"
    if lost:
        yield fault(
            "records-dropped",
            f"{sum(lost.values()):.0f} records are lost since the sidecar's start",
            *(f"at the {stage}: {count:.0f}" for stage, count in lost.items()),
            cause="the database took none for so long that queue and spool were full, or refused what it was given",
            remedy="see to the database; raise spool_mb or queue_records; what was refused is in quarantine.jsonl of "
            "the spool",
            command=command,
        )
    full = size > _HALF_FULL * facts.settings.spool_mb * 1e6 if facts.settings.spool_mb else False
    crowded = queue > max(_QUEUED, 0.1 * facts.settings.queue_records)
    if full:
        yield fault(
            "spool-filling",
            f"the spool is filling: {size / 1e6:.0f} of {facts.settings.spool_mb} MB",
            f"{spooled:.0f} records wait in it",
            cause="the database takes no rows, or fewer than come",
            remedy="see to the database; at the limit the oldest records are dropped",
            command=command,
        )
    elif crowded or spooled:
        yield warning(
            "records-wait",
            f"{queue:.0f} records wait for the database",
            f"in memory {queue - spooled:.0f} of {facts.settings.queue_records}, in the spool {spooled:.0f}",
            cause="the database is away, or slower than rows come",
            remedy="see to the database; nothing is lost yet",
            command=command,
        )
    elif not lost:
        yield fine("records", "no record is lost, and none waits for long", f"{queue:.0f} in the queue")
    if failures := samples.total("specwatch_tap_failures"):
        yield warning(
            "tap-failures",
            f"{failures:.0f} requests were served unread",
            cause="a fault in Specwatch, met by replies of a shape that it does not know",
            remedy="report it with a bundle; the log tells where",
            command=f"curl -s {side.url}/metrics | grep tap_failures",
        )
    lag = samples.total("specwatch_event_loop_lag_seconds")
    if lag is not None and lag > _LAG_S:
        yield warning(
            "sidecar-slow",
            f"the sidecar's event loop was {lag:.1f} s late in the last minute",
            cause="its core is busy with something else, or more streams pass than one core relays",
            remedy="give it a core of its own, or run a sidecar before each engine",
            command=f"curl -s {side.url}/metrics | grep event_loop_lag",
        )


def alone(facts: Facts) -> Iterator[Result]:
    """Whether another sidecar writes rows by the same name: figures, state and decisions of both would mix."""
    side, base = facts.sidecar, facts.database
    if isinstance(side, Unseen) or isinstance(side.samples, Unseen):
        yield NotLooked("instance", "whether another sidecar has the same instance name: this one does not answer")
        return
    if isinstance(base, Unseen) or base.problem is not None or isinstance(facts.rows, Unseen):
        yield NotLooked("instance", "whether another sidecar has the same instance name: the database is out of reach")
        return
    name = _instance(side) or facts.settings.instance
    began = side.samples.largest("process_start_time_seconds")
    if began is None:
        yield NotLooked("instance", "whether another sidecar has the same instance name: ours tells no start")
        return
    later = [at for at, who, what, _ in base.versions if who == name and what == "specwatch" and at > began + 30]
    rows = [row for row in facts.rows if row["instance"] == name and figures.at(row) > began + _SLACK_S]
    counted = side.samples.total("specwatch_requests") or 0
    seen = []
    if later:
        seen.append(f"{len(later)} sidecars named {name} started after this one, which still runs")
    if len(rows) > counted + _SLACK_ROWS:
        seen.append(f"{len(rows)} rows of {name} since its start, of which it wrote {counted:.0f}")
    if seen:
        yield fault(
            "instance-twice",
            f"two sidecars write as instance {name}",
            *seen,
            cause="both took the host's name, or the same setting: alerts, fallback and figures of both are mixed up",
            remedy="give each sidecar an instance of its own (SPECWATCH_INSTANCE)",
            command="specwatch status --json | grep instance",
        )
    else:
        yield fine("instance", f"no other sidecar writes as {name}")


def _instance(side: SidecarFacts) -> str | None:
    return None if isinstance(side.summary, Unseen) else str(side.summary["instance"])


def same_settings(facts: Facts) -> Iterator[Result]:
    """Whether the sidecar that runs has the settings that are looked at here."""
    from ...versions import HIDDEN, changed_settings

    base, side = facts.database, facts.sidecar
    what = "whether the sidecar runs with these settings"
    if isinstance(side, Unseen) or not isinstance(base, DatabaseFacts) or not base.versions:
        why = side.why if isinstance(side, Unseen) else "the database does not tell"
        yield NotLooked("settings-running", f"{what}: {why}")
        return
    name = _instance(side) or facts.settings.instance
    starts = [at for at, who, what, _ in base.versions if who == name and what == "specwatch"]
    if not starts:
        yield NotLooked("settings-running", f"{what}: the database knows no start of {name}")
        return
    began = max(starts)
    running = {
        what.removeprefix("settings."): value
        for at, who, what, value in base.versions
        if who == name and at == began and what.startswith("settings.")
    }
    here = changed_settings(facts.settings)
    # Of relative paths and of what `specwatch up` adds, nothing is wrong.
    apart = {"engine", "fallback_engine", "demo", "run_dir", "dashboard", "instance", "engine_token", "engine_events"}
    if facts.settings.engine is not None:
        # It takes these from the engines' files, where ours sets none.
        apart |= {"upstream", "fallback_upstream", "draft_model", "num_speculative_tokens"} - here.keys()
    names = sorted(
        key
        for key in running.keys() | here.keys()
        if key not in apart and running.get(key) != here.get(key) and HIDDEN not in (running.get(key), here.get(key))
    )
    if names:
        yield note(
            "other-settings",
            "the sidecar runs with other settings than these",
            *(f"{key}: {running.get(key, 'default')} there, {here.get(key, 'default')} here" for key in names[:8]),
            cause="the doctor was called with another file or environment, or the file was changed after the start",
            remedy="name the sidecar's file (-c FILE), or restart the sidecar",
        )
    else:
        yield fine("settings-running", "the sidecar runs with the settings that were looked at")


def alerts(facts: Facts) -> Iterator[Result]:
    side = facts.sidecar
    if isinstance(side, Unseen) or isinstance(side.alerts, Unseen):
        why = side.why if isinstance(side, Unseen) else side.alerts.why if isinstance(side.alerts, Unseen) else ""
        yield NotLooked("alerts", f"alerts: {why}")
        return
    firing = [each for each in side.alerts["alerts"] if each["status"] == "firing"]
    if firing:
        yield note(
            "alerts-firing",
            f"{len(firing)} alerts fire",
            *(f"{each['name']} ({each['severity']}) since {each['starts_at']}" for each in firing[:8]),
            remedy="alerts/RUNBOOK.md says of each what to do",
            command="specwatch status",
        )
    else:
        yield fine("alerts", "no alert fires")


CHECKS = (
    Check("sidecar", runs),
    Check("records", losses),
    Check("instance", alone),
    Check("settings-running", same_settings),
    Check("alerts", alerts),
)
