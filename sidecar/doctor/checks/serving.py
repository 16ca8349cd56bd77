"""How requests are served: whether speculation is on, whether their figures come, and what served them."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from .. import figures
from ..facts import Facts, Unseen
from ..figures import percent
from ..findings import Check, NotLooked, Result, fault, fine, note, warning

#: Shares of the ok requests without figures.
_SOME, _MOST = 0.1, 0.5
#: Draft tokens in rows / counted by the engine.
_COVERED = 0.9
_FEW = 20


class _Reason(NamedTuple):
    """Why rows have no figures: words of `acceptance_reason` (sidecar.tap), and what is so then."""

    words: str
    id: str
    cause: str
    remedy: str


_PLUGIN = "load the engine plugin and set engine_events: its events have the figures of all"
_FLAG = "start the engine with --per-request-spec-decode-metrics detailed (specwatch engine does), or load the plugin"
_REASONS = (
    _Reason(
        "no usage was asked for",
        "no-usage",
        "streams end without usage, with which vLLM tells its figures: clients do not ask for it (include_usage)",
        f"set add_usage: true, or {_PLUGIN}",
    ),
    _Reason("declined usage", "usage-declined", "clients say include_usage: false, which is respected", _PLUGIN),
    _Reason(
        "no acceptance block",
        "no-block",
        "the engine was started without --per-request-spec-decode-metrics, or is too old to know it",
        f"{_FLAG}; an older vLLM needs an upgrade",
    ),
    _Reason(
        "gave no figures for this request",
        "no-block",
        "the engine was started without --per-request-spec-decode-metrics, or a stop string ended the replies",
        f"{_FLAG}; an older vLLM needs an upgrade",
    ),
    _Reason("n > 1", "several-replies", "vLLM tells no figures of several replies to one request", _PLUGIN),
    _Reason("in replies of /v1/", "endpoint-without-figures", "vLLM tells no figures at this endpoint", _PLUGIN),
    _Reason(
        "nothing was drafted",
        "nothing-drafted",
        "the engine drafts nothing for these: logprobs, penalties, min_p, a grammar, a rule of batch sizes, a full "
        "context",
        "look at what these requests ask for, and at speculation_min_batch_size in the engine's file",
    ),
    _Reason(
        "unknown shape",
        "unknown-block",
        "the engine tells figures in a shape that this Specwatch does not know: another vLLM",
        "upgrade Specwatch, or serve with the vLLM that it names",
    ),
)


def figures_missing(facts: Facts) -> Iterator[Result]:
    """Replies without acceptance figures, and why they have none."""
    if isinstance(facts.rows, Unseen):
        yield NotLooked("coverage", f"how many replies tell figures: {facts.rows.why}")
        return
    rows = figures.ok(figures.speculative(figures.lately(facts.rows, facts.now)))
    if len(rows) < _FEW:
        yield NotLooked("coverage", f"how many replies tell figures: only {len(rows)} requests speculated lately")
        return
    without = [row for row in rows if row["acceptance_quality"] != "ok"]
    share = figures.share(len(without), len(rows))
    told = f"{len(without)} of {len(rows)} ok requests ({percent(share)}) tell no acceptance figures"
    if share < _SOME:
        yield fine("coverage", told)
        return
    reasons = figures.most((row["acceptance_reason"] or row["acceptance_quality"] for row in without), 5)
    for reason, count in reasons:
        of_all = figures.share(count, len(rows))
        if of_all < _SOME:
            continue
        name, cause, remedy = _known(reason)
        make = fault if of_all >= _MOST else warning
        yield make(
            name,
            f"{percent(of_all)} of the replies tell no acceptance figures",
            told,
            f"{count} times: {reason}",
            cause=cause,
            remedy=remedy,
            command=f"curl -s 'http://{facts.settings.admin}/api/v1/windows' | jq .not_drafted",
        )


def _known(reason: str) -> tuple[str, str, str]:
    for each in _REASONS:
        if each.words in reason:
            return each.id, each.cause, each.remedy
    return "figures-missing", reason, "the reason says what is missing; report it where it is none of yours"


def coverage(facts: Facts) -> Iterator[Result]:
    """Rows against the engine's own counters."""
    side = facts.sidecar
    summary = side if isinstance(side, Unseen) else side.summary
    if isinstance(summary, Unseen):
        yield NotLooked("engine-coverage", f"how much of the engine's drafting rows account for: {summary.why}")
        return
    for each in summary["coverage"]["engines"]:
        ratio, name = each["coverage"], each["upstream"]
        if name != "speculative":
            continue
        if ratio is None:
            yield NotLooked("engine-coverage", f"how much of the engine's drafting rows account for: {each['reason']}")
        elif ratio < _COVERED:
            yield warning(
                "coverage-low",
                f"rows account for {percent(ratio)} of what the engine drafted",
                f"{each['rows_draft_tokens']} draft tokens in rows, {each['draft_tokens']} counted in "
                f"{each['span_s']:.0f} s",
                cause="requests reach the engine by another way than this sidecar, or replies tell no figures",
                remedy="have all clients use the sidecar; where figures are missing, set add_usage or engine_events",
                command="specwatch status --json | jq .coverage",
            )
        else:
            yield fine("engine-coverage", f"rows account for {percent(min(ratio, 1.0))} of what the engine drafted")


