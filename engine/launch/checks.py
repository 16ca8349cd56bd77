"""Settings that must agree with each other: each fault names both keys and the remedy."""

from __future__ import annotations

from typing import Any

from .gather import Gathered
from .options import devices
from .speculation import FIXED_LENGTH, batch_table, completeness, method_problem, table_problem

_SMALLEST, _LARGEST = "speculation_min_batch_size", "speculation_max_batch_size"
_OFF_UP_TO = "speculative_disable_by_batch_size"
_TABLE = "num_speculative_tokens_per_batch_size"


def check_speculation(
    found: Gathered, speculative: dict[str, Any], method: str | None, target: dict[str, Any]
) -> int | None:
    """Record the faults of the speculative settings and add the batch-size table to `speculative`.

    Returns the smallest batch size that speculates; None when there is no rule.
    """
    rules = {
        name: value for name in (_SMALLEST, _LARGEST, _OFF_UP_TO) if (value := found.value("launch", name)) is not None
    }
    if not found.speculates and not rules:
        return None
    spelled = {name: str(found.entry("speculative", name)) for name in speculative}
    k = speculative.get("num_speculative_tokens")
    # A draft or a k that failed its own check is told once, not called missing as well.
    draft_told = found.has("speculative", "model") and not speculative.get("model")
    k_told = found.has("speculative", "num_speculative_tokens") and k is None
    if not draft_told and not k_told:
        named = spelled or {name: str(found.entry("launch", name)) for name in rules}
        for problem in completeness(method, speculative.get("model"), k, named):
            found.fault(found.first_speculative_line, problem)
    if "method" in speculative and (wrong := method_problem(speculative["method"])):
        found.fault(found.entry("speculative", "method").line, f"{spelled['method']}: {wrong}")
    _check_parallel(found, speculative, method, target)
    return _check_batch_sizes(found, speculative, method, target, rules)


def check_devices(found: Gathered, target: dict[str, Any]) -> None:
    """Enough devices for the parallel size."""
    ids = devices(found.value("launch", "gpu_devices")) if found.has("launch", "gpu_devices") else None
    needed = target.get("tensor_parallel_size", 1) * target.get("pipeline_parallel_size", 1)
    if ids and len(ids) < needed:
        entry = found.entry("launch", "gpu_devices")
        found.fault(
            entry.line,
            f"{entry} names {len(ids)} device{'s' if len(ids) > 1 else ''} but tensor_parallel_size x "
            f"pipeline_parallel_size is {needed}: name {needed} devices or lower the parallel size",
        )


def _check_parallel(found: Gathered, speculative: dict[str, Any], method: str | None, target: dict[str, Any]) -> None:
    parallel = target.get("tensor_parallel_size", 1)
    draft = speculative.get("draft_tensor_parallel_size", parallel)
    if draft == parallel or (draft == 1 and method != "draft_model"):
        return
    entry = found.entry("speculative", "draft_tensor_parallel_size")
    found.fault(
        entry.line,
        f"{entry} is {draft} but tensor_parallel_size is {parallel}: vLLM 0.32 needs both equal"
        f"{' for a draft model' if method == 'draft_model' else ', or 1'}; write {parallel} or leave it out",
    )


def _check_batch_sizes(
    found: Gathered,
    speculative: dict[str, Any],
    method: str | None,
    target: dict[str, Any],
    rules: dict[str, int],
) -> int | None:
    table = found.entry_or_none("speculative", _TABLE)
    entries = [found.entry("launch", name) for name in rules] + ([table] if table else [])
    if not entries:
        return None
    line, written = entries[-1].line, " and ".join(map(str, entries))
    k = speculative.get("num_speculative_tokens")
    if method in FIXED_LENGTH:
        found.fault(line, f"{written}: method {method} always drafts num_speculative_tokens; delete the rule")
    if target.get("data_parallel_size", 1) > 1:
        found.fault(line, f"{written}: vLLM drops the rule when data_parallel_size > 1; run one engine per rank")
    if table and rules:
        found.fault(line, f"{written} say the same thing twice; keep one of them")
        return None
    if table:
        if wrong := table_problem(table.value, k):
            found.fault(line, f"{table}: {wrong}")
            return None
        return next((row[0] for row in table.value if row[2] > 0), None)
    smallest, largest = _band(found, rules, written, line)
    limit = target["max_num_seqs"]
    if smallest > limit:
        found.fault(
            line,
            f"{written}: speculation needs a batch of {smallest} requests but max_num_seqs is {limit}, so it "
            "would never run; lower the rule or raise max_num_seqs",
        )
    if k is not None and not found.problems:
        speculative[_TABLE] = batch_table(k, smallest, largest, limit)
    return smallest


def _band(found: Gathered, rules: dict[str, int], written: str, line: int) -> tuple[int, int | None]:
    """The first and last batch size that speculate, with the faults of a rule against itself."""
    smallest, largest, off_up_to = rules.get(_SMALLEST), rules.get(_LARGEST), rules.get(_OFF_UP_TO)
    if off_up_to is not None:
        found.notes.append(
            f"{_OFF_UP_TO}: {off_up_to} turns speculation OFF at batch sizes 1 to {off_up_to} "
            f"(vLLM's old flag of this name meant off above it: {_LARGEST})"
        )
        if smallest not in (None, off_up_to + 1):
            found.fault(
                line,
                f"{written} contradict each other: {_OFF_UP_TO}: {off_up_to} means {_SMALLEST}: "
                f"{off_up_to + 1}; keep one",
            )
        if largest is not None:
            found.fault(
                line,
                f"{written} point in both directions: off up to {off_up_to} and off above {largest}; "
                f"if you mean that band, write {_SMALLEST}: {off_up_to + 1} instead of {_OFF_UP_TO}",
            )
        smallest = off_up_to + 1
    smallest = smallest or 1
    if largest is not None and smallest > largest:
        found.fault(
            line,
            f"{written} leave no batch size that speculates: the smallest must not exceed the largest",
        )
    return smallest, largest
