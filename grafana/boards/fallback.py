"""How requests are served, and what changed it."""

from .. import promql, words
from ..board import board
from ..panels import Query, Size, at_least, at_most, columns, lines, single, states

_SMALL = Size(6, 5)
_HALF = Size(12, 9)
_REASONS = (
    "acceptance, change, draft_timeout, engine_errors, similarity, misalignment, latency_ratio, or what ended a "
    "fallback: dwell, probes, an operator."
)
_SPECULATIVE = promql.select("specwatch_fallback_state", 'state="speculative"')


def json() -> str:
    return board(
        "specwatch-fallback",
        "Specwatch: fallback",
        "The state over time, what changed it, and the acceptance rate it is decided by. Blue marks are switches, red "
        "ones alerts that a receiver of the type grafana put here.",
        [
            states(
                "State",
                f"A band for each sidecar. {words.STATE}",
                Query(words.state("max", by="instance"), "{{instance}}"),
                size=Size(24, 6),
                mappings=words.STATES,
            ),
            lines(
                "Acceptance rate p, last 100 requests",
                f"{words.P} Of the last 100 requests that speculated: it stands still while none does.",
                Query(promql.gauge("min", "specwatch_acceptance_ratio", by="instance"), "{{instance}}"),
                unit="none",
                size=Size(16, 10),
                steps=at_least(words.P_MIN),
                none=words.NOT_KNOWN,
                highest=1,
            ),
            lines(
                "Open slices",
                "Slices, as one scenario, that are not served with speculation by decisions of their own.",
                Query(promql.gauge("sum", "specwatch_fallback_open_slices", by="instance"), "{{instance}}"),
                unit="none",
                size=Size(8, 10),
            ),
            columns(
                "Switches by reason",
                f"Changes of state, of all traffic and of slices: {_REASONS}",
                Query(promql.grown("specwatch_fallback_transitions_total", by="reason"), "{{reason}}"),
                unit="short",
                size=_HALF,
                none="None",
            ),
            columns(
                "Requests/s by arm",
                "How requests were served: speculative, autoregressive (fallen back, or ordered), baseline (a small "
                "share without speculation, to compare with), probe (a small share with it, during a fallback).",
                Query(promql.rate("specwatch_requests_total", by="arm"), "{{arm}}"),
                unit="reqps",
                size=_HALF,
                none=words.NO_TRAFFIC,
            ),
            single(
                "Switches of all traffic",
                "Times over the time range that all traffic left speculation or came back to it, as scrapes saw it.",
                Query(f"sum(changes({_SPECULATIVE}[{promql.RANGE}]))", instant=True),
                unit="none",
                size=_SMALL,
            ),
            single(
                "Drafted for all the same",
                "Requests over the time range that were drafted for though they were to be served without speculation.",
                Query(promql.growth("specwatch_opt_out_ineffective_total", window=promql.RANGE), instant=True),
                unit="short",
                size=_SMALL,
                steps=at_most(1),
                decimals=0,
            ),
            single(
                "Late streams",
                "Streams over the time range whose first content came, or is still awaited, later than "
                "`first_byte_limit_s`; none without that limit.",
                Query(promql.growth("specwatch_late_streams_total", window=promql.RANGE), instant=True),
                unit="short",
                size=_SMALL,
                steps=((None, "green"), (1, "orange")),
                decimals=0,
            ),
            single(
                "Requests in the window",
                "Requests that the last-100 window of each sidecar holds; the smallest. A window that is not full "
                "decides only where p is surely below.",
                Query(promql.gauge("min", "specwatch_window_requests")),
                unit="none",
                size=_SMALL,
            ),
            states(
                "Upstreams",
                "Whether connections can be made to each upstream, for each sidecar.",
                Query(
                    promql.gauge("min", "specwatch_upstream_up", by="instance, upstream"), "{{instance}}, {{upstream}}"
                ),
                size=Size(24, 6),
                mappings=words.UP,
            ),
        ],
    )
