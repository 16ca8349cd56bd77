"""The comparison of two models' tokens, as findings in words. Pure: no file, no tokenizer of its own.

What counts is the id: a draft proposes ids, and the target reads them as its own. The sizes that configurations give
are padded, so they count only where they are too small, or a draft's vocabulary is pruned.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from .files import ROLES, Model
from .pair import Pair, is_reserved
from .report import Finding, OtherId, Report, Severity, Verdict

#: Of the ordinary tokens that both have, the share with another id that makes it critical: replies hold hundreds of
#: tokens, so that hardly one is without them then.
CRITICAL_SHARE = 0.01
#: Tokens in common below which a map between two families is of no use: vLLM warns there too.
FEW_SHARED = 100
#: Coverage of the probe texts below which the missing tokens show in the acceptance rate.
ENOUGH_COVERAGE = 0.95
MOST_MOVED = 100
_NAMED = 3


def compare(target: Model, draft: Model, mapped: bool | None = None) -> Report:
    """`mapped`: whether the engine maps one vocabulary to the other by the tokens' texts (vLLM:
    use_heterogeneous_vocab); None: not known. Raises NoVocabulary where the target has no tokens.
    """
    pair = Pair(target, draft, mapped)
    alike = pair.splits()
    findings = [
        *_ids(pair),
        *_table(pair),
        *_missing(pair),
        *_rows("target", target, pair.texts),
        *_rows("draft", draft, pair.draft_texts),
        *_configurations(pair),
        *(() if pair.mapped or not pair.one_family else _splits(pair, alike)),
    ]
    if all(each.severity.rank < Severity.HIGH.rank for each in findings) and pair.one_family:
        findings += _coverage(pair)
    findings.sort(key=lambda each: -each.severity.rank)
    severity = findings[0].severity if findings else Severity.NONE
    return Report(
        verdict=_verdict(pair, severity),
        severity=severity,
        findings=findings,
        ordinary=pair.ordinary,
        special=pair.special,
        moved_tokens=len(pair.moved),
        moved=pair.moved[:MOST_MOVED],
        offsets=Counter(each.draft_id - each.target_id for each in pair.moved).most_common(5),
        first_difference=pair.first_difference,
        coverage=None if pair.reachable is None else len(pair.reachable) / len(pair.texts),
        coverage_of_texts=pair.coverage_of_texts,
        padding_only=pair.of_target == pair.of_draft
        and pair.pruned_to is None
        and None not in (target.rows, draft.rows)
        and target.rows != draft.rows,
        target_rows=target.rows,
        draft_rows=draft.rows,
        target_holes=_holes(pair.texts),
        draft_holes=_holes(pair.draft_texts),
        texts=len(alike),
        texts_alike=sum(alike.values()),
    )


def _verdict(pair: Pair, severity: Severity) -> Verdict:
    if severity is Severity.CRITICAL:
        return Verdict.MISALIGNED
    if (not pair.one_family and pair.mapped is None) or _no_offsets(pair):
        return Verdict.UNKNOWN
    return Verdict.MISALIGNED if severity is Severity.HIGH else Verdict.ALIGNED


def _ids(pair: Pair) -> Iterator[Finding]:
    ordinary, special = pair.ordinary, pair.special
    if pair.mapped:
        if len(pair.shared) < FEW_SHARED and pair.of_target != pair.of_draft:
            yield Finding(
                Severity.HIGH,
                f"Draft and target have {len(pair.shared)} tokens in common, which leaves next to nothing to draft.",
            )
        return
    if not pair.one_family:
        yield Finding(
            Severity.WARNING if pair.mapped is None else Severity.CRITICAL,
            f"Two families: {ordinary.shared} of {ordinary.target} ordinary tokens of the target are in the draft, "
            f"{ordinary.same_id} of them by the same id. "
            + (
                "The pair is of use only where the engine maps one to the other (use_heterogeneous_vocab)."
                if pair.mapped is None
                else "The engine does not map one to the other, so that nearly every draft is read as other text."
            ),
        )
        return
    said = [each for each in pair.moved if not is_reserved(each.text)]
    moved = [each for each in said if each.special]
    if moved:
        yield Finding(
            Severity.HIGH,
            f"{len(moved)} of {special.shared} special tokens that both have are known to the draft by another id: "
            f"{_named(map(_other_id, moved))}. The draft is rejected wherever one of them comes next, and misreads "
            "each in the prompt.",
        )
    moved = [each for each in said if not each.special]
    if moved:
        critical = len(moved) > CRITICAL_SHARE * ordinary.shared
        yield Finding(
            Severity.CRITICAL if critical else Severity.HIGH,
            f"{len(moved)} of {ordinary.shared} ordinary tokens that both have are known to the draft by another id: "
            f"{_named(map(_other_id, moved))}. "
            + (
                "Drafts are rejected although they are right, in nearly every reply."
                if critical
                else "Drafts with one of them are rejected although they are right."
            ),
        )
    for kind, whole in (("special", special.draft), ("ordinary", ordinary.draft)):
        other = [
            each
            for each in pair.other_meaning
            if pair.is_special(each) is (kind == "special") and not is_reserved(pair.draft_texts[each])
        ]
        if other:
            named = (f"{each} is {pair.texts[each]!r}, in the draft {pair.draft_texts[each]!r}" for each in other)
            yield Finding(
                Severity.HIGH if kind == "ordinary" and len(other) > CRITICAL_SHARE * whole else Severity.WARNING,
                f"{len(other)} {kind} tokens of the draft are not in the target, where their ids stand for others: "
                f"{_named(named)}. Drafts with one of them are rejected.",
            )
    if len(said) < len(pair.moved):
        yield Finding(
            Severity.NONE,
            f"{len(pair.moved) - len(said)} reserved tokens have another id in the draft, and are in no text.",
        )


def _table(pair: Pair) -> Iterator[Finding]:
    """A pruned vocabulary."""
    table, size, whole = pair.draft.table, pair.pruned_to, max(pair.target.rows or 0, max(pair.texts) + 1)
    if table is None and size is not None:
        yield Finding(
            Severity.CRITICAL,
            f"The draft's vocabulary is pruned to {size} tokens, and its checkpoint has no table of their ids in the "
            "target (d2t): an engine that takes draft ids for the target's gets other tokens.",
        )
    elif table is not None:
        targets = table.targets
        yield from _broken(pair, targets, whole)
        kept = None if table.kept is None else [number for number, kept in enumerate(table.kept) if kept]
        if kept is not None and set(kept) != set(targets):
            yield Finding(
                Severity.CRITICAL,
                f"The draft's tables disagree: d2t names {len(set(targets))} of the target's ids and t2d {len(kept)}, "
                f"of which {len(set(kept) & set(targets))} are the same. One of them belongs to another training.",
            )


def _broken(pair: Pair, targets: Sequence[int], whole: int) -> Iterator[Finding]:
    rows = pair.draft.pruned_rows
    if rows is not None and rows != len(targets):
        yield Finding(
            Severity.CRITICAL, f"The draft's table has {len(targets)} entries, its configuration says {rows} tokens."
        )
    wrong = [number for number in targets if not 0 <= number < whole]
    twice = len(targets) - len(set(targets))
    if wrong or twice:
        yield Finding(
            Severity.CRITICAL,
            f"The draft's table names {len(wrong)} ids that the target does not have, and {twice} more than once: it "
            "is damaged, or belongs to another target.",
        )
    elif _no_offsets(pair):
        yield Finding(
            Severity.HIGH,
            f"Suspicious: every offset in the draft's table is 0, so that its {len(targets)} tokens would be the "
            "target's first. A table that was left out when the checkpoint was written looks like that.",
        )


def _no_offsets(pair: Pair) -> bool:
    """Whether a table is there that maps nothing, though the vocabulary is smaller than the target's."""
    table = pair.draft.table
    if table is None:
        return False
    return len(table.targets) < len(pair.texts) and all(at == number for at, number in enumerate(table.targets))


