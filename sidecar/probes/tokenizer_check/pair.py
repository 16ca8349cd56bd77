"""Two vocabularies beside each other: what both have, and by which ids. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise

from ..vocabulary import NoVocabulary
from .corpus import CORPUS
from .files import Model
from .report import Group, OtherId

#: Two vocabularies are of one family if half of what both have has one id in both; or, where ids are moved, if so much
#: of the smaller is in the other, and so many of the tokens that follow each other in the one do so in the other.
#: Versions of one family share all but some reserved tokens, in the same order; of 12 pairs of two public families none
#: shared more than 0.87, but for Gemma 3, which has 0.98 of Mistral's tokens, half of them in order, as chance has it.
FAMILY_SHARE, FAMILY_ORDER = 0.95, 0.9
#: How the two kinds of vocabularies write the space before a word.
_MARKERS = ("Ġ", "▁")
#: What families call tokens that they keep free, as <|reserved_special_token_5|>, [unused5], <SPECIAL_5>. When some of
#: them are named, the others move up (Llama 3 and 3.1), which changes nothing, as no text holds them.
_RESERVED = re.compile(r"[<\[].*(reserved|unused|placeholder|dummy|(extra|special)_\d).*[>\]]", re.IGNORECASE)
#: Special tokens that are made a probe text.
_MOST_SPECIAL = 64


class Pair:
    """`mapped` as of `compare.compare`."""

    def __init__(self, target: Model, draft: Model, mapped: bool | None) -> None:
        """Raises NoVocabulary where the target has no tokens."""
        if not target.tokens:
            raise NoVocabulary("the target's tokenizer holds no tokens")
        self.target, self.draft, self.mapped = target, draft, mapped
        self.of_target = target.tokens
        self.of_draft = target.tokens if draft.tokens is None else draft.tokens
        if draft.table is not None and max(self.of_draft.values(), default=0) < len(draft.table.targets):
            # The draft's tokenizer is pruned as well.
            self.of_draft = {text: draft.table.targets[number] for text, number in self.of_draft.items()}
        if mapped:
            self.of_target, self.of_draft = _unmarked(self.of_target), _unmarked(self.of_draft)
        self.shared = self.of_target.keys() & self.of_draft.keys()
        self.special_texts = target.special | draft.special
        self.texts, self.draft_texts = _by_id(self.of_target), _by_id(self.of_draft)

    @cached_property
    def moved(self) -> list[OtherId]:
        """Special ones first, then by the target's id; none where the engine maps them."""
        of_target, of_draft = self.of_target, self.of_draft
        found = [
            OtherId(text, of_target[text], of_draft[text], text in self.special_texts)
            for text in self.shared
            if of_target[text] != of_draft[text] and not self.mapped
        ]
        return sorted(found, key=lambda each: (not each.special, each.target_id))

    @cached_property
    def ordinary(self) -> Group:
        return self._group(special=False)

    @cached_property
    def special(self) -> Group:
        return self._group(special=True)

    def _group(self, *, special: bool) -> Group:
        target, draft, shared = (
            sum((text in self.special_texts) is special for text in texts)
            for texts in (self.of_target, self.of_draft, self.shared)
        )
        return Group(target, draft, shared, shared - sum(each.special is special for each in self.moved))

    @cached_property
    def one_family(self) -> bool:
        counts = self.ordinary
        if counts.same_id > counts.shared / 2:
            return True
        shared = sorted(self.shared - self.special_texts, key=self.of_target.__getitem__)
        rising = sum(self.of_draft[one] < self.of_draft[other] for one, other in pairwise(shared))
        in_order = rising >= FAMILY_ORDER * (len(shared) - 1)
        return in_order and counts.shared >= FAMILY_SHARE * min(counts.target, counts.draft)

    @cached_property
    def other_meaning(self) -> list[int]:
        """Ids by which the draft means a token that the target lacks, and the target another."""
        known = self.of_target.keys()
        return sorted(number for text, number in self.of_draft.items() if text not in known and number in self.texts)

    def is_special(self, draft_id: int) -> bool:
        return self.draft_texts[draft_id] in self.special_texts

    @property
    def first_difference(self) -> int | None:
        """The smallest id that stands for a token of both in one alone, or for two different tokens."""
        moved = (min(each.target_id, each.draft_id) for each in self.moved)
        return min([*moved, *self.other_meaning[:1]], default=None)

    @property
    def missing(self) -> list[str]:
        """Special tokens of the target that the draft does not have, by id."""
        return sorted(self.target.special - self.of_draft.keys(), key=lambda text: self.of_target.get(text, 0))

    @property
    def pruned_to(self) -> int | None:
        """Size of a draft vocabulary that needs a table; None where it is the target's."""
        rows = self.draft.pruned_rows
        if self.draft.table is not None:
            return len(self.draft.table.targets)
        # What is cut off behind the last token is padding.
        return rows if rows is not None and rows <= max(self.texts) else None

    @cached_property
    def reachable(self) -> set[int] | None:
        """The target's ids that the draft can propose and mean; None where that cannot be told."""
        of_target, of_draft, table = self.of_target, self.of_draft, self.draft.table
        by_text = self.mapped or (self.mapped is None and not self.one_family)
        found = {of_target[text] for text in self.shared if by_text or of_target[text] == of_draft[text]}
        if table is not None:
            return found & set(table.targets)
        return None if self.pruned_to is not None else found

    @cached_property
    def coverage_of_texts(self) -> float | None:
        if self.reachable is None:
            return None
        ids = [number for text in CORPUS.values() for number in self.target.encode(text)]
        return sum(number in self.reachable for number in ids) / len(ids) if ids else None

    def splits(self) -> dict[str, bool]:
        """Whether both split each probe text into the same tokens, whatever their ids; empty where one cannot."""
        special = [text for text in self.target.special & self.draft.special if self._one_token(text)]
        texts = CORPUS | ({"special tokens": "x".join(sorted(special)[:_MOST_SPECIAL])} if special else {})
        target, draft = (_by_id(model.tokens or {}) for model in (self.target, self.draft))
        return {
            name: [target.get(each) for each in ids] == [draft.get(each) for each in others]
            for name, text in texts.items()
            if (ids := self.target.encode(text)) and (others := self.draft.encode(text))
        }

    def _one_token(self, text: str) -> bool:
        """Tokens of tokenizer_config.json alone are unknown to `encode`."""
        return len(self.target.encode(text)) == len(self.draft.encode(text)) == 1


def is_reserved(text: str) -> bool:
    """Whether a token is one that nobody says, by its name."""
    return _RESERVED.fullmatch(text) is not None


def _by_id(tokens: Mapping[str, int]) -> dict[int, str]:
    return {number: text for text, number in tokens.items()}


def _unmarked(tokens: Mapping[str, int]) -> dict[str, int]:
    """With a plain space for the vocabulary's own marker; of two tokens that are one then, the first."""
    marker = max(_MARKERS, key=lambda each: sum(text.startswith(each) for text in tokens))
    found: dict[str, int] = {}
    for text, number in tokens.items():
        found.setdefault(" " + text[1:] if text.startswith(marker) else text, number)
    return found
