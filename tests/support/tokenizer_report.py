"""A report of the check of two tokenizers, as `specwatch tokenizers --json` prints it."""

from typing import Any

from msgspec import to_builtins

from sidecar.probes.tokenizer_check.report import Finding, Group, OtherId, Report, Severity, Verdict

MOVED = Finding(
    Severity.HIGH, "1 of 4 special tokens that both have are known to the draft by another id: '<|eot|>' is 4."
)
NOTE = Finding(Severity.NONE, "The chat templates differ.")


def report(**changes: Any) -> dict[str, Any]:
    """Of two tokenizers that differ in one special token."""
    whole: dict[str, Any] = {
        "verdict": Verdict.MISALIGNED,
        "severity": Severity.HIGH,
        "findings": [MOVED, NOTE],
        "ordinary": Group(2044, 2044, 2044, 2044),
        "special": Group(4, 4, 4, 3),
        "moved_tokens": 1,
        "moved": [OtherId("<|eot|>", 4, 5, True)],
        "offsets": [(1, 1)],
        "first_difference": 4,
        "coverage": 0.9999,
        "coverage_of_texts": None,
        "padding_only": False,
        "target_rows": 2048,
        "draft_rows": None,
        "target_holes": 0,
        "draft_holes": 1,
        "texts": 5,
        "texts_alike": 4,
    }
    made: dict[str, Any] = to_builtins(Report(**whole | changes))
    return made
