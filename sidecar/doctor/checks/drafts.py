"""How good the guesses are, in which kind of request, at which position; and whether fewer would do."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...probes.acceptance import Figures, break_even
from ...probes.truncation import ENOUGH_STEPS, FIRST_POSITION_WARNING, TRUNCATION_RATE_WARNING, Kind, shape
from .. import figures
from ..facts import Facts, Unseen
from ..figures import Row, percent
from ..findings import Check, NotLooked, Result, fault, fine, note, warning
from ..lengths import LEAST_SURVIVAL, Lengths, cost_bound, lengths

#: Requests, and draft tokens, that a statement needs.
FEW_REQUESTS, FEW_TOKENS = 10, 500
#: Expected gain by which another k must be faster, to be worth a change.
WORTH = 0.05


def acceptance(facts: Facts) -> Iterator[Result]:
    rows = _judged(facts)
    if isinstance(rows, NotLooked):
        yield rows
        return
    found = figures.acceptance(rows)
    limit = facts.settings.fallback_below
    per_token = facts.settings.acceptance_definition == "per_token"
    p = found.p_per_token if per_token else found.p
    if found.requests < FEW_REQUESTS or found.draft_tokens < FEW_TOKENS or p is None:
        yield NotLooked(
            "acceptance",
            f"the acceptance rate: only {found.requests} requests have figures, {found.draft_tokens} draft tokens",
        )
        return
    limit = _limit(facts, found, str(rows[0]["model"]), limit)
    about = _about(found)
    slices = _low_scenarios(rows, limit, found)
    command = "specwatch status"
    # The whole is low because of one scenario: that one is named, as a global figure hides it.
    if p >= limit:
        yield fine("acceptance", f"p is {p:.3f}, above its mark of {limit:g}", about)
    elif _rest_is_fine(rows, slices, limit):
        pass
    else:
        certain = per_token or found.high is None or found.high < limit
        make = fault if certain else warning
        yield make(
            "acceptance-low",
            f"the acceptance rate is low: p is {p:.3f}, its mark {limit:g}",
            about,
            *_slices(rows),
            cause="the draft model does not know these prompts, or is run wrongly; pooled p also falls as k grows",
            remedy="compare k first (below), check the tokenizers, then train or swap the draft model; if this rate is "
            "usual at your k, set fallback_below_by to what pays for you",
            command=command,
        )
    for name, group in slices:
        yield fault(
            "acceptance-low-in-scenario",
            f"the acceptance rate is low in scenario {name}: p is {group.p:.3f}",
            _about(group),
            f"all requests: p {p:.3f}",
            cause="the draft model does not know this kind of prompt; the overall figure hides it",
            remedy=f"let it fall back alone (fallback_slices: [scenario]), and train the draft model on {name}",
            command="curl -s 'ADMIN/api/v1/windows?by=scenario'".replace("ADMIN", f"http://{facts.settings.admin}"),
        )


def _judged(facts: Facts) -> list[Row] | NotLooked:
    """The rows of the present engine, model and k, lately."""
    if isinstance(facts.rows, Unseen):
        return NotLooked("acceptance", f"the acceptance rate: {facts.rows.why}")
    rows = figures.speculative(figures.lately(facts.rows, facts.now))
    newest = next((row["fingerprint"] for row in rows if figures.counted(row) is not None), None)
    return [row for row in rows if row["fingerprint"] == newest]


def _limit(facts: Facts, found: Figures, model: str, limit: float) -> float:
    """The mark of this model or k, where it has one of its own, as the fallback has it."""
    by = facts.settings.fallback_below_by
    return by.get(f"model={model}", by.get(f"k={found.num_speculative_tokens}", limit))


def _about(found: Figures) -> str:
    between = "" if found.low is None or found.high is None else f" (95 %: {found.low:.3f} to {found.high:.3f})"
    length = found.mean_acceptance_length
    return (
        f"p {found.p or 0:.3f}{between} over {found.requests} requests, {found.draft_tokens} draft tokens"
        + (f", k {found.num_speculative_tokens}" if found.num_speculative_tokens else "")
        + (f", mean acceptance length {length:.2f}" if length else "")
        + (f", p per token {found.p_per_token:.3f}" if found.p_per_token is not None else "")
    )


def _low_scenarios(rows: Sequence[Row], limit: float, whole: Figures) -> list[tuple[str, Figures]]:
    """Scenarios that lie surely below the mark, and below the rest: not where all are alike low."""
    found = []
    for name, group in figures.grouped(rows, lambda row: str(row["scenario"])).items():
        one = figures.acceptance(group)
        rest = figures.acceptance([row for row in rows if row["scenario"] != name])
        enough = one.requests >= FEW_REQUESTS and one.draft_tokens >= FEW_TOKENS
        if not enough or one.high is None or one.p is None or not rest.requests or rest.low is None:
            continue
        if one.high < limit and one.high < rest.low:
            found.append((name, one))
    found.sort(key=lambda each: each[1].p or 0.0)
    return found


def _rest_is_fine(rows: Sequence[Row], slices: Sequence[tuple[str, Figures]], limit: float) -> bool:
    names = {name for name, _ in slices}
    rest = figures.acceptance([row for row in rows if row["scenario"] not in names])
    return bool(names) and rest.p is not None and rest.p >= limit


def _slices(rows: Sequence[Row]) -> list[str]:
    groups = figures.grouped(rows, lambda row: str(row["scenario"]))
    found = [(name, figures.acceptance(group)) for name, group in groups.items()]
    told = sorted(((one.p, name, one) for name, one in found if one.p is not None), key=lambda each: each[0])
    return (
        [f"scenario {name}: p {p:.3f} over {one.requests} requests" for p, name, one in told[:4]]
        if len(told) > 1
        else []
    )


def draft_length(facts: Facts) -> Iterator[Result]:
    """Whether k is too large."""
    rows = _judged(facts)
    if isinstance(rows, NotLooked):
        yield NotLooked("draft-length", rows.why)
        return
    assert not isinstance(facts.rows, Unseen)
    cost = facts.settings.draft_cost
    measured = cost is None
    if cost is None:
        cost = cost_bound(rows, figures.lately(facts.rows, facts.now))
    found = lengths(rows, cost)
    if found is None:
        yield NotLooked("draft-length", "whether k is too large: too few verify steps with positions were recorded")
        return
    positions, steps = figures.by_position(rows)
    rate = sum(positions.rejected_at) / steps
    best, k = found.best, found.k
    seen = _positions(found, rate, steps)
    if found.cost is not None:
        told = "at most " if measured else ""
        seen.append(
            f"draft step {told}{found.cost:.3f} of a verify step: expected gain {found.gain(k, found.cost):.2f} at "
            f"k={k}, "
            f"{found.gain(best, found.cost):.2f} at k={best}"
        )
        saves = found.gain(best, found.cost) / found.gain(k, found.cost) - 1
        if measured:
            # Of a bound: only what holds for half of it as well is said, and the longer draft is named.
            half = replace(found, cost=found.cost / 2)
            best = half.best
            saves = min(saves, half.gain(best, found.cost / 2) / half.gain(k, found.cost / 2) - 1)
        if not measured and (even := break_even(k, found.cost)) is not None:
            seen.append(f"breaks even at a p per token of {even:.3f}")
    else:
        in_vain = 1 - sum(found.survival) / k
        saves = in_vain if found.survival[-1] < LEAST_SURVIVAL else 0.0
        seen.append(f"{percent(in_vain)} of the drafted tokens are not accepted; draft_cost is not set")
    if best < k and saves >= WORTH and rate > TRUNCATION_RATE_WARNING:
        yield warning(
            "draft-too-long",
            f"k is too large: {k} tokens are drafted, and {best} would do",
            *seen,
            cause="late positions are drafted and hardly ever accepted, which costs draft steps and room in the batch",
            remedy=f"set num_speculative_tokens: {best} (specwatch cap {best} tries it at once; specwatch sweep "
            "measures)",
            command=f"curl -s 'http://{facts.settings.admin}/api/v1/truncation?window=1h'",
        )
    else:
        yield fine("draft-length", f"k={k} is not too large by the positions' rates", *seen)
    if rate > TRUNCATION_RATE_WARNING and not (best < k and saves >= WORTH):
        yield note(
            "truncations",
            f"{percent(rate)} of the verify steps are truncated (the operators' guide has "
            f"{percent(TRUNCATION_RATE_WARNING)})",
            remedy="nothing, as long as the latency ratio is good: good drafts pass this mark often",
        )


def _positions(found: Lengths, rate: float, steps: int) -> list[str]:
    kept = ", ".join(percent(share) for share in found.survival)
    return [
        f"{percent(rate)} of {steps} verify steps are truncated (limit {percent(TRUNCATION_RATE_WARNING)})",
        f"accepted at positions 1 to {found.k}: {kept} of the steps",
        f"mean acceptance length {found.length(found.k):.2f} at k={found.k}",
    ]


def positions(facts: Facts) -> Iterator[Result]:
    """The shape: a cliff is of a draft that is run wrongly, misses at the first position of one that guesses badly."""
    rows = _judged(facts)
    if isinstance(rows, NotLooked):
        yield NotLooked("positions", rows.why)
        return
    found, steps = figures.by_position(rows)
    if steps < ENOUGH_STEPS:
        yield NotLooked("positions", f"the positions of rejections: only {steps} verify steps tell them")
        return
    form = shape(found.rejected_at, found.reached)
    hazard = ", ".join(
        percent(cut / came) if came else "never reached"
        for cut, came in zip(found.rejected_at, found.reached, strict=True)
    )
    if form.kind is Kind.CLIFF:
        yield fault(
            "acceptance-cliff",
            f"behind position {form.cliff_at} next to nothing is accepted",
            f"rejected at positions 1 to {len(found.reached)}: {hazard} of the steps that came there",
            cause="the draft model is run wrongly beyond some length (its context, its cache), or k is larger than it "
            "was "
            "trained for",
            remedy=f"num_speculative_tokens: {form.cliff_at}, and look whether it goes with long prompts",
            command=f"curl -s 'http://{facts.settings.admin}/api/v1/truncation?by=prompt_length&window=1h'",
        )
    elif (
        (share := found.first_position_share) is not None
        and share > 0.6
        and sum(found.rejected_at) / steps > TRUNCATION_RATE_WARNING
    ):
        yield warning(
            "first-token-missed",
            f"the draft misses the first token: {percent(share)} of the truncations are at position 1",
            f"rejected at positions 1 to {len(found.reached)}: {hazard} of the steps that came there",
            f"the operators' guide has {percent(FIRST_POSITION_WARNING)}",
            cause="draft and target part at once: another tokenizer, chat template or fine-tuning, or prompts that the "
            "draft does not know",
            remedy="compare the tokenizers and chat templates, then the scenarios",
            command=f"curl -s 'http://{facts.settings.admin}/api/v1/truncation?window=1h'",
        )
    else:
        yield fine(
            "positions",
            "rejections are spread over the positions as of a draft that is run rightly",
            f"hazard {hazard}",
        )


CHECKS = (Check("acceptance", acceptance), Check("draft-length", draft_length), Check("positions", positions))