def _coverage(pair: Pair) -> Iterator[Finding]:
    coverage = pair.coverage_of_texts
    if coverage is not None and coverage < ENOUGH_COVERAGE:
        yield Finding(
            Severity.WARNING,
            f"The draft can propose {coverage:.0%} of the tokens of the probe texts: where another comes next it is "
            "rejected.",
        )


def _missing(pair: Pair) -> Iterator[Finding]:
    missing = [text for text in pair.missing if not is_reserved(text)]
    if pair.one_family and missing:
        yield Finding(
            Severity.WARNING,
            f"{len(missing)} special tokens of the target are unknown to the draft: "
            f"{_named(map(repr, missing))}. Where one of them comes next the draft is rejected.",
        )


def _rows(whose: str, model: Model, texts: dict[int, str]) -> Iterator[Finding]:
    if model.rows is not None and max(texts, default=0) >= model.rows:
        beyond = sum(number >= model.rows for number in texts)
        yield Finding(
            Severity.WARNING,
            f"{beyond} tokens of the {whose} have ids from its vocab_size ({model.rows}) on, for which the model has "
            "no weights.",
        )


def _configurations(pair: Pair) -> Iterator[Finding]:
    target, draft = pair.target, pair.draft
    for role in ROLES:
        if target.roles.get(role) and draft.roles.get(role):
            texts = [
                {known.get(each, f"id {each}") for each in model.roles[role]}
                for model, known in ((target, pair.texts), (draft, pair.draft_texts))
            ]
            # An engine goes by the target's: a draft with fewer or others was trained on other ends.
            if not texts[0] & texts[1]:
                yield Finding(
                    Severity.NONE if role == "pad" else Severity.WARNING,
                    f"The configurations name another {role} token: {_named(sorted(texts[0]))} in the target, "
                    f"{_named(sorted(texts[1]))} in the draft.",
                )
    if target.template and draft.template and target.template != draft.template:
        yield Finding(
            Severity.NONE,
            "The chat templates differ: prompts are written by the target's, and the draft was trained on another.",
        )


def _splits(pair: Pair, alike: dict[str, bool]) -> Iterator[Finding]:
    """Ids may be the same where texts are split otherwise: the draft then knows the tokens, but from other places."""
    others = [name for name, same in alike.items() if not same]
    of_target, of_draft = pair.target.parts, pair.draft.parts
    parts = [name for name in of_target.keys() & of_draft.keys() if of_target[name] != of_draft[name]]
    differ = f" ({', '.join(sorted(parts))} differ in tokenizer.json)" if parts else ""
    if others:
        yield Finding(
            Severity.WARNING,
            f"{len(others)} of {len(alike)} probe texts are split into other tokens: {_named(others)}{differ}. The "
            "draft is given the target's, which it has seen less of.",
        )
    elif parts:
        yield Finding(Severity.NONE, f"All {len(alike)} probe texts are split alike{differ}.")


def _other_id(moved: OtherId) -> str:
    return f"{moved.text!r} is {moved.target_id}, in the draft {moved.draft_id} ({moved.draft_id - moved.target_id:+d})"


def _named(texts: Iterable[str]) -> str:
    found = list(texts)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return "; ".join(found[:_NAMED]) + more


def _holes(texts: dict[int, str]) -> int:
    return max(texts, default=-1) + 1 - len(texts)