def fallback(facts: Facts) -> Iterator[Result]:
    side = facts.sidecar
    state = side if isinstance(side, Unseen) else side.fallback
    if isinstance(state, Unseen):
        yield NotLooked("fallback", f"how requests are served: {state.why}")
        return
    command, reason = "specwatch status", str(state["reason"])
    if state["state"] == "speculative" and state["effective"] is False:
        yield warning(
            "opt-out-ineffective",
            "requests that are to go without speculation are drafted for",
            "the share that is served without, to compare latencies with, was drafted for",
            cause="the engine does not honour the opt-out (no plugin), or fallback_upstream speculates: nothing is "
            "compared, and a fallback would change nothing",
            remedy="load the engine plugin, or name an engine without a draft as fallback_upstream",
            command=command,
        )
    elif state["state"] == "ineffective":
        yield fault(
            "fallback-ineffective",
            "decoding fell back, and the engine drafts all the same",
            reason,
            cause="what serves without speculation does not: the plugin is not loaded, or fallback_upstream speculates",
            remedy="load the engine plugin, name an engine without a draft as fallback_upstream, or order specwatch "
            "cap 0",
            command=command,
        )
    elif state["state"] != "speculative":
        by_order = state["mode"] == "autoregressive"
        yield warning(
            "speculation-off" if by_order else "fell-back",
            f"speculation is off: {'by order' if by_order else 'decoding fell back by itself'} ({state['state']})",
            reason,
            f"since {state['since']}, decided by {state['decided_by'] or state['trigger']}",
            cause="an operator's order" if by_order else f"the trigger {state['trigger']}",
            remedy="specwatch fallback auto ends the order"
            if by_order
            else "see to the cause: it comes back by itself",
            command=command,
        )
    else:
        yield fine("fallback", f"requests are served with speculation (mode {state['mode']})")
    for each in state["slices"]:
        if each["state"] != "speculative":
            yield warning(
                "slice-fell-back",
                f"{each['slice']} has fallen back",
                each["reason"],
                cause=f"the trigger {each['trigger']}",
                remedy="train the draft on these prompts; the slice comes back by itself once probes are good",
                command=command,
            )
    certificate = state.get("certificate")
    if certificate is not None and certificate["state"] == "other_engine":
        yield warning(
            "certificate-of-another-engine",
            "the certificate is of another engine than the one that serves",
            certificate["words"],
            cause="models, k, vLLM or device changed since the qualification: no scenario counts as certified",
            remedy="qualify anew (specwatch qualify), and sign it off",
            command=command,
        )
    if not state["can_fall_back"]:
        yield note(
            "cannot-fall-back",
            "there is nothing to fall back to",
            cause="neither a fallback_upstream is set, nor does the engine have the plugin, as far as is known",
            remedy="set engine_token (and SPECWATCH_ENGINE_TOKEN at the engine) or engine_events, or a "
            "fallback_upstream",
            command=command,
        )
    if state["dry_run"]:
        yield note("dry-run", "decisions are only recorded: fallback_dry_run is set")


