"""The speculative half of the configuration: k, the draft, and the batch-size rule.

vLLM 0.32 chooses k per step from `num_speculative_tokens_per_batch_size`, a table of
`[first batch size, last batch size, k]` with both ends included; batch size is the number of
requests scheduled in that step, k = 0 is speculation off, sizes beyond the table keep its last k.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from .options import is_integer, shown

METHODS = (
    "draft_model",
    "eagle",
    "eagle3",
    "mtp",
    "ngram",
    "ngram_gpu",
    "suffix",
    "medusa",
    "mlp_speculator",
    "dflash",
    "dspark",
    "extract_hidden_states",
    "custom_class",
)
"""vLLM 0.32's methods; the older `<model>_mtp` names are accepted beside them."""

WITHOUT_DRAFT = frozenset({"mtp", "ngram", "ngram_gpu", "suffix", "dspark", "extract_hidden_states"})
"""Methods that need no `model`: they draft from the text so far or from the target's own weights."""

OWN_LENGTH = frozenset({"mtp", "suffix", "dspark", "dflash", "medusa", "mlp_speculator"})
"""Methods that know k from their checkpoint or have a default."""

FIXED_LENGTH = frozenset({"suffix", "medusa", "ngram_gpu", "extract_hidden_states"})
"""Methods whose proposer asserts the configured k, so that a batch-size table would end the engine."""


def family(method: str | None) -> str | None:
    """`mtp` for all of vLLM's `<model>_mtp` names, else the method itself."""
    return "mtp" if method and method.endswith("_mtp") else method


def detected_method(given: str | None, draft: str | None) -> str | None:
    """The method vLLM will use, as far as the file tells.

    vLLM takes `draft_model` when nothing is said, unless the checkpoint turns out to be a head of
    another kind, which its name usually tells.
    """
    if given or not draft:
        return family(given)
    name = draft.lower()
    if name in ("ngram", "[ngram]"):
        return "ngram"
    return next(
        (kind for kind in ("eagle3", "eagle", "medusa", "dflash", "dspark", "mtp") if kind in name),
        "draft_model",
    )


def batch_table(k: int, smallest: int | None, largest: int | None, max_num_seqs: int) -> list[list[int]]:
    """vLLM's table for speculation with `k` tokens at batch sizes `smallest` to `largest` only.

    >>> batch_table(4, 9, None, 256)
    [[1, 8, 0], [9, 256, 4]]
    >>> batch_table(4, None, 8, 256)
    [[1, 8, 4], [9, 256, 0]]
    """
    first, last = smallest or 1, min(largest or max_num_seqs, max_num_seqs)
    rows = [[1, first - 1, 0], [first, last, k], [last + 1, max_num_seqs, 0]]
    return [row for row in rows if row[0] <= row[1]]


def table_problem(table: Sequence[Any], k: int | None) -> str | None:
    """What vLLM would dislike in a table written by hand; None when it is fine."""
    end = 0
    for row in table:
        if not (isinstance(row, list) and len(row) == 3 and all(is_integer(cell) for cell in row)):
            return f"row {shown(row)} must be [first batch size, last batch size, k]"
        first, last, tokens = row
        if end == 0 and first != 1:
            return f"row {row} must start at 1"
        if first <= end:
            return f"row {row} overlaps the row before it"
        if last < first:
            return f"row {row} ends before it starts"
        if tokens < 0 or (k is not None and tokens > k):
            return f"row {row}: k must be between 0 and num_speculative_tokens ({k})"
        end = last
    return None


def method_problem(method: str) -> str | None:
    """An unknown method, with the nearest known one; None when vLLM has it."""
    if method in METHODS or method.endswith("_mtp"):
        return None
    close = difflib.get_close_matches(method, METHODS, 1)
    hint = f"did you mean {close[0]}?" if close else f"vLLM 0.32 knows {', '.join(METHODS)}"
    return f"{shown(method)} is not a speculative method; {hint}"


def completeness(method: str | None, draft: str | None, k: int | None, named: Mapping[str, str]) -> list[str]:
    """What is missing for speculation to work; `named` gives each setting as the file spells it."""
    problems = []
    if draft is None and method not in WITHOUT_DRAFT:
        known = (
            named.get("num_speculative_tokens")
            or named.get("method")
            or next(iter(named.values()), "speculative_config")
        )
        problems.append(
            f"{known} asks for speculation but there is no draft model: add speculative_model: PATH, "
            "or method: ngram inside speculative_config, or delete the speculative keys"
        )
    elif k is None and method not in OWN_LENGTH:
        known = named.get("model") or named.get("method") or "speculative_config"
        problems.append(f"{known} is set but num_speculative_tokens is not: add num_speculative_tokens: 4")
    return problems
