"""Whether draft and target know the tokens by the same ids: by their files, and as requests have shown."""

from collections.abc import Iterator

from ...probes.tokenizer_check.report import Report, Severity, Verdict
from ..facts import Facts, PairFacts, Unseen
from ..findings import Check, NotLooked, Result, fault, fine, note, warning

_MOST_TOLD = 5


def files(facts: Facts) -> Iterator[Result]:
    pair = facts.pair
    if isinstance(pair, Unseen):
        if pair.code == "no_draft":
            yield fine("tokenizer-files", f"nothing to compare: {pair.why}")
        else:
            yield NotLooked(
                "tokenizer-files", f"the tokenizers' files: {pair.why}", "specwatch tokenizers TARGET DRAFT"
            )
        return
    report, command = pair.report, f"specwatch tokenizers {pair.target} {pair.draft}"
    sentences = [each.sentence for each in report.findings if each.severity is not Severity.NONE]
    if report.verdict is Verdict.MISALIGNED:
        yield fault(
            "tokenizers-misaligned",
            "draft and target know tokens by other ids, by their files" + _first(report),
            *sentences[:_MOST_TOLD],
            *_moved(report),
            cause="one of the two was made with, or updated to, another tokenizer: drafts that are right are rejected, "
            "and every other figure looks normal",
            remedy="serve a draft with the target's own tokenizer files; until then specwatch fallback autoregressive",
            command=command,
        )
    elif report.severity is Severity.NONE:
        yield fine("tokenizer-files", _alike(pair, report))
    elif report.severity is Severity.WARNING:
        yield note(
            "tokenizers-differ",
            "the tokenizers differ in what costs some acceptance",
            *sentences[:_MOST_TOLD],
            command=command,
        )
    else:
        yield warning(
            "tokenizers-doubtful",
            "whether the tokenizers fit is not certain",
            *sentences[:_MOST_TOLD],
            cause="the draft's vocabulary is pruned or of another family, and its table tells too little",
            remedy="use a draft that was made for this target",
            command=command,
        )


def live(facts: Facts) -> Iterator[Result]:
    """What the requests since the sidecar's start have shown."""
    side = facts.sidecar
    told = side if isinstance(side, Unseen) else side.alignment
    if isinstance(told, Unseen):
        yield NotLooked("tokens-live", f"tokens of live requests: {told.why}")
        return
    state, reason = told["state"], told["reason"]
    if state == "unknown":
        yield NotLooked("tokens-live", f"tokens of live requests: {reason}")
        return
    if state == "aligned":
        yield fine("tokens-live", f"live requests show no moved token: {reason}")
        return
    moved = [
        f"{each['target_text'] or '?'!s}: id {each['target_id']} in the target, {each['draft_id']} in the draft, "
        f"{each['count']} times"
        for each in told["moved"][:_MOST_TOLD]
    ]
    yield fault(
        "tokens-moved",
        f"live requests show {told['moved_tokens']} tokens with another id in the draft",
        reason,
        *moved,
        cause="the draft model was trained, or is served, with another tokenizer than the target's",
        remedy="put a draft of the target's tokenizer in place (specwatch swap CHECKPOINT); until then specwatch "
        "fallback "
        "autoregressive",
        command="specwatch status",
    )


def _first(report: Report) -> str:
    return "" if report.first_difference is None else f"; the first is id {report.first_difference}"


def _moved(report: Report) -> list[str]:
    return [
        f"{each.text!r}: id {each.target_id} in the target, {each.draft_id} in the draft"
        for each in report.moved[:_MOST_TOLD]
    ]


def _alike(pair: PairFacts, report: Report) -> str:
    same = report.ordinary.same_id + report.special.same_id
    return f"the tokenizers of {pair.target} and {pair.draft} agree: {same} tokens have the same ids"


CHECKS = (Check("tokenizer-files", files), Check("tokens-live", live))