def fingerprints(facts: Facts) -> Iterator[Result]:
    """Figures of several engines or settings in one window compare nothing."""
    if isinstance(facts.rows, Unseen):
        yield NotLooked("fingerprints", f"what served the last requests: {facts.rows.why}")
        return
    rows = figures.speculative(figures.lately(facts.rows, facts.now))
    found = figures.most((row["fingerprint"] for row in rows if figures.counted(row) is not None), 6)
    if not found:
        yield NotLooked("fingerprints", "what served the last requests: none of them speculated")
    elif len(found) == 1:
        yield fine("fingerprints", f"the last requests were all served by {found[0][0]}")
    else:
        # After a restart one follows the other; side by side they take turns.
        order = [row["fingerprint"] for row in rows if figures.counted(row) is not None]
        turns = sum(a != b for a, b in itertools.pairwise(order))
        make = warning if turns > 2 * len(found) else None
        seen = [f"{count} by {name}" for name, count in found]
        if make is None:
            yield note("fingerprints-changed", "the engine or its settings changed lately", *seen)
        else:
            yield make(
                "fingerprints-mixed",
                f"{len(found)} kinds of engine serve side by side",
                *seen,
                f"they took turns {turns} times in {len(order)} requests",
                cause="several engines answer under one address, or several sidecars of unlike engines share the "
                "database",
                remedy="have one sidecar before each kind of engine, and filter figures by instance",
                command="curl -s 'http://ADMIN/api/v1/requests?limit=50' | jq '.requests[].fingerprint'".replace(
                    "ADMIN", facts.settings.admin
                ),
            )


def speculating(facts: Facts) -> Iterator[Result]:
    """Whether requests that are to speculate end well."""
    if isinstance(facts.rows, Unseen):
        yield NotLooked("outcomes", f"how requests end: {facts.rows.why}")
        return
    rows = figures.lately(facts.rows, facts.now)
    if len(rows) < _FEW:
        yield NotLooked("outcomes", f"how requests end: only {len(rows)} were recorded lately")
        return
    failed = [row for row in rows if row["outcome"] in ("upstream_error", "bad_gateway", "truncated")]
    statuses = figures.most((f"{row['outcome']}, status {row['status']}" for row in failed), 4)
    server = [row for row in failed if (row["status"] or 500) >= 500 or row["outcome"] != "upstream_error"]
    share = figures.share(len(server), len(rows))
    if share > 0.02 and len(server) >= 3:
        make = fault if share > 0.2 else warning
        yield make(
            "requests-fail",
            f"{percent(share)} of {figures.span(rows, facts.now)} failed at the engine",
            *(f"{count} times {words}" for words, count in statuses),
            cause="the engine fails, restarts, or is cut off",
            remedy="look at its log (specwatch doctor --log FILE)",
            command=f"curl -s 'http://{facts.settings.admin}/api/v1/requests?outcome=upstream_error&limit=5'",
        )
    else:
        yield fine(
            "outcomes", f"{len(rows) - len(failed)} of {figures.span(rows, facts.now)} did not fail at the engine"
        )


CHECKS = (
    Check("fallback", fallback),
    Check("coverage", figures_missing),
    Check("engine-coverage", coverage),
    Check("fingerprints", fingerprints),
    Check("outcomes", speculating),
)
