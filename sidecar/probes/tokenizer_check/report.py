"""What the check found."""

from enum import StrEnum

import msgspec


class Verdict(StrEnum):
    ALIGNED = "aligned"
    MISALIGNED = "misaligned"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    """In rising order. From high on, drafts are rejected that were right; a warning costs some acceptance at most."""

    NONE = "none"
    WARNING = "warning"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


class Finding(msgspec.Struct, frozen=True):
    severity: Severity
    sentence: str


class Group(msgspec.Struct, frozen=True):
    """Special tokens, or all others: how many each model has, how many both, and how many of those by one id."""

    target: int
    draft: int
    shared: int
    same_id: int


class OtherId(msgspec.Struct, frozen=True):
    """A token of both models that has another id in the draft than in the target."""

    text: str
    target_id: int
    draft_id: int
    special: bool


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Of one target and one draft. Shares are 0..1."""

    verdict: Verdict
    severity: Severity
    #: The worst first; none where there is nothing to say.
    findings: list[Finding]
    ordinary: Group
    special: Group
    moved_tokens: int
    #: Special ones first, then by the target's id; at most 100.
    moved: list[OtherId]
    #: Draft id - target id of the moved tokens, with counts; the five most frequent.
    offsets: list[tuple[int, int]]
    #: The smallest id that stands for one token in the target and for another in the draft.
    first_difference: int | None
    #: Share of the target's tokens that the draft can propose by the right id, or by the engine's map; None where
    #: that cannot be told.
    coverage: float | None
    #: The same of the tokens of the probe texts, which are not all alike rare; None where they cannot be encoded.
    coverage_of_texts: float | None
    #: The same tokens by the same ids; only the sizes in the configurations differ.
    padding_only: bool
    #: vocab_size of the configurations.
    target_rows: int | None
    draft_rows: int | None
    #: Ids below the largest that stand for no token.
    target_holes: int
    draft_holes: int
    #: Probe texts, and those that both split alike.
    texts: int
    texts_alike: int
