"""How the pair that is served stands by its files, and what the target said that is in none of them."""

import logging
from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from ..drafts import Step
from .report import Report, Severity, Verdict

_log = logging.getLogger(__name__)


class Standing:
    """Starts, and starts anew with each other pair, as unknown."""

    def __init__(self) -> None:
        self.reset("no engine has told its models yet")

    def reset(self, reason: str, ids: int = 0) -> None:
        """Forget; `reason` says why nothing is known. `ids`: how many the target's tokenizer has, 0: not known."""
        self._checked: Report | str = reason
        self._ids = ids
        self._beyond = 0

    def take(self, checked: Report | str) -> None:
        """The report, or why there is none."""
        self._checked = checked
        if isinstance(checked, str):
            _log.info("tokenizers: not compared by their files: %s", checked)
            return
        _log.info(
            "tokenizers: %s by their files: of the target's %d tokens %d have the same id in the draft",
            checked.verdict,
            checked.ordinary.target + checked.special.target,
            checked.ordinary.same_id + checked.special.same_id,
        )
        for finding in checked.findings:
            level = logging.INFO if finding.severity is Severity.NONE else logging.WARNING
            _log.log(level, "tokenizers: %s: %s", finding.severity, finding.sentence)

    def look(self, steps: Sequence[Step]) -> None:
        """A model has room for more ids than its tokenizer has tokens; what it says with these is no text."""
        if not self._ids:
            return
        beyond = [most for _, emitted in steps if (most := max(emitted, default=-1)) >= self._ids]
        if beyond and not self._beyond:
            _log.warning("tokenizers: the target said id %d, its tokenizer ends at %d", beyond[0], self._ids - 1)
        self._beyond += len(beyond)

    @property
    def critical(self) -> str | None:
        """Why drafts are rejected in nearly every reply; None where that is not so, or not known."""
        if isinstance(self._checked, Report) and self._checked.severity is Severity.CRITICAL:
            return self._checked.findings[0].sentence
        return None

    def state(self) -> dict[str, Any]:
        """`StaticCheck` of the API, but for what is counted live."""
        checked = self._checked
        if isinstance(checked, str):
            found: dict[str, Any] = {
                "verdict": Verdict.UNKNOWN,
                "severity": None,
                "sentences": [checked],
                "report": None,
            }
        else:
            found = {
                "verdict": checked.verdict,
                "severity": checked.severity,
                "sentences": [each.sentence for each in checked.findings],
                "report": to_builtins(checked),
            }
        return found | {"unknown_ids": self._beyond if self._ids else None}
