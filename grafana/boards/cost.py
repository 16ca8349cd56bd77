"""What Specwatch itself costs, and what it could not see, write or tell."""

from grafana_foundation_sdk.builders import stat, timeseries
from grafana_foundation_sdk.models.common import BigValueTextMode

from .. import promql, words
from ..board import board
from ..panels import Query, Size, at_most, columns, lines, single, states

_SMALL = Size(4, 4)
_THIRD = Size(8, 8)
_BY_SIDECAR = "{{instance}}"


def json() -> str:
    return board(
        "specwatch-cost",
        "Specwatch: own cost",
        "What the sidecars use, and what they could not see, write or tell.",
        [
            *_now(),
            _gauge("Processor", "Cores that the sidecar's process used; it runs on one.", _cores(), "none"),
            _gauge(
                "Memory",
                "Resident memory of the sidecar's process. What compares texts is a process of its own, and not in it.",
                promql.gauge("sum", "process_resident_memory_bytes", by="instance"),
                "bytes",
            ),
            _gauge(
                "Event loop lag",
                "How late the sidecar's event loop came to its work, the longest of the last minute. What it relays "
                "waits as long.",
                promql.gauge("max", "specwatch_event_loop_lag_seconds", by="instance"),
                "s",
            ),
            _gauge(
                "Requests in flight",
                "Requests that are being relayed, of any path.",
                promql.gauge("sum", "specwatch_relay_in_flight", by="instance"),
                "none",
            ),
            _gauge(
                "Records waiting for the database",
                "Bounded by `queue_records`; then the oldest are dropped.",
                promql.gauge("sum", "specwatch_writer_queue_length", by="instance"),
                "none",
            ),
            columns(
                "Records that did not reach the database",
                "By the stage at which they were dropped. The requests were served.",
                Query(promql.growth("specwatch_records_dropped_total", by="stage"), "{{stage}}"),
                unit="short",
                size=_THIRD,
                none="None",
            ),
            columns(
                "Relayed requests/s by outcome",
                "Requests of any path that ended.",
                Query(promql.rate("specwatch_relay_requests_total", by="outcome"), "{{outcome}}"),
                unit="reqps",
                size=_THIRD,
                none=words.NO_TRAFFIC,
            ),
            columns(
                "Refused and unread requests",
                "Refused as malformed or too slow; served, but unread because their tap failed.",
                Query(promql.growth("specwatch_relay_refused_total"), "refused"),
                Query(promql.growth("specwatch_tap_failures_total"), "unread"),
                unit="short",
                size=_THIRD,
                none="None",
            ),
            columns(
                "Requests without acceptance figures",
                "Ok requests that were to speculate, whose figures are missing (unknown) or cannot be true "
                "(inconsistent). They are in no acceptance rate.",
                Query(promql.growth("specwatch_acceptance_unknown_total", by="quality"), "{{quality}}"),
                unit="short",
                size=_THIRD,
                none="None",
            ),
            states(
                "Engine cores that send events",
                "Whether any is connected, for each sidecar with `engine_events`.",
                Query(
                    f"{promql.gauge('max', 'specwatch_engine_feed_connected_cores', by='instance')} > bool 0",
                    _BY_SIDECAR,
                ),
                size=_THIRD,
                mappings=words.CONNECTED,
            ),
            columns(
                "Engine steps/s",
                "Steps that the engine's plugin told of, and those that it could not send while it was connected.",
                Query(promql.rate("specwatch_engine_feed_steps_total"), "received"),
                Query(promql.rate("specwatch_engine_feed_steps_dropped_total"), "dropped"),
                unit="ops",
                size=_THIRD,
                none="None",
            ),
            columns(
                "Engine requests by fate",
                "Requests that the engine's plugin told of: joined to a reply, of no reply seen here (unjoined), or "
                "not seen in full (incomplete).",
                Query(promql.growth("specwatch_engine_feed_requests_total", by="fate"), "{{fate}}"),
                unit="short",
                size=_THIRD,
                none="None",
            ),
            columns(
                "Notifications by outcome",
                "Of the sidecars' own alerts, by receiver: sent, or why not. None without receivers in the file of "
                "alerts.",
                Query(
                    promql.growth("specwatch_notifications_total", by="receiver, outcome"), "{{receiver}}, {{outcome}}"
                ),
                unit="short",
                size=_THIRD,
                none="No receivers",
            ),
            columns(
                "What does not add up",
                "Replies whose own figures were others than the engine's events; packets of no known format; counters "
                "of an upstream that began anew, or grew by what cannot be true.",
                Query(promql.growth("specwatch_engine_feed_disagreements_total"), "replies that differ"),
                Query(promql.growth("specwatch_engine_feed_malformed_packets_total"), "malformed packets"),
                Query(promql.growth("specwatch_engine_counter_resets_total"), "counters begun anew"),
                Query(promql.growth("specwatch_engine_counter_disagreements_total"), "counters that differ"),
                unit="short",
                size=_THIRD,
                none="None",
            ),
            lines(
                "Coverage by upstream",
                f"{words.COVERAGE} The lowest of the sidecars picked.",
                Query(promql.gauge("min", "specwatch_coverage_ratio", by="upstream"), "{{upstream}}"),
                unit="percentunit",
                size=_THIRD,
                none=words.NOT_KNOWN,
            ),
        ],
    )


def _now() -> list[stat.Panel]:
    """One row of six."""
    return [
        single(
            "Database",
            "Whether it takes rows; down where it does not for one of the sidecars picked. Requests are served anyway.",
            Query(promql.gauge("min", "specwatch_database_up")),
            unit="none",
            size=_SMALL,
            mappings=words.UP,
        ),
        single(
            "Records dropped",
            "Records over the time range that did not reach the database. The requests were served.",
            Query(promql.growth("specwatch_records_dropped_total", window=promql.RANGE), instant=True),
            unit="short",
            size=_SMALL,
            steps=at_most(1),
            decimals=0,
        ),
        single(
            "Unread requests",
            "Requests over the time range that were served unread, because their tap failed.",
            Query(promql.growth("specwatch_tap_failures_total", window=promql.RANGE), instant=True),
            unit="short",
            size=_SMALL,
            steps=at_most(1),
            decimals=0,
        ),
        single(
            "Failed notifications",
            "Over the time range. None without receivers in the file of alerts.",
            Query(promql.growth("specwatch_notifications_total", 'outcome!="sent"', window=promql.RANGE), instant=True),
            unit="short",
            size=_SMALL,
            steps=at_most(1),
            none="No receivers",
            decimals=0,
        ),
        single(
            "Rules without data",
            "Alert rules of which a sidecar knows no reading, as for similarity where nothing is compared. No data is "
            "neither an alarm nor a recovery.",
            Query(f"sum(1 - {promql.select('specwatch_alert_has_data')})"),
            unit="none",
            size=_SMALL,
        ),
        single(
            "Version",
            "Of the sidecars picked.",
            Query(promql.gauge("sum", "specwatch_build_info", by="version"), "{{version}}", instant=True),
            unit="none",
            size=_SMALL,
            text=BigValueTextMode.NAME,
        ),
    ]


def _gauge(title: str, about: str, expr: str, unit: str) -> timeseries.Panel:
    return lines(title, f"{about} One curve for each sidecar.", Query(expr, _BY_SIDECAR), unit=unit, size=_THIRD)


def _cores() -> str:
    return promql.rate("process_cpu_seconds_total", by="instance")
