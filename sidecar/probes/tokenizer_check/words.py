"""The report as lines for a terminal."""

from collections.abc import Iterator

from .report import Finding, Group, Report, Severity


def lines(report: Report) -> Iterator[str]:
    yield f"{report.verdict} (severity {report.severity})"
    yield from (f"- {_label(each)}: {each.sentence}" for each in report.findings)
    yield f"ordinary tokens: {_group(report.ordinary)}"
    yield f"special tokens: {_group(report.special)}"
    if report.moved:
        offsets = ", ".join(f"{offset:+d} ({count} tokens)" for offset, count in report.offsets)
        yield f"other ids: {report.moved_tokens}, by {offsets}; first differing id {report.first_difference}"
    of_texts = "no probe text" if report.coverage_of_texts is None else f"{report.coverage_of_texts:.1%} in probe texts"
    coverage = "not known" if report.coverage is None else f"{report.coverage:.1%} of the target's tokens, {of_texts}"
    yield f"the draft can propose: {coverage}"
    if report.texts:
        yield f"probe texts split alike: {report.texts_alike} of {report.texts}"
    sizes = f"{_size(report.target_rows)} in the target, {_size(report.draft_rows)} in the draft"
    yield f"vocab_size: {sizes}{' (padding only)' if report.padding_only else ''}"
    if report.target_holes or report.draft_holes:
        yield f"ids without a token: {report.target_holes} in the target, {report.draft_holes} in the draft"


def _label(finding: Finding) -> str:
    return "note" if finding.severity is Severity.NONE else finding.severity.value


def _group(counts: Group) -> str:
    sizes = f"{counts.target} in the target, {counts.draft} in the draft"
    return f"{counts.same_id} of {counts.shared} shared have the same id ({sizes})"


def _size(rows: int | None) -> str:
    return "not known" if rows is None else str(rows)
